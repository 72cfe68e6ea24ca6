"""The policy for many sizes: at which capacity a call runs, and when its sizes get an exact executable."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, Literal

from relax_eg.argument_checks import Kind, need_sizes, short_repr
from relax_eg.errors import BoundsError, OptionError
from relax_eg.shapes import Scope

Mode = Literal["exact", "capacity", "auto"]
Rungs = str | int | Sequence[int]
Capacities = Rungs | Mapping[str, Rungs]

DYNAMIC: tuple[Mode, ...] = ("exact", "capacity", "auto")
POWERS, BOUND = "powers of two", "bound"
_MOST_AHEAD = 1024  # limit: combinations of capacities that one compile_ahead() compiles
_ACCEPTED = (
    "'powers of two', a number (its multiples), a list of capacities such as [16, 32, 128], 'bound' (the upper bound), "
    "or {'s': one of these} is accepted"
)


@dataclass(frozen=True, kw_only=True)
class Dynamic:
    """How a function runs at many sizes: `optimize(..., dynamic=Dynamic(...))`.

    A field that is None has its default; in `load`, the value with which the function was saved.

    - `mode`: "exact", an executable for each combination of sizes that is called; "capacity", executables for few
      capacities, which take the true sizes as arguments; "auto" (usual), an executable for each of `at`, capacities for
      other sizes (without `at` from the second combination of sizes on), and an exact executable for a combination that
      is called so often that this pays.
    - `capacities`: "powers of two" (usual), a number (its multiples), a list, "bound", or one of these for each size
      variable.
    - `executables`: how many executables the function keeps, however it runs (usually 64; 1024 in kernels and in
      steps).
    - `background`: compile in a thread whenever another executable can serve the call meanwhile.
    - `trust`: promise that no Python decision on a size differs from the one made in the trace for symbolic sizes.
      Without it the function is traced once for each combination of sizes; if that gives another program, the function
      runs as written, in an executable of its own. A module is traced, too: errors of its operators at these sizes are
      raised, even where the chosen program no longer has these operators.
    - `padded`: leave results whose sizes vary at capacity. Each is a `types.PaddedArray`, which a later call takes
      without copying it, or an array where it fills the capacity. Calls at exact sizes return arrays.
    - `donated`: names of arguments whose arrays calls at capacity use up, as with `donate_argnames` of `jax.jit`. A
      result that is longer by a number of elements is written in their place.

    OptionError for values of another kind.
    """

    mode: Mode | None = None
    capacities: Capacities | None = None
    executables: int | None = None
    background: bool | None = None
    trust: bool | None = None
    padded: bool | None = None
    donated: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.mode is not None and not (isinstance(self.mode, str) and self.mode in DYNAMIC):
            raise OptionError(
                f"Dynamic(mode={short_repr(self.mode)}): one of {', '.join(map(repr, DYNAMIC))} is accepted"
            )
        n = self.executables
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):  # type: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"Dynamic(executables={short_repr(n)}): how many to keep, a number >= 1, is accepted")
        for name in ("background", "trust", "padded"):
            flag = getattr(self, name)
            if flag is not None and not isinstance(flag, bool):
                raise OptionError(f"Dynamic({name}={short_repr(flag)}): True or False is accepted")
        donated: Any = () if self.donated is None else self.donated
        if not isinstance(donated, (str, list, tuple)) or not all(isinstance(name, str) for name in donated):  # type: ignore[reportUnknownVariableType]
            raise OptionError(f"Dynamic(donated={short_repr(donated)}): a list of names of arguments is accepted")

    def over(self, usual: Dynamic) -> Dynamic:
        """This record, with the values of `usual` for the fields that are None."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(usual, **{name: value for name, value in own.items() if value is not None})

    @staticmethod
    def of(dynamic: Mode | Dynamic) -> Dynamic:
        """The option `dynamic` as a record; a word is the mode."""
        return dynamic if isinstance(dynamic, Dynamic) else Dynamic(mode=dynamic)


class Ladder:
    """The capacities that one size variable may have. `rungs`: the ladder as the option value."""

    @property
    @abstractmethod
    def rungs(self) -> Rungs: ...

    @abstractmethod
    def least_capacity(self, n: int) -> int:
        """The least capacity that holds `n` >= 1, ignoring bounds."""

    def capacity(self, n: int, high: int | None) -> int:
        """The capacity of `n`, at most `high`; `n` itself must be at most `high`."""
        c = self.least_capacity(n)
        return c if high is None else min(c, high)

    def capacities(self, low: int, high: int) -> Iterator[int]:
        """Every capacity that sizes from `low` to `high` need, in increasing order."""
        n = low
        while n <= high:
            c = self.capacity(n, high)
            yield c
            n = c + 1


@dataclass(frozen=True)
class Powers(Ladder):
    """The powers of two."""

    @property
    def rungs(self) -> Rungs:
        return POWERS

    def least_capacity(self, n: int) -> int:
        return 1 << (n - 1).bit_length()

    def __str__(self) -> str:
        return POWERS


