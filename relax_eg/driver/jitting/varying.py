"""`rx.jit` without `dims`: the calls show which sizes vary.

The first call fixes every size. A call with other sizes makes those that changed symbolic: axes that had equal sizes in
all calls so far share a name. If a later call breaks that, the function is optimized once more for what is then known
to vary. Each time fewer sizes are fixed or shared, so this ends.

A function may mean something else at other sizes: `x[:128]` is all of a short `x`, and Python may compare sizes. A
statement about sizes that the trace needs is assumed if it holds for the call at hand; calls for which it does not hold
get a program of their own, traced for them. Where a division has to leave no remainder, as in `x.reshape(4, -1)`,
the program is made for multiples, `4*n0` in place of `n0`. A program serves a combination of sizes only if the
function, traced for these sizes, is that very program (`frontends.trace_check`). At other sizes, and where a size is 0,
the function runs as written, and it is searched for once a combination is called often enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, NamedTuple

import jax
import numpy as np

from relax_eg.backend.calls.optimized import Optimized
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.errors import RelaxEgError, TraceError
from relax_eg.logs import fallback, log_at, raise_if_exhausted
from relax_eg.memo import Memo
from relax_eg.shapes import Dim
from relax_eg.shapes.multiples import deciding_multiples
from relax_eg.shapes.relation import read_statement, split_bounds

Shapes = tuple[tuple[int, ...], ...]
Pattern = tuple[int | str, ...]
Optimize = Callable[[list[Any], dict[str, int], Sequence[str], Sequence[Sequence[Any]]], Optimized]

_MOST_KNOWN = 4096  # limit: combinations of shapes whose program is remembered
_MOST_TRACES = 16  # limit: traces in which a program's assumptions are found, one at a time
_MOST_FAILURES = 4  # limit: traces for symbolic sizes that fail, each at other sizes
_MOST_ATTEMPTS = 16  # limit: pairs of sizes whose traces are compared, to make a program of what they have in common
_MOST_PROGRAMS = 4  # limit: programs of one function, for sizes at which it means different things
_HOT = 16  # chosen: calls after which a combination of sizes that no program serves gets a search of its own


class OtherSizesError(Exception):
    """Raised while JAX traces: the function was called before, but only with arrays of other sizes."""


class _Program(NamedTuple):
    """A program, and the sizes that it serves.

    - `best`: the program.
    - `multiples`: sizes in place of a pattern's names, each over a variable of that name: `4*n0` for `n0`.
    """

    best: Optimized
    multiples: Mapping[str, Dim]

    def sizes(self, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """The program's own sizes at these of the patterns; None if it does not serve them."""
        own = _quotients(self.multiples, sizes)
        return None if own is None or not self.best.allows(own) else own


class _Assumed:
    """What is assumed of sizes so that a trace can be made.

    - `sizes`: the sizes of the call at hand.
    - `multiples`: as in `_Program`; `sizes` are those of their variables.
    - `statements`: about these variables.
    """

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.multiples: dict[str, Dim] = {}
        self.statements: list[str] = []

    def dims(self, pattern: Pattern) -> list[int | str | Dim]:
        return [self.multiples.get(d, d) if isinstance(d, str) else d for d in pattern]

    def decide(self, undecided: Sequence[str]) -> bool:
        """Assumes the one of these comparisons that holds; whether that is something new."""
        relation = next((r for text in undecided for r in read_statement(text) if r.holds(self.sizes)), None)
        if relation is None or str(relation) in self.statements:
            return False
        if relation.op != "==":
            self.statements.append(str(relation))
            return True
        finer = deciding_multiples(relation, self.sizes)
        own = None if finer is None else _quotients(finer, self.sizes)
        if finer is None or own is None:
            return False
        named = {v: Dim.var(v) for v in finer} | self.multiples
        self.multiples = {v: d.substitute(finer) for v, d in named.items()}
        self.sizes = own
        self.statements.clear()  # they speak of other sizes
        return True


