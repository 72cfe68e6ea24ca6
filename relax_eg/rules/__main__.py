"""`python -m relax_eg.rules`: test the shipped books and write their verdicts."""

from relax_eg.rules.certificates import main

if __name__ == "__main__":
    main()
