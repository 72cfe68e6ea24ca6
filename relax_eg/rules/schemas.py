"""Schemas: rules that a pattern over values cannot state, about functions of the module and terms of any length.

A schema inspects one node (a loop, a call, a sum) and proposes an equal expression, for which it may make new
functions. The proposal is added to the e-class of the node as written, and extraction chooses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np

from relax_eg.errors import RuleError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import function_ref
from relax_eg.ir.control import scan
from relax_eg.ir.expr import Expr, postorder, tuple_, tuple_get, var
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.ir.origin import SourceLine
from relax_eg.shapes import Dim

if TYPE_CHECKING:
    from relax_eg.rules.signature import Numerics

Made = TypeVar("Made")  # what a schema makes once for several nodes


class ProgramQueries(Protocol):
    """The queries about the program that a schema may make. Its proposal is equal to the node for any answers about
    sizes, readers and so on; these answers only choose among equal expressions. The proposal is correct only if the
    forms of functions among the answers are correct."""

    def readers(self, e: Expr) -> Sequence[Expr]:
        """The nodes of the block as written that read `e`; a node occurs once per operand that is `e`."""
        ...

    @property
    def nodes(self) -> Sequence[Expr]:
        """The nodes of the block as written, operands first."""
        ...

    def is_known_ahead(self, e: Expr) -> bool:
        """Whether `e` follows from values alone that are known ahead of the calls, so that it is computed once."""
        ...

    def facts(self, e: Expr) -> frozenset[str]:
        """The facts of the values of `e` that follow from what is declared (keys of `ops.facts.FACTS`), among those
        that schemas rely on (`Schema.facts`)."""
        ...

    def extent(self, size: Dim) -> int:
        """An approximate value of a size at the sizes for which the program is optimized."""
        ...

    def largest_value(self, size: Dim) -> int:
        """An approximate value of a size at the largest sizes for which the program is optimized."""
        ...

    def seconds(self, flops: float, moved: float, contracts: bool) -> float:
        """The price of a step that does `flops`, in a contraction or not, and reads and writes `moved` bytes."""
        ...

    @property
    def large_bytes(self) -> float:
        """Number of bytes from which an intermediate value is worth avoiding: 0 if a byte in memory has a price,
        infinity if no value is that large for the device."""
        ...

    def best(self, name: str, outside: bool = False) -> Function | None:
        """The function in its best form if it is one pure block, else None. With `outside`, the best form under the
        assumption that values are nearly free if they depend only on parameters that are the same at every step."""
        ...

    def as_written(self, name: str) -> Function | None:
        """The function as written if it is one pure block, else None; also None for a function that rules made."""
        ...

    def calls(self, name: str) -> int:
        """The number of calls of a function in the program as written."""
        ...

    def ahead_params(self, name: str) -> Sequence[bool]:
        """For each parameter of a called function, whether its operand is known ahead of the calls."""
        ...

    def once(self, key: Hashable, make: Callable[[ProgramQueries], Made]) -> Made:
        """What `make` returns, given these queries. It is asked once for each key while the nodes are the same."""
        ...

    def add(self, function: Function, suffix: str) -> Function:
        """Adds `function` to the module under a new name, made from its name and `suffix`, and returns it."""
        ...

    def batched(self, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        """A function that applies `function` to each of `length` slices of its `mapped` parameters and stacks the
        results; None if that cannot be formed."""
        ...


@dataclass
class ModuleAnswers:
    """The answers to a schema's queries (`schemas.ProgramQueries`) for a module as written.

    - `functions`: the functions of the module, by name; `add` adds to them.
    - `ahead`: the answer of `ahead_params`; if empty, no parameter is known ahead.
    - `nodes`: the nodes of the block, operands first.
    - `large_bytes`: the answer of `large_bytes`.
    - `known`: the answers of `facts`.
    - `ahead_values`: the expressions for which `is_known_ahead` is true.
    - `contracting`: what a contraction costs besides its flops.
    """

    functions: dict[str, Function]
    ahead: Sequence[bool] = ()
    nodes: Sequence[Expr] = ()
    large_bytes: float = 0.0
    known: Mapping[Expr, frozenset[str]] = field(default_factory=dict[Expr, frozenset[str]])
    ahead_values: Sequence[Expr] = ()
    contracting: float = 0.0
    _made: int = field(default=0)

    def readers(self, e: Expr) -> Sequence[Expr]:
        return [x for x in self.nodes for a in x.args if a is e]

    def is_known_ahead(self, e: Expr) -> bool:
        return any(e is v for v in self.ahead_values)

    def facts(self, e: Expr) -> frozenset[str]:
        return self.known.get(e, frozenset())

    def extent(self, size: Dim) -> int:
        return int(size.evaluate(dict.fromkeys(size.variables, 64)))

    def largest_value(self, size: Dim) -> int:
        return self.extent(size)

    def once(self, key: Hashable, make: Callable[[ProgramQueries], Made]) -> Made:
        return make(self)

    def seconds(self, flops: float, moved: float, contracts: bool) -> float:
        return flops + self.contracting * contracts

    def best(self, name: str, outside: bool = False) -> Function | None:
        found = self.functions.get(name)
        return found if found is not None and found.is_one_block else None

    def as_written(self, name: str) -> Function | None:
        return self.best(name)

    def calls(self, name: str) -> int:
        return 1

    def ahead_params(self, name: str) -> Sequence[bool]:
        return self.ahead or (False,) * len(self.functions[name].params)

    def add(self, function: Function, suffix: str) -> Function:
        self._made += 1
        made = replace(function, name=f"{function.name}_{suffix}{self._made}")
        self.functions[made.name] = made
        return made

    def batched(self, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        """The function applied to slices, as a scan that carries nothing; None if a mapped parameter stands before one
        that is not."""
        step = self.add(replace(function, result=as_tuple(function.result)), "step")
        params = [
            var(str(p.attr("name")), _stacked(p.annotation, length) if m else p.annotation)
            for p, m in zip(function.params, mapped, strict=True)
        ]
        # A scan takes its constant operands before those that it slices.
        if list(mapped) != sorted(mapped):
            return None
        same = [p for p, m in zip(params, mapped, strict=True) if not m]
        value = scan(function_ref(step), same, (), params[len(same) :], length=length)
        count = len(step.result.args)
        return pure_function(f"{function.name}_batched", params, [tuple_get(value, i) for i in range(count)])


@dataclass(frozen=True)
class Trial:
    """A test program with its inputs.

    - `module`: the program.
    - `node`: the node for which a schema proposes an equal expression.
    - `args`: the values of the parameters.
    - `queries`: the answers to the schema's queries.
    - `arithmetic`: that of the interpreter. Library routines have values in "numpy" only.
    - `tolerance`: the error that rounding may make, as a share of the largest element.
    """

    module: Module
    node: Expr
    args: tuple[Any, ...]
    queries: ModuleAnswers
    arithmetic: Literal["exact", "numpy"] = "exact"
    tolerance: float = 0.0


def trial_of(
    params: Sequence[Expr],
    node: Expr,
    args: tuple[Any, ...],
    arithmetic: Literal["exact", "numpy"] = "exact",
    tolerance: float = 0.0,
    of: type[ModuleAnswers] = ModuleAnswers,
    nodes: Sequence[Expr] | None = None,
    **answers: Any,
) -> Trial:
    """The test program that returns `node`. `of`, `nodes`, `answers`: the class and the fields of the answers about it;
    by default, `nodes` are all nodes of the program."""
    queries = of({}, nodes=postorder((node,)) if nodes is None else nodes, **answers)
    return Trial(Module((main_of(params, node),)), node, args, queries, arithmetic, tolerance)


def main_of(params: Sequence[Expr], e: Expr) -> Function:
    return Function("main", tuple(params), (), e)


# Draws a test program of a schema.
Trials = Callable[[np.random.Generator], Trial]
# The tag of schemas that save memory. They are applied if a byte in memory has a price, or if memory for large values
# takes time.
MEMORY = "memory"


# Returns an expression that is equal to a node, or several, or None.
Propose = Callable[[Expr, ProgramQueries], Expr | tuple[Expr, ...] | None]
# The facts of an expression.
FactsOf = Callable[[Expr], frozenset[str]]
# Why a node and a proposal for it are not shown equal, given the facts of expressions and the functions that loops run;
# empty if they are shown equal.
Prove = Callable[[Expr, Expr, FactsOf, Mapping[str, Function]], str]


@dataclass(frozen=True)
class Schema:
    """A rule about whole nodes.

    - `name`, `doc`: its name, and the law in one line.
    - `numerics`: numerics class, see `docs/rules.md`.
    - `tags`: names by which sets select the schema.
    - `propose`: returns an expression that is equal to a node, or several, or None.
    - `operators`: operators of the nodes for which `propose` is called.
    - `trials`: generators of the programs on which it is tested (`schema_trials`); if there are none, programs that
      have one of its operators.
    - `asks_again`: whether it is asked about the nodes that the search chose, too, after which the search goes on.
    - `for_every_form`: whether it is asked about every form of a node that the schemas before it propose.
    - `facts`: the facts of values on which its proposals may rely (keys of `ops.facts.FACTS`).
    - `prove`: proves steps of derivations; without it, `propose` is asked again.
    - `must_prove`: whether a step that is not shown is refused. Otherwise `propose` is asked again about it, and the
      verdict says whether the proposals for the test programs are shown.
    """

    name: str
    doc: str
    numerics: Numerics
    tags: frozenset[str]
    propose: Propose
    operators: frozenset[str]
    trials: tuple[Trials, ...] = ()
    asks_again: bool = False
    for_every_form: bool = False
    facts: frozenset[str] = frozenset()
    prove: Prove | None = None
    must_prove: bool = True

    @property
    def where(self) -> SourceLine:
        """The first line of `propose`."""
        return SourceLine.of(self.propose)

    def proposals(self, e: Expr, queries: ProgramQueries) -> tuple[Expr, ...]:
        """The expressions that it proposes for `e`, a node of one of its operators."""
        made = self.propose(e, queries)
        return () if made is None else made if isinstance(made, tuple) else (made,)

    def error(self, text: str) -> RuleError:
        return RuleError(f"{self.where} rule `{self.name}`: {text}")

    def __str__(self) -> str:
        return f"{self.name}: {self.doc}"


def schema(
    propose: Propose,
    numerics: Numerics,
    tags: Iterable[str],
    operators: Iterable[str],
    trials: tuple[Trials, ...],
    **more: Any,
) -> Schema:
    """The schema whose name is that of `propose`, and whose law is the first paragraph of its documentation. `more`:
    further fields."""
    law = (inspect.getdoc(propose) or "").partition("\n\n")[0]
    return Schema(propose.__name__, law, numerics, frozenset(tags), propose, frozenset(operators), trials, **more)


@dataclass(frozen=True)
class ExtractionStep(Schema):
    """A step by which extraction builds kernels (`extract.kernels`), not a rule of the search: kernels are chosen, not
    enumerated in the e-graph, so `operators` is empty. Rule sets hold it, so that it can be left out.

    `propose` states the property that justifies the step, which is tested like a schema.
    """


def as_tuple(result: Expr) -> Expr:
    """A tuple of the fields of `result`, or of `result` alone."""
    return result if result.op == "tuple" else tuple_((result,))


def _stacked(a: Any, length: Dim) -> Tensor:
    return Tensor((length, *(a.shape or ())), a.dtype)
