"""`relax-eg calibrate`: the profile of this device, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relax_eg.cli.common import command, out, progress_bar
from relax_eg.driver.clock.at_hand import profile_at_hand
from relax_eg.driver.clock.calibration import CalibrationReport
from relax_eg.errors import OptionError
from relax_eg.measure.calibrate import SECONDS
from relax_eg.measure.calibrate import calibrate as measure_device
from relax_eg.measure.device import device


@command
def calibrate(
    path: Annotated[Path | None, typer.Argument(help="The JSON file to write; <device>.json if left out.")] = None,
    name: Annotated[str, typer.Option("--name", help="What reports call the device; else its platform.")] = "",
    seconds: Annotated[float, typer.Option("--seconds", help="Of samples for each figure.")] = SECONDS,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write what can be sent: machine, times, errors, as JSON.")
    ] = None,
) -> None:
    """Measure the device JAX runs on, and write its profile, which `--target file.json` uses. This takes one to two
    minutes; the machine should be idle, because other work changes the figures."""
    if not 0 < seconds <= 10:
        raise OptionError(f"--seconds {seconds:g}: a number above 0, at most 10, is accepted")
    to = path or Path(f"{name or device().platform}.json")
    # The path is checked before the measurement, which takes minutes.
    if to.suffix != ".json" or to.is_dir() or not to.parent.is_dir():
        raise OptionError(f"{to}: a file that ends in .json, in a folder that exists, is accepted")
    if report is not None and (report.is_dir() or not report.parent.is_dir()):
        raise OptionError(f"--report {report}: a file in a folder that exists is accepted")
    with progress_bar("measuring") as tell:
        profile, times = measure_device(name, seconds, tell)
    try:
        profile.to_json(to)
    except OSError as e:
        raise OptionError(f"{to} cannot be written: {e.strerror}") from None
    made = None if report is None else CalibrationReport.of(profile, times, profile_at_hand())
    if made is not None and report is not None:
        made.to_json(report)
    out.print(profile)
    out.print(f"written to {to}: optimize(target={str(to)!r}), relax-eg optimize --target {to}", soft_wrap=True)
    if made is not None:
        errors = "; ".join(f"{what} {a:.2f} times, nine in ten {b:.2f}" for what, (a, b) in made.errors.items())
        out.print(f"report written to {report}; predictions are off: {errors}", soft_wrap=True)
