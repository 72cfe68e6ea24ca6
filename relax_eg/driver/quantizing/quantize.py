"""`quantize`: a program with weights of fewer bits. Its ranges come from calibration data, its codes from `ops.codes`,
and what a device makes of them is left to rules and prices (`rules.book.quantised`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

import numpy as np

from relax_eg.argument_checks import FLAG, NONE, TEXT, Kind, accepts, integer, one_of, sequence_of, short_repr
from relax_eg.backend.calls.checks import signature_fit
from relax_eg.backend.observe import Converted, compiled, computed, flat_arguments, histograms, limits
from relax_eg.backend.width import width_context
from relax_eg.driver.options import KINDS, Options, Sizes, Target, no_weight, read_options
from relax_eg.driver.prices import price_at
from relax_eg.driver.program_ends import traced_program
from relax_eg.driver.quantizing.layers import PRODUCTS, Layer, Range, code_variables, layers_of, with_codes
from relax_eg.driver.quantizing.ranges import CALIBRATIONS, Calibration, entropy_range, percentile_range
from relax_eg.driver.quantizing.rounding import calibrated_codes
from relax_eg.errors import OptionError, ShapeError
from relax_eg.frontends import Source
from relax_eg.frontends.clashes import explain_clashes, specs_by_name
from relax_eg.frontends.model import ModelModule
from relax_eg.ir.expr import Expr, tuple_
from relax_eg.ir.module import Function, Module
from relax_eg.logs import log_at, report_progress
from relax_eg.ops import api as op
from relax_eg.ops.codes import KINDS as SCHEMES
from relax_eg.ops.codes import Activations, Coded, Per, Scheme, Tables
from relax_eg.ops.codes import Kind as SchemeName
from relax_eg.ops.sizes import product
from relax_eg.reports.quantization import QuantizationReport, QuantizedLayer
from relax_eg.rules.book.quantised import integers_in

_MOST_LISTED = 12  # limit: layers that an error lists
_SHOWN = 8  # limit: layers of one name that are told apart
Arrays = list[Any]
Rounding = Literal["nearest", "calibrated"]


@dataclass(frozen=True)
class QuantizedModule(ModelModule):
    """A module whose weights are codes. `rx.optimize` takes it like that of a model; a call runs it as written.

    - `weights`: the codes, their scales, and what is kept in float, by the names of the parameters that take them.
    - `report`: errors, bytes and predicted seconds (`print(module.report)`).
    """

    report: QuantizationReport = field(kw_only=True, compare=False, repr=False)

    @cached_property
    def _compiled(self) -> Callable[[Sequence[Any]], Any]:
        return compiled(self, self.main)

    def __call__(self, /, *inputs: Any) -> Any:
        """The results for `inputs`, the arrays that are no weights, in order: an array, or a tuple of arrays."""
        count = len(self.main.params) - len(self.weights)
        if len(inputs) != count:
            names = ", ".join(str(p.attr("name")) for p in self.main.params[:count])
            raise OptionError(f"{self.main.name}({names}): {len(inputs)} inputs; {count} are accepted")
        with width_context(self.wide):
            return self._compiled([*inputs, *self.weights.values()])


@explain_clashes
@accepts(
    scheme=one_of(*SCHEMES),
    per=one_of("tensor", "channel"),
    symmetric=FLAG,
    group=integer("an even number of elements,", 2),
    tables=one_of("int8", "int4"),
    activations=one_of("none", "dynamic", "static"),
    rounding=one_of("nearest", "calibrated"),
    calibration=one_of(*CALIBRATIONS),
    percentile=Kind(lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and 50 < x <= 100, "51 to 100"),
    max_error=Kind(lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and x > 0, "a number above 0")
    | NONE,
    keep=sequence_of("a list of names of layers, which may have * in them,", TEXT),
    weights=KINDS["weights"],
    target=KINDS["target"],
)
def quantize(
    program: Callable[..., Any] | Module,
    data: Sequence[Any],
    /,
    *args: Any,
    specs: Mapping[str, Any] | None = None,
    weights: Sequence[str | int] = (),
    scheme: SchemeName = "int8",
    per: Per = "channel",
    symmetric: bool = True,
    group: int = 32,
    tables: Tables = "int8",
    activations: Activations = "none",
    rounding: Rounding = "nearest",
    calibration: Calibration = "minmax",
    percentile: float = 99.99,
    max_error: float | None = None,
    keep: Sequence[str] = (),
    target: Target | None = None,
    **kwspecs: Any,
) -> QuantizedModule:
    """A program with weights of fewer bits: a module that holds them, for `rx.optimize`.

    - `program`: a JAX function, or a module. Those of models (`rx.from_onnx`) know their weights.
    - `data`: calibration data, a list of calls, each a tuple of the arguments, or one array where one is taken.
      Weights are among the arguments of a function and are the same in all calls; a model is given its inputs alone.
    - `args`, `kwspecs`, `specs`: specs of the arguments, as `optimize` takes them; without any, the shapes are those of
      the first call.
    - `weights`: the arguments that hold weights, by name or position.
    - `scheme`: "int8"; "int4", two weights in a byte; "fp8", float8_e4m3fn.
    - `per`: what has a scale of its own: each output "channel", or the "tensor".
    - `symmetric`: whether 0 is code 0. Otherwise int8 and int4 codes span the range from least to largest.
    - `group`: weights in a row that share a scale in "int4". It divides the contracted sizes, or the layer is kept.
    - `tables`: the codes of tables of which rows are taken, with scheme "int4": "int8", or "int4", in groups along a
      row.
    - `activations`: whether what is multiplied with int8 weights becomes int8, too, so that devices with units for it
      multiply bytes: "dynamic", each row or image by its own range in each call; "static", by a range from calibration;
      "none".
    - `rounding`: of int8 and int4 codes. With "nearest" no element of a weight changes by more than half a step. With
      "calibrated" the rows of a product's weight make up for each other's errors on the data, which takes a time cubic
      in their number; results are nearer, weights are not.
    - `calibration`: how that range follows from what was seen: "minmax", all of it; "percentile", the middle
      `percentile` of a hundred; "entropy", the range whose codes tell most of the distribution.
    - `max_error`, `keep`: layers that stay in float: those with a larger relative error on the data, and those of these
      names, as the report has them.
    - `target`: as in `optimize`, for the predicted seconds in the report.

    Products with weights (matmul, linear, conv) and tables of which rows are taken are quantized, where the entry of
    the module has them; those in loops are not. `rx.debug.options(progress=...)`
    is told of the calls. OptionError for data that is empty, not finite or of other shapes, and for a program without a
    layer to quantize; TraceError, SpecError.
    """
    calls = _calls(data)
    if group % 2:
        raise OptionError(f"group={group}: an even number of elements is accepted, because a byte holds two")
    if activations != "none" and scheme != "int8":
        raise OptionError(f"activations={activations!r} with scheme={scheme!r}: scheme='int8' is accepted")
    if rounding != "nearest" and scheme == "fp8":
        raise OptionError("rounding='calibrated' with scheme='fp8': 'int8' or 'int4' is accepted")
    if tables == "int4" and scheme != "int4":
        raise OptionError(f"tables='int4' with scheme={scheme!r}: scheme='int4' is accepted")
    chosen = Scheme(scheme, per, symmetric, group, activations, tables)
    named = specs_by_name(specs, kwspecs)
    if not isinstance(program, Module) and not args and not named:
        args = calls[0]
    traced = traced_program(program, args, named)
    if traced.in_steps:
        raise OptionError(f"quantize: {traced.name}() runs in steps; one program is accepted: {traced.why_in_steps}")
    with width_context(traced.wide):
        given = _given(program, traced, calls, weights)
        return _Quantizing(traced, given, chosen, target, rounding).quantized(keep, max_error, calibration, percentile)


@dataclass(frozen=True)
class _Given:
    """The arrays of a program.

    - `inputs`: the arrays of each call that are no weights, in the order of the parameters.
    - `weights`: arrays by the names of the parameters that take them.
    """

    inputs: list[Arrays]
    weights: dict[str, Any]
    outputs: tuple[str, ...] = ()


def _calls(data: Any) -> list[tuple[Any, ...]]:
    if not isinstance(data, (list, tuple)):
        raise OptionError(f"data={short_repr(data)}: a list of calls is accepted, each a tuple of arguments")
    if not data:
        raise OptionError("data: no calls; a list of one or more is accepted, each a tuple of arguments")
    return [c if isinstance(c, tuple) else (c,) for c in data]  # type: ignore[reportUnknownVariableType]


def _given(program: Any, traced: Source, calls: list[tuple[Any, ...]], weights: Sequence[str | int]) -> _Given:
    held: Mapping[str, Any] = program.weights if isinstance(program, ModelModule) else {}
    names = [leaf.name for leaf in traced.leaves]
    found: list[Arrays] = []
    converted = Converted()
    for i, call in enumerate(calls):
        if held:
            flat = list(call) if len(call) == len(names) - len(held) else None
            flat = None if flat is None else [*flat, *held.values()]
        else:
            flat = flat_arguments(traced.in_tree, call)
        if flat is None:
            raise OptionError(
                f"data[{i}]: it does not have the structure of the arguments of {traced.name}\n  accepted: a tuple of "
                f"{', '.join(n for n in traced.arg_names if n not in held)}"
            )
        found.append([converted.of(x) for x in flat])
    _check_arrays(traced, found)
    if held and not weights:
        return _Given([a[: len(names) - len(held)] for a in found], dict(held), program.outputs)
    chosen: set[str] = set()
    for w in (weights,) if isinstance(weights, (str, int)) else weights:
        arguments = traced.arguments.named(w)
        if not arguments:
            raise no_weight(traced.name, w, traced.arguments.names)
        chosen |= {leaf.name for leaf in traced.leaves if leaf.argument in arguments}
    if not chosen:
        raise OptionError(
            f"weights: {traced.name} holds none; the arguments that hold weights are accepted, of "
            f"{', '.join(traced.arguments.names)}"
        )
    of = {n: i for i, n in enumerate(names)}
    arrays = {n: found[0][of[n]] for n in names if n in chosen}
    for i, flat in enumerate(found[1:], 1):
        for n, w in arrays.items():
            if flat[of[n]] is not w and not np.array_equal(np.asarray(flat[of[n]]), np.asarray(w)):
                raise OptionError(
                    f"data[{i}]: `{traced.leaves[of[n]].path}` is a weight and differs from that of data[0]"
                )
    return _Given([[a for n, a in zip(names, flat, strict=True) if n not in chosen] for flat in found], arrays)


def _check_arrays(traced: Source, calls: Sequence[Arrays]) -> None:
    """OptionError for arrays of other shapes or dtypes than those of the program, or that are not finite."""
    fit = signature_fit(traced.name, traced.module.main.params)
    checked: set[int] = set()
    for i, flat in enumerate(calls):
        try:
            traced.arguments.scope.check(fit.bind(flat), traced.name)
        except ShapeError as e:
            raise OptionError(f"data[{i}]: {e}") from None
        for leaf, a in zip(traced.leaves, flat, strict=True):
            if id(a) not in checked and np.asarray(a).dtype.kind not in "iub" and not np.all(np.isfinite(a)):
                raise OptionError(f"data[{i}]: `{leaf.path}` has elements that are not finite; numbers are accepted")
            checked.add(id(a))


class _Quantizing:
    """One quantization: the layers of a program, and what the calibration data says of them."""

    def __init__(
        self, traced: Source, given: _Given, scheme: Scheme, target: Target | None, rounding: Rounding
    ) -> None:
        self.traced, self.given, self.scheme, self.target = traced, given, scheme, target
        self.rounding = rounding
        self.module: Module = traced.module
        self.weights = set(given.weights)
        self.paths = {leaf.name: leaf.path for leaf in traced.leaves}
        self.layers = layers_of(self.module.main, self.weights, self.paths)
        if not self.layers:
            raise self._no_layer()
        self.others = tuple(f for f in self.module if f is not self.module.main)

    def _no_layer(self) -> OptionError:
        seen = [e for e in self.module.main.expressions() if e.op in PRODUCTS]
        what = ", ".join(dict.fromkeys(f"{e.op} of {e.args[0].dtype} and {e.args[1].dtype}" for e in seen[:_SHOWN]))
        held = ", ".join(dict.fromkeys(leaf.argument for leaf in self.traced.leaves if leaf.name in self.weights))
        return OptionError(
            f"quantize: {self.traced.name} has no layer with a weight\n  accepted: a matmul, linear, conv or take of "
            f"floats, one operand of which follows from the weights ({held}) alone; it has {what or 'no product'}"
        )

    def arrays(self, inputs: Arrays) -> Arrays:
        """The arrays of the entry's parameters in a call."""
        rest = iter(inputs)
        params = (str(p.attr("name")) for p in self.module.main.params)
        return [self.given.weights[n] if n in self.weights else next(rest) for n in params]

    def quantized(
        self, keep: Sequence[str], max_error: float | None, calibration: Calibration, percentile: float
    ) -> QuantizedModule:
        kept = {x.node: why for x in self.layers if (why := x.why_not(self.scheme))}
        kept |= {x.node: "by its name" for x in self.layers if self._is_kept(x, keep)}
        coded_layers = [x for x in self.layers if x.node not in kept]
        coded, expressions = code_variables(coded_layers, self.scheme, set(self.paths))
        codes = self._codes(expressions)
        if self.rounding == "calibrated":
            codes |= self._calibrated(coded_layers, coded, codes)
        ranges = self._ranges(coded_layers, calibration, percentile) if self.scheme.activations == "static" else {}
        errors = self._errors(coded_layers, coded, codes, ranges)
        if max_error is not None:
            for x, error in errors.items():
                if not error <= max_error:
                    kept[x] = f"its error {error:.3g} is above max_error={max_error:g}"
        chosen = {x.node: x for x in self.layers if x.node not in kept}
        used = {v for x in chosen.values() for v in coded[x.weight].arrays}
        params = [v for v in codes if v in used]
        main = with_codes(self.module.main, self.weights, chosen, coded, self.scheme, ranges, params)
        arrays = {**self.given.weights, **{str(v.attr("name")): codes[v] for v in params}}
        inputs = len(self.given.inputs[0])
        held = {n: arrays[n] for p in main.params[inputs:] if (n := str(p.attr("name")))}
        functions = (main, *self.others)
        report = self._report(main, held, errors, kept, coded, codes)
        log_at(1, f"{self.traced.name}: {len(chosen)} of {len(self.layers)} layers quantized")
        return QuantizedModule(functions, held, self.given.outputs, report=report)

    def _is_kept(self, layer: Layer, keep: Sequence[str]) -> bool:
        for pattern in keep:
            if not any(_named(x, pattern) for x in self.layers):
                names = [x.name for x in self.layers]
                more = ", ..." if len(names) > _MOST_LISTED else ""
                raise OptionError(
                    f"keep: no layer is named {pattern!r}; there are {', '.join(names[:_MOST_LISTED])}{more}"
                )
        return any(_named(layer, pattern) for pattern in keep)

    def _codes(self, expressions: Mapping[Expr, Expr]) -> dict[Expr, Any]:
        """The arrays of the codes, by their variables."""
        params = [p for p in self.module.main.params if str(p.attr("name")) in self.weights]
        prepare = Function("prepare", tuple(params), (), tuple_(expressions.values()))
        found = compiled(Module((prepare,)), prepare)([self.given.weights[str(p.attr("name"))] for p in params])
        return dict(zip(expressions, found, strict=True))

    def _calibrated(
        self, layers: Sequence[Layer], coded: Mapping[Expr, Coded], codes: Mapping[Expr, Any]
    ) -> dict[Expr, Any]:
        """The codes of the weights of matrix products, rounded by what the calibration data makes of them."""
        products = [x for x in layers if x.is_matrix_product]
        inputs = list(dict.fromkeys(x.input for x in products))
        squares = computed(self.module, [_products_of_inputs(x) for x in inputs])
        found = self._over_calls(squares, "products of inputs", 0, 1)
        sums = {x: sum(np.asarray(f[i], np.float64) for f in found) for i, x in enumerate(inputs)}
        weights = list(dict.fromkeys(x.weight for x in products))
        values = self._codes({w: w for w in weights})
        made: dict[Expr, Any] = {}
        for i, w in enumerate(weights):
            report_progress("quantize: rounding", i, len(weights))
            readers = [x for x in products if x.weight is w]
            c = coded[w]
            zero = None if c.zero is None else np.asarray(codes[c.zero])
            scale, of_inputs = np.asarray(codes[c.scale]), sum(sums[x.input] for x in readers)
            made[c.codes] = calibrated_codes(
                np.asarray(values[w]), scale, zero, readers[0].axes[0], np.asarray(of_inputs), self.scheme
            )
        return made

    def _ranges(self, layers: Sequence[Layer], how: Calibration, percentile: float) -> dict[Expr, Range]:
        """The ranges of the layers' inputs."""
        inputs = list(dict.fromkeys(x.input for x in layers if x.takes_codes(self.scheme)))
        if not inputs:
            return {}
        values = computed(self.module, inputs)
        passes = 1 if how == "minmax" else 2
        seen = [np.asarray(x, np.float64) for x in self._over_calls(limits(values), "ranges", 0, passes)]
        low, high = np.min([x[:, 0] for x in seen], 0), np.max([x[:, 1] for x in seen], 0)
        found = np.stack([low, high], 1)
        if how != "minmax":
            counts = np.sum(
                [np.asarray(c) for c in self._over_calls(histograms(values, found), "ranges", 1, passes)], 0
            )
            found = [
                percentile_range(c, a, b, percentile) if how == "percentile" else entropy_range(c, a, b)
                for c, (a, b) in zip(counts, found, strict=True)
            ]
        return {x: (float(a), float(b)) for x, (a, b) in zip(inputs, found, strict=True)}

    def _over_calls(self, f: Callable[[Arrays], Any], what: str, done: int, passes: int) -> list[Any]:
        """The results of `f` for each call, with progress."""
        found: list[Any] = []
        count = len(self.given.inputs)
        for i, inputs in enumerate(self.given.inputs):
            report_progress(f"quantize: {what}", done * count + i, passes * count)
            found.append(f(self.arrays(inputs)))
        return found

    def _errors(
        self,
        layers: Sequence[Layer],
        coded: Mapping[Expr, Coded],
        codes: Mapping[Expr, Any],
        ranges: Mapping[Expr, Range],
    ) -> dict[Expr, float]:
        """The relative error of each layer's node, its input as it is in float."""
        squares: list[Expr] = []
        for x in layers:
            made = x.with_codes(x.node.args, coded[x.weight], self.scheme, ranges.get(x.input))
            y = op.astype(x.node, "float32")
            off = op.astype(made, "float32") - y
            squares += [op.sum(off * off), op.sum(y * y)]
        run, held = computed(self.module, squares, list(codes)), list(codes.values())
        found = self._over_calls(lambda arrays: run([*arrays, *held]), "errors", 0, 1)
        total = np.sum(np.asarray(found, np.float64), 0).reshape(-1, 2)
        return {x.node: _relative(a, b) for x, (a, b) in zip(layers, total, strict=True)}

    def _report(
        self,
        main: Function,
        held: Mapping[str, Any],
        errors: Mapping[Expr, float],
        kept: Mapping[Expr, str],
        coded: Mapping[Expr, Coded],
        codes: Mapping[Expr, Any],
    ) -> QuantizationReport:
        module = Module((main, *self.others))
        rows: list[QuantizedLayer] = []
        sizes = signature_fit(self.traced.name, self.module.main.params).bind(self.arrays(self.given.inputs[0]))
        for x in self.layers:
            shape = [int(d.evaluate(sizes)) for d in x.weight.shape]
            before = math.prod(shape) * np.dtype(x.weight.dtype).itemsize
            after = sum(codes[v].nbytes for v in coded[x.weight].arrays) if x.weight in coded else before
            text = " ".join(map(str, shape)) + f" @ {x.weight.dtype}"
            rows.append(
                QuantizedLayer(x.name, x.node.op, text, before, after, errors.get(x.node, 0.0), kept.get(x.node, ""))
            )
        options, prices = self._prices(module, set(held), sizes)
        return QuantizationReport(
            self.traced.name, _in_words(self.scheme), tuple(rows), self._whole_error(module, held),
            sum(_bytes(a) for a in self.given.weights.values()), sum(_bytes(a) for a in held.values()),
            *prices, options.profile.label, sizes,
        )  # fmt: skip

    def _prices(self, module: Module, held: set[str], sizes: Sizes) -> tuple[Options, tuple[float, float]]:
        """The options, and the predicted seconds of a call before and after."""
        options = read_options(self.traced, target=self.target, at=[sizes] if sizes else None)
        after = [module, Module((integers_in(module.main), *self.others))]
        seconds = [price_at(m, options, sizes, held).seconds for m in after]
        return options, (price_at(self.module, options, sizes, self.weights).seconds, min(seconds))

    def _whole_error(self, module: Module, held: Mapping[str, Any]) -> float:
        """The relative error of all results on the calibration data."""
        new, old = compiled(module, module.main), compiled(self.module, self.module.main)
        off = all_ = 0.0
        for i, inputs in enumerate(self.given.inputs):
            report_progress("quantize: results", i, len(self.given.inputs))
            pairs = zip(_leaves(new([*inputs, *held.values()])), _leaves(old(self.arrays(inputs))), strict=True)
            for x, y in pairs:
                a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
                off, all_ = off + float(np.sum((a - b) ** 2)), all_ + float(np.sum(b**2))
        return _relative(off, all_)


