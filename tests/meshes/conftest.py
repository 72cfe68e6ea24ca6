"""Makes the draws of operators, which are in another folder of the tests, importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "ops"), str(Path(__file__).parent.parent)]
