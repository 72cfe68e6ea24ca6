"""Judges, which compare the two sides of a rule instance at one point. Each judge has its own definition of "equal".

A judge returns None if the sides agree, otherwise a `Failure`. It raises `Absent` if the left side does not exist at
the point, because then there is nothing to rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from relax_eg.dtypes import FLOATS, dtype_of, is_complex, is_float, numpy_dtype
from relax_eg.errors import BoundsError, OperatorError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import (
    CALL_TIR,
    CONSTANT,
    VAR,
    Expr,
    const,
    constant_value,
    postorder,
    rebuild,
    tuple_,
    var,
)
from relax_eg.ir.heads import PASSIVE, TUPLES, with_operands
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ops.difference import largest_magnitude
from relax_eg.ops.interpret import evaluate_expr, evaluate_points
from relax_eg.ops.libraries import inline_libraries
from relax_eg.ops.record import TABLE, call, get, position_promises, program_of, site_of
from relax_eg.rules.checking.enumeration import bits_differ
from relax_eg.rules.checking.samples import mask_values, size_preconditions, unmet_precondition, value_guards_hold
from relax_eg.rules.rule import Instance
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, walk
from relax_eg.tir.functions import FUNCTIONS, TRANSCENDENTAL
from relax_eg.tir.substitute import widened

Array = np.ndarray[Any, Any]
Arithmetic = Literal["numpy", "exact"]

# chosen: tolerance of float64 results, relative to the largest intermediate value: far above the rounding error at
# small sizes, far below the difference that a mistake in a rule makes.
TOLERANCE = 1e-11
PERTURBATIONS = 8  # limit: perturbations of the operands; if a result fails with these, eight times as many are tried
# chosen: the accepted error of the right side, relative to the larger of the left side's error and its change under
# perturbation
ACCURACY_FACTOR = 8.0


@dataclass(frozen=True)
class Case:
    """A point of comparison.

    - `instance`: the instance.
    - `sizes`: the values of its size variables.
    - `values`: the values of its pattern variables, by name.
    """

    instance: Instance
    sizes: Mapping[str, int]
    values: Mapping[str, Array]


@dataclass(frozen=True)
class Failure:
    """A difference between the sides at a case.

    - `description`: the text of the difference; empty if only values differ.
    - `left`, `right`: the values of the result that differs; None if a side has none.
    - `output`: the number of this result.
    - `hint`: a change that may fix the rule; empty if none is known.
    """

    description: str
    left: Array | None = None
    right: Array | None = None
    output: int = 0
    hint: str = ""


Judge = Callable[[Case], Failure | None]


@dataclass(frozen=True)
class PreparedSides:
    """The sides of an instance, possibly in other dtypes, arranged for evaluation in one pass.

    - `left`, `right`: the results of the two sides, without library calls.
    """

    left: tuple[Expr, ...]
    right: tuple[Expr, ...]

    @cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """The results of both sides, then every node with a tensor annotation."""
        inner = [e for e in postorder((*self.left, *self.right)) if isinstance(e.annotation, Tensor)]
        return (*self.left, *self.right, *inner)

    @cached_property
    def params(self) -> dict[str, Expr]:
        """The pattern variables, by name."""
        return {str(e.attr("name")): e for e in postorder((*self.left, *self.right)) if e.op == VAR}

    @cached_property
    def position_promises(self) -> list[tuple[Expr, Dim]]:
        """The tensors of the left side whose elements are promised to be positions along an axis, each with the size of
        that axis."""
        return position_promises(self.left)

    @cached_property
    def all_nodes_tuple(self) -> Expr:
        """The tuple of `nodes`."""
        return tuple_(self.nodes)

    @cached_property
    def both_sides_tuple(self) -> Expr:
        return tuple_((*self.left, *self.right))

    @cached_property
    def left_tuple(self) -> Expr:
        return tuple_(self.left)


@lru_cache(1 << 10)
def prepare_sides(instance: Instance) -> PreparedSides:
    """The sides, with library calls replaced by their definitions."""
    return PreparedSides(tuple(inline_libraries(instance.left)), tuple(inline_libraries(instance.right)))


@lru_cache(1 << 10)
def widen_sides(instance: Instance) -> PreparedSides:
    """The sides with every float type replaced by float64 and every complex type by complex128."""
    p = prepare_sides(instance)
    made, n = tuple(_widened((*p.left, *p.right))), len(p.left)
    return PreparedSides(made[:n], made[n:])


def roundings_of(instance: Instance) -> dict[Expr, float]:
    """The nodes of the left side of `widen_sides` that compute floats, with the relative error of a rounding to the
    dtype that they have in the instance."""
    narrow = postorder(prepare_sides(instance).left)
    floats = [isinstance(e.annotation, Tensor) and e.dtype in FLOATS and _is_arithmetic(e) for e in narrow]
    made = zip(narrow, _widened(narrow), floats, strict=True)
    return {wide: dtype_of(e.dtype).half_ulp for e, wide, is_rounded in made if is_rounded}


def _is_arithmetic(e: Expr) -> bool:
    return e.op == CALL_TIR or (e.op in TABLE and get(e.op).moves is None)


def _widened(roots: Sequence[Expr]) -> list[Expr]:
    def replace(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == VAR:
            return var(str(e.attr("name")), Tensor(e.shape, _wide(e.dtype)))
        if e.op == CONSTANT:
            value = constant_value(e)
            wide = _wide(value.dtype.name)
            return const(value.astype(numpy_dtype(wide))) if wide != value.dtype.name else e
        if e.op in TUPLES:
            return with_operands(e, args)
        if e.op == CALL_TIR:
            return call_tir(widened(e.attr("program").value), args, sizes=dict(e.attr("sizes")))
        attrs = {k: _wide(v) if k in ("dtype", "out_dtype") and isinstance(v, str) else v for k, v in e.attrs}
        return call(e.op, args, attrs)

    return list(rebuild(roots, replace))


def _wide(dtype: str) -> str:
    return "float64" if is_float(dtype) else "complex128" if is_complex(dtype) else dtype


@lru_cache(1 << 10)
def is_rational(instance: Instance) -> bool:
    """Whether exact arithmetic covers every operation of both sides: + - * /, comparisons, max, rounding."""
    p = prepare_sides(instance)
    for e in postorder((*p.left, *p.right)):
        if e.op in PASSIVE:
            continue
        program = program_of(site_of(e))
        if program is None:
            return False
        for stage in program.stages:
            for term in walk(stage.value):
                if isinstance(term, Apply):
                    f = FUNCTIONS[term.fn]
                    if f.exact is None or f.name in ("rsqrt", "power") or f.flops >= TRANSCENDENTAL:
                        return False
    return True


class Absent(Exception):
    """Raised if the left side does not exist at these sizes and values, so that there is nothing to compare."""


def find_failure(judge: Judge, case: Case) -> Failure | None:
    """The judgement of `judge` on `case`; None also if the judge raises `Absent`."""
    try:
        return judge(case)
    except Absent:
        return None


def _evaluate(
    p: PreparedSides, root: Expr, case: Case, arithmetic: Arithmetic = "numpy", ordered: bool = False
) -> list[Array]:
    env = {e: np.asarray(case.values[name]) for name, e in p.params.items()}
    with np.errstate(all="ignore"):
        return list(evaluate_expr(root, env, case.sizes, arithmetic=arithmetic, ordered=ordered))


def evaluate_sides(
    p: PreparedSides, root: Expr, case: Case, domain: Arithmetic = "numpy", ordered: bool = False
) -> list[Array] | Failure:
    """The values of `root`, a tuple that holds both sides; a Failure if only the right side cannot be formed. Raises
    Absent if the left side does not exist."""
    _keep_promises(p, case)
    if not value_guards_hold(case.instance, case.values):
        raise Absent
    if why := unmet_precondition(size_preconditions(p.right), case.sizes):
        return Failure(f"the right side cannot be formed there: {why}")
    try:
        return _evaluate(p, root, case, domain, ordered)
    except BoundsError as e:
        try:
            _evaluate(p, p.left_tuple, case, domain, ordered)
        except BoundsError:
            raise Absent from None
        return Failure(f"the right side cannot be formed there: {e}")


def _keep_promises(p: PreparedSides, case: Case) -> None:
    """Raises Absent if a position that is promised to be in range is out of range, even if nothing reads it."""
    for e, extent in p.position_promises:
        (indices,) = _evaluate(p, tuple_((e,)), case)
        if np.any((indices < 0) | (indices >= extent.evaluate(case.sizes))):
            raise Absent


def widened_case(case: Case) -> Case:
    """`case` with the values of `wide_array`."""
    return Case(case.instance, case.sizes, {n: wide_array(v) for n, v in case.values.items()})


def wide_array(v: Array) -> Array:
    """`v` with floats as float64 and complex numbers as complex128; any other dtype is unchanged."""
    wide = _wide(v.dtype.name)
    return v.astype(wide) if v.dtype != object and wide != v.dtype.name else v


def judge_exactly(case: Case) -> Failure | None:
    """Judges whether the sides are equal as rational numbers, and undefined at the same positions."""
    p = prepare_sides(case.instance)
    found = evaluate_sides(p, p.both_sides_tuple, case, "exact")
    if isinstance(found, Failure):
        return found
    n = len(p.left)
    for i in range(n):
        a, b = np.asarray(found[i], dtype=object), np.asarray(found[n + i], dtype=object)
        if a.shape != b.shape:
            return Failure(f"shapes differ: {a.shape} and {b.shape}", a, b, i)
        if any(x is not y and x != y for x, y in zip(a.flat, b.flat, strict=True)):
            return Failure("", a, b, i)
    return None


def judge_over_reals(case: Case) -> Failure | None:
    """Judges whether the sides are equal in float64 up to rounding, and finite at the same positions. Integers and
    bools must be equal."""
    p = widen_sides(case.instance)
    found = evaluate_sides(p, p.all_nodes_tuple, widened_case(case))
    if isinstance(found, Failure):
        return found
    n = len(p.left)
    scale = largest_magnitude(*map(np.asarray, found))
    for i in range(n):
        a, b = np.asarray(found[i]), np.asarray(found[n + i])
        if a.shape != b.shape:
            return Failure(f"shapes differ: {a.shape} and {b.shape}", a, b, i)
        if a.dtype.kind not in "fc":
            if not np.array_equal(a, b):
                return Failure("", a, b, i)
            continue
        finite = np.isfinite(a)
        if not np.array_equal(finite, np.isfinite(b)):
            worse, better = ("right", "left") if np.any(finite & ~np.isfinite(b)) else ("left", "right")
            return Failure(f"the {worse} side is not finite there, the {better} side is", a, b, i)
        # Infinity can be a value: an empty maximum is minus infinity, and 0 times that is NaN. So infinities of
        # different signs differ, and infinity differs from NaN. A pole has no value, so neither counts as a difference
        # if a side has an operator with poles.
        apart = ~finite & ~(np.isnan(a) & np.isnan(b)) & (a != b)
        if np.any(apart) and not _has_poles(case.instance):
            return Failure("one side is infinite there, the other is not that", a, b, i)
        if np.any(np.abs(a[finite] - b[finite]) > TOLERANCE * scale):
            return Failure("", a, b, i)
    return None


@lru_cache(1 << 10)
def _has_poles(instance: Instance) -> bool:
    # The sign of x/0, and every result computed from it, depends on the sign of a zero, which the reals do not have.
    return any(e.op in TABLE and TABLE[e.op].poles for e in postorder((*instance.left, *instance.right)))


def judge_bits(case: Case) -> Failure | None:
    """Judges whether the sides have the same bits, with reductions as folds in order. All NaNs count as equal."""
    p = prepare_sides(case.instance)
    found = evaluate_sides(p, p.both_sides_tuple, case, ordered=True)
    if isinstance(found, Failure):
        return found
    n = len(p.left)
    for i in range(n):
        a, b = np.asarray(found[i]), np.asarray(found[n + i])
        if a.shape != b.shape or np.any(bits_differ(a, b)):
            what = f'not the same bits in {a.dtype.name}, as numerics="exact" claims'
            return Failure(what, a, b, i, 'if the reals are meant, claim numerics="reassociate"')
    return None


def judge_accuracy(case: Case) -> Failure | None:
    """Judges the accuracy law of numerics="reassociate". The right side must be finite where the left side is. Its
    error must be at most 8 times the larger of the left side's error and the change of the exact left side under
    half-ulp perturbations of its inputs, but for what may be masks. Float64 counts as exact."""
    p = prepare_sides(case.instance)
    found = evaluate_sides(p, p.both_sides_tuple, case)
    if isinstance(found, Failure):
        return found
    n = len(p.left)
    return accuracy_failure(case, found[:n], found[n:])


def accuracy_failure(case: Case, lefts: Sequence[Any], rights: Sequence[Any]) -> Failure | None:
    """The first result of the right side that breaks the accuracy law relative to the left side, or None. Complex
    results are not judged."""
    wide = widen_sides(case.instance)
    n = len(wide.left)
    truths: list[Array] | None = None
    for i in range(n):
        left, right = np.asarray(lefts[i]), np.asarray(rights[i])
        if left.dtype.kind == "c" or right.size == 0 or np.array_equal(left, right, equal_nan=left.dtype.kind == "f"):
            continue
        if truths is None:
            truths = _evaluate(wide, wide.left_tuple, widened_case(case))
        truth = np.asarray(truths[i]).astype(np.float64)
        error, allowed, is_lost = _errors(left, right, truth)
        if np.any(is_lost):
            what = f"the left side is finite in {left.dtype.name}, the right side is not"
            return Failure(what, left, right, i, _NOT_ACCURATE)
        # Most results pass without perturbations, so these are computed only for a result that does not.
        for count in (PERTURBATIONS, 8 * PERTURBATIONS):
            if not np.any(error > ACCURACY_FACTOR * allowed):
                break
            allowed = np.maximum(allowed, _sensitivity(wide, case, truth, i, count))
        if np.any(error > ACCURACY_FACTOR * allowed):
            at = int(np.argmax(error / np.where(allowed > 0, allowed, 1e-300)))
            ratio = float(error.flat[at] / max(float(allowed.flat[at]), 1e-300))
            what = f"in {left.dtype.name} the right side's error is {ratio:.3g} times what the left side's allows"
            what += f" ({ACCURACY_FACTOR:g} times is accepted)"
            if not is_float(left.dtype.name):
                what = f"the right side differs in {left.dtype.name}, where nothing is rounded"
            return Failure(what, left, right, i, _NOT_ACCURATE)
    return None


def accuracy_suspects(cases: Sequence[Case]) -> list[Case]:
    """Of cases of one instance at the same sizes, those that `judge_accuracy` has to decide about: the others, which
    are evaluated together, keep the accuracy law without perturbations."""
    first, count = cases[0], len(cases)
    p, wide = prepare_sides(first.instance), widen_sides(first.instance)
    if p.position_promises or unmet_precondition(size_preconditions(p.right), first.sizes):
        return list(cases)
    points = {name: np.stack([c.values[name] for c in cases]) for name in first.values}
    widened = {name: wide_array(v) for name, v in points.items()}
    try:
        with np.errstate(all="ignore"):
            found = _evaluate_points(p, (*p.left, *p.right), first, points, count)
            truths = _evaluate_points(wide, wide.left, first, widened, count)
    except BoundsError:  # the left or the right side of a case does not exist
        return list(cases)
    apart = np.array([not value_guards_hold(c.instance, c.values) for c in cases])
    for left, right, truth in zip(found[: len(p.left)], found[len(p.left) :], truths, strict=True):
        if left.dtype.kind != "c" and right.size:
            error, allowed, is_lost = _errors(left, right, truth.astype(np.float64))
            apart |= (is_lost | (error > ACCURACY_FACTOR * allowed)).reshape(count, -1).any(1)
    return [c for c, is_apart in zip(cases, apart, strict=True) if is_apart]


def _errors(left: Array, right: Array, truth: Array) -> tuple[Array, Array, Array]:
    """The errors of the right side, those that the left side allows by its own errors, and where the right side is not
    finite although the left side is."""
    narrow = left.astype(np.float64), right.astype(np.float64)
    judged = np.isfinite(narrow[0]) & np.isfinite(truth)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(judged, np.abs(narrow[1] - truth), 0.0)
        allowed = np.where(judged, np.maximum(np.abs(narrow[0] - truth), half_ulp_of(left, truth)), np.inf)
    return error, allowed, judged & ~np.isfinite(narrow[1])


_NOT_ACCURATE = 'claim numerics="approximate", or restrict the rule to where it is accurate'


def half_ulp_of(left: Array, truth: Array) -> Array:
    """Half an ulp of `truth` in the dtype of `left`, with a positive lower bound: no result of this dtype can be
    required to be nearer to `truth`. Zeros if the dtype is not a float type."""
    if not is_float(left.dtype.name):
        return np.zeros(truth.shape)
    dtype = dtype_of(left.dtype.name)
    return np.maximum(np.abs(truth) * dtype.half_ulp, dtype.smallest)


def _sensitivity(wide: PreparedSides, case: Case, truth: Array, i: int, count: int) -> Array:
    """The largest change of the exact left side under `count` half-ulp perturbations of its inputs."""
    with np.errstate(invalid="ignore"):
        by = np.abs(perturbed((wide.left[i],), wide, case, count)[0] - truth)
    return np.max(np.where(np.isfinite(by), by, 0.0), 0)


def perturbed(
    roots: Sequence[Expr], p: PreparedSides, case: Case, count: int, roundings: Mapping[Expr, float] | None = None
) -> list[Array]:
    """The values of `roots`, over the variables of `p`, in float64 under `count` half-ulp perturbations of the inputs,
    which are the first axis. In every second one the elements of an input move the same way, since changes that differ
    cancel in sums. Elements that may be those of masks are taken as exact.

    - `roundings`: the relative perturbations of what nodes compute, as well; the opposites of all perturbations follow
      then.
    """
    rng = np.random.default_rng(count)  # a fixed seed, so that a case always has the same verdict
    exact = mask_values(case.instance)
    half_ulps = {str(v.attr("name")): dtype_of(v.dtype).half_ulp for v in case.instance.params if v.dtype in FLOATS}
    signs = {name: np.empty((count, *case.values[name].shape)) for name in case.values if name in half_ulps}
    for number in range(count):
        for drawn in signs.values():
            drawn[number] = rng.choice((-1.0, 1.0), drawn.shape[1:] if number % 2 else ())
    if roundings is not None:
        signs, count = {name: np.concatenate((drawn, -drawn)) for name, drawn in signs.items()}, 2 * count

    def rounded(e: Expr, value: Any) -> Any:
        if roundings is None or e not in roundings:
            return value
        drawn = rng.choice((-1.0, 1.0), (count // 2, *value.shape[1:]))
        return value * (1 + roundings[e] * np.concatenate((drawn, -drawn)))

    points: dict[str, Array] = {}
    for name, v in case.values.items():
        change = np.where(np.isin(v, exact), 0.0, half_ulps[name] * signs[name]) if name in signs else 0
        points[name] = v.astype(np.float64) * (1 + change) if name in signs else np.broadcast_to(v, (count, *v.shape))
    with np.errstate(all="ignore"):
        return [v.astype(np.float64) for v in _evaluate_points(p, roots, case, points, count, rounded)]


def _evaluate_points(
    p: PreparedSides, roots: Sequence[Expr], case: Case, points: Mapping[str, Array], count: int,
    kept: Callable[[Expr, Any], Any] = lambda _, value: value,
) -> list[Array]:  # fmt: skip
    """The values of `roots` at `count` points, which are the first axis of `points` and of the results. `kept`: as in
    `evaluate_points`."""
    env = {e: points[name] for name, e in p.params.items()}
    try:
        return [np.asarray(v) for v in evaluate_points(roots, env, case.sizes, count, kept=kept)]
    except OperatorError:  # they run functions, which are evaluated at one point after the other
        each = ({e: v[n] for e, v in env.items()} for n in range(count))
        found = [evaluate_expr(tuple_(roots), values, case.sizes) for values in each]
        return [np.stack([np.asarray(v) for v in values]) for values in zip(*found, strict=True)]
