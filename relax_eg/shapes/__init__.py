"""Sizes: `Dim`, the canonical symbolic integer; the grammar of specs; `Scope`, what is known of the variables."""

from relax_eg.shapes.binder import Binder
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.division import ceildiv, dim_max, dim_min
from relax_eg.shapes.scope import Scope
from relax_eg.shapes.spec import Spec, Star, parse_signature, parse_spec

__all__ = [
    "Binder",
    "Dim",
    "Scope",
    "Spec",
    "Star",
    "ceildiv",
    "dim_max",
    "dim_min",
    "parse_signature",
    "parse_spec",
]
