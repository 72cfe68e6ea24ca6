"""Tests of library rules: the target runs, and its results are compared with those of its pattern.

No proof covers the code of a library, so such a rule is `tested` on real runs at boundary sizes, or refuted with a
counterexample. Its numerics class is measured: the same bits, the accuracy law, or a relative error of 1e-2.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.errors import LibraryError
from relax_eg.ir.annotations import Tensor, Tuple
from relax_eg.ir.expr import postorder
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.ops.libraries import Library, evaluate_in_jax, library_of, relative_difference
from relax_eg.ops.library_needs import RoutinePlace, unmet_need
from relax_eg.rules.checking import samples as draws
from relax_eg.rules.checking.judge import Absent, Array, Case, Failure, accuracy_failure, widen_sides
from relax_eg.rules.checking.samples import draw_under_guards, value_guards_hold
from relax_eg.rules.checking.verdict import Verdict
from relax_eg.rules.checking.witness import witness
from relax_eg.rules.rule import Rule, instances, require_instance
from relax_eg.rules.signature import NUMERICS, Numerics

_INSTANCES = 4  # limit: instances of a rule that are tested
_SIZES = 5  # limit: bindings of sizes for each instance: different sizes, then 0 and 1
_APPROXIMATE = 1e-2  # chosen: accepted error of "approximate", relative to the largest element


@dataclass(frozen=True)
class _Judge:
    """A judge that runs the target of `library` at a case and compares its results with those of the pattern."""

    library: Library

    def __call__(self, case: Case) -> Failure | None:
        return self.judge_and_measure(case)[0]

    def judge_and_measure(self, case: Case) -> tuple[Failure | None, Numerics | None]:
        """The failure or None, and the measured numerics class; None if the results meet no class."""
        lefts, rights = self.results(case)
        if isinstance(rights, Failure):
            return rights, None
        for i, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            if (left.shape, left.dtype) != (right.shape, right.dtype):
                what = f"{self.library.name} gives {_short(right)}, its pattern {_short(left)}"
                hint = "what the target returns must be annotated as its pattern is"
                return Failure(what, left, right, i, hint), None
        return self.compare_results(case, lefts, rights)

    def results(self, case: Case) -> tuple[list[Array], list[Array] | Failure]:
        """The results of the pattern, evaluated by its index equations, and those of the target, or a Failure if the
        target has none. Raises Absent if the values do not meet the rule's guards."""
        import jax

        instance = case.instance
        if not value_guards_hold(instance, case.values):
            raise Absent
        env = {p: np.asarray(case.values[str(p.attr("name"))]) for p in instance.params}
        with np.errstate(all="ignore"):
            lefts = [np.asarray(evaluate_expr(e, env, case.sizes)) for e in instance.left]
        call = next(e for e in postorder(instance.right) if library_of(e) is self.library)
        try:
            # Jitted as one program, as it runs in use; otherwise JAX would compile each operator by itself.
            run = jax.jit(lambda *xs: self.library.run(call, xs, case.sizes))
            made = run(*(env[p] for p in instance.params))
        except LibraryError as e:
            return lefts, Failure(str(e))
        except Exception as e:
            hint = "where the target does not take such operands, a condition, when=, keeps the rule away"
            return lefts, Failure(f"{self.library.name} raised {type(e).__name__}: {str(e)[:300]}", hint=hint)
        results: Sequence[Any] = made if isinstance(made, (tuple, list)) else (made,)
        if len(results) != len(lefts) or isinstance(made, (tuple, list)) != isinstance(call.annotation, Tuple):
            shown = "a tuple of " + str(len(results)) if isinstance(made, (tuple, list)) else "one result"
            return lefts, Failure(f"{self.library.name} gives {shown}, its pattern {call.annotation}")
        return lefts, [np.asarray(r) for r in results]

    def compare_results(
        self, case: Case, lefts: list[Array], rights: list[Array]
    ) -> tuple[Failure | None, Numerics | None]:
        """The failure or None, and the measured numerics class, of results that agree in shape and dtype."""
        found = _measured_class(case, lefts, rights)
        wanted = case.instance.rule.numerics
        if found is None:
            i = next(i for i, off in enumerate(map(relative_difference, rights, lefts)) if off > _APPROXIMATE)
            return Failure(f"{self.library.name} does not compute its pattern", lefts[i], rights[i], i), None
        if NUMERICS.index(found) > NUMERICS.index(wanted):
            i = max(range(len(lefts)), key=lambda i: relative_difference(rights[i], lefts[i]))
            what = f"measured to be {found}, claimed to be {wanted}"
            return Failure(what, lefts[i], rights[i], i, f'claim numerics="{found}"'), found
        return None, found


