"""The lists of tests that the quick lane leaves out name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from lanes import ONE_OF, SLOW

ROOT = Path(__file__).parent.parent


def test_tests_that_are_left_out_exist() -> None:
    missing: list[str] = []
    for name in (*SLOW, *ONE_OF):
        file, function = name.partition("[")[0].split("::")
        text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
        if not re.search(rf"^def {function}\(", text, re.M):
            missing.append(name)
    assert missing == []
    assert all(share > 1 for share in ONE_OF.values())
