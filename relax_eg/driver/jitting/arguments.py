"""The arguments of a function under `jit`: what is declared of them, and calls taken apart."""

from __future__ import annotations

import functools
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from relax_eg.backend.calls.call_keys import kind_of
from relax_eg.driver.jitting.varying import kinds_of
from relax_eg.driver.options import Facts, no_argument, no_weight, read_facts
from relax_eg.errors import OptionError
from relax_eg.settings import settings_now

Static = dict[int | str, Any]  # arguments of a call, by position or name


class Declared:
    """The weights of a function, and the facts about its arguments, as `jit` was told.

    - `parameters`: those of the function; empty if they cannot be determined.
    - `weights`: names of arguments.
    - `facts`: by name or path, the facts that were declared.

    Positions count as in `static_argnums`. OptionError for a position or a weight that the function does not have, for
    a weight that is static or donated, and for a word that is no fact.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        weights: str | Sequence[str | int],
        facts: Facts | None,
        static: frozenset[str],
        donated: frozenset[str],
    ) -> None:
        self._name, self._static, self._donated = name, static, donated
        try:
            self.parameters: Mapping[str, inspect.Parameter] = inspect.signature(fn).parameters
        except (TypeError, ValueError):
            self.parameters = {}
        self.weights = frozenset(map(self._weight, (weights,) if isinstance(weights, str) else weights))
        self.facts = {self._argument(k, no_argument): words for k, words in read_facts(facts or {}).items()}

    def of(self, arguments: Sequence[str], prepares: bool) -> dict[str, Any]:
        """The options `weights` and `facts` for a call with arrays in these arguments. What is declared of arguments
        that the call leaves out, or of static ones, does not count. `prepares`: whether weights count."""
        there = {*arguments, *(a.partition("[")[0] for a in arguments)}
        absent = self.parameters.keys() - there
        facts = {k: f for k, f in self.facts.items() if not isinstance(k, str) or _head(k) not in absent}
        return {"weights": sorted(self.weights & there) if prepares else [], "facts": facts}

    def places(self, paths: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """The places of the weights among the leaves of a call, and those of the other leaves. `paths`: argument and
        path of each leaf."""
        weights = [not self.weights.isdisjoint((name, name.partition("[")[0])) for name, _ in paths]
        return [i for i, x in enumerate(weights) if x], [i for i, x in enumerate(weights) if not x]

    def is_constant(self, name: str, x: Any) -> bool:
        """Whether an argument is a constant of the program: it is static, or has no arrays."""
        return name in self._static or not jax.tree_util.tree_leaves(x)

    def _weight(self, given: str | int) -> str:
        """The name of a weight. OptionError for an argument that this function does not have, or does not keep."""
        name, known = self._argument(given, no_weight), self.parameters
        kinds = {p.kind: n for n, p in known.items()}
        rest = kinds.get(inspect.Parameter.VAR_POSITIONAL)
        is_open = not known or inspect.Parameter.VAR_KEYWORD in kinds
        if not isinstance(name, str) or not (is_open or name in known or name.partition("[")[0] == rest):
            raise no_weight(self._name, given, list(known))
        for names, what in (
            (self._static, "static, and nothing is prepared from a constant"),
            (self._donated, "donated, and what is prepared from it is for later calls"),
        ):
            if name.partition("[")[0] in names:
                raise OptionError(f"weights: `{name}` of {self._name} is {what}; accepted: one of the two")
        return name

    def _argument(self, key: Any, error: Callable[[str, Any, Sequence[str]], OptionError]) -> Any:
        """The argument at a position, counted as `static_argnums` counts, by name; a name as it is. `error` for a
        position that this function does not have."""
        known = self.parameters
        if not known or not isinstance(key, int) or isinstance(key, bool):
            return key
        names = list(known)
        rest = next((i for i, p in enumerate(known.values()) if p.kind is p.VAR_POSITIONAL), None)
        if rest is not None and key >= rest:
            return f"{names[rest]}[{key - rest}]"
        if not -len(names) <= key < len(names) or (rest is not None and key < 0):
            raise error(self._name, key, names)
        return names[key]


def bound(signature: inspect.Signature, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, by position and by name. `arguments`: those of each parameter."""
    found = inspect.BoundArguments(signature, OrderedDict(arguments))
    return found.args, found.kwargs


def replaced(
    args: tuple[Any, ...], kwargs: dict[str, Any], by: Mapping[int | str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with some of them replaced, by position or name."""
    if not by:
        return args, kwargs
    return tuple(by.get(i, x) for i, x in enumerate(args)), {k: by.get(k, x) for k, x in kwargs.items()}


def call_key(held: Static, tree: Any, leaves: list[Any]) -> tuple[Any, ...]:
    return static_key(held), tree, kinds_of(leaves), settings_now()


def static_key(held: Static) -> tuple[Any, ...]:
    # 1, True and 1.0 are equal in Python.
    return tuple([(n, type(x), x) for n, x in held.items()])


def kind_of_any(x: Any) -> Any:
    """`kind_of`, also of a number. LookupError for a tracer; TypeError, OverflowError for what JAX does not take."""
    return kind_of(x) if isinstance(x, (jax.Array, np.ndarray)) else jax.typeof(x)


def _head(key: str) -> str:
    """The argument at the beginning of a path, `p` in "p['w']"."""
    return re.split(r"\W", key, maxsplit=1)[0]


def names_in(fn: Callable[..., Any], jit: dict[str, Any], what: str) -> frozenset[str] | None:
    """The arguments that `jax.jit` takes as static, or as donated; None if they cannot be determined."""
    named, numbered = jit.get(f"{what}_argnames") or (), jit.get(f"{what}_argnums")
    names = {named} if isinstance(named, str) else set(named)
    numbers = [] if numbered is None else [numbered] if isinstance(numbered, int) else list(numbered)
    try:
        parameters = list(inspect.signature(fn).parameters)
        names |= {parameters[i] for i in numbers}
    except (TypeError, ValueError, IndexError):
        return frozenset[str]() if not names and not numbers else None
    return frozenset(names) if names <= set(parameters) else None


def as_signature_of(fn: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with the signature of `fn`, which `jax.jit` needs to resolve the names of static and donated arguments."""

    @functools.wraps(fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return traced


def is_traced(x: Any) -> bool:
    """Whether JAX traces something of an argument."""
    return any(isinstance(v, Tracer) for v in jax.tree_util.tree_leaves(x))
