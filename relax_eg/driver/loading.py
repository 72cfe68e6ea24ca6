"""`load`: saved artifacts as optimized functions, which serve the sizes of calls like the function that was saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal

from relax_eg.argument_checks import NONE, PATH, accepts, one_of
from relax_eg.backend.calls.held_weights import with_weights
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.program import module_check
from relax_eg.backend.calls.runtime import CallParts
from relax_eg.backend.family import STEPS, Variant
from relax_eg.backend.files.artifact import artifact_errors, no_explanation, read
from relax_eg.backend.files.loaded import LoadedProgram, LoadedPrograms, load_executables
from relax_eg.backend.files.stored import Stored, StoredArray, StoredProgram, default_device_key
from relax_eg.backend.lowering.jax_library import is_plain
from relax_eg.driver.clock.learning import on_this_machine
from relax_eg.driver.clock.settling import FIRST_CALLS, OFF, Settle, SettleMode
from relax_eg.driver.prices import ByProfile, call_predictor, expected_of
from relax_eg.driver.running import make_runnable
from relax_eg.dynamic.policy import DYNAMIC_KIND, Dynamic, Mode, check_one_program, read_policy
from relax_eg.errors import ArtifactError, DeviceError
from relax_eg.extract.profiles.profile import Profile
from relax_eg.figures import binding_text
from relax_eg.ir.annotations import dims_of
from relax_eg.ir.expr import CALL_DPS_LIBRARY
from relax_eg.ir.module import Module
from relax_eg.logs import fallback
from relax_eg.ops.libraries import LIBRARIES
from relax_eg.plain_data import read_record as checked
from relax_eg.settings import context_now

Executables = Literal["compile", "trust"]
_EXECUTABLES: tuple[Executables, ...] = ("compile", "trust")


@accepts(
    path=PATH,
    dynamic=DYNAMIC_KIND | NONE,
    measure=FIRST_CALLS,
    executables=one_of(*_EXECUTABLES),
)
def load(
    path: str | Path,
    *,
    dynamic: Mode | Dynamic | None = None,
    measure: SettleMode | Settle | None = None,
    executables: Executables = "compile",
) -> Optimized:
    """The optimized function that `best.save(path)` wrote: it runs, reports, prepares and checks as before, and nothing
    is searched.

    - `dynamic`: that of `optimize`; what it leaves out is as it was when the function was saved.
    - `measure`: that of `optimize`, which alone times programs ahead; None is "off" where executables of the file run
      here.
    - `executables`: "trust" lets calls run the executables of the file that were made for this kind of device, by these
      versions of JAX and XLA; all other calls are compiled. They are machine code: trust only those who wrote the file.
      "compile" gives nothing of them to XLA. `best.statistics()` tells which there are, and which serve calls.

    ArtifactError for a file that is no artifact, was truncated or changed, is of another version, or whose executables
    contradict its program. OptionError, BoundsError for `dynamic`. Where no executable of the file is for this machine,
    a warning says what there is. With "compile", nothing in a file is run.
    """
    contents = read(path)
    saved, stored = contents.solution, contents.stored
    _register_shipped([v.module for v in saved.variants])
    name, scope = saved.program.name, saved.program.scope
    with artifact_errors(path):
        kept = saved.program.at_sizes
        profile = Profile.from_data(kept["profile"])
        at = checked(tuple[Mapping[str, int], ...], kept["at"], "at")
        variables = tuple(kept["capacities"])
        has = {v for p in saved.program.params for d in dims_of(p.annotation) for v in d.variables}
        found = saved.program.written().main.cast_variables if saved.execution == STEPS else ()
        if set(variables) != has | {*found}:
            raise ValueError(f"it has capacities of {', '.join(variables)}, and its sizes are {', '.join(sorted(has))}")
        fields = {k: kept[k] for k in ("capacities", "executables", "background")}
        usual = Dynamic(mode=kept["dynamic"], padded=kept.get("padded"), donated=kept.get("donated"), **fields)
        policy = read_policy(name, sorted(has), scope, usual, at, found)
    chosen = usual if dynamic is None else Dynamic.of(dynamic).over(usual)
    if not saved.program.from_function and variables and saved.execution != STEPS and not chosen.trust:
        saved = replace(saved, program=replace(saved.program, find_difference=module_check(saved.program)))
    if chosen != usual:
        policy = read_policy(name, sorted(has), scope, chosen, at, found)
        data = {**policy.as_data(), "profile": kept["profile"]}
        saved = replace(saved, program=replace(saved.program, at_sizes=data))
    given = [a for a in dict.fromkeys(saved.program.arguments) if a not in saved.weights]
    check_one_program(name, policy, saved.execution, given)
    programs = [v.chosen for v in saved.variants]
    predict = partial(call_predictor, saved.program, programs, saved.weights, ByProfile(profile))
    saved = replace(saved, variants=tuple(_as_expected_here(v, profile) for v in saved.variants))
    with saved.program.width_context():
        loaded = _loaded(stored) if executables == "trust" else _left_unused(stored)
    serves = any(p.compiled for p in loaded)
    trials = OFF if serves and measure is None else Settle.of(measure)
    best = make_runnable(saved, no_explanation(name), policy, predict, trials)
    if loaded:
        best.use_loaded(loaded)
    for p in loaded:
        _check_agrees(best, p, path)
    if executables == "trust" and loaded and not any(p.compiled for p in loaded):
        there = "; ".join(dict.fromkeys(f"for {p.stored.key.device}: {p.why_not}" for p in loaded))
        fallback(f"{name} is compiled", DeviceError(f"no executable of {path} runs here ({there})"), warned=True)
    return best if contents.held is None else with_weights(best, contents.held)


def _register_shipped(modules: Sequence[Module]) -> None:
    """Registers the library routines that ship, if a program calls one. They are in a book of rules, which a process
    that only runs programs otherwise does without."""
    calls = (e for m in modules for f in m for e in f.expressions() if e.op == CALL_DPS_LIBRARY)
    if any(not is_plain(e.attr("name")) and e.attr("name") not in LIBRARIES for e in calls):
        import_module("relax_eg.rules.book.libraries")


def _left_unused(stored: Stored) -> LoadedPrograms:
    """The executables of a file, of which none is given to XLA."""
    why = "only executables='trust' runs it"
    return LoadedPrograms(LoadedProgram(p, stored.code_bytes(p), why) for p in stored.programs)


def _loaded(stored: Stored) -> LoadedPrograms:
    """The executables of a file, with those loaded that are for this machine; of several for the same sizes the one
    that was made for its very model, or the first."""
    if not stored.programs:
        return LoadedPrograms()
    here, served = default_device_key(), dict[str, str]()
    found = LoadedPrograms(LoadedProgram(p, stored.code_bytes(p), p.why_not(here)) for p in stored.programs)
    for p in sorted(found, key=lambda p: p.stored.key.kind != here.kind):
        at = repr(sorted(p.stored.at.items()))
        if not p.why_not and at in served:
            p.why_not = f"the one for {served[at]} serves its calls"
        if p.why_not:
            continue
        try:
            p.compiled, p.context = load_executables(p.stored, stored.codes), context_now()
            served[at] = p.stored.key.device
        except DeviceError as e:
            p.why_not = str(e)
    return found


def _check_agrees(best: Optimized, p: LoadedProgram, path: str | Path) -> None:
    """ArtifactError where executables of a file contradict its program."""
    if not p.compiled:
        return
    with artifact_errors(path):
        here = best.lowering_at(p.stored.at)
        if dict(here.capacities) != dict(p.stored.capacities):
            p.compiled, p.why_not = (), "calls at its sizes run at other capacities"
            return
        why = _mismatch(here, p.stored)
    if why:
        raise ArtifactError(
            f"load: {path} {why}\n  accepted: executables that were made of the program beside them; with "
            "executables='compile' they are left unused"
        )


def _mismatch(here: CallParts, program: StoredProgram) -> str:
    """Why executables contradict the program beside them, of which calls run `here`; "" where they fit it.

    Names and weak types are not compared.
    """
    at = binding_text(program.at)
    where = f"has executables for {program.key.device}{f' at {at}' if at else ''}"
    if (here.variant, here.execution) != (program.variant, program.execution):
        return f"{where} of variant {program.variant} ({program.execution}), and variant {here.variant} serves calls"
    takes = here.takes()
    if len(takes) != len(program.executables):
        return f"{where}, {len(program.executables)} for a call that runs {len(takes)}"
    for (_, arrays), executable in zip(takes, program.executables, strict=True):
        given, taken = (list(map(str, side)) for side in (map(StoredArray.of, arrays), executable.arguments))
        if given != taken:
            return f"{where}; `{executable.name}` takes {_listed(taken)}, and the program gives it {_listed(given)}"
    return ""


def _listed(arrays: Sequence[str]) -> str:
    return ", ".join(arrays) or "nothing"


def _as_expected_here(v: Variant, p: Profile) -> Variant:
    """A variant whose report says what is expected on this machine; `p` may be the profile of another."""
    if v.report.expected is None:
        return v
    here = expected_of(v.report.before, v.report.after, on_this_machine(p))
    return replace(v, report=replace(v.report, expected=here))
