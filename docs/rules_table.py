"""Writes docs/rules_table.md, the rules that ship by family, from their verdicts on file.

python -m docs.rules_table [another.md]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from relax_eg.rules import Rule, RuleSet, book
from relax_eg.rules.checking.certificates import status

DOCUMENT = Path(__file__).parent / "rules_table.md"

# What a family is about; the order of the table.
FAMILIES = {
    "contraction": "products of matrices: associativity, distribution, diagonals, low rank, rows taken early",
    "blocks": "products of parts: concatenated operands, Kronecker products, sums in which a product hides",
    "convolution": "convolution and pooling: linearity, channels, kernels of one element, folding into weights",
    "attention": "normalisation and attention: rows scaled, softmax, norms folded into weights, shared heads",
    "reduction": "sums and extremes: of sums, of products, of what is moved, joined or scaled",
    "elementwise": "scalars: signs, factors, exponentials, comparisons, choices, limits, conversions",
    "movement": "transposes, reshapes, broadcasts, slices, paddings and concatenations",
    "values": "laws that hold where facts about values do",
    "orders": "sorts, running sums and extremes, places of values",
    "traced": "what jax.numpy, jax.nn and jax.scipy trace, and what autodiff writes of it",
    "systems": "linear systems: inverses not taken, solved by what is known of the matrix",
    "recognised": "operators that no trace has, in what JAX traces for them; searched where a user's rule asks for one",
    "layout": "how weights lie in memory",
    "libraries": "library calls, and the ways in which people write what they compute (docs/libraries.md)",
}
# Operators that add up, or take an extreme, over an axis.
_OVER_AXES = frozenset(
    ("matmul", "linear", "conv", "sum", "prod", "max", "min", "mean", "any", "all", "reduce_window", "softmax",
     "log_softmax", "layer_norm", "rms_norm", "argmax", "argmin", "cumsum")
)  # fmt: skip


def laws(rules: Iterable[Rule]) -> list[Rule]:
    """One rule for each law: without reversed twins, and without further variants, over operators, sides or dtypes, of
    a rule that one function states."""
    found: dict[object, Rule] = {}
    for r in rules:
        if not r.reverse:
            found.setdefault(r.function.__code__ if _is_variant(r) else r.name, r)
    return list(found.values())


def _is_variant(rule: Rule) -> bool:
    return "variants" in rule.tags


def is_over_axes(rule: Rule) -> bool:
    """Whether a contraction or a reduction takes part."""
    return bool(rule.left_operators & _OVER_AXES)


def table() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# The rules that ship"
    yield ""
    yield "Written by `python -m docs.rules_table`. A law counts once: its other direction and its variants over"
    yield "operators, operands' sides or dtypes do not. *Proved* is for all sizes. An *axiom* is an identity of"
    yield "arithmetic that the prover itself takes for true: it is tested at all values of small dtypes where these"
    yield "are few enough (at most 16 bits for all variables together), and at all special values of the others."
    yield "What is neither is tested, and says so. Routines of cuDNN run on NVIDIA's GPUs alone, and where this"
    yield "table is written there is none: their rules have no verdict, which only a run gives. What can be told"
    yield "without a device is told by tests: that `jax.nn`, through XLA, computes these patterns from the same"
    yield "operands, and what JAX lowers them to for CUDA. A routine is checked against its pattern when a program"
    yield "first calls it on a device. Laws that no pattern states are [at the end](#general-laws)."
    yield ""
    columns = ("laws", "proved", "axioms", "tested", "with contraction or reduction", "of these proved", "rules in all")
    yield f"| family | {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|---|---|"
    totals = [0] * len(columns)
    for name in FAMILIES:
        rules: RuleSet = getattr(book, name)
        counted = laws(rules)
        proved, axioms = ({r.name for r in counted if status(r).status == s} for s in ("proved", "axiom"))
        heavy = [r for r in counted if is_over_axes(r)]
        figures = [
            len(counted), len(proved), len(axioms), len(counted) - len(proved) - len(axioms), len(heavy),
            sum(r.name in proved for r in heavy), len(rules),
        ]  # fmt: skip
        totals = [a + b for a, b in zip(totals, figures, strict=True)]
        yield f"| [{name}](#{name}) | {' | '.join(map(str, figures))} |"
    yield f"| all | {' | '.join(map(str, totals))} |"
    for name, about in FAMILIES.items():
        yield ""
        yield f"## {name}"
        yield ""
        yield f"{about[0].upper()}{about[1:]}."
        yield ""
        yield "| rule | law | |"
        yield "|---|---|---|"
        for r in laws(getattr(book, name)):
            verdict = status(r)
            how = f"proved, {verdict.theory}" if verdict.status == "proved" else verdict.status
            if verdict.every:
                how += f", all values of {verdict.every}"
            if verdict.status == "missing":
                how = "no verdict: not run here (see above)"
            twin = ", both ways" if f"{r.name}_reversed" in getattr(book, name) else ""
            text = " ".join(r.doc.split()).replace("|", "\\|").replace("[", "\\[")  # no links
            yield f"| `{r.name}` | {text} | {how}{twin} |"
    yield from _general_laws()


def _general_laws() -> Iterator[str]:
    """The schemas of all sets, each in the first set that has it."""
    yield ""
    yield "## general laws"
    yield ""
    yield "Laws that no pattern states: a function proposes equal expressions for the nodes of a program. All of them"
    yield "are tested on programs that are drawn for them. Where a row says *each use proved*, a proposal that the"
    yield "prover does not show equal is refused besides; *or compared*: it is then made again and compared."
    yield ""
    yield "| rule | set | law | |"
    yield "|---|---|---|---|"
    seen = set[str]()
    for name in sorted(set(book.__all__) - {"default", "algebra"}):
        for schema in getattr(book, name).schemas:
            if schema.name not in seen:
                seen.add(schema.name)
                shown = "each use proved" + ("" if schema.must_prove else ", or compared")
                how = [status(schema).status, *([shown] if schema.prove else [])]
                text = " ".join(schema.doc.split()).replace("|", "\\|").replace("[", "\\[")
                yield f"| `{schema.name}` | `{name}` | {text} | {'; '.join(how)} |"


if __name__ == "__main__":
    Path(*sys.argv[1:2] or [DOCUMENT]).write_text(table(), encoding="utf-8")
