"""The parts of an explanation, and the check that they belong together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from relax_eg.errors import ExplanationError
from relax_eg.explain.steps import Equation, Goal, equations_of, goals_in_order
from relax_eg.ir.calls import callees_first, inline_call
from relax_eg.ir.expr import CALL, FUNCTION, Expr, postorder, rebuild, tuple_
from relax_eg.ir.heads import with_operands
from relax_eg.ir.module import Block, Function, Module
from relax_eg.ir.origin import Origins
from relax_eg.rules import RuleSet
from relax_eg.shapes import Scope


@dataclass(frozen=True)
class DerivationPart:
    """One block of a function in a derivation.

    - `function`: name of the function.
    - `block`: index of the block.
    - `results`: a goal for each of its bindings, from the value as written to the one chosen.
    - `forms`: such goals for other forms of the function, from which rules about functions made expressions.
    """

    function: str
    block: int
    results: tuple[Goal, ...]
    forms: tuple[tuple[Goal, ...], ...] = ()

    @cached_property
    def goals(self) -> list[Goal]:
        """Every goal, each after the goals it uses."""
        return goals_in_order(g for goals in (self.results, *self.forms) for g in goals)

    @cached_property
    def equations(self) -> list[Equation]:
        """Every use of a rule once."""
        return equations_of(self.goals)


@dataclass(frozen=True)
class Derivation:
    """A derivation from a program as written to the one chosen for it.

    - `name`: name of the program.
    - `written`: the program as written.
    - `shared`: the same program with repeated blocks as calls.
    - `chosen`: the chosen program.
    - `functions`: every function that a step mentions, as chosen, by name.
    - `parts`: why each block of `shared` equals that of `functions`, for the blocks that differ.
    - `rules`: the rules that were allowed.
    - `numerics`: the numerics classes that were allowed.
    - `scope`: what is assumed of sizes.
    - `facts`: facts of the parameters of the entry, by name.
    """

    name: str
    written: Module
    shared: Module
    chosen: Module
    functions: Mapping[str, Function]
    parts: tuple[DerivationPart, ...]
    rules: RuleSet
    numerics: tuple[str, ...]
    scope: Scope
    facts: Mapping[str, frozenset[str]]

    @cached_property
    def origins(self) -> dict[str, Origins]:
        """The origins of the expressions as written, by function."""
        return {f.name: f.origins for f in self.shared}

    def check_structure(self) -> None:
        """Raises ExplanationError unless inlining repeated blocks gives the program as written, and the parts lead from
        one program to the other. O(size of the programs and goals)."""
        self._check_outlined()
        done = {(p.function, p.block): p for p in self.parts}
        for f in self.shared:
            best = self.functions.get(f.name)
            if best is None:
                continue
            if replace(best, blocks=f.blocks) != f or len(best.blocks) != len(f.blocks):
                raise ExplanationError(f"{self.name}: `{f.name}` was chosen with another signature or other blocks")
            for n, (old, new) in enumerate(zip(f.blocks, best.blocks, strict=True)):
                self._check_block(f.name, n, old, new, done.pop((f.name, n), None))
        if done:
            raise ExplanationError(f"{self.name}: there is no block {sorted(done)[0]} in the program as written")
        for f in self.chosen:
            if self.functions.get(f.name) != f:
                raise ExplanationError(f"{self.name}: the derivation leads to another function `{f.name}` than chosen")
        if self.chosen.main.name != self.shared.main.name:
            raise ExplanationError(f"{self.name}: the chosen program starts with `{self.chosen.main.name}`")

    def _check_block(self, name: str, n: int, old: Block, new: Block, part: DerivationPart | None) -> None:
        where = f"{self.name}: block {n} of `{name}`"
        named = [b.var for b in old.bindings] == [b.var for b in new.bindings]
        if old.dataflow != new.dataflow or not named:
            raise ExplanationError(f"{where} was chosen with other bindings")
        before, after = [b.value for b in old.bindings], [b.value for b in new.bindings]
        if part is None:
            if before != after:
                raise ExplanationError(f"{where} is another than as written, and no derivation says why")
            return
        if not old.dataflow:
            raise ExplanationError(f"{where} has steps in order; only dataflow blocks are rewritten")
        if [g.start for g in part.results] != before:
            raise ExplanationError(f"{where}: the derivation does not start from the program as written")
        if [g.end for g in part.results] != after:
            raise ExplanationError(f"{where}: the derivation does not end at the chosen program")
        if any([g.start for g in form] != before for form in part.forms):
            raise ExplanationError(
                f"{where}: the derivation of another form does not start from the program as written"
            )

    def _check_outlined(self) -> None:
        """Checks that the shared program, with the calls of outlined functions inlined, is the one as written."""
        names = {f.name for f in self.written}
        made: dict[str, Function] = {}
        for f in callees_first(self.shared):
            plain = replace(f, blocks=tuple(_without_calls(b, made) for b in f.blocks))
            if f.name not in names:
                made[f.name] = plain
            elif plain != self.written[f.name]:
                raise ExplanationError(f"{self.name}: with repeated blocks inlined `{f.name}` is not as written")
        if missing := names - {f.name for f in self.shared}:
            raise ExplanationError(f"{self.name}: `{min(missing)}` of the program as written is missing")
        if self.written.main.name != self.shared.main.name:
            raise ExplanationError(f"{self.name}: the program as written starts with `{self.written.main.name}`")


def _without_calls(block: Block, made: Mapping[str, Function]) -> Block:
    """Returns `block` with the calls of `made` functions inlined."""
    if not any(e.op == FUNCTION and e.attr("name") in made for e in postorder(block.values)):
        return block

    def without(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == CALL and args[0].op == FUNCTION and args[0].attr("name") in made:
            found = inline_call(made[str(args[0].attr("name"))], args[1:])
            return found[0] if len(found) == 1 else tuple_(found)
        return with_operands(e, args)

    return block.with_values(rebuild(block.values, without))
