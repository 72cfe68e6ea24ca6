"""Proves the strategies of the operators of the table: `python tests/meshes/strategy_proofs.py` tries all of them."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent.parent / "ops"), str(Path(__file__).parent.parent)]

from facets import accepted, make, sizes_of
from ops_samples import USES

from relax_eg.dtypes import is_key
from relax_eg.ir.annotations import Tensor
from relax_eg.meshes.proofs import statement, why_not_proved
from relax_eg.meshes.strategies import SplitStrategy, strategies
from relax_eg.ops import TABLE

SECONDS = 2.0  # limit: processor time of a proof


def outcomes(name: str) -> Iterator[tuple[str, SplitStrategy, str | None]]:
    """Yields each use of an operator, as text, with each strategy that splits something or passes a sum, and why that
    is not proved: "" if it is, None if there is no statement."""
    for use in USES[name]:
        taken, _ = accepted(name, use)
        dtype = "float32" if "float32" in taken else taken[0]
        if is_key(dtype):
            continue
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        site = make(name, use, dtype, sizes_of(use, rng), rng, False)
        if not isinstance(site.deduced, Tensor):
            continue
        operands, attrs = site.site.operands, tuple(site.site.attrs.items())
        for s in strategies(name, operands, attrs, site.deduced):
            if not s.whole or s.passes:
                said = statement(name, operands, attrs, s)
                yield str(site), s, None if said is None else why_not_proved(said, SECONDS)


def main() -> None:
    counts, unproved = Counter[str](), Counter[str]()
    for name in sorted(TABLE):
        found = list(outcomes(name))
        counts["strategies"] += len(found)
        counts["proved"] += sum(why == "" for *_, why in found)
        counts["no statement"] += sum(why is None for *_, why in found)
        bad = [f"{s.operands} -> {s.result}: {why}" for _, s, why in found if why]
        unproved[name] += len(bad)
        if bad:
            print(f"{name}: {len(bad)} of {len(found)} are not proved, as {bad[0][:200]}", flush=True)
    whole = sum(not n for n in unproved.values())
    print(f"{dict(counts)}; of {len(TABLE)} operators {whole} have no strategy that is not proved")


if __name__ == "__main__":
    main()
