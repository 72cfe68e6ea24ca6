"""The tensor programs of all operators as text: they read back equal."""

from __future__ import annotations

import numpy as np
import pytest
from facets import accepted, make, sizes_of
from ops_samples import USES

from relax_eg.ops import program_of
from relax_eg.tir import parse_program


@pytest.mark.parametrize("name", sorted(USES))
def test_text_reads_back(name: str) -> None:
    rng = np.random.default_rng(0)
    for n, use in enumerate(USES[name]):
        taken, _ = accepted(name, use)
        for dtype in taken if not n else taken[:1]:
            case = make(name, use, dtype, sizes_of(use, rng), rng)
            for site in (case.site, case.concrete):
                program = program_of(site)
                if program is not None:
                    assert parse_program(str(program), ranges=False) == program
