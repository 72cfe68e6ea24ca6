"""The formal checker: proofs of rules for all sizes. `prove` begins it."""
