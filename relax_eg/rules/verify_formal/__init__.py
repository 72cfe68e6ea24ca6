"""The formal checker: proofs of rules for all sizes."""

from relax_eg.rules.verify_formal.prove import Proof, prove_instance, prove_rule

__all__ = ["Proof", "prove_instance", "prove_rule"]
