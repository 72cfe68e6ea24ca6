"""Tools to inspect what the compiler does: debug options, seconds of the stages, pictures of e-graphs, why a rule did
not fire, what sets of rules are worth, the disk cache.

`options` sets, for a `with` block, what is logged, where stages are written, which function gets the progress, and
whether the disk cache and sharing are on.
"""

from relax_eg.driver import cache
from relax_eg.driver.ablation import ablate
from relax_eg.driver.legalize import legalize
from relax_eg.driver.view import view
from relax_eg.driver.why import why_not
from relax_eg.logs import clock, options

__all__ = ["ablate", "cache", "clock", "legalize", "options", "view", "why_not"]
