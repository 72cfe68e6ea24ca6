"""The profile of the machine at hand, which prices programs without a `target`.

The profile that ships is of another machine. So before the first search on a CPU a quick calibration (`measure.quick`)
measures this one: once for each machine, number of cores and version of jaxlib, and kept in the disk cache; again on
another day if other work disturbed it. A search
waits for it, so nothing is claimed before, and no other work of this process disturbs it.

A process looks the profile up once. All its searches have the same one, so what it chooses does not depend on when.

The shipped profile prices where no calibration can be kept (the cache is off, its folder is read-only), where several
processes work as one program and have to choose alike, and with `RELAX_EG_CALIBRATE=off`.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace

from relax_eg.cache_folder import calibration_mode, read_entry, store
from relax_eg.driver.clock.learning import machine_key, on_this_machine
from relax_eg.extract.profiles.profile import Profile
from relax_eg.limits import FEW_KEPT
from relax_eg.logs import fallback, log_at, machine_is_kept, notice_if_long, raise_if_exhausted
from relax_eg.measure.device import default_profile, processes, this_machine, today
from relax_eg.measure.quick import DISTURBED, calibrate_quickly
from relax_eg.memo import Memo
from relax_eg.store import Store

_CLAIM = 30.0  # chosen: seconds after which another process that calibrates is taken to have ended
_WAIT = 10.0  # chosen: seconds to wait for another process that calibrates

_known = Memo[tuple[str, str], Profile](FEW_KEPT)  # the profiles of this process, by mode and machine
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def profile_at_hand() -> Profile:
    """The profile of JAX's default device: of a CPU the one that was measured, else the one that ships. The same in all
    of a process. OptionError for another value of `RELAX_EG_CALIBRATE`."""
    how, key = calibration_mode(), machine_key()
    with _lock:
        return _known.get_or_make((how, key), lambda: _found(key) if how == "auto" else default_profile())


def _found(key: str) -> Profile:
    shipped = default_profile()
    if shipped.platform != "cpu":  # a data sheet of this very device, as far as there is one
        return on_this_machine(replace(shipped, machine=this_machine()))
    found = _measured(key)
    return shipped if found is None else on_this_machine(found)


def _measured(key: str) -> Profile | None:
    """The calibrated profile, from the cache or measured now; None where none can be kept."""
    if not machine_is_kept() or processes() > 1:
        return None
    kept, name = store(), f"profile-{key}"
    found = _read(kept, name)
    if found is not None and (found.notes != DISTURBED or today() in found.measured):
        return found
    try:
        is_ours = kept.claim(name, _CLAIM)
    except OSError as e:
        log_at(1, f"not calibrated: a profile cannot be kept in {kept.folder}: {e}")
        return None
    if not is_ours:
        return _of_another_process(kept, name)
    try:
        started = time.perf_counter()
        log_at(1, "calibrating this machine, once")
        with notice_if_long("measuring this machine, once, to predict times (RELAX_EG_CALIBRATE=off: not measured)"):
            found = calibrate_quickly()
        log_at(1, f"calibrated in {time.perf_counter() - started:.1f} s: {found.machine}")
        kept.write(name, found.to_json().encode())
    except Exception as e:
        raise_if_exhausted(e)
        fallback("this machine could not be calibrated; the profile that ships prices programs", e)
    finally:
        kept.release(name)
    return found


def _of_another_process(kept: Store, name: str) -> Profile | None:
    """The profile that another process is measuring, if it comes in time."""
    end = time.monotonic() + _WAIT
    while time.monotonic() < end:
        found = _read(kept, name)
        if found is not None:
            return found
        time.sleep(0.05)
    return None


def _read(kept: Store, name: str) -> Profile | None:
    return read_entry(kept, name, Profile.from_data, "no profile")
