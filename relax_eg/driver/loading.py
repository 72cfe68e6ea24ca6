"""`load`: saved artifacts as optimized functions, which serve the sizes of calls like the function that was saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from relax_eg.argument_checks import NONE, PATH, accepts
from relax_eg.backend.artifact import artifact_errors, no_explanation, read
from relax_eg.backend.family import STEPS, Variant
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.program import module_check
from relax_eg.driver.learning import on_this_machine
from relax_eg.driver.options import KINDS
from relax_eg.driver.prices import ByProfile, call_predictor
from relax_eg.driver.reporting import expected_of
from relax_eg.driver.running import make_runnable
from relax_eg.driver.settling import Settle, SettleMode
from relax_eg.dynamic.policy import Dynamic, Mode, check_one_program, read_policy
from relax_eg.extract.profile import Profile
from relax_eg.ir.annotations import dims_of
from relax_eg.reports.serialization import read_record as checked


@accepts(path=PATH, dynamic=KINDS["dynamic"] | NONE, settle=KINDS["settle"])
def load(
    path: str | Path, *, dynamic: Mode | Dynamic | None = None, settle: SettleMode | Settle | None = None
) -> Optimized:
    """The optimized function that `best.save(path)` wrote: it runs, reports, prepares and checks as before, and nothing
    is searched.

    `dynamic` is that of `optimize`; what it leaves out is as it was when the function was saved. `settle` is that of
    `optimize`. ArtifactError for a
    file that is no artifact, was truncated or changed, or is of another version; nothing in a file is run. OptionError,
    BoundsError for `dynamic`.
    """
    saved = read(path)
    name, scope = saved.program.name, saved.program.scope
    with artifact_errors(path):
        kept = saved.program.at_sizes
        profile = Profile.from_data(kept["profile"])
        at = checked(tuple[Mapping[str, int], ...], kept["at"], "at")
        variables = tuple(kept["capacities"])
        has = {v for p in saved.program.params for d in dims_of(p.annotation) for v in d.variables}
        if set(variables) != has:
            raise ValueError(f"it has capacities of {', '.join(variables)}, and its sizes are {', '.join(sorted(has))}")
        usual = Dynamic(mode=kept["dynamic"], **{k: kept[k] for k in ("capacities", "executables", "background")})
        policy = read_policy(name, variables, scope, usual, at)
    chosen = usual if dynamic is None else Dynamic.of(dynamic).over(usual)
    if not saved.program.from_function and variables and saved.execution != STEPS and not chosen.trust:
        saved = replace(saved, program=replace(saved.program, find_difference=module_check(saved.program)))
    if chosen != usual:
        policy = read_policy(name, variables, scope, chosen, at)
        data = {**policy.as_data(), "profile": kept["profile"]}
        saved = replace(saved, program=replace(saved.program, at_sizes=data))
    check_one_program(name, policy.mode, saved.execution)
    programs = [v.chosen for v in saved.variants]
    predict = partial(call_predictor, saved.program, programs, saved.weights, ByProfile(profile))
    saved = replace(saved, variants=tuple(_as_expected_here(v, profile) for v in saved.variants))
    return make_runnable(saved, no_explanation(name), policy, predict, Settle.of(settle))


def _as_expected_here(v: Variant, p: Profile) -> Variant:
    """A variant whose report says what is expected on this machine; `p` may be the profile of another."""
    if v.report.expected is None:
        return v
    here = expected_of(v.report.before, v.report.after, on_this_machine(p))
    return replace(v, report=replace(v.report, expected=here))
