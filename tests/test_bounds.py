"""Whatever is remembered has a bound that says itself, and no module changes what belongs to all of the process."""

from __future__ import annotations

import ast
import gc
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import jax.numpy as jnp

import relax_eg as rx
from relax_eg.ir import foreign
from relax_eg.memo import Memo
from tests.sources import nodes, trees

# Tables of a module that are no memory of calls: what was registered by name, which is all that there is.
REGISTERED = {
    "ops/record.py TABLE", "ops/libraries.py LIBRARIES", "ir/expr.py _builders", "rules/answer_cache.py _OPERATORS",
    "driver/cache.py _count", "egraph/engine.py _loaded", "egraph/engine.py _engine_process",
    "ops/host_functions.py HOST_FUNCTIONS",
}  # fmt: skip
TABLES = ("dict", "set", "list", "Counter", "OrderedDict", "defaultdict")


def test_a_memo_holds_no_more_than_it_says() -> None:
    memo = Memo[int, str](3)
    for i in range(5):
        memo[i] = str(i)
    memo[3] = "again"
    assert memo == {2: "2", 3: "again", 4: "4"}


def test_threads_fill_a_memo_together() -> None:
    memo, failed = Memo[int, int](4), []

    def fill(start: int) -> None:
        try:
            for i in range(start, start + 3000):
                memo[i] = i
        except Exception as e:
            failed.append(e)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=fill, args=(5000 * i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed and len(memo) <= 4 + len(threads)  # each may have looked before any of them set


def cached(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Decorators of functions that remember what they gave."""
    for f in nodes:
        if isinstance(f, ast.FunctionDef):
            for d in f.decorator_list:
                name = ast.unparse(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2]
                if name in ("cache", "lru_cache"):
                    yield d


def test_functions_that_remember_say_how_much() -> None:
    found = [(module, d) for module, of_module in nodes().items() for d in cached(of_module)]
    for module, d in found:
        assert isinstance(d, ast.Call) and d.args and ast.unparse(d.args[0]) != "None", (module, ast.unparse(d))
    assert len(found) > 40


def test_tables_of_modules_have_bounds() -> None:
    found: list[str] = []
    for module, tree in trees().items():
        for s in tree.body:
            value = s.value if isinstance(s, ast.Assign | ast.AnnAssign) else None
            empty = (isinstance(value, ast.Dict) and not value.keys) or (isinstance(value, ast.List) and not value.elts)
            if isinstance(value, ast.Call):
                made = ast.unparse(value.func).partition("[")[0]
                empty = made in TABLES and not (made == "dict" and value.keywords)
            if empty:
                target = s.target if isinstance(s, ast.AnnAssign) else s.targets[0]  # type: ignore[union-attr]
                found.append(f"{module} {ast.unparse(target)}")
    assert set(found) == REGISTERED


def test_what_texts_name_is_kept_for_a_while() -> None:
    assert isinstance(foreign._held, Memo) and foreign._held.most == foreign.MOST_HELD
    first = foreign.Foreign(object())
    place = foreign.place_of(first)
    assert foreign.foreign_at("object", place) is first and foreign.place_of(first) == place


CHANGES = {
    "gc.disable", "gc.enable", "gc.freeze", "gc.set_threshold", "sys.setrecursionlimit", "sys.setswitchinterval",
    "signal.signal", "warnings.filterwarnings", "warnings.simplefilter", "warnings.catch_warnings",
    "jax.config.update", "os.putenv", "os.environ.update", "os.environ.clear", "object.__getattribute__",
    "sys.modules.setdefault",
}  # fmt: skip
CHANGING = {name.rpartition(".")[2] for name in CHANGES}


def changes(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What changes something that other code of the process sees."""
    for n in nodes:
        # Of few calls the name has to be written out.
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in CHANGING:
            yield from {ast.unparse(n.func)} & CHANGES
        for target in n.targets if isinstance(n, ast.Assign | ast.Delete) else ():
            text = ast.unparse(target)
            if text.startswith(("sys.modules[", "os.environ[", "jax.config.")):
                yield text


# By module: what is done in a block, or for a program of one's own.
ALLOWED = {
    "backend/gpu/target.py": {"os.environ[_SKIP_CHECK]"},  # while JAX loads its plug-in
    "contexts.py": {"gc.set_threshold"},  # while a program is searched for, traced or compiled
    "cli/common.py": {"sys.modules.setdefault"},
    "rules/checking/verification.py": {
        "os.environ.update",
        "os.environ[name]",
    },  # while workers start, which inherit it
}


def test_nothing_that_belongs_to_the_whole_process_is_changed() -> None:
    found = {module: set(changes(of_module)) for module, of_module in nodes().items()}
    assert {module: what for module, what in found.items() if what} == ALLOWED


def test_a_search_leaves_the_collector_to_run() -> None:
    """In its own thread and in all others, while it traces and searches."""
    seen: list[bool] = []

    def f(x: Any) -> Any:
        seen.append(gc.isenabled())
        return jnp.tanh(x) @ x

    with rx.debug.options(progress=lambda *_: seen.append(gc.isenabled())):
        rx.optimize(f, "4 4")
    assert len(seen) > 1 and all(seen)


def test_a_search_adds_no_filter_of_warnings() -> None:
    before = list(warnings.filters)
    rx.optimize(lambda x: x @ x + x, "4 4")
    assert list(warnings.filters) == before
