"""`Binder`: computes the variables' values from the sizes of a call's arguments.

It runs on every call of an optimized function. The constructor decides which axis gives which variable and which axes
must agree, so a call costs a few tuple comparisons. Only a call that does not fit is examined axis by axis, for the
error message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

from relax_eg.errors import BoundsError, ShapeError
from relax_eg.shapes.dim import Dim, product

_Pick = Callable[[Sequence[int]], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of one argument.

    - `argument`: the argument's name.
    - `axis`: the axis's number in the argument, from 0.
    - `dim`: the expected size; None for any size.
    """

    argument: str
    axis: int
    dim: Dim | None

    def __str__(self) -> str:
        return f"{_argument_text(self.argument)}, axis {self.axis}"


@dataclass(frozen=True, slots=True)
class _Solve:
    """The solution of one axis for one variable: `variable = (size - rest) / scale`.

    - `place`: index, among all axes of all arguments, of the axis that has this size.
    """

    variable: str
    scale: Dim
    rest: Dim
    place: int


class Binder:
    """A solver of `patterns`, one tuple of sizes per argument, for their variables.

    None in a pattern is any size. A variable is taken from the first axis that is the bare variable, otherwise from an
    axis that is linear in it once other variables are known, such as `2*n + 1`, or `b*s` with known `b`. Every other
    axis is checked. A variable that cannot be solved raises ShapeError in the constructor, not at the first call.

    - `names`: argument names for errors; a name that contains a backtick is used as is.
    - `where`: name of the function for errors.
    """

    def __init__(self, patterns: Sequence[Sequence[Dim | None]], names: Sequence[str], where: str) -> None:
        self._where = call_name(where)
        if len(patterns) != len(names):
            raise ShapeError(f"{self._where}: {len(patterns)} patterns for {len(names)} argument names")
        self._names = tuple(names)
        self._ranks = tuple(map(len, patterns))
        self._axes = [
            _Axis(name, axis, dim)
            for name, pattern in zip(names, patterns, strict=True)
            for axis, dim in enumerate(pattern)
        ]
        sources: dict[str, int] = {}
        repeats: list[tuple[int, int]] = []  # positions of a repeated variable and of its first occurrence
        fixed: list[int] = []
        expressions: list[int] = []
        for place, axis in enumerate(self._axes):
            if axis.dim is None:
                continue
            name = _bare_name(axis.dim)
            if axis.dim.is_const:
                fixed.append(place)
            elif name is None:
                expressions.append(place)
            elif name in sources:
                repeats.append((place, sources[name]))
            else:
                sources[name] = place
        self._variables = tuple(sources)
        self._take = _picker(list(sources.values()))
        self._fixed = _picker(fixed)
        self._fixed_sizes = self._fixed([0 if axis.dim is None else axis.dim.const for axis in self._axes])
        self._repeats = _picker([place for place, _ in repeats])
        self._firsts = _picker([first for _, first in repeats])
        self._sources = sources
        self._solves, self._checks = self._plan(expressions)

    def bind(self, sizes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Returns the variables' values for arguments with these `sizes`. ShapeError names the first wrong size."""
        if tuple(map(len, sizes)) != self._ranks:
            raise self._wrong_ranks(sizes)
        flat = list(chain.from_iterable(sizes))
        env = dict(zip(self._variables, self._take(flat), strict=False))
        if self._fixed(flat) != self._fixed_sizes or self._repeats(flat) != self._firsts(flat):
            raise self._wrong_size(flat, env)
        try:
            for solve in self._solves:
                env[solve.variable] = self._solved_value(solve, flat, env)
            for place, dim in self._checks:
                if dim.evaluate(env) != flat[place]:
                    raise self._wrong_size(flat, env)
        except BoundsError as error:  # a division by zero; add the function's name
            raise BoundsError(f"{self._where}: {error}") from None
        return env

    def _plan(self, expressions: list[int]) -> tuple[list[_Solve], list[tuple[int, Dim]]]:
        """Returns the order in which expressions determine the variables that are no axis by themselves, and the
        expressions left to check."""
        solves: list[_Solve] = []
        known = set(self._sources)
        waiting = list(expressions)
        while any(self._dim(place).variables - known for place in waiting):
            found = [solve for place in waiting if (solve := _solve_linear(self._dim(place), known, place)) is not None]
            if not found:
                raise self._unsolvable(waiting, known)
            best = next((solve for solve in found if solve.scale.is_const), found[0])  # symbolic scales fail at 0
            solves.append(best)
            waiting.remove(best.place)
            known.add(best.variable)
            self._sources[best.variable] = best.place
        return solves, [(place, self._dim(place)) for place in waiting]

    def _dim(self, place: int) -> Dim:
        dim = self._axes[place].dim
        assert dim is not None, "only axes with a size are bound"
        return dim

    def _solved_value(self, solve: _Solve, flat: list[int], env: Mapping[str, int]) -> int:
        scale, rest, size = solve.scale.evaluate(env), solve.rest.evaluate(env), flat[solve.place]
        known = self._origins(solve.place, env)
        axis, dim, name = self._axes[solve.place], self._dim(solve.place), solve.variable
        if scale == 0:
            raise ShapeError(
                f"{self._where}: {axis} is {dim} = {size}, which does not tell `{name}`{known}; "
                f"give `{name}` as an axis of its own"
            )
        value = (size - rest) // scale
        if value < 0 or value * scale != size - rest:
            raise ShapeError(f"{self._where}: {axis} should be {dim} for some {name} >= 0{known}, got {size}")
        return value

    def _wrong_size(self, flat: list[int], env: Mapping[str, int]) -> ShapeError:
        """Returns the error for the first axis that differs from its expected size under `env`."""
        for place, axis in enumerate(self._axes):
            if axis.dim is None or not axis.dim.variables <= env.keys():
                continue
            value = axis.dim.evaluate(env)
            if value == flat[place]:
                continue
            if axis.dim.is_const:
                expected = str(value)
            elif _bare_name(axis.dim) is not None:
                (name,) = axis.dim.variables
                expected = f"{name} = {value} (from {self._origin(name, place)})"
            else:
                expected = f"{axis.dim} = {value}{self._origins(place, env)}"
            return ShapeError(f"{self._where}: {axis} should be {expected}, got {flat[place]}")
        raise AssertionError("no size is wrong")

    def _wrong_ranks(self, sizes: Sequence[Sequence[int]]) -> ShapeError:
        if len(sizes) != len(self._names):
            takes = f"{len(self._names)} {'argument' if len(self._names) == 1 else 'arguments'}"
            return ShapeError(f"{self._where}: takes {takes} ({', '.join(self._names)}), got {len(sizes)}")
        at = next(i for i, (shape, rank) in enumerate(zip(sizes, self._ranks, strict=True)) if len(shape) != rank)
        start, rank = sum(self._ranks[:at]), self._ranks[at]
        dims = ", ".join("_" if axis.dim is None else str(axis.dim) for axis in self._axes[start : start + rank])
        expected = f"have {rank} {'axis' if rank == 1 else 'axes'} ({dims})" if rank else "be a scalar"
        got = f"got {len(sizes[at])}: {tuple(sizes[at])}" if len(sizes[at]) else "got a scalar"
        return ShapeError(f"{self._where}: {_argument_text(self._names[at])} should {expected}, {got}")

    def _unsolvable(self, waiting: list[int], known: set[str]) -> ShapeError:
        place = next(place for place in waiting if self._dim(place).variables - known)
        names = sorted(self._dim(place).variables - known)
        missing = " and ".join(f"`{name}`" for name in names)
        return ShapeError(
            f"{self._where}: cannot tell {missing} from {self._axes[place]}, which is {self._dim(place)}; "
            f"let some axis be {' and another '.join(names)} alone, or linear in it as 2*{names[0]} + 1 is"
        )

    def _origins(self, place: int, env: Mapping[str, int]) -> str:
        """Returns ` (n = 24 from argument `ids`)`: the known variables of the axis with their origins."""
        names = sorted(self._dim(place).variables & env.keys())
        if not names:
            return ""
        return f" ({', '.join(f'{name} = {env[name]} from {self._origin(name, place)}' for name in names)})"

    def _origin(self, name: str, place: int) -> str:
        source, here = self._axes[self._sources[name]], self._axes[place]
        return f"axis {source.axis}" if source.argument == here.argument else _argument_text(source.argument)


def call_name(where: str) -> str:
    """Returns a function's name as in errors: `encode` -> `encode()`. Text that is not a name stays."""
    return f"{where}()" if where.replace(".", "_").isidentifier() else where


def _argument_text(name: str) -> str:
    return name if "`" in name else f"argument `{name}`"


def _bare_name(dim: Dim) -> str | None:
    """Returns the name if `dim` is a bare variable, else None."""
    if dim.const or len(dim.terms) != 1:
        return None
    monomial, coefficient = dim.terms[0]
    return monomial[0].name if coefficient == 1 and len(monomial) == 1 and monomial[0].op == "var" else None


def _solve_linear(dim: Dim, known: set[str], place: int) -> _Solve | None:
    """Returns how to solve `dim` for its only variable that is not `known`; None if `dim` is not linear in it."""
    unknown = dim.variables - known
    if len(unknown) != 1:
        return None
    (name,) = unknown
    scale, rest = Dim.of(0), Dim.of(dim.const)
    for monomial, coefficient in dim.terms:
        if any(name in arg.variables for atom in monomial for arg in atom.args):
            return None
        others = tuple(atom for atom in monomial if atom.name != name)
        if len(others) == len(monomial):
            rest += product(monomial, coefficient)
        elif len(others) == len(monomial) - 1:
            scale += product(others, coefficient)
        else:
            return None
    return _Solve(name, scale, rest, place)


def _picker(places: list[int]) -> _Pick:
    """Returns a fast function from all sizes to those at `places`."""
    if not places:
        return lambda sizes: ()
    # itemgetter with one index returns no tuple, so the index is passed twice.
    return itemgetter(*places) if len(places) > 1 else itemgetter(places[0], places[0])
