"""A quick calibration: the rates of a machine, from some forty small programs in some six seconds.

`measure.calibrate` times ten times as many programs in two minutes. What these few do not tell is taken from the
profile that ships, in proportion (`measure.fits.fit_few`), so its errors are larger, and the profile says so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp

from relax_eg.extract.profiles.learned import QUICK
from relax_eg.extract.profiles.profile import Profile
from relax_eg.measure import figures
from relax_eg.measure.device import default_profile, measured_here
from relax_eg.measure.fits import fit_few
from relax_eg.measure.timing import time_until_confirmed

SECONDS, PASSES = 0.02, 8  # chosen: seconds of samples of a figure in each pass, and passes at most
_UNSURE = 1 / 8  # chosen: share of figures that no second pass confirms, above which the machine was disturbed
DISTURBED = "measured while other work ran"
NAME = "calibrated quickly"
_READ = (1 << 26, 1 << 24, 1 << 22, 1 << 20, 1 << 18)  # chosen: bytes of each of the two arrays that are read
_COPIED = _READ[1::2]  # chosen: bytes of the arrays that are copied
_MATMULS = (
    (512, 512, 512),
    (64, 384, 1536),
    (8, 384, 384),
    (128, 64, 128),
    (16, 256, 256),
    (32, 32, 32),
    (64, 64, 64),
)  # chosen: of `MATMULS`


def calibrate_quickly() -> Profile:
    """The profile of JAX's default device, a CPU, from few measurements. It takes some six seconds.

    It runs in a thread of its own, so it may be called while JAX traces.
    """
    found: list[Profile] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            found.append(_calibrated())
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=work, name="relax_eg calibrate")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def _calibrated() -> Profile:
    start = default_profile()
    with ThreadPoolExecutor() as pool:  # XLA compiles without the interpreter's lock
        calls = dict(pool.map(lambda f: (f.name, f.compiled()), few_figures(start)))
    times, unsure = time_until_confirmed(calls, SECONDS, PASSES)
    is_disturbed = len(unsure) > _UNSURE * len(times)
    return measured_here(
        fit_few(start, times),
        name=f"{start.name}, {NAME}",
        doubts={} if is_disturbed else QUICK,
        notes=DISTURBED if is_disturbed else "measured in seconds; `relax-eg calibrate` takes longer and knows more",
    )


def few_figures(p: Profile) -> Iterator[figures.Figure]:
    """The programs of a quick calibration of a device similar to `p`; their names are those of `figures.figures`."""
    normal = figures.normal_arrays()
    yield from figures.simple_figures(p, figures.FEW_CHAINS, _READ, _COPIED)
    for m, n, k in _MATMULS:
        yield figures.Figure(f"matmul {m} {n} {k}", jnp.matmul, (normal(m, k), normal(k, n)))
    yield figures.bytes_product(figures.rate_side(p))
    yield from figures.chains_of_matmuls((1,), figures.ONE_ROW[1], figures.LAYOUTS)
    yield from figures.chains_of_matmuls(figures.FEW_ROWS, figures.LAYOUT, figures.LAYOUTS)
    yield from figures.chains_of_matmuls(figures.FEW_PAGED, figures.PAGED, figures.LAYOUTS[:1])
