"""Functions, blocks and modules.

A function is a list of blocks. A *dataflow block* is pure: its bindings name the block's outputs, each a graph of
interned expressions, in no significant order. A *binding block* holds, in order, the steps that must not move:
effectful calls and `match_cast`s. A module is an ordered set of named functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from relax_eg.argument_checks import short_repr
from relax_eg.errors import WellFormedError
from relax_eg.ir.annotations import Annotation, DataType, data_types_of, dims_of, may_be_wide
from relax_eg.ir.data import all_sizes
from relax_eg.ir.expr import CALL_TIR, MATCH_CAST, Expr, postorder, tuple_, var
from relax_eg.ir.origin import NO_ORIGINS, Origins
from relax_eg.tir import TensorProgram


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding `var = value` of a variable."""

    var: Expr
    value: Expr

    @property
    def name(self) -> str:
        return str(self.var.attr("name"))


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a function.

    - `bindings`: the outputs of a pure region if `dataflow`, otherwise steps in order.
    - `dataflow`: whether the block is a dataflow block.
    """

    bindings: tuple[Binding, ...]
    dataflow: bool = True

    def __deepcopy__(self, memo: Any) -> Block:
        return self

    @property
    def values(self) -> list[Expr]:
        """The values of its bindings, in order."""
        return [b.value for b in self.bindings]

    def with_values(self, values: Iterable[Expr]) -> Block:
        """The block with other values of its bindings."""
        return replace(self, bindings=tuple(Binding(b.var, v) for b, v in zip(self.bindings, values, strict=True)))


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a module.

    - `name`: its name, unique in a module.
    - `params`: its parameters, variables.
    - `blocks`: its body.
    - `result`: the expression that it returns.
    - `origins`: the origins of expressions; not part of equality.
    - `attributes`: what else is said of it, by name: text, numbers, None and tuples of these; it changes no meaning.
    - `assume`: conditions on the sizes that hold at every call, as statements ("n % 8 == 0"); only the entry of a
      module has any.
    """

    name: str
    params: tuple[Expr, ...]
    blocks: tuple[Block, ...]
    result: Expr
    origins: Origins = field(default_factory=lambda: NO_ORIGINS, compare=False, repr=False)
    assume: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()

    def __copy__(self) -> Function:
        return self

    def __deepcopy__(self, memo: Any) -> Function:
        return self  # immutable

    @property
    def annotation(self) -> Annotation:
        """The annotation of the result."""
        return self.result.annotation

    @property
    def size_variables(self) -> tuple[str, ...]:
        """Names of the size variables in the parameters' annotations, sorted."""
        return tuple(sorted({v for p in self.params for d in dims_of(p.annotation) for v in d.variables}))

    @property
    def cast_variables(self) -> tuple[str, ...]:
        """Names of the size variables that the function's `match_cast`s define, sorted."""
        found = set[str]().union(*(all_sizes(b.value) for b in self.steps if b.value.op == MATCH_CAST))
        return tuple(sorted(found - set(self.size_variables)))

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings of all blocks, in order."""
        return tuple(b for block in self.blocks for b in block.bindings)

    @property
    def steps(self) -> tuple[Binding, ...]:
        """The bindings outside dataflow blocks, in order."""
        return tuple(b for block in self.blocks if not block.dataflow for b in block.bindings)

    @property
    def values(self) -> tuple[Expr, ...]:
        """The values of all bindings, in order."""
        return tuple(b.value for b in self.bindings)

    @property
    def is_one_block(self) -> bool:
        """Whether the body is one dataflow block, so that the values of its bindings determine it."""
        return len(self.blocks) == 1 and self.blocks[0].dataflow

    def expressions(self) -> list[Expr]:
        """Returns every expression of the body once, operands first."""
        return postorder([*self.values, self.result])


@dataclass(frozen=True, slots=True)
class Module:
    """Named functions, in order. `str(module)` prints Relax text; `relax_eg.parse` reads it back as an equal module."""

    functions: tuple[Function, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.functions, (tuple, list)) or not all(isinstance(f, Function) for f in self.functions):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WellFormedError(f"Module({short_repr(self.functions)}): a tuple of functions is accepted")
        seen: set[str] = set()
        for f in self.functions:
            if f.name in seen:
                raise WellFormedError(f"two functions of the module are named `{f.name}`")
            seen.add(f.name)

    def __copy__(self) -> Module:
        return self

    def __deepcopy__(self, memo: Any) -> Module:
        return self  # immutable

    def __getitem__(self, name: str) -> Function:
        for f in self.functions:
            if f.name == name:
                return f
        raise KeyError(f"no function `{name}` in the module; it has: {', '.join(f.name for f in self.functions)}")

    def __iter__(self) -> Iterator[Function]:
        return iter(self.functions)

    @property
    def programs(self) -> tuple[TensorProgram, ...]:
        """The tensor programs that the functions call, each once, in the order of the calls. Linear in the module's
        size."""
        calls = (e for f in self.functions for e in f.expressions() if e.op == CALL_TIR)
        return tuple(dict.fromkeys(e.attr("program").value for e in calls))

    @property
    def data_types(self) -> tuple[DataType, ...]:
        """The data types of the values in the module, each once, before those that mention them. Linear in the module's
        size."""
        annotations = (e.annotation for f in self.functions for e in (*f.params, *f.expressions()))
        return data_types_of(dict.fromkeys(annotations))

    @property
    def wide(self) -> bool:
        """Whether any value of the module may hold 64-bit numbers. Linear in the module's size."""
        return any(may_be_wide(e.annotation) for f in self.functions for e in (*f.params, *f.expressions()))

    @property
    def main(self) -> Function:
        """The entry: the function `main`, else the first function. WellFormedError if the module is empty."""
        if not self.functions:
            raise WellFormedError("the module has no functions\n  accepted: a module with a function, its entry")
        return next((f for f in self.functions if f.name == "main"), self.functions[0])


def pure_function(name: str, params: Iterable[Expr], outputs: Iterable[Expr], result: Expr | None = None) -> Function:
    """Returns a function of one dataflow block with these outputs.

    `result`: an expression over the variables `gv`, `gv1`, ... of the outputs. Without it, a single output is returned
    as itself and several as a tuple.
    """
    bindings = tuple(Binding(var(f"gv{i or ''}", e.annotation), e) for i, e in enumerate(outputs))
    if result is None:
        result = bindings[0].var if len(bindings) == 1 else tuple_(b.var for b in bindings)
    return Function(name, tuple(params), (Block(bindings),), result)
