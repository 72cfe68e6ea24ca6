"""Makes the draws of operators and of programs, which are in other folders of the tests, importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "ops"), str(Path(__file__).parent.parent)]
