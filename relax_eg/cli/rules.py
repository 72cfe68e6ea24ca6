"""`relax-eg rules` and `relax-eg verify`: print the rules as mathematics; check them again."""

from __future__ import annotations

import functools
import operator
from pathlib import Path
from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli.common import command, err, print_text, progress_bar, read_rules, rule_sets
from relax_eg.driver.compiled_rules import verify_compiled
from relax_eg.rules.checking.verification import SECONDS as SECONDS_A_RULE
from relax_eg.rules.checking.verification import verify_in


@command
def list_rules(
    rules: Annotated[Path | None, typer.Argument(help="A rule file; the books that ship if left out.")] = None,
    only: Annotated[str | None, typer.Option("--only", help="A tag, a numerics class or a name.")] = None,
) -> None:
    """Print rules, each as one line of mathematics."""
    shown = rx.rules.default if rules is None else functools.reduce(operator.add, rule_sets(rules))
    shown = shown.only(only) if only else shown
    for r in (*shown, *shown.schemas):
        print_text(r)


@command
def verify(
    rules: Annotated[Path | None, typer.Argument(help="A rule file; the books that ship if left out.")] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Check this instead, by the books that ship and the rule file.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; 0: two for the books, one for a file.")] = 0,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Of a processor, for one rule, at most.")
    ] = SECONDS_A_RULE,
    device: Annotated[
        str,
        typer.Option("--device", help="Compile the routines for this GPU (h100, ...) instead, and say what XLA makes."),
    ] = "",
) -> None:
    """Check every rule again and print a table; ends with status 1 if one is refuted.

    With --device, only rules of routines that a GPU is needed for: nothing is run, XLA compiles them. With
    --certificate, do every step of a derivation over; ends with status 1 if one does not hold."""

    def check_certificate(path: Path) -> None:
        found = rx.types.Certificate.load(path)
        with err.status("checking every step"):
            done = found.verify(read_rules(rules))
        print_text(f"{found.data['name']}: holds; {done}")
        print_text(f"by {found.premises}")

    if certificate is not None:
        check_certificate(certificate)
        return
    if device:
        compiled = verify_compiled(read_rules(rules), device)
        for verdict in compiled:
            print_text(verdict)
        if any(v.status == "refuted" for v in compiled):
            raise typer.Exit(1)
        return
    with progress_bar("checking rules") as tell:
        report = verify_in(jobs or (2 if rules is None else 1), rules, seconds, progress=tell)
    print_text(report)
    if report.refuted:
        raise typer.Exit(1)
