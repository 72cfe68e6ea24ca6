"""Measurements of the compiled programs: `python -m benchmarks.patterns`, `python -m benchmarks.minilm`.

Every search is made: what is measured here is never what an earlier run left in the cache.
"""

import os

os.environ.setdefault("RELAX_EG_CACHE", "0")
