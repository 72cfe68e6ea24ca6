"""The command line: `relax-eg optimize | rules | verify | why-not | prove | extract | calibrate | cache`."""

from __future__ import annotations

import importlib.util
import json as json_format
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.spinner import Spinner
from rich.table import Table

import relax_eg as rx
from relax_eg.errors import ExtractionError, OptionError, RelaxEgError
from relax_eg.extract.check_choice import check_choice
from relax_eg.extract.foreign import METHODS, Extracted, egraph_of, extract, read_json
from relax_eg.measure.calibrate import SECONDS
from relax_eg.measure.calibrate import calibrate as measure_device
from relax_eg.rules import RuleSet
from relax_eg.rules.parallel import SECONDS as SECONDS_A_RULE
from relax_eg.rules.parallel import verify_in

app = typer.Typer(
    name="relax-eg",
    help="Optimize tensor programs by rewrite rules.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="What earlier searches found, on disk.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")
out = Console()
err = Console(stderr=True)


class LiveLine:
    """One line on the terminal that tells phase, e-graph size and matches while the search runs."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = time.perf_counter()
        self._spinner = Spinner("dots", text=f"{what}: tracing")
        self._live = Live(self._spinner, console=err, transient=True)

    def __enter__(self) -> LiveLine:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, phase: str, nodes: int, matches: int) -> None:
        seconds = time.perf_counter() - self._started
        self._spinner.update(text=f"{self._what}: {phase}, {nodes} nodes, {matches} rule matches, {seconds:.1f} s")


def load_object(reference: str) -> Any:
    """`file.py:name` as the object it names. OptionError says what is wrong with the reference."""
    path_text, colon, name = reference.rpartition(":")
    if not colon or not name.isidentifier():
        raise OptionError(f"{reference!r}: file.py:name is accepted")
    module = load_file(Path(path_text))
    if not hasattr(module, name):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise OptionError(f"{path_text} has no `{name}`; it has: {', '.join(functions) or 'no functions'}")
    return getattr(module, name)


def load_file(path: Path) -> Any:
    """A Python file as a module, its folder importable while it loads."""
    if not path.is_file():
        raise OptionError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def read_sizes(texts: list[str], option: str) -> dict[str, int]:
    """`["b=1", "s=128"]` as a binding."""
    sizes: dict[str, int] = {}
    for text in (t for given in texts for t in given.split(",")):
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier() or not value.isdigit():
            raise OptionError(f"{option} {text!r}: name=size is accepted, as in s=128")
        sizes[name] = int(value)
    return sizes


def read_bounds(texts: list[str]) -> dict[str, tuple[int | None, int | None]]:
    """`["s=1:4096"]` as bounds; either side may be left out."""
    bounds: dict[str, tuple[int | None, int | None]] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        low, colon, high = value.partition(":")
        sides = [low, high]
        if not sign or not colon or not name.isidentifier() or any(x and not x.isdigit() for x in sides):
            raise OptionError(f"--bounds {text!r}: name=low:high is accepted, as in s=1:4096")
        if name in bounds:
            raise OptionError(f"--bounds {text!r}: `{name}` has other bounds already; one for each size is accepted")
        bounds[name] = (int(low) if low else None, int(high) if high else None)
    return bounds


def read_rules(path: Path | None) -> RuleSet:
    """The default rules, and those of a rule file if one is given."""
    rules = rx.rules.default
    if path is None:
        return rules
    found = [v for v in vars(load_file(path)).values() if isinstance(v, RuleSet)]
    if not found:
        raise OptionError(f"{path} defines no RuleSet")
    for book in found:
        rules = rules + book
    return rules


def run(action: Callable[[], None]) -> None:
    """Run a command; errors of ours are printed plainly and end it with status 1."""
    try:
        action()
    except RelaxEgError as e:
        err.print(f"[bold red]{type(e).__name__}[/]:", end=" ")
        err.print(str(e), markup=False, highlight=False)
        raise typer.Exit(1) from None


@app.command()
def optimize(
    function: Annotated[str, typer.Argument(help="file.py:function, or m.rxe: what --save wrote.")],
    spec: Annotated[
        list[str] | None, typer.Option("--spec", help='One per argument, in order: "b s 768", "b s @ int32".')
    ] = None,
    at: Annotated[list[str] | None, typer.Option("--at", help="Sizes to be best at: s=128.")] = None,
    bounds: Annotated[list[str] | None, typer.Option("--bounds", help="What sizes may ever be: s=1:4096.")] = None,
    assume: Annotated[
        list[str] | None, typer.Option("--assume", help='What else holds of sizes: "s % 8 == 0".')
    ] = None,
    weights: Annotated[list[str] | None, typer.Option("--weights", help="Arguments known ahead of the calls.")] = None,
    rules: Annotated[Path | None, typer.Option("--rules", help="A file with rule sets to add.")] = None,
    without: Annotated[list[str] | None, typer.Option("--without", help="Rules, tags or classes to leave out.")] = None,
    target: Annotated[str, typer.Option("--target", help="Device profile, or the file of one (calibrate).")] = "",
    numerics: Annotated[str, typer.Option("--numerics", help="exact, reassociate or approximate.")] = "reassociate",
    nodes: Annotated[int, typer.Option("--nodes", help="E-graph node budget.")] = 200_000,
    seconds: Annotated[float, typer.Option("--seconds", help="Search time budget.")] = 10.0,
    measure: Annotated[int, typer.Option("--measure", help="Programs to time; 0: price decides.")] = 0,
    sharing: Annotated[str, typer.Option("--sharing", help="Repeated blocks optimized once: on or off.")] = "on",
    execution: Annotated[str, typer.Option("--execution", help="whole, or kernels: one by one.")] = "whole",
    cache: Annotated[bool, typer.Option(help="Take what an earlier run found, and keep what this one finds.")] = True,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here.")] = None,
    module: Annotated[bool, typer.Option("--module", help="Print the chosen module.")] = False,
    show: Annotated[
        str | None, typer.Option("--show", help="kernels: which operators went where, and what that saves.")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write what was found here: m.rxe.")] = None,
) -> None:
    """Optimize a JAX function and print the cost report; or print that of a saved one."""

    def searched() -> rx.Optimized:
        if show is not None and (show != "kernels" or execution != "kernels"):
            raise OptionError(f"--show {show!r}: 'kernels' is accepted, together with --execution kernels")
        fn = load_object(function)
        chosen = read_rules(rules)
        for name in without or []:
            fewer = chosen - name
            if len(fewer) == len(chosen) and fewer.schemas == chosen.schemas:
                raise OptionError(
                    f"--without {name!r}: no rule has this name, tag or class; `relax-eg rules` lists them"
                )
            chosen = fewer
        with LiveLine(function) as line:
            return rx.optimize(
                fn,
                *(spec or []),
                rules=chosen,
                target=target or None,
                at=read_sizes(at or [], "--at") or None,
                bounds=read_bounds(bounds or []) or None,
                assume=assume or (),
                weights=tuple(weights or ()),
                numerics=numerics,  # type: ignore[arg-type]
                budget=rx.Budget(nodes=nodes, seconds=seconds),
                progress=line,
                measure=measure,
                sharing=sharing,  # type: ignore[arg-type]
                execution=execution,  # type: ignore[arg-type]
                cache=cache,
            )

    def saved() -> rx.Optimized:
        given = {"--spec": spec, "--at": at, "--bounds": bounds, "--assume": assume, "--weights": weights}
        given |= {"--rules": rules, "--without": without, "--measure": measure, "--target": target}
        if wrong := [option for option, value in given.items() if value]:
            raise OptionError(f"{function} is saved and not searched again: {', '.join(wrong)} cannot change it")
        return rx.load(function)

    def action() -> None:
        best = saved() if function.endswith(".rxe") else searched()
        out.print(best.report)
        if show is not None:
            out.print(best.report.kernel_table())
        if module:
            out.print(str(best.module), markup=False, highlight=False, soft_wrap=True)
        if json is not None:
            best.report.to_json(json)
            err.print(f"report written to {json}")
        if save is not None:
            best.save(save)
            err.print(f"program written to {save}: rx.load({str(save)!r}), relax-eg optimize {save}")

    run(action)


@app.command(name="rules")
def list_rules(
    rules: Annotated[Path | None, typer.Argument(help="A rule file; the books that ship if left out.")] = None,
    only: Annotated[str | None, typer.Option("--only", help="A tag, a numerics class or a name.")] = None,
) -> None:
    """Print rules, each as one line of mathematics."""

    def action() -> None:
        chosen = read_rules(rules)
        shown = chosen.only(only) if only else chosen
        for r in (*shown, *shown.schemas):
            out.print(str(r), markup=False, highlight=False, soft_wrap=True)

    run(action)


@app.command()
def verify(
    rules: Annotated[Path | None, typer.Argument(help="A rule file; the books that ship if left out.")] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Check this instead, by the books that ship and the rule file.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; 0: two for the books, one for a file.")] = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="For one rule, at most.")] = SECONDS_A_RULE,
) -> None:
    """Check every rule again and print a table; ends with status 1 if one is refuted.

    With --certificate, do every step of a derivation over; ends with status 1 if one does not hold."""

    def certified(path: Path) -> None:
        found = rx.Certificate.load(path)
        with err.status("checking every step"):
            done = found.verify(read_rules(rules))
        out.print(f"{found.data['name']}: holds; {done}", markup=False, highlight=False, soft_wrap=True)
        out.print(f"by {found.premises}", markup=False, highlight=False, soft_wrap=True)

    def action() -> None:
        if certificate is not None:
            certified(certificate)
            return
        with Progress(console=err, transient=True) as bar:
            task = bar.add_task("checking rules", total=None)

            def tell(rule: str, done: int, of: int) -> None:
                bar.update(task, description=f"checking {rule}", completed=done, total=of)

            report = verify_in(jobs or (2 if rules is None else 1), rules, seconds, progress=tell)
        out.print(str(report), markup=False, highlight=False, soft_wrap=True)
        if report.refuted:
            raise typer.Exit(1)

    run(action)


@app.command(name="why-not")
def why_not(
    rule: Annotated[str, typer.Argument(help="The name of a rule.")],
    function: Annotated[str, typer.Argument(help="The function, as file.py:name.")],
    spec: Annotated[list[str] | None, typer.Option("--spec", help="One per argument, as for optimize.")] = None,
    at: Annotated[list[str] | None, typer.Option("--at", help="Sizes to be best at: s=128.")] = None,
    bounds: Annotated[list[str] | None, typer.Option("--bounds", help="What sizes may ever be: s=1:4096.")] = None,
    weights: Annotated[list[str] | None, typer.Option("--weights", help="Arguments known ahead of the calls.")] = None,
    rules: Annotated[Path | None, typer.Option("--rules", help="A file with rule sets to add.")] = None,
    target: Annotated[str, typer.Option("--target", help="Device profile.")] = "",
    numerics: Annotated[str, typer.Option("--numerics", help="exact, reassociate or approximate.")] = "reassociate",
) -> None:
    """Print why a rule did not fire in a function: the nearest match, and what failed there."""

    def action() -> None:
        found = rx.why_not(
            rule,
            load_object(function),
            *(spec or []),
            rules=read_rules(rules),
            target=target or None,
            at=read_sizes(at or [], "--at") or None,
            bounds=read_bounds(bounds or []) or None,
            weights=tuple(weights or ()),
            numerics=numerics,  # type: ignore[arg-type]
        )
        out.print(str(found), markup=False, highlight=False, soft_wrap=True)

    run(action)


@app.command()
def prove(
    statement: Annotated[str, typer.Argument(help='A comparison of sizes: "n*4 == 4*n", "n % 8 == 0".')],
    assume: Annotated[list[str] | None, typer.Option("--assume", help='What is known: "n >= 2", "n == 2*m".')] = None,
    bounds: Annotated[list[str] | None, typer.Option("--bounds", help="What sizes may be: n=1:4096.")] = None,
    timeout: Annotated[int, typer.Option("--timeout", help="Milliseconds for z3; 0 leaves it out.")] = 500,
) -> None:
    """Prove a statement for all sizes, or print a counterexample; ends with status 1 if it is not proved."""

    def action() -> None:
        verdict = rx.prove(statement, assume=assume or (), bounds=read_bounds(bounds or []), timeout_ms=timeout)
        out.print(str(verdict), markup=False, highlight=False, soft_wrap=True)
        if not isinstance(verdict, rx.Proved):
            raise typer.Exit(1)

    run(action)


@app.command(name="extract")
def extract_command(
    graph: Annotated[Path, typer.Argument(help="An e-graph in the egraph-serialize format.")],
    method: Annotated[str, typer.Option("--method", help="tree, dag, ilp or all.")] = "all",
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds for the search, about.")] = 50.0,
    save: Annotated[Path | None, typer.Option("--save", help="Write the best choice here.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the neighbourhoods that the search looks at.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes; 1: the same choice each time.")] = 2,
    check: Annotated[Path | None, typer.Option("--check", help="Recompute this saved choice instead.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
) -> None:
    """Choose the cheapest node of each class of a foreign e-graph; say how near the best the choice is."""

    def action() -> None:
        if method not in METHODS:
            raise OptionError(f"--method {method!r}: {', '.join(METHODS)} are accepted")
        if not time_limit >= 0:
            raise OptionError(f"--time-limit {time_limit}: a number of seconds >= 0 is accepted")
        if jobs not in (1, 2):
            raise OptionError(f"--jobs {jobs}: 1 or 2 is accepted")
        data = read_json(graph)
        read = egraph_of(data, str(graph))
        if check is not None:
            _print_check(data, graph, check)
            return
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn()
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task(graph.name, total=max(time_limit, 1e-3), state="reading")
            started = time.perf_counter()

            def told(what: str, cost: float, bound: float) -> None:
                bar.update(task, completed=time.perf_counter() - started, state=f"{what}: {cost:.6g}")

            results = extract(read, method, time_limit, told, seed, jobs)  # type: ignore[arg-type]
        best = min(results, key=lambda r: r.cost)
        if json:
            rows = [{k: v for k, v in r.as_data().items() if k not in ("schema", "choice")} for r in results]
            shown = {"nodes": read.node_count, "classes": len(read.classes), "results": rows}
            out.print_json(json_format.dumps(shown))
        else:
            out.print(_extraction_table(graph.name, read.node_count, len(read.classes), results))
        if save is not None:
            save.write_text(json_format.dumps(best.as_data(), indent=1) + "\n")
            err.print(f"choice of {best.method} written to {save}")

    run(action)


def _extraction_table(name: str, nodes: int, classes: int, results: list[Extracted]) -> Table:
    table = Table(title=f"{name}: {nodes} nodes, {classes} classes", box=None, title_justify="left")
    table.add_column("method")
    for column in ("cost", "classes used", "lower bound", "gap", "seconds"):
        table.add_column(column, justify="right")
    table.add_column("how")
    for r in results:
        known = ["", ""] if r.bound is None or r.gap is None else [f"{r.bound:.8g}", f"{100 * r.gap:.3f}%"]
        table.add_row(r.method, f"{r.cost:.8g}", str(len(r.choice)), *known, f"{r.seconds:.2f}", r.how)
    return table


def _print_check(data: Any, graph: Path, path: Path) -> None:
    saved = read_json(path)
    if not isinstance(saved, dict):
        raise ExtractionError(f"{path} is not a choice; an object with `choice` and `cost` is accepted")
    checked = check_choice(data, saved)
    if not checked.ok:
        raise ExtractionError(f"{path} is not a choice for {graph}: " + "; ".join(checked.faults[:5]))
    text = f"{path}: complete, acyclic, {checked.classes} classes, cost {checked.cost:.8g}"
    out.print(text, markup=False, highlight=False, soft_wrap=True)


@app.command()
def calibrate(
    path: Annotated[Path | None, typer.Argument(help="The JSON file to write; <device>.json if left out.")] = None,
    name: Annotated[str, typer.Option("--name", help="What reports call the device; else its platform.")] = "",
    seconds: Annotated[float, typer.Option("--seconds", help="Of samples for each figure.")] = SECONDS,
) -> None:
    """Measure the device JAX runs on, and write its profile: `--target file.json` uses it. About a minute; on a machine
    at rest, for what others do meanwhile is measured too."""

    def action() -> None:
        if not 0 < seconds <= 10:
            raise OptionError(f"--seconds {seconds:g}: a number above 0, at most 10, is accepted")
        with Progress(console=err, transient=True) as bar:
            task = bar.add_task("measuring", total=None)

            def tell(what: str, done: int, of: int) -> None:
                bar.update(task, description=f"measuring: {what}", completed=done, total=of)

            profile = measure_device(name, seconds, tell)
        to = path or Path(f"{profile.name}.json")
        profile.to_json(to)
        out.print(profile)
        out.print(f"written to {to}: optimize(target={str(to)!r}), relax-eg optimize --target {to}", soft_wrap=True)

    run(action)


@cache_app.command()
def info() -> None:
    """Print where the cache is, and how full."""
    run(lambda: out.print(str(rx.cache.info()), markup=False, highlight=False, soft_wrap=True))


@cache_app.command()
def clear() -> None:
    """Remove everything in the cache."""

    def action() -> None:
        folder, count = rx.cache.info().folder, rx.cache.clear()
        text = f"{folder}: {count} {'entry' if count == 1 else 'entries'} removed"
        out.print(text, markup=False, highlight=False, soft_wrap=True)

    run(action)
