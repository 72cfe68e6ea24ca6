"""Certificates that are checked with JAX's own batching, which rules about loops need."""

from __future__ import annotations

from dataclasses import dataclass, field

from relax_eg.driver.batching import batched
from relax_eg.explain.certificate import UnaidedCertificate
from relax_eg.rules.schema_answers import Batched


@dataclass(frozen=True)
class Certificate(UnaidedCertificate):
    """A derivation as plain data, `data`, for `json`. `verify` repeats the whole derivation."""

    batched: Batched | None = field(default=batched, repr=False, compare=False)
