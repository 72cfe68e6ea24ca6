"""Links between devices, and what collectives over them cost.

A group of `n` devices sends in rings or in trees, as NCCL does (Thakur, Rabenseifner and Gropp, 2005): each device
sends (n - 1) / n of the bytes in n - 1 steps, or all of them in log2(n) steps; the shorter time counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from relax_eg.extract.profiles.profile import Profile

Collective = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute"]
# measured: seconds in which threads of one process wait for each other, once in a collective of any kind. Small ones
# of 8 threads on two cores take 234 to 254 us, of 64 KiB 262 to 357 (`python -m benchmarks.spread_run --collectives`).
_MEETING = 1.5e-4


@dataclass(frozen=True, slots=True)
class Link:
    """A kind of link between devices.

    - `devices`: the number of neighbouring devices that it joins; infinite: any number.
    - `bandwidth`: bytes/s that one device sends while it receives as much.
    - `latency`: seconds of one step of a collective.
    - `meets`: whether a collective is one step, two for an all-reduce, in which all devices meet.
    - `turned`: how often an all-to-all copies what it sends besides, to bring together what goes to one device, and to
      take apart what came.
    """

    devices: float
    bandwidth: float
    latency: float
    turned: int = 0
    meets: bool = False

    def seconds(self, kind: Collective, n: int, full: float, together: float = 1.0) -> float:
        """Seconds of a collective of `n` devices.

        - `full`: bytes of the tensor before it is scattered or after it is gathered: those of the operand of an
          all-reduce and a reduce-scatter, of the result of an all-gather, and those that all devices together hold
          before an all-to-all; of a collective-permute, those that each device sends to a neighbour.
        - `together`: as how many of its kind it is sent at once, which share the latency.
        """
        if n <= 1 or full <= 0:
            return 0.0
        latency = self.latency / together
        if kind == "collective-permute":
            return full / self.bandwidth + latency
        sent = full * (n - 1) / n
        if kind == "all-to-all":
            return sent / n / self.bandwidth * (1 + self.turned) + latency
        times = 2 if kind == "all-reduce" else 1
        ring = times * (sent / self.bandwidth + (1 if self.meets else n - 1) * latency)
        steps = math.ceil(math.log2(n))
        tree = times * steps * (full / self.bandwidth + latency)
        return min(ring, tree)


def link_for(profile: Profile, span: int, devices: int = 1) -> Link:
    """The link over which `span` neighbouring devices of this kind send: the first of the profile that joins as many,
    or its last. Devices of a profile without links are threads of one machine, all `devices` of which copy through its
    memory."""
    links = [Link(*row) for row in profile.links] or [
        Link(math.inf, profile.bandwidth / 2 / devices, _MEETING, 2, True)
    ]
    return next((x for x in links if x.devices >= span), links[-1])
