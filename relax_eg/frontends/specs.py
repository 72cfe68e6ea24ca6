"""Reads the specs that `trace` and `optimize` take: the description of each argument of a function.

A spec is one of: a spec string ("b s 768", "b s @ int32"; float32 if it names no dtype), an array of JAX or numpy (it
stands for arrays of its own shape and dtype), a `jax.ShapeDtypeStruct`, an `ir.Tensor`, a Python number (a weakly typed
scalar, as `jax.jit` takes it), None, or a pytree of these.

Sizes may be symbolic dimensions of JAX: the constraints of their `jax.export.SymbolicScope` hold for the arguments.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from relax_eg.argument_checks import need_sizes
from relax_eg.dtypes import KEY_DTYPE, numpy_dtype
from relax_eg.errors import SpecError, TraceError
from relax_eg.frontends.symbolic import SymbolicSizes, constraints_of, is_symbolic, to_dim, variables_of
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import fresh_name
from relax_eg.shapes import Dim, Scope, parse_spec
from relax_eg.shapes.spec import ANY_KEY, Star

ACCEPTED = (
    "a spec string such as 'b s 768' or 'n @ int32', an array, a jax.ShapeDtypeStruct, a number, None, "
    "or a pytree of these"
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of the arguments.

    - `path`: the array as the user would write it, `params['layers'][0]['w']`.
    - `argument`: the argument of the function to which the array belongs: a parameter or, for `*xs`, `xs[0]`.
    - `name`: `path` as an identifier, unique in the signature.
    - `annotation`: shape and dtype.
    - `aval`: shape and dtype as a `jax.ShapeDtypeStruct`, with symbolic dimensions of JAX as sizes.
    - `weak_type`: whether the dtype is weak, as that of a Python number.
    """

    path: str
    argument: str
    name: str
    annotation: Tensor
    aval: jax.ShapeDtypeStruct
    weak_type: bool = False


@dataclass(frozen=True, slots=True)
class NamedSpec:
    """A spec of one array with the names that options, errors and reports have for it.

    A function that takes the arrays of another one flat is traced with such specs, and so has that one's names.

    - `argument`: the name of the argument that the array is in, as in `Leaf`.
    - `path`: the path of the array, as in `Leaf`.
    - `spec`: the spec.
    """

    argument: str
    path: str
    spec: Any


@dataclass(frozen=True, slots=True)
class Arguments:
    """The specs of a call, flattened.

    - `signature`: the signature of the function; None if it has none.
    - `leaves`: the arrays in the specs, in order.
    - `tree`: the structure of `(args, kwargs)` as `signature` binds them.
    - `scope`: the constraints that the JAX scopes of symbolic sizes state.
    """

    signature: inspect.Signature | None
    leaves: tuple[Leaf, ...]
    tree: Any
    scope: Scope

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arguments that have arrays in their specs, in order: parameters, and `xs[0]`, ... for `*xs`."""
        return tuple(dict.fromkeys(leaf.argument for leaf in self.leaves))

    def named(self, key: Any) -> tuple[str, ...]:
        """The arguments that `key` names: one by its name or position, all of `*xs` by `xs`; empty if there is none."""
        names = self.names
        if isinstance(key, int) and not isinstance(key, bool):
            return (names[key],) if -len(names) <= key < len(names) else ()
        # Only the elements of `*xs` have a bracket in their names.
        return (key,) if key in names else tuple(n for n in names if n.partition("[")[0] == key)


class HasArguments:
    """Base class of programs with `arguments`: the properties that follow from the arguments."""

    arguments: Arguments

    @property
    def why_in_steps(self) -> str:
        """Why the program runs in steps, and what would be accepted instead; "" if it does not run in steps."""
        return ""

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self.arguments.leaves

    @property
    def in_tree(self) -> Any:
        """The structure of `(args, kwargs)`."""
        return self.arguments.tree

    @property
    def arg_names(self) -> tuple[str, ...]:
        """Names of the parameters of `fn` that hold arrays; `xs` stands for all of `*xs`."""
        return tuple(dict.fromkeys(n.partition("[")[0] for n in self.arguments.names))

    @property
    def leaf_names(self) -> tuple[str, ...]:
        """The parameters' paths as the user would write them."""
        return tuple(leaf.path for leaf in self.leaves)


