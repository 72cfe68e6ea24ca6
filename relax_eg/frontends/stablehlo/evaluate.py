"""StableHLO modules as JAX functions. Values that are computed from shapes stay known, as arrays of symbolic sizes, so
that operations with sizes as operands have symbolic results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import export, random

from relax_eg.dtypes import WIDE
from relax_eg.errors import StableHloError
from relax_eg.frontends.stablehlo.lapack import ROUTINES, routine
from relax_eg.frontends.stablehlo.operations import OPERATIONS
from relax_eg.frontends.stablehlo.parsing import HloModule, HloOp, HloRegion, Unreadable, parse_module
from relax_eg.frontends.stablehlo.sizes import Known, known_constant, known_result, known_size
from relax_eg.frontends.stablehlo.use import Use
from relax_eg.traversal import reached

_CALL = ("func.call", "stablehlo.composite")
_RETURN = ("func.return", "stablehlo.return")
_TUPLES = ("stablehlo.get_tuple_element", "stablehlo.tuple")
_OWN = (*_CALL, *_RETURN, *_TUPLES, "stablehlo.constant", "stablehlo.get_dimension_size")
_ASSERTION = "shape_assertion"
_IDENTITIES = ("Sharding", "xla.sdy.FuncResultSharding")  # custom calls that compute nothing
_COMPUTED = {**OPERATIONS, **ROUTINES}
_SPELT = {"chlo.topk": "chlo.top_k"}
_OF_PYTORCH = "mhlo."  # before the names of CHLO's operations, as which PyTorch's exporter writes custom calls


def check_operations(module: HloModule, name: str) -> None:
    """StableHloError that lists every operation of a module that is not read, once, with its count."""
    found: Counter[str] = Counter()
    for function in module.functions.values():
        for op in function.walk():
            if op.name == "stablehlo.custom_call":
                target = str(op.at("call_target_name"))
                if target != _ASSERTION and target not in _IDENTITIES and _named(op) not in _COMPUTED:
                    found[f"stablehlo.custom_call @{target}"] += 1
            elif op.name not in _OWN and op.name not in _COMPUTED:
                found[op.name] += 1
    for start in module.functions:
        if start in _called_from(module, start):
            raise StableHloError(f"{name}: function `{start}` calls itself\n  accepted: functions that do not recur")
    if found:
        said = ", ".join(f"{kind} ({count})" for kind, count in sorted(found.items()))
        plural = "s are" if len(found) > 1 else " is"
        accepted = ", ".join(sorted(o.removeprefix("stablehlo.") for o in _COMPUTED))
        raise StableHloError(f"{name}: {len(found)} operation{plural} not supported: {said}\n  accepted: {accepted}")


def _called_from(module: HloModule, start: str) -> set[str]:
    """The functions that a function calls, those that these call, and so on."""

    def called(name: str) -> set[str]:
        ops = module.functions[name].walk()
        return {str(op.at("callee", op.at("decomposition"))) for op in ops if op.name in _CALL}

    return set(reached(called(start), called))


def _named(op: HloOp) -> str:
    """The operation that a custom call stands for, of StableHLO, of CHLO or of LAPACK, if it does."""
    text = str(op.at("call_target_name"))
    if text.startswith(_OF_PYTORCH):
        text = f"chlo.{text.removeprefix(_OF_PYTORCH)}"
        return _SPELT.get(text, text)
    return text if text in OPERATIONS else routine(text, op.at("mhlo.backend_config"))


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

    def run(*arrays: Any) -> Any:
        results = function(*(random.key_data(arrays[i]) if _is_key(arrays[i]) else arrays[i] for i in used))
        leaves, tree = jax.tree.flatten(results)
        typed = [
            random.wrap_key_data(x, impl=_impl(a)) if _is_key(a) else x
            for x, a in zip(leaves, exported.out_avals, strict=True)
        ]
        return jax.tree.unflatten(tree, typed)

    return run, not module.dtypes.isdisjoint(WIDE)


def _is_key(x: Any) -> bool:
    """Whether an array is one of keys of `jax.random`, which are numbers in a module."""
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _impl(keys: Any) -> Any:
    """The kind of keys of an abstract array of them, which only an array can be asked for."""
    return random.key_impl(jax.numpy.empty((0,), keys.dtype))


def _array(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_array, value))  # type: ignore[reportUnknownArgumentType]
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
            return [known_constant(array, kind.dtype) or array]
        if op.name == "stablehlo.get_dimension_size":
            return [known_size(_array(args[0]), int(op.at("dimension")))]
        if op.name == "stablehlo.tuple":
            return [tuple(args)]
        if op.name == "stablehlo.get_tuple_element":
            return [args[0][int(op.at("index"))]]
        if op.name in _CALL:
            return self.called(op, args)
        if op.name == "stablehlo.custom_call" and (named := _named(op)) in _COMPUTED:
            said = {**op.attributes, **op.at("mhlo.attributes", {})}
            called = [self.module.functions[str(name)] for name in op.at("called_computations", ())]
            op = replace(op, name=named, attributes=said, regions=(*op.regions, *called))
            return self.computed(op, args, env, makers)
        if op.name == "stablehlo.custom_call":
            return args[: len(op.results)] if op.at("call_target_name") != _ASSERTION else _asserted(op, args[0])
        if op.results and all(isinstance(a, Known) for a in args):
            found = known_result(op, args)
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
        known = [a.sizes if isinstance(a, Known) else None for a in args]
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
