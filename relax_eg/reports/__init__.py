"""Cost reports: what they hold, how they are compared, and how they are shown as text, JSON and HTML."""

from relax_eg.reports.compare import Comparison, compare
from relax_eg.reports.report import CostReport

__all__ = ["Comparison", "CostReport", "compare"]
