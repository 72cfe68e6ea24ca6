"""Looking inside: the debug options, the seconds of each stage, the e-graph as a picture, the disk cache.

`options` sets what is logged, where stages are written, who is told of progress, and whether the disk cache and sharing
are on, for a `with` block.
"""

from relax_eg.driver import cache
from relax_eg.driver.legalize import legalize
from relax_eg.driver.view import view
from relax_eg.logs import clock, options

__all__ = ["cache", "clock", "legalize", "options", "view"]
