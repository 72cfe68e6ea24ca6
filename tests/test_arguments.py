"""Public functions called with arguments of the wrong kind: an error of ours that says what is accepted."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.argument_checks import REPLACED
from relax_eg.errors import OptionError, RelaxEgError, SpecError, TraceError

# Values that are wrong, or strange, for most arguments.
WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, float("nan"), 2**63, 10**30, "", "x" * 3000, "9" * 5000, 10**5000, b"x", [], (), {}, [None],
    [1.5], {"n": None}, {"n": 1.5}, {"n": 10**30}, {"n": (2**63, 2**64)}, {"n": (5, 1)}, {"n": "x"}, {1: 2}, object(),
    int, np.zeros(3), np.float32(1), set[int](), {"x"}, 1j, range(3), Exception, np,
)  # fmt: skip


def product(x: Any, y: Any) -> Any:
    return x @ y + 1


MODULE = rx.trace(product, "n n", "n n")
BEST = rx.optimize(product, "n n", "n n")
X = MODULE.main.params[0]
TENSOR = rx.Tensor("n n")
NOWHERE = "/nowhere/at/all"
SPECS = ("n n", "n n")

# A function and arguments that it takes, of which each in turn is replaced by a wrong one, and each option given one.
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "optimize": (rx.optimize, (product, *SPECS)),
    "jit": (rx.jit, (product,)),
    "quantize": (rx.quantize, (product, [(np.ones((2, 2), np.float32),) * 2])),
    "trace": (rx.trace, (product, *SPECS)),
    "view": (rx.debug.view, (product, *SPECS)),
    "why_not": (rx.debug.why_not, ("matmul_associates", product, *SPECS)),
    "ablate": (rx.debug.ablate, (product, *SPECS)),
    "pareto": (rx.pareto, (product, *SPECS)),
    "spread": (functools.partial(rx.spread, mesh={"x": 1}), (product, *SPECS)),
    "discover": (rx.discover, ("negative", "x: n")),
    "compare": (rx.compare, (BEST.report, BEST.report)),
    "legalize": (rx.debug.legalize, (MODULE,)),
    "load": (rx.load, (NOWHERE,)),
    "parse": (rx.parse, (str(MODULE),)),
    "plan_memory": (rx.plan_memory, (MODULE,)),
    "prove": (rx.prove, ("n <= n + 1",)),
    "verify": (rx.verify, (rx.RuleSet("empty"),)),
    "call_dps_library": (rx.call_dps_library, ("a.b", [X], TENSOR)),
    "call_tir": (rx.call_tir, (rx.debug.legalize(MODULE).programs[0], [X, X])),
    "match_cast": (rx.match_cast, (X, TENSOR)),
    "function": (rx.function, (product,)),
    "tensor_program": (rx.tensor_program, (product,)),
    "shape": (rx.script.shape, (1, "n")),
    "register_function": (rx.script.register_function, ("arguments.product", product)),
    "Dynamic": (rx.Dynamic, ()),
    "Settle": (rx.types.Settle, ()),
    "debug.options": (rx.debug.options, ()),
    "Budget": (rx.Budget, (1, 1.0, 1)),
    "Tensor": (rx.Tensor, ("n", "float32", 1)),
    "Shape": (rx.Shape, ("n", 1)),
    "Tuple": (rx.Tuple, ((TENSOR,),)),
    "Callable": (rx.Callable, ((TENSOR,), TENSOR)),
    "Module": (rx.types.Module, (MODULE.functions,)),
    "Ref": (rx.script.Ref, (TENSOR,)),
    "data_type": (rx.script.data_type, ("List(a)",)),
    "data_types": (rx.script.data_types, ({"Rose(a)": {"Node": ("a",)}},)),
    "list_of": (rx.script.list_of, (rx.script.List, [1])),
    "items_of": (rx.script.items_of, (rx.script.list_of(rx.script.List, [1]),)),
    "List": (rx.script.List, (TENSOR,)),
    "Option": (rx.script.Option, (TENSOR,)),
    "Tree": (rx.script.Tree, (TENSOR,)),
    "RuleSet": (rx.RuleSet, ("empty", (), ())),
    "Profile.from_json": (rx.types.Profile.from_json, ("{}",)),
    "Profile.from_data": (rx.types.Profile.from_data, ({},)),
    "CostReport.from_json": (rx.types.CostReport.from_json, ("{}",)),
    "CostReport.from_data": (rx.types.CostReport.from_data, ({},)),
    "Certificate.load": (rx.types.Certificate.load, (NOWHERE,)),
    "best.save": (BEST.save, (NOWHERE + "/x.rxe",)),
    "report.to_json": (BEST.report.to_json, ("/dev/null/x",)),
    "profile.to_json": (rx.types.PROFILES["cpu"].to_json, ("/dev/null/x",)),
}

# Public names that take no arguments, or are read in scripts only.
NO_ARGUMENTS = {"Never", "Object", "dataclass", "dataflow", "output", "sym_var"}
IN_SCRIPTS = {"Buffer", "TypeVar", "local", "new_ref", "read_ref", "workspace", "write_ref"}  # their text is read
NOT_CALLED = {"data", "debug", "errors", "op", "rules", "script", "types"}
ELSEWHERE = {"from_onnx", "from_stablehlo"}  # tests/frontends

CALLED = ("tell", "temporary")  # functions of the user's, which are called
SEARCHES = {"optimize", "view", "why_not", "ablate", "pareto"}  # a call that is accepted searches, which takes time
# Functions of the user's are called, and what they raise is theirs; a spec of None is none.
THEIRS = {("optimize", 1), ("optimize", 2), ("trace", 1), ("trace", 2), ("view", 1), ("view", 2), ("ablate", 1),
          ("ablate", 2), ("pareto", 1), ("pareto", 2), ("spread", 1), ("spread", 2), ("why_not", 2),
          ("why_not", 3)}  # fmt: skip


def test_every_public_function_is_here() -> None:
    names = {*rx.__all__, *rx.script.__all__, *rx.script.__all__}
    assert names - NO_ARGUMENTS - IN_SCRIPTS - NOT_CALLED - ELSEWHERE <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_errors_are_ours(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path / "cache"))
    function, args = CALLS[name]
    budget = {"budget": rx.Budget(nodes=0)} if name in SEARCHES else {}
    refused = 0
    for i in range(len(args)):
        if (name, i) not in THEIRS:
            refused += sum(_is_refused(name, i, function, (*args[:i], v, *args[i + 1 :]), budget) for v in WRONG)
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and p.name not in CALLED:
            refused += sum(_is_refused(name, p.name, function, args, {**budget, p.name: v}) for v in WRONG)
    assert refused >= 8


def _is_refused(name: str, at: Any, function: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]) -> bool:
    try:
        function(*args, **more)
    except RelaxEgError as error:
        assert str(error)
        return True
    except Exception as error:
        raise AssertionError(f"{name}, argument {at}: {type(error).__name__}: {error}") from error
    return False


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: rx.optimize(product, *SPECS, target=1.5),
            "target=1.5: one of a100, .* or a cost model .* is accepted",
        ),
        (lambda: rx.jit(product, dims=1.5), "dims=1.5: a list of specs, one for each argument, is accepted"),
        (lambda: rx.jit(MODULE), "a module is no function; accepted: rx.optimize.module, at=....,"),
        (lambda: rx.jit(product, dims="b s"), "dims='b s': a list of specs"),
        (lambda: rx.load(None), "path=None: a path is accepted"),
        (lambda: rx.parse(None), "text=None: text is accepted"),
        (lambda: rx.optimize(product, *SPECS, bounds={"n": (1, 2**63)}), r"sizes up to 2\*\*63 - 1 are accepted"),
        (lambda: rx.optimize(product, *SPECS, at={"n": 10**5000}), r"at n = <int>; sizes up to 2\*\*63 - 1"),
        (lambda: rx.debug.options(cache="n"), "cache='n': True or False is accepted"),
        (lambda: rx.debug.options(progress=3), r"progress=3: a function \(phase, nodes, matches\) is accepted"),
        (lambda: rx.debug.options(least_gain=0.5), "least_gain=0.5: a number from 1 on is accepted"),
        (lambda: rx.debug.options(level=True), "level=True: a number from 0 to 4 is accepted"),
        (lambda: rx.Dynamic(executables=0), r"Dynamic\(executables=0\): how many to keep, a number >= 1, is accepted"),
        (lambda: rx.Dynamic(mode="fast"), r"Dynamic\(mode='fast'\): one of 'exact', 'capacity', 'auto' is accepted"),
        (lambda: rx.debug.why_not(5, product, *SPECS), "rule=5: a rule, or the name of one in `rules`, is accepted"),
        (lambda: rx.RuleSet("mine", [5]), "RuleSet.'mine'.: 5 is no rule"),
        (lambda: rx.verify("x" * 3000), "no file of rules at x"),
        (lambda: BEST.save(""), "cannot write"),
    ],
)
def test_what_is_accepted_is_said(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(RelaxEgError, match=says):
        call()


# --- arguments that are called as options are ---


def clashing(x: Any, target: Any, at: Any = None, rules: Any = 1.0, facts: Any = 2.0, specs: Any = 0.0,
             name: Any = 1.0, program: Any = 1.0, self: Any = 1.0) -> Any:  # fmt: skip
    return x + target + (0 if at is None else at) + rules * facts + specs + name + program + self


NAMES = ("target", "at", "rules", "facts", "specs", "name", "program", "self")


def test_arguments_called_as_options() -> None:
    given = {n: "n" if n in ("target", "at") else "" for n in NAMES}
    values: dict[str, Any] = {n: np.ones(4, np.float32) if given[n] else np.float32(3) for n in NAMES}
    best = rx.optimize(clashing, "n", specs=given)
    x = np.ones(4, np.float32)
    wanted = clashing(x, **values)
    assert jnp.array_equal(best(x, **values), wanted)
    assert jnp.array_equal(best.to_jax()(x=x, **values), wanted)
    assert jnp.array_equal(rx.jit(clashing)(x, **values), wanted)
    assert best.check(x, **values).passed
    names = [p.attr("name") for p in rx.trace(clashing, "n", specs=given).main.params]
    assert names == ["x", *NAMES]
    weights = rx.optimize(clashing, "n", specs=given, weights=["target", "rules", "facts"])
    ready = weights.prepare(**{n: values[n] for n in ("target", "rules", "facts")})
    assert jnp.array_equal(
        ready(x, **{n: v for n, v in values.items() if n not in ("target", "rules", "facts")}), wanted
    )
    assert rx.debug.why_not("matmul_associates", clashing, "n", specs=given).outcome
    assert str(rx.debug.view(clashing, "n", specs=given))


def both(x: Any, budget: Any, at: Any = 1.0) -> Any:
    return x + budget * at


def named(x: Any, name: Any) -> Any:
    return x + name


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: rx.optimize(both, "n", budget="n"),
            OptionError,
            r"`budget` is an option of optimize\(\): specs=\{'budget'",
        ),
        (lambda: rx.optimize(both, "n", "n", at="n"), OptionError, r"`at` is an option of optimize\(\)"),
        (lambda: rx.trace(named, "n", name="n"), TraceError, r"`name` is an option of trace\(\): specs=\{'name'"),
        (lambda: rx.optimize(both, "n", specs="n"), SpecError, "specs='n': specs by the names of arguments"),
        (lambda: rx.optimize(both, "n", x="n", specs={"x": "n"}), SpecError, "`x` has a spec in specs=.* keyword"),
        (
            lambda: rx.optimize(both, "n", "n", specs={"bugdet": "n"}),
            TraceError,
            r"unexpected keyword argument 'bugdet'\n.*; did you mean the option `budget=` of optimize\(\)\?",
        ),
    ],
)
def test_a_clash_is_told(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: rx.optimize(both, "n", "n", settle="off"), TraceError),
        (lambda: rx.optimize(rx.trace(both, "n", "n"), settle="off"), OptionError),
        (lambda: rx.jit(both, settle="off"), TypeError),
        (lambda: rx.load("missing.rxe", settle="off"), TypeError),  # type: ignore[reportCallIssue]
    ],
)
def test_the_error_about_an_old_option_says_the_new_one(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="`settle=` is `measure=` now"):
        call()


def test_what_replaces_options_is_accepted() -> None:
    options = inspect.signature(rx.optimize).parameters
    for now in REPLACED.values():
        name, _, policy = now.partition("=")
        assert name in options
        words = re.findall(r"(\w+)=", policy)
        assert set(words) <= set(inspect.signature(rx.Dynamic).parameters) and bool(words) == bool(policy)


def test_an_argument_with_the_name_of_an_old_option_is_one() -> None:
    def scaled(x: Any, settle: Any) -> Any:
        return x * settle

    assert len(rx.optimize(scaled, "n", settle="n").module.main.params) == 2
    with pytest.raises(OptionError) as caught:
        rx.optimize(scaled, "n", settle="n", weights=["missing"])
    assert "is `measure=` now" not in str(caught.value)


def test_options_that_are_meant_are_no_clash() -> None:
    with pytest.raises(OptionError) as caught:
        rx.optimize(both, "n", "n", numerics="loose")
    assert "is an option of" not in str(caught.value)
    assert rx.optimize(both, "n", "n", at={"n": 8}).report.at == {"n": 8}