def check_library(rule: Rule, library: Library) -> Verdict:
    """Runs the target of `rule` at boundary sizes and judges it. The verdict is "missing" if the routine is not
    available. Raises RuleError if no instance can be formed or no sizes meet the conditions."""
    started = time.perf_counter()
    import jax

    device = jax.devices()[0]
    why = unmet_need(library, RoutinePlace(device.platform, device.device_kind))
    if why:
        return Verdict(rule, "missing", 0, None, time.perf_counter() - started, why)
    judge, draw = _Judge(library), draw_under_guards(draws.moderate)
    rng = np.random.default_rng(zlib.crc32(library.name.encode()))
    tested, worst = 0, 0
    chosen = list(instances(rule, limit=_INSTANCES)) or [require_instance(rule)]
    for instance in chosen:
        for k, sizes in enumerate(draws.draw_sizes(instance, rng, _SIZES)):
            case = Case(instance, sizes, draw(instance, sizes, rng, 2 * k))
            try:
                failure, measured = judge.judge_and_measure(case)
            except Absent:
                continue
            tested += 1
            if failure is not None:
                found = witness(case, failure, judge, draw, 0)
                return Verdict(rule, "refuted", tested, found, time.perf_counter() - started, str(found))
            worst = max(worst, NUMERICS.index(measured or "exact"))
    if not tested:
        raise draws.no_sizes(chosen[0])
    spent = time.perf_counter() - started
    return Verdict(rule, "tested", tested, None, spent, theory=f"measured: {NUMERICS[worst]}")


def _measured_class(case: Case, lefts: list[Array], rights: list[Array]) -> Numerics | None:
    """The strictest numerics class that the results meet; None if they meet none."""
    if all(a.tobytes() == b.tobytes() for a, b in zip(lefts, rights, strict=True)):
        return "exact"
    if accuracy_failure(case, lefts, rights) is None:
        return "reassociate"
    # The device limits how accurately the pattern itself can be computed: float32 matmuls may have 10 bits. So the
    # target is also compared with the pattern as JAX computes it here.
    instance = case.instance
    import jax

    names = [str(p.attr("name")) for p in instance.params]
    run = jax.jit(lambda *xs: evaluate_in_jax(instance.left, dict(zip(instance.params, xs, strict=True)), case.sizes))
    here = run(*(case.values[n] for n in names))
    if accuracy_failure(case, [np.asarray(x) for x in here], rights) is None:
        return "reassociate"
    truths = _truths(case)
    near = all(relative_difference(b, t) <= _APPROXIMATE for t, b in zip(truths, rights, strict=True))
    return "approximate" if near else None


def _truths(case: Case) -> list[Array]:
    wide = widen_sides(case.instance)
    values = {n: v.astype(np.float64) if v.dtype.kind in "fV" else v for n, v in case.values.items()}
    env = {e: np.asarray(values[name]) for name, e in wide.params.items()}
    with np.errstate(all="ignore"):
        return [np.asarray(evaluate_expr(e, env, case.sizes)) for e in wide.left]


def _short(a: Array) -> str:
    return Tensor(a.shape, a.dtype.name).short
