"""Shared parts of the commands: the two consoles, progress, the parsing of options, and the printing of errors."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, ProgressColumn
from rich.spinner import Spinner

import relax_eg as rx
from relax_eg.errors import ModuleTextError, OptionError, RelaxEgError
from relax_eg.frontends.sources import is_users
from relax_eg.plain_data import is_count
from relax_eg.rules import RuleSet
from relax_eg.rules.function_errors import load_error_message

P = ParamSpec("P")

CommandBounds = tuple[dict[str, tuple[int | None, int | None]], *tuple[str, ...]]
_STABLE_HLO = (".mlir", ".bytecode", ".stablehlo")  # given: how MLIR's tools and torch_xla name its files
PROGRAMS = "file.py:name, model.onnx, StableHLO (model.mlir) or a file of module text"
SAVED = ", or m.rxe, which --save wrote"
_STATEMENT = re.compile(r"[=!<>]=|[<>]")  # a comparison of sizes, other than name=low:high

out = Console()
err = Console(stderr=True)


def command(body: Callable[P, None]) -> Callable[P, None]:
    """Decorates a command: it prints an error of this package, or of the user's function while it is traced, without a
    traceback, and ends with status 1."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            body(*args, **kwargs)
        except RelaxEgError as e:
            _fail(e, str(e))
        except Exception as e:
            reached = _user_lines(e)
            if not reached:  # a bug of this package: print the whole traceback
                raise
            _fail(e, "\n  ".join([str(e), *reached]))

    return run


def print_text(text: object) -> None:
    """Prints a text unchanged: no markup, no wrapped lines."""
    out.print(str(text), markup=False, highlight=False, soft_wrap=True)


def write_output(what: str, path: Path | None, write: Callable[[Path], object]) -> None:
    """Writes a file and prints its path; does nothing without a path."""
    if path is not None:
        write(path)
        err.print(f"{what} written to {path}")


@contextmanager
def progress_bar(what: str, *columns: ProgressColumn) -> Generator[Callable[[str, int, int], None]]:
    """Shows a progress bar; yields a function (name of the step that begins, steps done, steps in all) that updates
    it."""
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda step, done, of: bar.update(task, description=f"{what}: {step}", completed=done, total=of)


@contextmanager
def live_line(what: str) -> Generator[Callable[[str, int, int], None]]:
    """A line on the terminal that shows phase, e-graph nodes and rule matches of searches in the block; yields what
    changes it."""
    started, spinner = time.perf_counter(), Spinner("dots", text=f"{what}: tracing")

    def show(phase: str, nodes: int, matches: int) -> None:
        measures = phase.startswith("measure")
        counts = f"sizes {nodes} of {matches}" if measures else f"{nodes} nodes, {matches} rule matches"
        spinner.update(text=f"{what}: {phase}, {counts}, {time.perf_counter() - started:.1f} s")

    with Live(spinner, console=err, transient=True), rx.debug.options(progress=show):
        yield show


def refuse_options_of_saved(name: str, options: Mapping[str, object]) -> None:
    """OptionError if one of these options is given, which cannot change the saved program of this name."""
    if wrong := [option for option, value in options.items() if value]:
        raise OptionError(f"{name} is saved and not searched again: {', '.join(wrong)} cannot change it")


