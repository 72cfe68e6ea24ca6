"""The layers of a program that may be quantized: products with weights, convolutions, and rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from relax_eg.dtypes import is_float
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import rebuilt
from relax_eg.ir.expr import VAR, Expr, fresh_name, postorder, var
from relax_eg.ir.heads import with_operands
from relax_eg.ir.module import Function
from relax_eg.ir.origin import Origin
from relax_eg.ir.partition import static_expressions
from relax_eg.ops import api as op
from relax_eg.ops.codes import (
    Coded,
    Scheme,
    contracted_axes,
    decoded,
    encoded,
    encoded_rows,
    encoded_within,
    why_not_coded,
)

PRODUCTS = ("matmul", "linear", "conv")
TABLE = "take"
Range = tuple[float, float]


@dataclass(frozen=True)
class Layer:
    """A node of a program that reads a weight.

    - `name`: the paths of the weights, as the user would write them.
    - `node`: the product, or the `take` of a table's rows.
    - `index`: which operand is the weight.
    - `axes`: the axes of the weight along which elements share a scale.
    """

    name: str
    node: Expr
    index: int
    axes: tuple[int, ...]

    @property
    def weight(self) -> Expr:
        return self.node.args[self.index]

    @property
    def input(self) -> Expr:
        """The other operand."""
        return self.node.args[1 - self.index]

    @property
    def is_matrix_product(self) -> bool:
        """Whether it is a product with a matrix on the right."""
        return self.node.op in ("matmul", "linear") and self.index == 1 and self.weight.ndim == 2

    def takes_codes(self, scheme: Scheme) -> bool:
        """Whether the other operand becomes codes, too."""
        is_convolution = self.node.op == "conv" and self.index == 1
        return scheme.activations != "none" and (self.is_matrix_product or is_convolution)

    def own(self, scheme: Scheme) -> Scheme:
        """The scheme of its weight."""
        return replace(scheme, kind=scheme.tables) if self.node.op == TABLE and scheme.kind == "int4" else scheme

    def why_not(self, scheme: Scheme) -> str:
        """Why its weight has no codes; empty if it has."""
        return why_not_coded(self.weight, self.own(scheme), self.axes)

    def encoded(self, scheme: Scheme) -> Coded:
        return encoded(self.weight, self.own(scheme), self.axes)

    def with_codes(self, operands: Sequence[Expr], coded: Coded, scheme: Scheme, found: Range | None) -> Expr:
        """The node with other `operands`, its weight decoded from `coded`. `found`: the range of the other operand."""
        if self.node.op == TABLE:
            return self._rows(operands[1], coded, self.own(scheme))
        made = list(operands)
        made[self.index] = decoded(coded, self.weight, scheme, self.axes)
        if self.takes_codes(scheme):
            x = operands[1 - self.index]
            c = (
                encoded_rows(x, 1 if self.node.op == "conv" else -1)
                if found is None
                else encoded_within(x, *found, scheme.symmetric)
            )
            wide = op.astype(c.codes, "float32")
            shifted = wide if c.zero is None else wide - op.astype(c.zero, "float32")
            made[1 - self.index] = op.astype(shifted * c.scale, x.dtype)
        return with_operands(self.node, made)

    def _rows(self, indices: Expr, coded: Coded, scheme: Scheme) -> Expr:
        def rows(x: Expr) -> Expr:
            if x.shape[0] != self.weight.shape[0]:  # one scale for all
                return x
            return op.take(x, indices, 0, str(self.node.attr("mode")))

        found = Coded(rows(coded.codes), rows(coded.scale), None if coded.zero is None else rows(coded.zero))
        return decoded(found, self.node, scheme, (-1,))


def layers_of(function: Function, weights: set[str], paths: Mapping[str, str]) -> list[Layer]:
    """The layers of a function, in order. `paths`: those of its parameters, by name."""
    static = static_expressions(function, weights)
    found: list[Layer] = []
    for e in function.expressions():
        if e.op not in (*PRODUCTS, TABLE) or not isinstance(e.annotation, Tensor) or not is_float(e.dtype):
            continue
        for i, w in enumerate(e.args):
            other = e.args[1 - i]
            if w not in static or other in static or w.ndim < 2 or not is_float(w.dtype):
                continue
            if (axes := _axes(e, i)) is not None:
                named = [paths[str(x.attr("name"))] for x in postorder((w,)) if x.op == VAR]
                found.append(Layer(" and ".join(named), e, i, axes))
    return found


def _axes(e: Expr, i: int) -> tuple[int, ...] | None:
    if e.op == TABLE:
        return (1,) if i == 0 and e.args[0].ndim == 2 and e.attr("axis") == 0 else None
    if i == 1:
        return contracted_axes(e)
    return (e.args[0].ndim - 1,) if e.op == "matmul" else None


def code_variables(
    layers: Sequence[Layer], scheme: Scheme, taken: set[str]
) -> tuple[dict[Expr, Coded], dict[Expr, Expr]]:
    """For each weight of `layers`, variables in the place of its codes; and of each variable the expression for it."""
    coded: dict[Expr, Coded] = {}
    made: dict[Expr, Expr] = {}

    def named(stem: str, e: Expr) -> Expr:
        v = var(fresh_name(stem, taken, "_", 2), e.annotation)
        made[v] = e
        return v

    for layer in layers:
        if layer.weight in coded:
            continue
        names = [str(x.attr("name")) for x in postorder((layer.weight,)) if x.op == VAR]
        stem, c = names[0], layer.encoded(scheme)
        codes, scale = named(f"{stem}_codes", c.codes), named(f"{stem}_scale", c.scale)
        coded[layer.weight] = Coded(codes, scale, None if c.zero is None else named(f"{stem}_zero", c.zero))
    return coded, made


def with_codes(
    function: Function,
    weights: set[str],
    layers: Mapping[Expr, Layer],
    coded: Mapping[Expr, Coded],
    scheme: Scheme,
    ranges: Mapping[Expr, Range],
    codes: Sequence[Expr],
) -> Function:
    """`function` with layers, by their nodes, that read codes. Its parameters are the inputs, then the weights that it
    still reads, then `codes`. `ranges`: those of the layers' inputs."""
    origins: dict[Expr, Origin] = {}

    def with_codes(e: Expr, args: tuple[Expr, ...]) -> Expr:
        layer = layers.get(e)
        if layer is None:
            made = with_operands(e, args)
        else:
            made = layer.with_codes(args, coded[layer.weight], scheme, ranges.get(layer.input))
        if e in function.origins:
            for x in postorder((made,), stop=args.__contains__):
                if x not in args:
                    origins.setdefault(x, function.origins[e])
        return made

    new = replace(rebuilt(function, with_codes), origins=MappingProxyType(origins))
    used = set(new.expressions())
    inputs = [p for p in function.params if str(p.attr("name")) not in weights]
    kept = [p for p in function.params if str(p.attr("name")) in weights and p in used]
    return replace(new, params=(*inputs, *kept, *codes))
