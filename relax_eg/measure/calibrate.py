"""Measuring a device: what the cost model asks of it, from small programs that XLA compiles and runs here.

Every program is timed in several passes over all of them, minutes of other work on the machine being in a few passes
only, and a figure is the lower quartile of all its samples: less than what other users of the machine add, more than
what is reached once in a while, since waking threads is part of what a kernel takes. `relax_eg.measure.fits` makes a
profile of the figures. One to two minutes in all; XLA compiles some 210 programs.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace

import jax

from relax_eg.extract.profile import Profile
from relax_eg.measure.device import device, here
from relax_eg.measure.figures import figures
from relax_eg.measure.fits import Times, fitted
from relax_eg.measure.timing import cores, in_passes

SECONDS = 0.15  # of samples for one figure
PASSES = 4
Step = Callable[[str, int, int], None]  # what is measured, how many steps are done, of how many


def calibrate(name: str = "", seconds: float = SECONDS, progress: Step | None = None) -> Profile:
    """The profile of JAX's default device, measured now.

    `seconds`: of samples for each figure; `progress(what, done, of)` is called before each step.
    """
    on, start = device(), here()
    p = fitted(start, measured(start, seconds, progress))
    today = datetime.date.today().isoformat()
    kind = f"{on.device_kind}, {cores()} cores" if on.platform == "cpu" else on.device_kind
    return replace(
        p,
        name=name or on.platform,
        calibrated=True,
        measured=f"{kind}, {today}, jax {jax.__version__}",
        notes="measured by `relax-eg calibrate`",
    )


def measured(start: Profile, seconds: float = SECONDS, progress: Step | None = None) -> Times:
    """Seconds of a call of each figure of a device that is about like `start`."""
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
    return in_passes(calls, seconds, PASSES, tell)
