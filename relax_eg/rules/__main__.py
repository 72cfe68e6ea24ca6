"""`python -m relax_eg.rules`: recomputes the verdicts on the shipped books from scratch, and writes their file."""

import os

from relax_eg.rules.checking.certificates import write_verdicts
from relax_eg.rules.checking.verification import verify_in

if __name__ == "__main__":
    report = verify_in(os.cpu_count() or 1)
    if report.refuted:
        raise SystemExit("\n".join(map(str, report.refuted)))
    write_verdicts(report)
