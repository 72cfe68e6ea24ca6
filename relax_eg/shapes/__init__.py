"""Sizes: `Dim`, the canonical symbolic integer; the spec grammar; `Scope`, the facts about sizes; `prove`."""

from relax_eg.shapes.binder import Binder
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.division import ceildiv, dim_max, dim_min
from relax_eg.shapes.piecewise import dim_select
from relax_eg.shapes.prove import prove
from relax_eg.shapes.relation import Relation
from relax_eg.shapes.scope import Scope
from relax_eg.shapes.spec import Spec, Star, parse_signature, parse_spec
from relax_eg.shapes.verdict import Proved, ProverStatistics, Refuted, Unknown, Verdict
