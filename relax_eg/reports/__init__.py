"""Cost reports: their content, their comparison, and their output as text, JSON and HTML."""

from relax_eg.reports.compare import Comparison, compare
from relax_eg.reports.report import CostReport

__all__ = ["Comparison", "CostReport", "compare"]
