"""What timed programs teach is kept for later processes: they correct the profile of the machine at hand.

Whatever times whole programs calls `observe`: settling and `measure=k`. Each program is an entry of
its own in the disk cache, so processes that learn at the same time lose nothing. At 4, 8, 16 and so on up to 512
programs the factors are fitted again (`extract.profiles.learned`) and kept as one entry, which a process reads once:
the prices of a process do not change while it runs, and those of a machine change rarely, so its cached searches stay
valid.

All entries are of one machine, number of cores, version of jaxlib and profile. `relax-eg cache clear` removes them, and
`RELAX_EG_CALIBRATE=off` turns learning off.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from hashlib import blake2b
from typing import Any

from relax_eg.cache_folder import calibration_mode, read_entry, store, version_of
from relax_eg.extract.profiles.learned import UNKNOWN, Learned, TimedProgram, learn
from relax_eg.extract.profiles.profile import PROFILE_VERSION, Profile
from relax_eg.limits import FEW_KEPT
from relax_eg.logs import log_at, machine_is_kept
from relax_eg.measure.device import processes, this_machine
from relax_eg.memo import Memo
from relax_eg.plain_data import read_record
from relax_eg.store import Store

FORMAT = 4  # given: version of the entries, and of what a quick calibration measures
FEWEST, MOST = 4, 512  # chosen: programs from which on something is learned, and the most that are kept
# The fields of a profile that do not decide what it predicts, or are learned.
_ASIDE = ("name", "modes", "corrections", "doubts", "calibrated", "machine", "measured", "notes")

_known = Memo[str, Learned](FEW_KEPT)  # what this process knows, by profile
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def machine_key() -> str:
    """A name of the machine with the versions that its times depend on."""
    content = FORMAT, PROFILE_VERSION, this_machine(), version_of("jaxlib"), os.environ.get("XLA_FLAGS", "")
    return blake2b(repr(content).encode(), digest_size=16).hexdigest()


def on_this_machine(p: Profile) -> Profile:
    """A profile with what is known of its errors here. Of this machine: with what was learned, the same in all of a
    process. Of another one: without the doubts that were known there."""
    if p.machine is None:
        return p
    if p.machine != this_machine():
        return replace(p, doubts={}) if p.doubts else p
    if p.corrections or not _may_learn(p):
        return p
    key = _key(p)
    with _lock:
        found = _known.get_or_make(
            key, lambda: read_entry(store(), f"learned-{key}", _learned, "nothing that was learned") or Learned()
        )
    return replace(p, corrections=found.corrections, doubts={**p.doubts, **found.doubts})


def observe(p: Profile, group: str, kinds: Mapping[str, float], seconds: float) -> None:
    """Takes note of a program that was timed.

    - `p`: the profile by which it was priced; if it is not of this machine, nothing is learned.
    - `group`: names what the program computes, and at which sizes.
    - `kinds`: predicted seconds by kind of kernel, without corrections (`driver.prices.kinds_at`).
    - `seconds`: measured seconds of a call.
    """
    if not kinds or not _may_learn(p):
        return
    try:
        timed = TimedProgram(group, dict(kinds), seconds)
    except ValueError:  # a clock that stood still
        return
    kept, key = store(), _key(p)
    content = json.dumps(asdict(timed), sort_keys=True)
    program = blake2b(repr((group, sorted(kinds.items()))).encode(), digest_size=16).hexdigest()
    kept.write(f"timed-{key}-{program}", content.encode())
    try:
        count = len(_names(kept, key))
        if count >= max(FEWEST, 2 * _count(kept, key)) or count > MOST:
            relearn(p)
    except OSError as e:
        log_at(1, f"what was timed is not read from {kept.folder}: {e}")


def relearn(p: Profile) -> Learned:
    """Fits the factors to all programs that are known of this machine, for later processes. OSError where the cache
    cannot be read."""
    kept, key = store(), _key(p)
    names = _names(kept, key)
    for name in names[:-MOST]:  # the least recently used first
        kept.remove(name)
    timed = timed_programs(p)
    found = learn(timed, {**UNKNOWN, **p.doubts})
    kept.write(f"learned-{key}", json.dumps({"count": min(len(names), MOST), **asdict(found)}).encode())
    log_at(1, f"prices learned from {len(timed)} timed programs")
    return found


def timed_programs(p: Profile) -> list[TimedProgram]:
    """The programs that were timed on this machine and priced by this profile. OSError where the cache cannot be
    read."""
    kept = store()
    found = (read_entry(kept, name, _timed, "no timed program") for name in sorted(_names(kept, _key(p))))
    return [t for t in found if t is not None]


def _may_learn(p: Profile) -> bool:
    return calibration_mode() == "auto" and machine_is_kept() and p.machine == this_machine() and processes() == 1


def _key(p: Profile) -> str:
    """A name of the machine and of what the profile predicts without corrections."""
    content = [(f.name, getattr(p, f.name)) for f in fields(p) if f.name not in _ASIDE]
    return blake2b(repr((machine_key(), _plain(content))).encode(), digest_size=16).hexdigest()


def _plain(x: Any) -> Any:
    if isinstance(x, Mapping):
        return sorted((str(k), _plain(v)) for k, v in x.items())  # type: ignore[reportUnknownVariableType]
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]  # type: ignore[reportUnknownVariableType]
    return float(x) if isinstance(x, int) and not isinstance(x, bool) else x


def _count(kept: Store, key: str) -> int:
    """From how many programs the present factors were learned."""
    payload = kept.read(f"learned-{key}")
    try:
        return 0 if payload is None else int(json.loads(payload)["count"])
    except (ValueError, KeyError, TypeError):
        return 0


def _learned(data: Any) -> Learned:
    # A field that is missing would be one of its default, so that nothing seems to be learned.
    corrections, doubts = (read_record(Mapping[str, float], data[k], k) for k in ("corrections", "doubts"))
    for numbers, least in ((corrections, 1e-6), (doubts, 0.0)):
        if not all(least <= x <= 1e6 for x in numbers.values()):
            raise ValueError(f"numbers from {least:g} to 1e6 are accepted")
    return Learned(corrections, doubts)


def _timed(data: Any) -> TimedProgram:
    return read_record(TimedProgram, data, "timed")


def _names(kept: Store, key: str) -> list[str]:
    """The entries of programs that were timed, the least recently used first. OSError where the cache cannot be
    read."""
    return [path.stem for path, _ in kept.entries() if path.stem.startswith(f"timed-{key}-")]