class Varying:
    """The calls of a function with arrays of certain ranks and dtypes.

    - `first`: the shapes of the first call.
    - `optimize(specs, at, assume, examples)`: optimizes the function: `specs` has a ShapeDtypeStruct or a spec string
      for each array, `at` the sizes to be best at, `assume` what may be assumed of sizes, `examples` arguments by whose
      traces it is `generalized`.
    """

    def __init__(self, name: str, first: Shapes, optimize: Optimize) -> None:
        self.first = first
        self._name, self._optimize = name, optimize
        self._seen = [first]
        self._patterns: list[Pattern] = [*first]
        self._programs: list[_Program] = []
        self._known = Memo[Shapes, Optimized | None](_MOST_KNOWN)
        self._gave_up = False
        self._failures = 0  # to trace it for symbolic sizes
        self._strays: list[Shapes] = []  # at which no program is the function's own
        self._attempts = 0  # to make a program of traces
        self._calls = Memo[Shapes, int](_MOST_KNOWN)
        self._lock = threading.Lock()

    def best_for(self, shapes: Shapes, leaves: Sequence[Any]) -> Optimized | None:
        """The program for arrays of these shapes; None if no program for sizes that vary serves them."""
        try:
            return self._known[shapes]
        except KeyError:
            pass
        with self._lock:
            if shapes not in self._known:  # another thread may have looked meanwhile
                self._known[shapes] = self._find(shapes, leaves)
            return self._known[shapes]

    def is_known(self, shapes: Shapes) -> bool:
        """Whether `best_for` needs no search for these shapes."""
        if shapes in self._known or self._gave_up or self._is_empty(shapes):
            return True
        sizes = _bound(self._patterns, shapes)
        if self._strays and self._attempts < _MOST_ATTEMPTS:
            return False
        full = len(self._programs) >= _MOST_PROGRAMS
        return sizes is not None and (full or any(p.sizes(sizes) is not None for p in self._programs))

    def is_hot(self, shapes: Shapes) -> bool:
        """Counts a call with shapes that no program serves; whether there were so many that these sizes deserve a
        search of their own."""
        with self._lock:
            self._calls[shapes] = self._calls.get(shapes, 0) + 1
            return self._calls[shapes] > _HOT

    def _find(self, shapes: Shapes, leaves: Sequence[Any]) -> Optimized | None:
        if self._gave_up or self._is_empty(shapes):
            return None
        before = self._seen, self._patterns, self._programs, self._known
        sizes = _bound(self._patterns, shapes)
        if sizes is None:
            self._generalize(shapes)
            sizes = _bound(self._patterns, shapes)
            assert sizes is not None
        found = self._found(shapes, sizes, leaves)
        if not self._programs:  # a call at which the function raises, or is no program for many sizes, says nothing
            self._seen, self._patterns, self._programs, self._known = before
        tried_all = self._failures >= _MOST_FAILURES and self._attempts >= _MOST_ATTEMPTS
        self._gave_up |= tried_all and not self._programs
        return found

    def _found(self, shapes: Shapes, sizes: dict[str, int], leaves: Sequence[Any]) -> Optimized | None:
        """The program for these shapes, known or new, where the patterns have these sizes."""
        serving = [p.best for p in self._programs if p.sizes(sizes) is not None]
        if not serving and self._failures < _MOST_FAILURES:
            serving = self._learn(sizes, leaves)
        try:
            own = next((p for p in serving if p.is_own(*leaves)), None)
            return own if own is not None else self._from_traces(shapes, sizes, leaves)
        except Exception as e:  # raised again when the function runs as written
            raise_if_exhausted(e)
            log_at(1, f"{self._name} raises {type(e).__name__} where it is traced for arrays of these sizes")
            return None

    def _from_traces(self, shapes: Shapes, sizes: dict[str, int], leaves: Sequence[Any]) -> Optimized | None:
        """A new program from what the function's traces for these and for other shapes have in common, where no program
        is the function's own at these; None if there is none. Where others have a program, three traces are compared,
        so that a guess is wrong less often."""
        others = [*(s for s in reversed(self._strays) if s != shapes), self.first]
        self._strays += [] if shapes in self._strays else [shapes]
        pairs = () if self._programs else combinations(others, 1)
        for beside in chain(pairs, combinations(others, 2)):
            if self._attempts == _MOST_ATTEMPTS or len(self._programs) == _MOST_PROGRAMS:
                return None
            self._attempts += 1
            examples = [[array_of(s, x) for s, x in zip(at, leaves, strict=True)] for at in (shapes, *beside)]
            for found in self._learn(sizes, leaves, examples):
                if found.is_own(*leaves):
                    self._strays.remove(shapes)
                    return found
        return None

    def _is_empty(self, shapes: Shapes) -> bool:
        """Whether a size is 0 that was none in another call. Programs are made for sizes from 1 on."""
        axes = (x for dims, shape in zip(self._patterns, shapes, strict=True) for x in zip(dims, shape, strict=True))
        return any(n == 0 and d != 0 for d, n in axes)

    def _generalize(self, shapes: Shapes) -> None:
        """Makes those sizes symbolic that are not the same in all calls so far, including this one."""
        self._seen = [*self._seen, shapes]
        names: dict[tuple[int, ...], str] = {}
        self._patterns = []
        for history in zip(*self._seen, strict=True):
            axes = list(zip(*history, strict=True))
            self._patterns.append(
                tuple(ns[0] if len(set(ns)) == 1 else names.setdefault(ns, f"n{len(names)}") for ns in axes)
            )
        self._programs = []
        self._known = Memo(_MOST_KNOWN)

    def _learn(
        self, sizes: dict[str, int], leaves: Sequence[Any], examples: Sequence[Sequence[Any]] = ()
    ) -> list[Optimized]:
        """A new program that serves `sizes`, and as many others as the function allows; none if there is none.
        `examples`: as of `generalized`; none for the function's own trace for symbolic sizes."""
        if len(self._programs) >= _MOST_PROGRAMS:
            return []
        assumed, best = _Assumed(sizes), None
        for _ in range(_MOST_TRACES):
            specs = [spec_of(assumed.dims(p), x) for p, x in zip(self._patterns, leaves, strict=True)]
            try:
                best = self._optimize(specs, assumed.sizes, assumed.statements, examples)
                break
            except Exception as e:
                if not isinstance(e, TraceError) or not assumed.decide(e.undecided or ()):
                    self._failures += not examples
                    self._report(e, not examples)
                    return []
        if best is None or not isinstance(best.strategy, AtCapacity):
            self._gave_up = not self._programs
            return []
        best.strategy.expect_other_sizes()
        self._programs.append(_Program(best, assumed.multiples))
        return [best]

    def _report(self, error: Exception, is_news: bool) -> None:
        """Logs why there is no program; at level 2 only, unless that `is_news`."""
        from relax_eg.frontends.sources import is_users_own  # not part of what a saved program imports

        if is_users_own(error):
            error = TraceError(f"it raises {type(error).__name__} for symbolic sizes: {error}")
        if isinstance(error, RelaxEgError) and not is_news:
            log_at(2, f"{self._name}: {error}")
        else:
            instead = "its traces for sizes of calls are compared, or it is compiled for each combination of sizes"
            fallback(f"{self._name} has no program for symbolic sizes; {instead}", error)


