"""Checks whether the requirements of library routines are met, without importing the libraries."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec

from relax_eg.limits import FEW_KEPT
from relax_eg.ops.libraries import FFI, Library


@dataclass(frozen=True, slots=True)
class RoutinePlace:
    """The place where a routine is to run.

    - `platform`: "cpu", "gpu" or "tpu".
    - `device`: the device's name.
    - `execution`: how programs are executed; "" meets every requirement.
    """

    platform: str
    device: str
    execution: str = ""


def unmet_need(library: Library, place: RoutinePlace) -> str:
    """Returns why a routine cannot be used at `place`; empty where it can."""
    needs = library.requires
    for package in needs.packages:
        if why := _unmet_requirement(package):
            return why
    for what, found, accepted in (
        ("platform", place.platform, needs.platforms),
        ("execution", place.execution, needs.executions),
    ):
        if found and accepted and found not in accepted:
            return f"{what} {' or '.join(accepted)} is needed, not {found}"
    if needs.devices and not any(d.lower() in place.device.lower() for d in needs.devices):
        return f"device {' or '.join(needs.devices)} is needed, not {place.device}"
    if not isinstance(library.target, str):
        return ""
    if library.target.startswith(FFI):
        return ""  # only the backend can tell whether XLA knows a custom call
    top = library.target.partition(":")[0].partition(".")[0]
    return "" if top in sys.modules or _is_findable(top) else f"there is no module `{top}`"


def version(library: Library) -> str:
    """Returns name and version of the first installed package among those that a routine requires and its target's."""
    target = library.target
    module = target if isinstance(target, str) else str(getattr(target, "__module__", None) or "")
    top = "jaxlib" if module.startswith(FFI) else module.partition(":")[0].partition(".")[0]
    from packaging.requirements import Requirement

    for package in (*(Requirement(p).name for p in library.requires.packages), top):
        found = _version_of(package)
        if found:
            return f"{package} {found}"
    return ""


@lru_cache(FEW_KEPT)
def _version_of(package: str) -> str:
    """Returns the version of a package; empty where it is not installed."""
    try:
        return metadata.version(package) if package else ""
    except metadata.PackageNotFoundError:
        return ""


def _unmet_requirement(package: str) -> str:
    """Returns what is missing of a requirement such as `scipy >= 1.10`; empty where it is met."""
    from packaging.requirements import Requirement

    wanted = Requirement(package)
    found = _version_of(wanted.name)
    if not found:
        return f"{package} is needed, and {wanted.name} is not installed"
    return "" if wanted.specifier.contains(found, prereleases=True) else f"{package} is needed, found {found}"


@lru_cache(FEW_KEPT)
def _is_findable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
