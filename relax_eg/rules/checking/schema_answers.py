"""Replay of a schema's proposal: `RecordingAnswers` records the answers that a schema gets, and `ReplayedAnswers` gives
them again.

A schema chooses among expressions that are equal to a node by the answers to its queries about the program
(`schemas.ProgramQueries`). To check a proposal, the schema is asked again with the recorded answers and must propose
the same expression. Answers about sizes, memory and parameters known ahead only choose among equal expressions. Forms
of functions are different: a proposal is correct only if they are, so each form must be shown to be equal to the
function as written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from relax_eg.errors import ExplanationError
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function, Module
from relax_eg.rules.schemas import FactsOf, Made, ProgramQueries
from relax_eg.shapes import Dim

# Applies a function of a module to each slice of some of its parameters; None if that cannot be formed.
Batched = Callable[[Module, Function, Sequence[bool], Dim], Function | None]
# The form in which a function was requested.
Form = Literal["best", "outside", "written"]
# The values of a function's bindings in some form.
Values = tuple[Expr, ...]


@dataclass
class Answers:
    """The answers that a schema got.

    - `sizes`: numbers, by question and its subject: a size, or the name of a called function.
    - `large_bytes`: number of bytes from which a value is large.
    - `ahead_params`: for each function, whether each of its parameters is known ahead.
    - `forms`: functions in the requested form; None if that form does not exist.
    """

    sizes: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    large_bytes: float | None = None
    ahead_params: dict[str, tuple[bool, ...]] = field(default_factory=dict[str, tuple[bool, ...]])
    forms: dict[tuple[Form, str], Values | None] = field(default_factory=dict[tuple[Form, str], Values | None])

    def add(self, more: Answers) -> None:
        """Adds answers to the same questions and to others."""
        self.sizes |= more.sizes
        self.ahead_params |= more.ahead_params
        self.forms |= more.forms
        self.large_bytes = self.large_bytes if more.large_bytes is None else more.large_bytes


@dataclass
class RecordingAnswers:
    """A source of answers that records the answers of `queries` in `answers`."""

    queries: ProgramQueries
    answers: Answers = field(default_factory=Answers)

    def readers(self, e: Expr) -> Sequence[Expr]:
        return self.queries.readers(e)

    @property
    def nodes(self) -> Sequence[Expr]:
        return self.queries.nodes

    def is_known_ahead(self, e: Expr) -> bool:
        return self.queries.is_known_ahead(e)

    def facts(self, e: Expr) -> frozenset[str]:
        return self.queries.facts(e)

    def extent(self, size: Dim) -> int:
        return self.answers.sizes.setdefault(("extent", str(size)), self.queries.extent(size))

    def largest_value(self, size: Dim) -> int:
        return self.answers.sizes.setdefault(("most", str(size)), self.queries.largest_value(size))

    def calls(self, name: str) -> int:
        return self.answers.sizes.setdefault(("calls", name), self.queries.calls(name))

    def seconds(self, flops: float, moved: float, contracts: bool) -> float:
        return self.queries.seconds(flops, moved, contracts)

    @property
    def large_bytes(self) -> float:
        self.answers.large_bytes = self.queries.large_bytes
        return self.answers.large_bytes

    def best(self, name: str, outside: bool = False) -> Function | None:
        return self._form("outside" if outside else "best", name, self.queries.best(name, outside))

    def as_written(self, name: str) -> Function | None:
        return self._form("written", name, self.queries.as_written(name))

    def ahead_params(self, name: str) -> Sequence[bool]:
        return self.answers.ahead_params.setdefault(name, tuple(self.queries.ahead_params(name)))

    def once(self, key: Hashable, make: Callable[[ProgramQueries], Made]) -> Made:
        def recorded(queries: ProgramQueries) -> tuple[Made, Answers]:
            asking = RecordingAnswers(queries)
            return make(asking), asking.answers

        made, answers = self.queries.once(key, recorded)
        self.answers.add(answers)
        return made

    def add(self, function: Function, suffix: str) -> Function:
        return self.queries.add(function, suffix)

    def batched(self, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        return self.queries.batched(function, mapped, length)

    def _form(self, form: Form, name: str, found: Function | None) -> Function | None:
        self.answers.forms[form, name] = None if found is None else found.values
        return found


@dataclass
class ReplayedAnswers:
    """A source of answers that replays recorded `answers`.

    - `functions`: functions of the program that contains the proposal, including those that the schema made.
    - `written`: functions as written, by name, without those that a schema made.
    - `nodes`: the nodes of the block as written, operands first.
    - `readers_of`: for these nodes, the nodes that read them.
    - `is_form`: returns whether values are shown to be a form of a function as written.
    - `facts_of`: the facts of expressions.
    - `batching`: applies a function to slices; None if nothing can.

    Raises ExplanationError for a query without a recorded answer, and for a form that is not shown to be one."""

    answers: Answers
    functions: Mapping[str, Function]
    written: Mapping[str, Function]
    nodes: Sequence[Expr]
    readers_of: Mapping[Expr, Sequence[Expr]]
    is_form: Callable[[str, Values], bool]
    facts_of: FactsOf
    batching: Batched | None = None

    def readers(self, e: Expr) -> Sequence[Expr]:
        return self.readers_of.get(e, ())

    def is_known_ahead(self, e: Expr) -> bool:
        raise ExplanationError("asked again, it wants to know what is known ahead, which is not in the derivation")

    def facts(self, e: Expr) -> frozenset[str]:
        return self.facts_of(e)

    def extent(self, size: Dim) -> int:
        return self._number("extent", str(size))

    def largest_value(self, size: Dim) -> int:
        return self._number("most", str(size))

    def calls(self, name: str) -> int:
        return self._number("calls", name)

    def _number(self, question: str, of: str) -> int:
        if (question, of) not in self.answers.sizes:
            wanted = f"how often `{of}` is called" if question == "calls" else f"how large {of} is"
            raise ExplanationError(f"asked again, it wants to know {wanted}, which is not in the derivation")
        return self.answers.sizes[question, of]

    def seconds(self, flops: float, moved: float, contracts: bool) -> float:
        raise ExplanationError("asked again, it wants to know prices, which are not in the derivation")

    @property
    def large_bytes(self) -> float:
        if self.answers.large_bytes is None:
            raise ExplanationError("asked again, it wants to know what is large, which is not in the derivation")
        return self.answers.large_bytes

    def best(self, name: str, outside: bool = False) -> Function | None:
        return self._form("outside" if outside else "best", name)

    def as_written(self, name: str) -> Function | None:
        return self._form("written", name)

    def ahead_params(self, name: str) -> Sequence[bool]:
        found = self.answers.ahead_params.get(name)
        if found is None or len(found) != len(self._function(name).params):
            raise ExplanationError(
                f"asked again, it wants to know which parameters of `{name}` are known ahead, which is not in the "
                "derivation"
            )
        return found

    def once(self, key: Hashable, make: Callable[[ProgramQueries], Made]) -> Made:
        return make(self)

    def add(self, function: Function, suffix: str) -> Function:
        """The function of the program that equals the one that the schema makes now. Raises ExplanationError if there
        is none."""
        stem = f"{function.name}_{suffix}"
        for name, f in self.functions.items():
            if name not in self.written and name.startswith(stem) and replace(f, name=function.name) == function:
                return f
        raise ExplanationError(f"asked again, it makes another function `{stem}` than the derivation has")

    def batched(self, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        if self.batching is None:
            raise ExplanationError(f"nothing here applies `{function.name}` to all slices at once")
        others = (f for name, f in self.functions.items() if name != function.name)
        return self.batching(Module((function, *others)), function, mapped, length)

    def _function(self, name: str) -> Function:
        found = self.written.get(name) or self.functions.get(name)
        if found is None:
            raise ExplanationError(f"asked again, it wants to see a function `{name}`, which the derivation has not")
        return found

    def _form(self, form: Form, name: str) -> Function | None:
        if (form, name) not in self.answers.forms:
            raise ExplanationError(f"asked again, it wants to see `{name}`, of which the derivation has no form")
        values = self.answers.forms[form, name]
        if values is None:
            return None
        function = self._function(name)
        if not function.is_one_block or len(values) != len(function.blocks[0].bindings):
            raise ExplanationError(f"`{name}` is no function of one dataflow block with {len(values)} values")
        if values != function.values and (form == "written" or not self.is_form(name, values)):
            raise ExplanationError(f"the form of `{name}` from which it is made is not shown to be equal to `{name}`")
        return with_values(function, values)


def with_values(function: Function, values: Values) -> Function:
    """`function`, which has one block, with other `values` of its bindings."""
    (block,) = function.blocks
    return replace(function, blocks=(block.with_values(values),))
