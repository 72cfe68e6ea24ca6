"""Draws of operators and of programs stand beside the tests of operators and of rules."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "ops"), str(Path(__file__).parent.parent)]
