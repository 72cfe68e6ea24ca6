"""Measures the parameters of the cost model on a device, with small programs that XLA compiles and runs here.

All programs are timed in each of several passes, so that other work that runs on the machine for some minutes affects
only a few passes. A figure is the lower quartile of its samples: it leaves out the time that other users add, but keeps
the time to wake threads, which is part of a kernel's time and which the rare best samples lack. `relax_eg.measure.fits`
turns the figures into a profile. A calibration takes one to two minutes; XLA compiles some 210 programs.
"""

from __future__ import annotations

from collections.abc import Callable

from relax_eg.extract.profiles.learned import CALIBRATED
from relax_eg.extract.profiles.profile import Profile
from relax_eg.measure.device import default_profile, device, measured_here
from relax_eg.measure.figures import figures
from relax_eg.measure.fits import Times, fit_profile
from relax_eg.measure.timing import time_in_passes

SECONDS = 0.15  # chosen: seconds of samples for one figure
PASSES = 4  # chosen: passes over all figures, so that one minute of other work spoils no figure
Step = Callable[[str, int, int], None]  # the current measurement, steps done, steps in all


def calibrate(name: str = "", seconds: float = SECONDS, progress: Step | None = None) -> tuple[Profile, Times]:
    """Measures JAX's default device, and returns its profile, and the times of the figures from which it follows.

    - `seconds`: seconds of samples for each figure.
    - `progress`: called as `progress(what, done, of)` before each step.
    """
    on, start = device(), default_profile()
    times = measure_figures(start, seconds, progress)
    notes = "measured by `relax-eg calibrate`"
    p = fit_profile(start, times)
    return measured_here(p, name=name or on.platform, calibrated=True, doubts=CALIBRATED, notes=notes), times


def measure_figures(start: Profile, seconds: float = SECONDS, progress: Step | None = None) -> Times:
    """Seconds per call of each figure, for a device similar to `start`."""
    wanted = list(figures(start))
    done, steps = 0, (1 + PASSES) * len(wanted)

    def tell(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(what, done, steps)
        done += 1

    calls: dict[str, Callable[[], object]] = {}
    for figure in wanted:
        tell(f"compiling: {figure.name}")
        calls[figure.name] = figure.compiled()
    return time_in_passes(calls, seconds, PASSES, tell)
