"""Certificates, checked with JAX's own batching, which rules about loops ask for."""

from __future__ import annotations

from dataclasses import dataclass, field

from relax_eg.driver.batching import batched
from relax_eg.explain.certificate import Certificate as Unaided
from relax_eg.rules.asked import Batched


@dataclass(frozen=True)
class Certificate(Unaided):
    """A derivation as plain data, `data`, for `json`. `verify` does all of it over."""

    batched: Batched | None = field(default=batched, repr=False, compare=False)
