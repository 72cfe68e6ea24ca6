"""Certificates that are checked with JAX's own batching, which rules about loops need."""

from __future__ import annotations

from dataclasses import dataclass, field

from relax_eg.driver.batching import batch_function
from relax_eg.explain.certificate import UnaidedCertificate
from relax_eg.rules.checking.schema_answers import Batched


@dataclass(frozen=True)
class Certificate(UnaidedCertificate):
    """A derivation as plain data, `data`, for `json`. `verify` repeats the whole derivation.

    - `batched`: batches a function of the derivation over slices.
    """

    batched: Batched | None = field(default=batch_function, repr=False, compare=False)
