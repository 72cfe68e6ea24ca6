"""The command line: `relax-eg optimize | compare | bench | ablate | view | plan | rules | verify | discover | ...`.

Each command has a module; this one sets the names and the order of the commands.
"""

from __future__ import annotations

from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli import (
    ablate,
    bench,
    cache,
    calibrate,
    compare,
    compile,
    discover,
    extract,
    info,
    inspect,
    optimize,
    pareto,
    plan,
    prove,
    quantize,
    rules,
    run,
    view,
    why_not,
)
from relax_eg.logs import shorten_plugin_errors

app = typer.Typer(
    name="relax-eg",
    help="Optimize tensor programs by rewrite rules.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(version: bool) -> None:
    if version:
        typer.echo(f"relax-eg {rx.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Optimize tensor programs by rewrite rules."""
    shorten_plugin_errors()


app.command("optimize")(optimize.optimize)
app.command("compare")(compare.compare)
app.command("ablate")(ablate.ablate)
app.command("view")(view.view)
app.command("run")(run.run)
app.command("bench")(bench.bench)
app.command("rules")(rules.list_rules)
app.command("verify")(rules.verify)
app.command("discover")(discover.discover)
app.command("why-not")(why_not.why_not)
app.command("pareto")(pareto.pareto)
app.command("quantize")(quantize.quantize)
app.command("plan")(plan.plan)
app.command("compile")(compile.compile)
app.command("info")(info.info)
app.command("inspect")(inspect.inspect)
app.command("prove")(prove.prove)
app.command("extract")(extract.extract)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(cache.app, name="cache")
