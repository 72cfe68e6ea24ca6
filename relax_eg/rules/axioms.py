"""Application of the formal checker to a tested rule: the rule is proved, or restates an axiom of that checker.

Axioms have no proof, so they are tested as completely as possible: at every value of small dtypes if these are few
enough, and at special values of the other dtypes (`check`).
"""

from __future__ import annotations

from dataclasses import replace

from relax_eg.rules.check import Verdict
from relax_eg.rules.hypotheses import under_hypotheses
from relax_eg.rules.instances import instances
from relax_eg.rules.judge import failing, same_bits
from relax_eg.rules.rule import Rule
from relax_eg.rules.samples import special
from relax_eg.rules.suspects import suspects_among_all
from relax_eg.rules.witness import witness

# Float types of which all values of one variable can be tested; of the first, all values of two variables.
_SMALL_FLOATS = ("float8_e5m2", "float16", "bfloat16")
_INSTANCES = 3  # limit: instances per dtype, which differ in rank or attributes


def shown(verdict: Verdict, rule: Rule) -> tuple[Verdict | None, str]:
    """The "tested" `verdict` raised to "proved" or "axiom", with an empty text; None, with the reason, if the formal
    checker shows neither. An axiom may turn out refuted."""
    from relax_eg.rules.verify_formal import prove_rule  # imports z3, which nothing else here needs

    proof = prove_rule(rule)
    if proof.status == "unknown":
        return None, proof.reason
    seconds = verdict.seconds + proof.seconds
    raised = replace(verdict, theory=proof.theory or "", ranks=proof.ranks, untested="", seconds=seconds)
    return (at_all_values(raised, rule) if proof.status == "axiom" else replace(raised, status="proved")), ""


def at_all_values(verdict: Verdict, rule: Rule) -> Verdict:
    """`verdict` with status "axiom" and the dtypes of which every value was tested; a verdict "refuted" if one of these
    values is a counterexample."""
    tried: dict[str, None] = {}
    samples = verdict.samples
    for dtype in _SMALL_FLOATS if rule.has_open_dtype else (None,):
        for instance in instances(rule, _INSTANCES, dtypes=dtype and (dtype,)):
            count, suspects = suspects_among_all(instance)
            samples += count
            if count:
                tried.update(dict.fromkeys(p.dtype for p in instance.params))
            for index, case in enumerate(suspects):
                failure = failing(same_bits, case)
                if failure is not None:
                    found = witness(case, failure, same_bits, under_hypotheses(special), index)
                    return Verdict(rule, "refuted", samples, found, verdict.seconds, str(found))
    return replace(verdict, status="axiom", samples=samples, every=", ".join(tried))