def _products_of_inputs(x: Expr) -> Expr:
    rows = op.reshape(op.astype(x, "float32"), (product(x.shape[:-1]), x.shape[-1]))
    return op.matmul(op.permute_dims(rows, (1, 0)), rows)


def _named(layer: Layer, pattern: str) -> bool:
    return layer.name == pattern or fnmatchcase(layer.name, pattern)


def _leaves(value: Any) -> list[Any]:
    return [x for v in value for x in _leaves(v)] if isinstance(value, tuple) else [value]  # type: ignore[reportUnknownVariableType]


def _bytes(a: Any) -> int:
    return int(np.asarray(a).nbytes) if not hasattr(a, "nbytes") else int(a.nbytes)


def _relative(off: float, whole: float) -> float:
    return math.sqrt(off / whole) if whole > 0 else 0.0 if off == 0 else math.inf


def _in_words(s: Scheme) -> str:
    kind = f"int4 weights, {s.group} to a scale" if s.kind == "int4" else f"{s.kind} weights, a scale per {s.per}"
    kind += f", {s.tables} tables" if s.kind == "int4" else ""
    kind += "" if s.symmetric or s.kind == "fp8" else ", not symmetric"
    return kind + ("" if s.activations == "none" else f"; int8 activations, {s.activations}")
