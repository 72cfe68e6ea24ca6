"""`relax-eg discover`: the laws of operators, or of a program's own fragments, as a file of rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

import relax_eg as rx
from relax_eg.cli import shared_options
from relax_eg.cli.common import (
    command,
    err,
    load_object,
    print_text,
    progress_bar,
    read_rules,
    read_sizes,
    write_output,
)
from relax_eg.driver.laws.mining import mine
from relax_eg.driver.laws.ranking import rank_by_savings
from relax_eg.driver.laws.sketches import fill
from relax_eg.errors import OptionError
from relax_eg.rules.signature import Numerics
from relax_eg.tir import TensorProgram


@command
def discover(
    operators: Annotated[
        list[str],
        typer.Argument(
            help="Names of operators, add or 'sum(axes=(0,))', and tensor programs, file.py:name; or one function."
        ),
    ],
    variables: Annotated[str, typer.Option("--variables", help="The variables of terms: 'x: *b, y: *b'.")] = "",
    size: Annotated[int, typer.Option("--size", min=1, help="Operators of a side, at most.")] = 3,
    known: Annotated[
        str, typer.Option("--known", help="Laws that are known: none, default, or a file of rules.")
    ] = "default",
    facts: Annotated[
        str, typer.Option("--facts", help="Facts to look under: 'positive', or 'd: diagonal positive, x: nonzero'.")
    ] = "",
    constants: Annotated[list[float] | None, typer.Option("--constant", help="A number that terms may have.")] = None,
    numerics: Annotated[str, typer.Option("--numerics", help="exact, reassociate or approximate.")] = "reassociate",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the sample points.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; 0: as many as processors.")] = 0,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where verdicts are kept, so that a stopped run goes on.")
    ] = None,
    terms: Annotated[int | None, typer.Option("--terms", min=1, help="Terms of one size, at most.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0, help="After which nothing new is begun.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the rules here: laws.py.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the report here.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON here.")] = None,
    on: Annotated[
        str, typer.Option("--on", help="A function, file.py:name, on which the laws may save, with --spec and --at.")
    ] = "",
    spec: shared_options.Spec = None,
    at: shared_options.At = None,
    target: Annotated[str, typer.Option("--target", help="Of a function: the profile that prices it.")] = "cpu",
    sketch: Annotated[
        str, typer.Option("--sketch", help="A function's form, file.py:name, with a further argument for each hole.")
    ] = "",
    hole: Annotated[list[str] | None, typer.Option("--hole", help="The spec of a hole of --sketch.")] = None,
) -> None:
    """Find the laws of operators, prove them for all sizes, and write them as a file of rules.

    For a function, file.py:name with --spec and --at, find cheaper terms that are equal to its costliest fragments;
    with --sketch, terms of the operators named after the function that fill the holes of a sketch of it.
    Nothing that is found is used until a person adds the file to a set of rules. Ctrl-C ends the search with what is
    proved."""
    asked = [_operator(o) for o in operators]
    if any(callable(o) for o in asked):
        is_one = callable(asked[0]) and not any(map(callable, asked[1:])) and (len(asked) == 1 or sketch)
        if not is_one or html or json or on:
            raise OptionError(
                f"{operators[0]}: a function is looked at by itself, or with --sketch and operators for its holes; "
                "--save writes what is found"
            )
        with progress_bar("discover") as tell:
            sizes = read_sizes(at or [])
            options: dict[str, Any] = {
                "at": sizes, "target": target, "size": size, "numerics": _class(numerics),
                "jobs": jobs or os.cpu_count() or 1, "tell": tell,
            }  # fmt: skip
            if sketch:
                form, names = _operator(sketch), "|".join(operators[1:])
                mined = fill(asked[0], *(spec or []), sketch=form, holes=hole or (), operators=names, **options)
            else:
                mined = mine(asked[0], *(spec or []), **options)
        print_text(mined)
        write_output("rules", save, mined.save)
        return
    if sketch or hole:
        raise OptionError("--sketch: a function that it is a sketch of is needed, file.py:name")
    program = _operator(on)
    if on and not callable(program):
        raise OptionError(f"--on {on}: a function is accepted, file.py:name")
    limits = {} if terms is None else {"terms": terms}
    with progress_bar("discover") as tell:
        found = rx.discover(
            asked,
            variables,
            size,
            _known(known),
            facts,
            constants or (),
            _class(numerics),
            seed=seed,
            jobs=jobs or os.cpu_count() or 1,
            folder=folder,
            seconds=seconds,
            tell=tell,
            **limits,
        )
    print_text(found)
    if on:

        def optimized(rules: rx.RuleSet) -> Any:
            with rx.debug.options(least_gain=1):
                return rx.optimize(program, *(spec or []), at=read_sizes(at or []), target=target, rules=rules)

        savings = rank_by_savings({on: optimized}, found.rules, _known(known) or rx.RuleSet("nothing"))
        print_text("\n".join(map(str, savings)) or f"{on}: the found laws save nothing besides those that are known")
    write_output("rules", save, found.save)
    write_output("report", html, found.to_html)
    write_output("report", json, found.to_json)
    if found.stopped:
        err.print(f"the search ended early: {found.stopped}", markup=False)


def _operator(text: str) -> Any:
    """A name of an operator, a tensor program or a function."""
    if ".py:" not in text:
        return text
    found = load_object(text)
    if not isinstance(found, TensorProgram) and not callable(found):
        kind = type(found).__name__
        raise OptionError(f"{text!r} is {kind}; a tensor program is accepted, a function, or a name of an operator")
    return found


def _known(text: str) -> rx.RuleSet | None:
    if text == "none":
        return None
    return rx.rules.default if text == "default" else read_rules(Path(text))


def _class(text: str) -> Numerics:
    return text  # type: ignore[return-value]