def load_program(reference: str, inputs: list[str] | None = None, saved: bool = False) -> Any:
    """Returns the object that `file.py:name` names, or the module of a file: an ONNX model, StableHLO, or module text.
    OptionError if there is none.

    - `inputs`: what is said of the inputs of the ONNX model (`--input`).
    - `saved`: whether a saved program is one, too.
    """
    path = Path(reference)
    if path.suffix == ".onnx":
        return rx.from_onnx(reference, inputs=read_inputs(inputs))
    if inputs:
        raise OptionError(
            f"--input {inputs[0]!r}: {reference} is no ONNX model; --spec says what arguments of a function are"
        )
    if path.suffix in _STABLE_HLO:
        return rx.from_stablehlo(path)
    if saved and path.suffix == ".rxe":
        return rx.load(path)
    if is_module_text(reference):
        try:
            return rx.parse(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as e:
            raise OptionError(f"{reference} is no module text: {e}") from e
        except ModuleTextError as e:
            raise ModuleTextError(f"{reference}, {e}") from None
    if ":" not in reference:
        raise OptionError(f"{reference!r}: {PROGRAMS}{SAVED if saved else ''} is accepted")
    return load_object(reference)


def is_module_text(reference: str) -> bool:
    """Whether `load_program` reads a module as text: from a file that is nothing else."""
    path = Path(reference)
    return path.is_file() and path.suffix not in (".py", ".rxe", ".onnx", *_STABLE_HLO)


def load_object(reference: str) -> Any:
    """Returns the object that `file.py:name` names. OptionError if there is none."""
    path_text, colon, name = reference.rpartition(":")
    if not colon or not name.isidentifier():
        raise OptionError(f"{reference!r}: file.py:name is accepted")
    module = load_file(Path(path_text))
    if not hasattr(module, name):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise OptionError(f"{path_text} has no `{name}`; it has: {', '.join(functions) or 'no functions'}")
    return getattr(module, name)


def load_file(path: Path) -> Any:
    """Returns a Python file as a module. Its folder is importable while it loads."""
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
    except RelaxEgError:
        raise
    except Exception as e:
        raise OptionError(load_error_message(path, e)) from e
    finally:
        sys.path.pop(0)
    return module


def read_inputs(texts: list[str] | None) -> dict[str, Any]:
    """Returns what is said of the inputs of a model, `["sr=16000", "x=n 3 64 64"]`, by name. A number is a value."""
    found: dict[str, Any] = {}
    for text in texts or []:
        name, sign, given = text.partition("=")
        if not sign or not name:
            raise OptionError(f"--input {text!r}: name=number or name=spec is accepted, as in sr=16000")
        found[name] = given
        for kind in (float, int):
            with suppress(ValueError):
                found[name] = kind(given)
    return found


def read_sizes(texts: list[str]) -> dict[str, int]:
    """Returns the sizes in texts of `--at` such as `["b=1", "s=128"]`, by name."""
    sizes: dict[str, int] = {}
    for text in (t for given in texts for t in given.split(",")):
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier() or not is_count(value):
            raise OptionError(f"--at {text!r}: name=size is accepted, as in s=128")
        if sizes.get(name, int(value)) != int(value):
            raise OptionError(f"--at {text!r}: `{name}` is {sizes[name]} already; one size for each name is accepted")
        sizes[name] = int(value)
    return sizes


def read_bounds(texts: list[str]) -> CommandBounds:
    """Returns the bounds in texts such as `["s=1:4096", "s % 8 == 0"]`: the ranges by name, where a side that is left
    out is None, and the statements."""
    ranges: dict[str, tuple[int | None, int | None]] = {}
    statements: list[str] = []
    for text in texts:
        if _STATEMENT.search(text):
            statements.append(text)
            continue
        name, sign, value = text.partition("=")
        low, colon, high = value.partition(":")
        sides = [low, high]
        if not sign or not colon or not name.isidentifier() or any(x and not is_count(x) for x in sides):
            raise OptionError(
                f"--bounds {text!r}: name=low:high is accepted, as in s=1:4096, or a statement such as 's % 8 == 0'"
            )
        if name in ranges:
            raise OptionError(f"--bounds {text!r}: `{name}` has other bounds already; one for each size is accepted")
        ranges[name] = (int(low) if low else None, int(high) if high else None)
    return ranges, *statements


def read_facts(texts: list[str] | None) -> dict[str | int, list[str]]:
    """Returns the facts in texts such as `["a=positive definite", "x=finite"]`, by the name of the argument."""
    found: dict[str | int, list[str]] = {}
    for text in texts or []:
        name, sign, words = text.partition("=")
        if not sign or not name.strip() or not words.strip():
            raise OptionError(f"--facts {text!r}: an argument and a fact, as in 'a=positive definite', is accepted")
        found.setdefault(name.strip(), []).append(words.strip())
    return found


def read_rules(path: Path | None) -> RuleSet:
    """Returns the default rules, and those of the rule file `path` unless it is None."""
    return rx.rules.default if path is None else sum(rule_sets(path), rx.rules.default)


def rule_sets(path: Path) -> list[RuleSet]:
    """Returns the rule sets that a file defines. OptionError if it defines none."""
    found = [v for v in vars(load_file(path)).values() if isinstance(v, RuleSet)]
    if not found:
        raise OptionError(f"{path} defines no RuleSet")
    return found


def _fail(error: Exception, text: str) -> NoReturn:
    err.print(f"[bold red]{type(error).__name__}[/]:", end=" ")
    err.print(text, markup=False, highlight=False)
    raise typer.Exit(1) from None


def _user_lines(error: Exception) -> list[str]:
    """Returns the lines of the user's files in the traceback of an error, outermost first."""
    installed = tuple(sysconfig.get_paths()[p] for p in ("stdlib", "purelib", "platlib"))
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if is_users(f.filename) and not f.filename.startswith((*installed, "<"))]
    return [f"at {Path(f.filename).name}:{f.lineno}, in {f.name}: {f.line}" for f in own]