def asked_of(
    fn: Callable[..., Any],
    options: Mapping[str, Any],
    at: dict[str, int] | None = None,
    assume: Sequence[str] = (),
    examples: Sequence[Sequence[Any]] = (),
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What to optimize, and the options of `optimize`; `at`, `assume` and `examples` as in `Varying`."""
    chosen = dict(options)
    if at is not None:
        ranges, statements = split_bounds(chosen["bounds"])
        chosen |= {"at": at, "bounds": [ranges, *statements, *assume]}
    if not examples:
        return fn, chosen
    from relax_eg.frontends.generalized import generalized  # not part of what a saved program imports

    chosen["dynamic"] = replace(chosen["dynamic"], trust=False)  # what it is at other sizes is a guess
    return generalized(fn, examples), chosen


def _bound(patterns: Sequence[Pattern], shapes: Shapes) -> dict[str, int] | None:
    """The binding of the patterns' names to the sizes of these shapes; None if the shapes do not fit."""
    sizes: dict[str, int] = {}
    for dims, shape in zip(patterns, shapes, strict=True):
        for d, n in zip(dims, shape, strict=True):
            if n != (sizes.setdefault(d, n) if isinstance(d, str) else d):
                return None
    return sizes


def _quotients(multiples: Mapping[str, Dim], sizes: Mapping[str, int]) -> dict[str, int] | None:
    """The values of the variables in `multiples`, each of the form `4*n - 1`, at which these have the given sizes; None
    if there are none. Sizes that are not in `multiples` stay."""
    found = dict(sizes)
    for v, d in multiples.items():
        ((_, step),) = d.terms
        found[v], rest = divmod(sizes[v] - d.const, step)
        if rest:
            return None
    return found


def shapes_of(leaves: Sequence[Any]) -> Shapes:
    return tuple([np.shape(x) for x in leaves])


def kinds_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """What calls must have in common to be of one function whatever their sizes: ranks and dtypes, as JAX traces them.
    Of what JAX does not trace, the class."""
    return tuple(map(_kind_of, leaves))


def _kind_of(x: Any) -> Any:
    try:
        aval: Any = jax.typeof(x)
    except (TypeError, OverflowError):
        return type(x)
    return len(aval.shape), aval.dtype, getattr(aval, "weak_type", False)


def spec_of(dims: Sequence[int | str | Dim], x: Any) -> Any:
    """The spec of an array like `x`, with these sizes."""
    if all(isinstance(d, int) for d in dims):
        return array_of(dims, x)
    return f"{' '.join(f'({d})' for d in dims)} @ {jax.typeof(x).dtype}"


def array_of(shape: Sequence[Any], x: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array like `x`, with this shape."""
    aval: Any = jax.typeof(x)
    return jax.ShapeDtypeStruct(tuple(shape), aval.dtype, weak_type=getattr(aval, "weak_type", False))


def spec_of_any(x: Any) -> Any:
    """The shape and dtype of an array; other values as they are."""
    return spec_of(np.shape(x), x) if isinstance(x, (jax.Array, np.ndarray)) else x
