"""Advice on the shipped rule sets that rewrite a given operator to other operators."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.ir.expr import postorder
from relax_eg.rules import book
from relax_eg.rules.rule import instances
from relax_eg.rules.rule_set import RuleSet


def advice(operators: Sequence[str], used: RuleSet) -> str:
    """A text about how to get executable forms of `operators`, which nothing can execute. It names the shipped rule
    sets with a rule, not among the `used` ones, that computes the same without the operator."""
    known = {r.name for r in (*used, *used.schemas)}
    rewritten = {name: _rewritten(getattr(book, name), known) for name in book.__all__}
    texts: list[str] = []
    for op in operators:
        # If the default set has such a rule, its parts need not be named.
        found = [name for name, ops in rewritten.items() if op in ops]
        names = ["default"] if "default" in found else found
        if names:
            sets = f"rule set{'s' * (len(names) > 1)} {', '.join(f'rules.{name}' for name in names)}"
            texts.append(f"{sets} would supply other forms of {op}: rules=... + rules.{names[0]}")
        else:
            texts.append(f"no other rule set that ships has other forms of {op}: a rule of your own would supply one")
    return "; ".join(texts)


def _rewritten(rules: RuleSet, known: set[str]) -> set[str]:
    """The operators that a rule, not among the `known` ones, rewrites to an expression without them, and the operators
    of schemas that are not `known`."""
    found = {op for s in rules.schemas if s.name not in known for op in s.operators}
    for r in (r for r in rules if r.name not in known):
        smallest = next(iter(instances(r, limit=1)), None)
        for left, right in zip(smallest.left, smallest.right, strict=True) if smallest is not None else ():
            if all(e.op != left.op for e in postorder((right,))):
                found.add(left.op)
    return found
