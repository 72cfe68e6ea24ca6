"""What a calibration tells of a machine, as a file that a user can send: `relax-eg calibrate --report FILE`.

It has the profile, the times from which it follows, and the programs that were timed on the machine with the factors
learned from them. So a change of the cost model can be tried on machines that are not at hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relax_eg.cache_folder import version_of
from relax_eg.driver.clock.learning import timed_programs
from relax_eg.errors import OptionError
from relax_eg.extract.profiles.learned import TimedProgram, corrected
from relax_eg.extract.profiles.profile import Profile
from relax_eg.measure.fits import matmul_errors
from relax_eg.plain_data import read_json, read_record, write_file

VERSION = 1  # given: version of the format
_KEY = "relax_eg calibration"
_PACKAGES = ("relax-eg", "jax", "jaxlib", "numpy")


@dataclass(frozen=True)
class CalibrationReport:
    """A machine as `relax-eg calibrate` found it.

    - `profile`: the calibrated profile, which names the machine.
    - `times`: seconds of a call of each figure (`measure.figures`).
    - `at_hand`: the profile that priced programs before, with what was learned; None if none was of this machine.
    - `timed`: the programs that were timed, with the seconds by kind that `at_hand` predicts without corrections.
    - `versions`: versions of packages.
    - `xla_flags`: XLA's flags.
    """

    profile: Profile
    times: Mapping[str, float]
    at_hand: Profile | None = None
    timed: Sequence[TimedProgram] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: {p: version_of(p) for p in _PACKAGES})
    xla_flags: str = field(default_factory=lambda: os.environ.get("XLA_FLAGS", ""))

    @staticmethod
    def of(profile: Profile, times: Mapping[str, float], at_hand: Profile) -> CalibrationReport:
        """The report of a calibration on this machine. OSError where the cache cannot be read."""
        if at_hand.machine != profile.machine:
            return CalibrationReport(profile, times)
        return CalibrationReport(profile, times, at_hand, timed_programs(at_hand))

    @property
    def errors(self) -> dict[str, tuple[float, float]]:
        """By how many times predictions are off, in the median and for nine in ten: of the matmuls that were timed, and
        of the programs before and after learning."""
        found = {"matmuls": matmul_errors(self.profile, self.times)}
        if self.at_hand is not None and self.timed:
            for label, corrections in (("programs", {}), ("programs, learned", self.at_hand.corrections)):
                found[label] = [abs(float(np.log(corrected(t.kinds, corrections) / t.seconds))) for t in self.timed]
        return {k: (float(np.exp(np.median(v))), float(np.exp(np.quantile(v, 0.9)))) for k, v in found.items() if v}

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON text, also written to `path` if one is given. OptionError where it cannot be written."""
        data = {
            _KEY: VERSION,
            "profile": self.profile.as_data(),
            "times": dict(self.times),
            "at_hand": None if self.at_hand is None else self.at_hand.as_data(),
            "timed": [asdict(t) for t in self.timed],
            "versions": dict(self.versions),
            "xla_flags": self.xla_flags,
            "errors": self.errors,
        }
        text = json.dumps(data, indent=1) + "\n"
        if path is not None:
            write_file(path, text, OptionError, "the report")
        return text

    @staticmethod
    def from_json(path: str | Path) -> CalibrationReport:
        """The report in a file. OptionError says what is wrong with it."""
        where = f"calibration report {path}"
        try:
            data: Any = read_json(Path(path).read_bytes())
        except (OSError, ValueError) as e:
            raise OptionError(f"{where} cannot be read: {e}") from None
        if not isinstance(data, dict) or data.get(_KEY) != VERSION:  # type: ignore[reportUnknownMemberType]
            raise OptionError(f"{where} is none of version {VERSION}: `relax-eg calibrate --report` writes one")
        try:
            times = read_record(Mapping[str, float], data["times"], "times")
            if not all(0 < s < float("inf") for s in times.values()):
                raise ValueError("a time is not above 0")
            timed = list(read_record(tuple[TimedProgram, ...], data["timed"], "timed"))
            versions = read_record(Mapping[str, str], data["versions"], "versions")
            at_hand = None if data["at_hand"] is None else Profile.from_data(data["at_hand"], where)
            profile = Profile.from_data(data["profile"], where)
            return CalibrationReport(profile, times, at_hand, timed, versions, str(data["xla_flags"]))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise OptionError(f"{where} is damaged: {type(e).__name__}: {e}") from None