def read_arguments(
    fn: Callable[..., Any],
    name: str,
    specs: tuple[Any, ...],
    kwspecs: Mapping[str, Any],
    sizes: SymbolicSizes,
    assume: Sequence[str] = (),
    hints: Sequence[str] = (),
) -> Arguments:
    """The arguments of `fn` as `specs` and `kwspecs` describe them, with sizes that satisfy `assume`. `hints`: what
    follows from it, in JAX's spelling.

    SpecError for a spec that cannot be read. TraceError for specs that do not fit the signature. BoundsError for a
    statement in `assume` about an unknown size.
    """
    signature = _signature(fn)
    try:
        args, kwargs = _normalise(signature, specs, kwspecs)
    except TypeError as error:
        in_one = len(specs) == 1 and isinstance(specs[0], (tuple, list)) and len(specs[0]) > 1
        hint = "; a tuple is one argument: write `*specs` for a tuple that holds those of the call" if in_one else ""
        raise TraceError(
            f"the specs do not fit `{name}{signature}`: {error}\n"
            f"  accepted: one spec for each argument of the call{hint}"
        ) from None
    flat, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    named = [
        (spec.argument, spec.path, spec.spec)
        if isinstance(spec, NamedSpec)
        else (*_path(signature, len(args), keys), spec)
        for keys, spec in flat
    ]
    constraints = _constraints((path, spec) for _, path, spec in named)
    sizes.constrain(constraints)
    sizes.add_hints([*Scope(assume=assume).to_constraints(), *hints])
    used: set[str] = set()
    leaves = [_leaf(path, argument, identifier(path, used), spec, sizes) for argument, path, spec in named]
    known = sorted({v for leaf in leaves for d in leaf.annotation.shape or () for v in d.variables})
    need_stated_sizes(name, assume, known)
    return Arguments(signature, tuple(leaves), tree, Scope.from_constraints(constraints))