@dataclass(frozen=True)
class Multiples(Ladder):
    """The multiples of `step`."""

    step: int

    @property
    def rungs(self) -> Rungs:
        return self.step

    def least_capacity(self, n: int) -> int:
        return -(-n // self.step) * self.step

    def __str__(self) -> str:
        return f"multiples of {self.step}"


@dataclass(frozen=True)
class Listed(Ladder):
    """The listed `sizes`; beyond the last one, its multiples."""

    sizes: tuple[int, ...]

    @property
    def rungs(self) -> Rungs:
        return list(self.sizes)

    def least_capacity(self, n: int) -> int:
        return next((c for c in self.sizes if c >= n), -(-n // self.sizes[-1]) * self.sizes[-1])

    def __str__(self) -> str:
        return ", ".join(map(str, self.sizes))


@dataclass(frozen=True)
class AtBound(Ladder):
    """One capacity: the upper bound `high`; None where only the step that determines the size bounds it."""

    high: int | None

    @property
    def rungs(self) -> Rungs:
        return BOUND

    def least_capacity(self, n: int) -> int:
        return n if self.high is None else self.high

    def __str__(self) -> str:
        return "its bound" if self.high is None else f"its bound {self.high}"


@dataclass(frozen=True)
class Policy:
    """How a function runs at many sizes.

    - `mode`: "exact", an executable for each combination of sizes; "capacity", one for each combination of
      capacities; "auto", exact for the sizes `at` (without any, for the first ones called), and at capacity for others
      until `earns_exact`.
    - `ladders`: the capacities of each size variable.
    - `scope`: the bounds and assumptions of the sizes.
    - `executables`: how many are kept; None: the default number.
    - `background`: compile in a thread whenever another executable can serve the calls.
    - `at`: the sizes that the user asked to be best at.
    - `padded`: whether results whose sizes vary stay at capacity.
    - `donated`: the arguments whose arrays calls at capacity use up.
    """

    mode: Mode
    ladders: Mapping[str, Ladder]
    scope: Scope
    executables: int | None = None
    background: bool = False
    at: tuple[Mapping[str, int], ...] = ()
    padded: bool = False
    donated: tuple[str, ...] = ()

    def is_donated(self, argument: str) -> bool:
        """Whether calls use up the arrays of an argument, which may be one of `*xs`."""
        return argument in self.donated or argument.partition("[")[0] in self.donated

    @property
    def others(self) -> Ladder:
        """The capacities of sizes of functions that are called: those of the entry's first size that has no bound of
        its own."""
        return next((ladder for ladder in self.ladders.values() if not isinstance(ladder, AtBound)), Powers())

    def as_data(self) -> dict[str, Any]:
        """The options as plain data, from which `from_data` makes an equal policy."""
        return {
            "dynamic": self.mode,
            "capacities": {v: ladder.rungs for v, ladder in self.ladders.items()},
            "executables": self.executables,
            "background": self.background,
            "at": [dict(b) for b in self.at],
            "padded": self.padded,
            "donated": list(self.donated),
        }

    def named_sizes(self, fixed: Mapping[str, int]) -> list[dict[str, int]]:
        """The sizes that run exactly because the user named them; every size must be named or `fixed` by the
        weights."""
        if self.mode != "auto":
            return []
        whole = [{**b, **fixed} for b in self.at if all(b.get(v, n) == n for v, n in fixed.items())]
        return [{v: b[v] for v in self.ladders} for b in whole if self.ladders.keys() <= b.keys()]

    def capacities(self, sizes: Mapping[str, int], dims: Sequence[str]) -> dict[str, int] | None:
        """The sizes to run at: capacities for `dims`, the others unchanged. None if no capacity nearby satisfies the
        assumptions about sizes."""
        found = {v: self.ladders[v].capacity(n, self.scope.bounds(v)[1]) if v in dims else n for v, n in sizes.items()}
        if not self.scope.assumptions or self._allowed(found):
            return found
        # An assumption such as `s % 8 == 0` can be met by increasing one size.
        for v in dims:
            highest = self.scope.bounds(v)[1]
            for more in range(1, found[v] + 1):
                c = found[v] + more
                if highest is not None and c > highest:
                    break
                if self._allowed({**found, v: c}):
                    return {**found, v: c}
        return dict(sizes) if not dims else self._below(sizes, found, dims)

    def _below(self, sizes: Mapping[str, int], found: Mapping[str, int], dims: Sequence[str]) -> dict[str, int] | None:
        """Capacities between the sizes and those `found`: near an upper bound, the allowed capacity may be smaller."""
        for v in dims:
            for c in range(found[v] - 1, sizes[v] - 1, -1):
                if self._allowed({**found, v: c}):
                    return {**found, v: c}
        return None

    def _allowed(self, sizes: Mapping[str, int]) -> bool:
        try:
            self.scope.check(sizes, "")
        except BoundsError:
            return False
        return True

    def all_capacities(self, name: str, dims: Sequence[str], fixed: Mapping[str, int]) -> list[dict[str, int]]:
        """Sizes that reach every combination of capacities once. OptionError if there is no upper bound, or if there
        are too many."""
        ranges: list[list[int]] = []
        for v in dims:
            low, high = self.scope.bounds(v)
            if high is None:
                raise OptionError(
                    f"compile_ahead(): {v} of {name}() has no upper bound, so there is no last capacity; declare "
                    f"bounds={{{v!r}: (1, 4096)}}, or pass the sizes to compile for: compile_ahead({{{v!r}: 128}})"
                )
            ranges.append(list(self.ladders[v].capacities(1 if low is None else max(low, 1), high)))
        if math.prod(map(len, ranges)) > _MOST_AHEAD:
            raise OptionError(
                f"compile_ahead(): {math.prod(map(len, ranges))} combinations of capacities of {name}(); pass those "
                "to compile for, or have coarser capacities"
            )
        return [{**fixed, **dict(zip(dims, c, strict=True))} for c in product(*ranges)]


def earns_exact(calls: int, seconds: float, share: float, compiling: float) -> bool:
    """Whether sizes that were called `calls` times at capacity should get an exact executable.

    A call at capacity takes `seconds` as measured, of which a call at exact sizes would save a `share`; compiling takes
    `compiling` seconds, the mean of the measured ones. The sizes earn one as soon as the calls so far would have saved
    its cost: whatever calls follow, at most twice the optimum is spent.
    """
    return calls * seconds * share > compiling


def read_policy(
    name: str,
    variables: Sequence[str],
    scope: Scope,
    dynamic: Dynamic,
    at: Sequence[Mapping[str, int]] = (),
    found: Sequence[str] = (),
) -> Policy:
    """The policy for a function with these size variables. OptionError, BoundsError for capacities that do not fit
    them.

    - `found`: further sizes, which `match_cast`s name.
    """
    variables = (*variables, *found)
    capacities: Any = POWERS if dynamic.capacities is None else dynamic.capacities
    by_name: Mapping[Any, Any] = capacities if isinstance(capacities, Mapping) else dict.fromkeys(variables, capacities)
    need_sizes(name, "capacities", by_name, variables)
    ladders = {v: _ladder(v, by_name.get(v, POWERS), scope.bounds(v)[1], v in found) for v in variables}
    donated = (dynamic.donated,) if isinstance(dynamic.donated, str) else tuple(dynamic.donated or ())
    return Policy(
        dynamic.mode or "auto", ladders, scope, dynamic.executables, bool(dynamic.background), tuple(at),
        bool(dynamic.padded), donated,
    )  # fmt: skip


def check_one_program(name: str, policy: Policy, runs: str, given: Sequence[str]) -> None:
    """OptionError for options of one program that runs at capacity, if the function is none.

    - `runs`: "kernels", "auto" (it may run in kernels) or "steps"; anything else for one program.
    - `given`: the names of the arguments that calls give.
    """
    how = {
        "kernels": "runs kernel by kernel",
        "auto": "may run kernel by kernel, which execution='whole' rules out",
    }.get(runs)
    if policy.mode == "capacity" and how is not None:
        raise OptionError(f"dynamic='capacity': {name}() {how}; 'auto' and 'exact' are accepted")
    how = "runs in steps" if runs == "steps" else how
    if how is not None and (policy.padded or policy.donated):
        option = "padded" if policy.padded else "donated"
        raise OptionError(f"Dynamic({option}=...): {name}() {how}; a function that is one program is accepted")
    known = {*given, *(a.partition("[")[0] for a in given)}
    for argument in policy.donated:
        if argument not in known:
            has = ", ".join(given) or "none"
            raise OptionError(f"Dynamic(donated=...): calls of {name}() give no argument {argument!r}; they give {has}")


def _ladder(v: str, given: Any, high: int | None, is_found: bool) -> Ladder:
    if given is None or (isinstance(given, str) and given == POWERS):
        return Powers()
    if isinstance(given, str) and given == BOUND:
        if high is None and not is_found:
            raise OptionError(f"capacities='bound': {v} has no upper bound; declare bounds={{{v!r}: (1, 4096)}}")
        return AtBound(high)
    if isinstance(given, int) and _is_size(given):
        return Multiples(given)
    if isinstance(given, (list, tuple)) and given and all(map(_is_size, given)):
        return Listed(tuple(sorted(set(given))))
    raise OptionError(f"capacities={short_repr(given)} for {v}: {_ACCEPTED}")


def _is_size(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 1


DYNAMIC_KIND = Kind(
    lambda x: isinstance(x, Dynamic) or (isinstance(x, str) and x in DYNAMIC),
    f"one of {', '.join(map(repr, DYNAMIC))}, or a Dynamic",
)
