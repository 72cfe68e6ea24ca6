"""StableHLO modules as JAX functions. Values that are computed from shapes stay known, as arrays of symbolic sizes, so
that operations with sizes as operands have symbolic results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax._src.lax.linalg import geqrf  # `jax.lax.linalg.qr` is made of it, and keeps it for itself
from jax.core import max_dim, min_dim

from relax_eg.dtypes import WIDE
from relax_eg.errors import StableHloError
from relax_eg.frontends.stablehlo.operations import OPERATIONS, Use
from relax_eg.frontends.stablehlo.parsing import HloModule, HloOp, HloRegion, Unreadable, parse_module
from relax_eg.tir.exact import truncated_quotient

# LAPACK's routines, as JAX's CPU backend calls them in modules: as the calls of `jax.lax.linalg` that make such
# calls.
#
# Each result has the place that it has in LAPACK. The last one, `info`, is 0: where a routine fails, the calls here
# give NaN, and that is also what JAX writes into a module for an `info` other than 0.


def routine(target: str) -> str:
    """The name in `ROUTINES` of what a custom call calls, "lapack.potrf" for `lapack_spotrf_ffi`; "" for nothing
    there."""
    found = re.fullmatch(r"lapack_[sdcz](\w+)_ffi", target)
    name = "" if found is None else f"lapack.{_SAME.get(found[1], found[1])}"
    return name if name in ROUTINES else ""


# LAPACK's names of routines for complex numbers that do what another one does for real numbers.
_SAME = {"ungqr": "orgqr", "heevd": "syevd"}


def _letter(u: Use, name: str) -> str:
    """An option of a routine: `uplo`, `side`, `mode` and so on are letters."""
    return chr(u.at("mhlo.backend_config", {}).get(name, 0))


def _info(x: Any) -> Any:
    return jnp.zeros(x.shape[:-2], jnp.int32)


def _potrf(u: Use) -> list[Any]:
    """A Cholesky factor in a triangle of the matrix, whose other triangle stays as it is."""
    x = u.args[0]
    lower = _letter(u, "uplo") == "L"
    turned = x if lower else jnp.conj(jnp.swapaxes(x, -1, -2))
    factor = lax.linalg.cholesky(turned, symmetrize_input=False)
    if not lower:
        factor = jnp.conj(jnp.swapaxes(factor, -1, -2))
    rows, columns = (lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (x.ndim - 2, x.ndim - 1))
    return [jnp.where(rows >= columns if lower else rows <= columns, factor, x), _info(x)]


def _getrf(u: Use) -> list[Any]:
    x = u.args[0]
    both, pivots, _ = lax.linalg.lu(x)
    return [both, pivots + 1, _info(x)]  # LAPACK counts from 1


def _trsm(u: Use) -> Any:
    way = _letter(u, "trans_x")
    return lax.linalg.triangular_solve(
        u.args[0], u.args[1], left_side=_letter(u, "side") == "L", lower=_letter(u, "uplo") == "L",
        transpose_a=way in "TC", conjugate_a=way == "C", unit_diagonal=_letter(u, "diag") == "U",
    )  # fmt: skip


def _syevd(u: Use) -> list[Any]:
    x = u.args[0]
    vectors, values = lax.linalg.eigh(x, lower=_letter(u, "uplo") == "L", symmetrize_input=False)
    return [vectors, values, _info(x)]


def _gesdd(u: Use) -> list[Any]:
    """Singular values and vectors. The first result is what is left of the matrix, which nobody reads; so are the
    vectors where none are asked for."""
    x, mode = u.args[0], _letter(u, "mode")
    if mode == "N":
        return [x, lax.linalg.svd(x, compute_uv=False), x, x, _info(x)]
    left, values, right = lax.linalg.svd(x, full_matrices=mode == "A")
    return [x, values, left, right, _info(x)]


ROUTINES: Mapping[str, Callable[[Use], Any]] = {
    "lapack.geqrf": lambda u: list(geqrf(u.args[0])),
    "lapack.gesdd": _gesdd,
    "lapack.getrf": _getrf,
    "lapack.orgqr": lambda u: lax.linalg.householder_product(u.args[0], u.args[1]),
    "lapack.potrf": _potrf,
    "lapack.syevd": _syevd,
    "lapack.trsm": _trsm,
}


MOST_KNOWN = 64  # limit: elements of an array that is computed while the module is read; shapes have fewer
_CALL = ("func.call", "stablehlo.composite")
_RETURN = ("func.return", "stablehlo.return")
_OWN = (*_CALL, *_RETURN, "stablehlo.constant", "stablehlo.get_dimension_size")
_ASSERTION = "shape_assertion"
_IDENTITIES = ("Sharding",)  # custom calls that compute nothing
_COMPUTED = {**OPERATIONS, **ROUTINES}
_OF_PYTORCH = "mhlo."  # before the names of CHLO's operations, as which PyTorch's exporter writes custom calls


@dataclass(frozen=True)
class Known:
    """An array of integers, truth values and symbolic sizes that is known while the module is read."""

    array: np.ndarray[Any, Any]
    dtype: str

    @property
    def value(self) -> Any:
        if self.array.dtype != object:
            return self.array
        parts = [jnp.asarray(d, self.dtype) for d in self.array.reshape(-1)]
        return (jnp.stack(parts) if parts else jnp.zeros(0, self.dtype)).reshape(self.array.shape)


def check_operations(module: HloModule, name: str) -> None:
    """StableHloError that lists every operation of a module that is not read, once, with its count."""
    found: Counter[str] = Counter()
    for function in module.functions.values():
        for op in function.walk():
            if op.name == "stablehlo.custom_call":
                target = str(op.at("call_target_name"))
                if target != _ASSERTION and target not in _IDENTITIES and _named(target) not in _COMPUTED:
                    found[f"stablehlo.custom_call @{target}"] += 1
            elif op.name not in _OWN and op.name not in _COMPUTED:
                found[op.name] += 1
    if found:
        said = ", ".join(f"{kind} ({count})" for kind, count in sorted(found.items()))
        plural = "s are" if len(found) > 1 else " is"
        accepted = ", ".join(sorted(o.removeprefix("stablehlo.") for o in _COMPUTED))
        raise StableHloError(f"{name}: {len(found)} operation{plural} not supported: {said}\n  accepted: {accepted}")


def _named(target: Any) -> str:
    """The operation that a custom call stands for, of CHLO or of LAPACK, if it does."""
    text = str(target)
    return text.replace(_OF_PYTORCH, "chlo.", 1) if text.startswith(_OF_PYTORCH) else routine(text)


def as_function(module: HloModule) -> Callable[..., Any]:
    """A JAX function that computes what `main` computes. Its result is a tuple if there are several."""
    evaluation = _Evaluation(module)

    def run(*arrays: Any) -> Any:
        results = [_array(v) for v in evaluation.region(module.main, arrays, {})]
        return results[0] if len(results) == 1 else tuple(results)

    return run


def exported_function(exported: export.Exported) -> tuple[Callable[..., Any], bool]:
    """A JAX function of the flat arguments of an exported one, and whether it computes with 64-bit numbers.
    StableHloError if not all of it can be read."""
    if exported.nr_devices != 1:
        raise StableHloError(f"{exported.fun_name}: exported for {exported.nr_devices} devices\n  accepted: one")
    if exported.ordered_effects or exported.unordered_effects:
        raise StableHloError(f"{exported.fun_name}: it has effects\n  accepted: a function without effects")
    module = parse_module(exported.mlir_module())
    check_operations(module, exported.fun_name)
    used = exported.module_kept_var_idx  # the module has no parameters for the other arguments
    if len(module.main.params) != len(used):
        platforms = ", ".join(exported.platforms)
        raise StableHloError(f"{exported.fun_name}: exported for {platforms}\n  accepted: one platform")
    function = as_function(module)
    return lambda *arrays: function(*(arrays[i] for i in used)), not module.dtypes.isdisjoint(WIDE)


def _array(value: Any) -> Any:
    return value.value if isinstance(value, Known) else value


class _Evaluation:
    def __init__(self, module: HloModule) -> None:
        self.module = module

    def region(self, region: HloRegion, args: Sequence[Any], outside: Mapping[int, Any]) -> list[Any]:
        env = {**outside, **dict(zip(region.params, args, strict=True))}
        makers: dict[int, HloOp] = {}
        for op in region.ops:
            if op.name in _RETURN:
                return [env[x] for x in op.operands]
            results = self.op(op, [env[x] for x in op.operands], env, makers)
            env.update(zip(op.results, results, strict=True))
            makers |= dict.fromkeys(op.results, op)
        return []

    def op(self, op: HloOp, args: list[Any], env: Mapping[int, Any], makers: Mapping[int, HloOp]) -> Sequence[Any]:
        for name, value in op.attributes.items():
            if isinstance(value, Unreadable):
                raise StableHloError(f"{op.name}: attribute {name}: {value.why}\n  accepted: numbers, texts, arrays")
        if op.name == "stablehlo.constant":
            array: Any = op.at("value")
            kind = op.types[0]
            assert kind is not None
            return [Known(array, kind.dtype) if _is_small(array) else array]
        if op.name == "stablehlo.get_dimension_size":
            size = np.empty((), object)
            size[()] = jnp.shape(_array(args[0]))[int(op.at("dimension"))]
            return [Known(size, "int32")]
        if op.name in _CALL:
            return self.called(op, args)
        if op.name == "stablehlo.custom_call" and (named := _named(op.at("call_target_name"))) in _COMPUTED:
            return self.computed(replace(op, name=named), args, env, makers)
        if op.name == "stablehlo.custom_call":
            return args[: len(op.results)] if op.at("call_target_name") != _ASSERTION else _asserted(op, args[0])
        if op.results and all(isinstance(a, Known) for a in args):
            found = _known(op, args)
            if found is not None:
                return [found]
        return self.computed(op, args, env, makers)

    def called(self, op: HloOp, args: list[Any]) -> Sequence[Any]:
        """The results of a call. Composites name the function that computes them; known ones are operations."""
        if op.name == "func.call":
            return self.region(self.module.functions[str(op.at("callee"))], args, {})
        name = str(op.at("name"))
        if name in _COMPUTED:
            return self.computed(replace(op, name=name, attributes=op.at("composite_attributes", {})), args, {}, {})
        return self.region(self.module.functions[str(op.at("decomposition"))], args, {})

    def computed(
        self, op: HloOp, args: list[Any], env: Mapping[int, Any], makers: Mapping[int, HloOp]
    ) -> Sequence[Any]:
        def function(region: HloRegion) -> Callable[..., list[Any]]:
            return lambda *inner: [_array(v) for v in self.region(region, inner, env)]

        made = [makers.get(x) for x in op.operands]
        known = [a.array if isinstance(a, Known) else None for a in args]
        first = made[0] if made else None
        source = env[first.operands[0]] if first is not None and first.name == "stablehlo.convert" else None
        is_truth = source is not None and source.dtype == bool
        found = _COMPUTED[op.name](Use(op, [_array(a) for a in args], known, function, is_truth, made))
        results = found if isinstance(found, list) else [found]
        return results  # type: ignore[reportUnknownVariableType]


def _asserted(op: HloOp, holds: Any) -> Sequence[Any]:
    """No results. StableHloError for an assertion that does not hold; what depends on sizes is not asked."""
    if isinstance(holds, Known) and holds.array.dtype == bool and not holds.array.all():
        raise StableHloError(f"the module asserts: {op.at('error_message')}\n  accepted: sizes for which that holds")
    return []


# --- values that are known ---


def _is_small(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "iub" and array.size <= MOST_KNOWN


def _quotient(a: Any, b: Any) -> Any:
    """The quotient of sizes, which are not negative, or of numbers, rounded to 0. A number divided by 0 has all bits
    set, as in XLA."""
    if isinstance(a, int) and isinstance(b, int):
        return truncated_quotient(a, b) if b else -1
    return a // b


def _sign(a: Any) -> int:
    return 1 if a >= 1 else -1 if a < 0 else 0


_UNARY: Mapping[str, Callable[[Any], Any]] = {"abs": lambda a: a if a >= 0 else -a, "negate": lambda a: -a,
                                              "sign": _sign}  # fmt: skip
_LOGICAL: Mapping[str, Any] = {"and": np.logical_and, "or": np.logical_or, "not": np.logical_not}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b, "divide": _quotient,
    "remainder": lambda a, b: a - b * _quotient(a, b), "maximum": max_dim, "minimum": min_dim,
}  # fmt: skip
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b, "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
}  # fmt: skip


def _known(op: HloOp, args: Sequence[Known]) -> Known | None:
    """The result of an operation on known operands; None if it is to be computed when the program runs: another
    operation, a comparison that depends on the sizes, a size divided by 0."""
    kind, name = op.types[0], op.name.removeprefix("stablehlo.")
    if kind is None or None in kind.shape or np.dtype(kind.dtype).kind not in "iub" or len(op.results) != 1:
        return None
    shape = tuple(d for d in kind.shape if d is not None)
    if int(np.prod(shape)) > MOST_KNOWN:
        return None
    xs = [a.array.astype(object) for a in args]
    try:
        if name in _BINARY:
            made = np.frompyfunc(_BINARY[name], 2, 1)(*xs)
        elif name in _UNARY:
            made = np.frompyfunc(_UNARY[name], 1, 1)(*xs)
        elif name in _LOGICAL and kind.dtype == "bool":
            made = _LOGICAL[name](*(a.array for a in args))
        elif name == "compare":
            word = str(op.at("comparison_direction")).rstrip(">").split(" ")[-1]
            made = np.frompyfunc(_COMPARED[word], 2, 1)(*xs)
        elif name == "select" and args[0].array.dtype == bool:
            made = np.where(args[0].array, xs[1], xs[2])
        elif name == "concatenate":
            made = np.concatenate(xs, int(op.at("dimension")))
        elif name == "reshape":
            made = xs[0].reshape(shape)
        elif name == "slice":
            columns = (op.at(c) for c in ("start_indices", "limit_indices", "strides"))
            made = xs[0][tuple(slice(*map(int, row)) for row in zip(*columns, strict=True))]
        elif name == "convert" and np.dtype(args[0].dtype).kind in "iu" and np.dtype(kind.dtype).kind in "iu":
            made = xs[0]
        elif name == "broadcast_in_dim":
            dims = [int(d) for d in op.at("broadcast_dimensions")]
            aligned = xs[0].reshape([xs[0].shape[dims.index(a)] if a in dims else 1 for a in range(len(shape))])
            made = np.broadcast_to(aligned, shape)
        else:
            return None
        array = np.empty(shape, object)
        array[...] = made
        if all(isinstance(d, int | bool | np.integer | np.bool_) for d in array.reshape(-1)):
            array = _numbers(array, kind.dtype)
        return None if array is None else Known(array, kind.dtype)
    except (jax.errors.JAXTypeError, ZeroDivisionError):
        return None
    except Exception as error:  # the error of a comparison that the sizes do not decide is no public class
        if type(error).__name__ != "InconclusiveDimensionOperation":
            raise
        return None


def _numbers(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any] | None:
    """Numbers as an array of `dtype`; None if they do not fit, so that XLA has to wrap them around."""
    wide = np.dtype(dtype)
    if wide.kind == "b":
        return array.astype(bool)
    if wide.type.__module__ != np.__name__:
        return None
    held = np.iinfo(wide)
    if wide.kind == "u":
        array = np.where(array == -1, held.max, array)  # all bits set
    return array.astype(wide) if all(held.min <= int(d) <= held.max for d in array.reshape(-1)) else None