def argument_paths(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """`argument` and `path`, as in `Leaf`, of each leaf of the arguments of a call of `fn`, in the order of
    `jax.tree_util.tree_leaves((args, kwargs))`."""
    signature = _signature(fn)
    flat, _ = jax.tree_util.tree_flatten_with_path((args, dict(kwargs)))
    return [_path(signature, len(args), keys) for keys, _ in flat]


def need_stated_sizes(name: str, assume: Iterable[str], known: Sequence[str]) -> None:
    """BoundsError if a statement in `assume` names a size that is not in `known`, the sizes of function `name`."""
    for text in assume:
        need_sizes(name, f"bounds={text!r}", sorted(variables_of(text)), known)


def _constraints(specs: Iterable[tuple[str, Any]]) -> list[str]:
    """The constraints that the scopes of symbolic dimensions state. SpecError if two scopes share a variable name.

    Leaves out constraints on variables that no argument has: they cannot be checked when the function is called.
    """
    found: dict[int, tuple[str, ...]] = {}
    owners: dict[str, tuple[Any, str]] = {}
    for path, spec in specs:
        shape = getattr(spec, "shape", None)
        for size in filter(is_symbolic, shape if isinstance(shape, tuple) else ()):
            found[id(size.scope)] = constraints_of(size)
            for name in to_dim(size).variables:
                scope, first = owners.setdefault(name, (size.scope, path))
                if scope is not size.scope:
                    raise SpecError(
                        f"argument `{path}`: `{name}` is of another jax.export.SymbolicScope than the `{name}` of "
                        f"argument `{first}`\n  accepted: symbolic_shape(..., scope=scope) with the same scope for both"
                    )
    texts = dict.fromkeys(text for texts in found.values() for text in texts)
    return [text for text in texts if variables_of(text) <= owners.keys()]


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (ValueError, TypeError):
        return None


def _normalise(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if signature is None:
        return args, dict(kwargs)
    bound = signature.bind(*args, **kwargs)
    return bound.args, bound.kwargs


def _path(signature: inspect.Signature | None, positional: int, keys: tuple[Any, ...]) -> tuple[str, str]:
    """The argument that a leaf belongs to, and the full path of the leaf."""
    group, first, *rest = keys
    inner = jax.tree_util.keystr(tuple(rest))
    if group.idx == 1:  # keywords
        return first.key, first.key + inner
    names = [] if signature is None else list(signature.parameters.values())
    fixed = [p for p in names if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if first.idx < len(fixed):
        argument = fixed[first.idx].name
        return argument, argument + inner
    rest_name = next((p.name for p in names if p.kind is p.VAR_POSITIONAL), None)
    if rest_name is None:
        argument = "x" if positional == 1 else f"x{first.idx}"
        return argument, argument + inner
    argument = f"{rest_name}[{first.idx - len(fixed)}]"  # each element of `*args` is a separate argument
    return argument, argument + inner


def identifier(path: str, used: set[str]) -> str:
    """`path` as an identifier that is not in `used`; adds it to `used`."""
    name = re.sub(r"\W+", "_", path).strip("_") or "x"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"x_{name}"
    return fresh_name(name, used, "_", 2)


def _leaf(path: str, argument: str, name: str, spec: Any, sizes: SymbolicSizes) -> Leaf:
    weak = False
    if isinstance(spec, str):
        shape, dtype = _read(path, name, spec)
        jax_dtype: Any = _dtype(path, dtype)
    elif isinstance(spec, Tensor):
        if spec.shape is None or spec.dtype is None:
            raise SpecError(f"argument `{path}`: {spec} does not say all sizes and the dtype\n  accepted: {ACCEPTED}")
        shape, jax_dtype = spec.shape, _dtype(path, spec.dtype)
    elif isinstance(spec, jax.ShapeDtypeStruct):
        shape, jax_dtype = tuple(map(to_dim, spec.shape)), spec.dtype
        weak = bool(getattr(spec, "weak_type", False))
    else:
        try:
            aval: Any = jax.typeof(spec)
            shape, jax_dtype = tuple(map(to_dim, aval.shape)), aval.dtype
        except (TypeError, AttributeError, OverflowError) as error:
            why = str(error) if isinstance(error, OverflowError) else f"{type(spec).__name__} is no spec"
            raise SpecError(f"argument `{path}`: {why}\n  accepted: {ACCEPTED}") from None
        weak = bool(getattr(aval, "weak_type", False))
    jax_dtype = _supported(path, jax_dtype)
    try:
        dims = tuple(sizes.to_jax(d) for d in shape)
    except SpecError as error:
        raise SpecError(f"argument `{path}`: {error}") from None
    return Leaf(
        path,
        argument,
        name,
        Tensor(shape, str(jax_dtype)),
        jax.ShapeDtypeStruct(dims, jax_dtype, weak_type=weak),
        weak,
    )


def _read(path: str, name: str, text: str) -> tuple[tuple[Dim, ...], str]:
    """Sizes and dtype of a spec string; each `_` becomes a new size variable."""
    try:
        spec = parse_spec(text)
    except SpecError as error:
        raise SpecError(f"argument `{path}`: {error}") from None
    dims: list[Dim] = []
    for axis, dim in enumerate(spec.dims):
        if isinstance(dim, Star):
            raise SpecError(
                f"argument `{path}`: `*{dim.name}` stands for any number of axes and is for rules only\n"
                f"  accepted: one size for each axis, as in 'b s 768'"
            )
        dims.append(Dim.var(f"{name}_{axis}") if dim is None else dim)
    return tuple(dims), spec.dtype or "float32"


def _dtype(path: str, name: str) -> Any:
    """The JAX dtype of a dtype name; `key` is the default kind of PRNG key, `key<fry>` a specific kind."""
    if name != ANY_KEY and not KEY_DTYPE.fullmatch(name):
        return numpy_dtype(name)
    implementations = (None, "threefry2x32", "rbg", "unsafe_rbg")  # None: this process's default
    kinds = [jax.eval_shape(lambda i=i: jax.random.key(0, impl=i)).dtype for i in implementations]
    for dtype in kinds:
        if name in (ANY_KEY, str(dtype)):
            return dtype
    raise SpecError(
        f"argument `{path}`: no kind of PRNG key is `{name}`\n  accepted: {', '.join(dict.fromkeys(map(str, kinds)))}"
    )


def _supported(path: str, dtype: Any) -> Any:
    """`dtype`, if JAX in this process can hold it; SpecError otherwise."""
    if not isinstance(dtype, np.dtype):
        return dtype  # an extended dtype: PRNG keys
    canonical = jax.dtypes.canonicalize_dtype(dtype)
    if canonical != dtype:
        raise SpecError(
            f"argument `{path}`: {dtype} is switched off in this process\n"
            f"  accepted: {canonical}, or {dtype} after jax.config.update('jax_enable_x64', True)"
        )
    return dtype
