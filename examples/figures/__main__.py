"""`python -m examples.figures [4 5 7 8 9 11]`: figures of the Relax paper (Lai et al., ASPLOS 2025)."""

from __future__ import annotations

import sys

from examples.figures import cross_level, decode, deduction, semantics, symbolic_parameter, workspace

FIGURES = {"4": cross_level, "5": semantics, "7": deduction, "8": symbolic_parameter, "9": decode, "11": workspace}


def main(wanted: list[str]) -> None:
    for number in wanted or FIGURES:
        if number not in FIGURES:
            raise SystemExit(f"no figure {number}; there are: {', '.join(FIGURES)}")
        module = FIGURES[number]
        print(f"=== Figure {number}. {(module.__doc__ or '').splitlines()[0]}\n")
        print(module.shown())


if __name__ == "__main__":
    main(sys.argv[1:])
