"""JAX's own harnesses of its primitives through `rx.jit`, beside `jax.jit`: values, dtypes, shapes and weak types.

    python -m benchmarks.harnesses [--only sort,conv] [--form gradient] [--every 10] [--json out.json] [--write]

JAX carries them for its own tests: several uses of each primitive, of many dtypes and shapes, with arguments; and a
list of functions of `jax.lax` with the dtypes that each of them takes, which are harnesses here too. A harness runs
twice, on its arguments and on these with NaN, infinities, zeros of both signs and numbers at the ends of dtypes in
them. Forms: "written", what is read of the program, lowered without a search; "searched", with the rules that ship;
"gradient" and "mapped", derivatives and `vmap` of the harness, without a search. With `JAX_ENABLE_X64=1`, JAX's
harnesses have 64-bit numbers too. `--write` writes the table of `docs/coverage.md`.

Outcomes: "equal" means equal bits, "close" within the tolerance of JAX's tests for the dtype. A harness that is equal
or close counts as "opaque" where a primitive in it is left to JAX. "unlike" are wrong values, "raised" errors that JAX
does not raise, and "unread" programs that run as written, with a warning. What JAX itself refuses is left out.
"""

from __future__ import annotations

import json
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax import lax
from jax._src.internal_test_util import lax_test_util, test_harnesses
from jax._src.test_util import default_tolerance
from rich.console import Console
from rich.progress import track
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick, write_between
from benchmarks.coverage import cover
from relax_eg.dtypes import dtype_of, is_complex, is_float, is_integer

Array = np.ndarray[Any, Any]

BATCH = 16  # chosen: harnesses in one XLA program, because compilation dominates the time
OUTCOMES = ("equal", "close", "opaque", "unlike", "raised", "unread")
FAILED = OUTCOMES[3:]
# Primitives that call LAPACK. Each is a program of its own: two calls for batches of matrices in one program may both
# hold a thread of XLA's, of which two cores have two, while they wait for one that computes (jaxlib 0.10.2).
ROUTINES = (
    "cholesky",
    "custom_linear_solve",
    "eig",
    "eigh",
    "lu",
    "qr",
    "svd",
    "triangular_solve",
    "tridiagonal_solve",
)
FORMS = ("written", "searched", "gradient", "mapped")
NONE = rx.RuleSet("none")
COPIES = 3  # chosen: rows that `vmap` maps a harness over
# Of so many elements one is replaced. chosen: some of every kind, and others left.
REPLACED = 3
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 0.5, -0.5, 1.5, 2.5, 1.0, -1.0)
LARGE = (3e38, -3e38)
LISTED = (3, 4)  # chosen: the shape of the arguments of listed functions
# Beginnings of primitives that sum or multiply many elements: whether such sums overflow depends on the order.
FOLDS = ("conv", "dot", "cum", "reduce", "select_and", "scatter", "fft", "custom_linear")
DOCUMENT = Path(__file__).parent.parent / "docs" / "coverage.md"
BEGIN, END = "<!-- python -m benchmarks.harnesses --write: from here -->", "<!-- to here -->"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a harness, one of `OUTCOMES`, and the difference, error or opaque primitives as text."""

    name: str
    primitive: str
    outcome: str
    text: str = ""


@dataclass(frozen=True)
class Case:
    """A harness in a form.

    - `fn`: the function of its arrays.
    - `sets`: arguments to call it with, of the same shapes and dtypes.
    - `any_order`: whether the rows of its results may stand in any order where their first elements are equal.
    """

    name: str
    primitive: str
    fn: Callable[..., Any]
    sets: tuple[Sequence[Any], ...]
    any_order: bool = False


def harnesses(only: Sequence[str] = ()) -> list[Any]:
    """The harnesses that JAX implements on CPUs, and those of listed functions; `only`: those of these primitives."""
    found = [h for h in test_harnesses.all_harnesses if h.filter("cpu")]
    return [h for h in (*found, *_listed()) if not only or h.group_name in only]


def _listed() -> Iterator[Any]:
    """The functions that JAX lists, of each of their dtypes."""
    wide = jax.config.values["jax_enable_x64"]
    for record in lax_test_util.lax_ops():
        for dtype in map(np.dtype, record.dtypes):
            if wide or not dtype_of(dtype.name).is_wide:
                arguments = [test_harnesses.RandArg(LISTED, dtype)] * record.nargs
                yield test_harnesses.Harness(
                    f"lax.{record.op}", dtype.name, getattr(lax, record.op), arguments, dtype=dtype,
                    rng_factory=record.rng_factory,
                )  # fmt: skip


def case_of(harness: Any, form: str = "written") -> Case:
    rng = np.random.RandomState(zlib.crc32(harness.fullname.encode()))
    kinds = [d for d in harness.arg_descriptors if not isinstance(d, test_harnesses.StaticArg)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that a dtype does not have
        plain = harness.dyn_args_maker(rng)
    drawn = [isinstance(k, test_harnesses.RandArg) for k in kinds]
    large = () if harness.group_name.startswith(FOLDS) else LARGE
    odd = [special(np.asarray(x), rng, large) if d else x for x, d in zip(plain, drawn, strict=True)]
    sets, fn = (plain, odd) if any(drawn) else (plain,), harness.dyn_fun
    if form == "mapped":
        fn, sets = jax.vmap(fn), tuple([np.stack([x] * COPIES) for x in xs] for xs in sets)
    if form == "gradient":
        fn, sets = partial(_slopes, fn), (plain,)
    is_free = harness.group_name == "sort" and not harness.params["is_stable"] and harness.params["num_arrays"] > 1
    return Case(harness.fullname, harness.group_name, fn, sets, is_free)


def special(x: Array, rng: np.random.RandomState, large: Sequence[float] = LARGE) -> Array:
    """`x` with numbers of which rules and lowerings may think too late, in place of some of its own."""
    name = x.dtype.name
    if is_complex(name):
        part = np.dtype(dtype_of(name).part.name)
        return (
            np.stack([special(x.real, rng, large), special(x.imag, rng, large)], -1).astype(part).view(x.dtype)[..., 0]
        )
    if is_float(name):
        values = np.asarray([*SPECIAL, *large])
    elif is_integer(name):
        ends = np.iinfo(x.dtype)
        values = np.asarray([ends.min, ends.max, 0, 1], x.dtype)
    else:
        return x
    with np.errstate(over="ignore"):
        made = values[rng.randint(len(values), size=x.shape)].astype(x.dtype)
    return np.where(rng.randint(REPLACED, size=x.shape) == 0, made, x)


def _slopes(fn: Callable[..., Any], *args: Any) -> Any:
    """The derivatives of a weighted sum of the results of `fn` in its arguments of floats and complex numbers."""
    places = [i for i, x in enumerate(args) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]

    def total(*given: Any) -> Any:
        full = list(args)
        for i, x in zip(places, given, strict=True):
            full[i] = x
        sums = [_weighted(y) for y in jax.tree.leaves(fn(*full)) if jnp.issubdtype(y.dtype, jnp.inexact)]
        return sum(sums, jnp.float32(0))

    return jax.grad(total, tuple(range(len(places))))(*(args[i] for i in places)) if places else ()


def _weighted(y: Any) -> Any:
    """A real number that depends on every part of an array in another way."""
    parts = [y.real, y.imag] if jnp.iscomplexobj(y) else [y]
    weights = [jnp.cos(jnp.arange(y.size, dtype=jnp.float32) + i).reshape(y.shape) for i in range(len(parts))]
    return sum((jnp.sum(w * p.astype(jnp.float32)) for w, p in zip(weights, parts, strict=True)), jnp.float32(0))


def judged(cases: Sequence[Case], form: str = "written") -> Iterator[Outcome]:
    """The outcomes of cases, computed in one XLA program; of each by itself where one of them is not equal."""

    def together(given: Sequence[Sequence[Any]]) -> list[Any]:
        return [c.fn(*xs) for c, xs in zip(cases, given, strict=True)]

    plain, ours = jax.jit(together), rx.jit(together, measure="off", rules=None if form == "searched" else NONE)
    found: list[Outcome | None] = [None] * len(cases)
    for turn in range(max((len(c.sets) for c in cases), default=0)):
        given = [c.sets[min(turn, len(c.sets) - 1)] for c in cases]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = jax.block_until_ready(plain(given))
        except Exception:
            if len(cases) == 1:  # what JAX itself refuses
                return
            found = []
            break
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                results = jax.block_until_ready(ours(given))
            except Exception as error:
                results, failed = None, ("raised", f"{type(error).__name__}: {error}")
            else:
                told = [str(w.message) for w in said if "as written" in str(w.message)]
                failed = ("unread", told[0]) if told else None
        if failed is not None:
            found = [Outcome(c.name, c.primitive, failed[0], failed[1]) for c in cases]
            break
        assert results is not None
        each = zip(cases, results, wanted, found, strict=True)
        found = [worse(before, compared(c, r, w)) for c, r, w, before in each]
    if len(cases) > 1 and (not found or any(o is None or o.outcome != "equal" for o in found)):
        for c in cases:
            yield from judged([c], form)
        return
    for c, o in zip(cases, found, strict=True):
        assert o is not None
        left = [] if o.outcome in FAILED else sorted(cover(c.name, c.fn, tuple(c.sets[0])).opaque)
        said_of = ", ".join(n.removeprefix("jax.") for n in left)
        yield Outcome(c.name, c.primitive, "opaque", said_of) if left else o


def worse(a: Outcome | None, b: Outcome) -> Outcome:
    return b if a is None or OUTCOMES.index(b.outcome) > OUTCOMES.index(a.outcome) else a


def compared(case: Case, found: Any, wanted: Any) -> Outcome:
    """The outcome of results beside those of JAX."""
    outcome = partial(Outcome, case.name, case.primitive)
    (ours, tree), (theirs, tree_of_jax) = jax.tree.flatten(found), jax.tree.flatten(wanted)
    if tree != tree_of_jax:
        return outcome("unlike", f"results {tree} instead of {tree_of_jax}")
    for a, b in zip(ours, theirs, strict=True):
        if jax.typeof(a) != jax.typeof(b) or a.weak_type != b.weak_type:
            said = (f"{jax.typeof(x).str_short()}{' weak' * x.weak_type}" for x in (a, b))
            return outcome("unlike", " instead of ".join(said))
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(map(_data, ours), map(_data, theirs), strict=True)]
    if case.any_order:
        axis = np.argmax([n != 1 for n in pairs[0][0].shape])
        pairs = list(zip(*(_in_order(column, int(axis)) for column in zip(*pairs, strict=True)), strict=True))
    others = [(i, a, b) for i, (a, b) in enumerate(pairs) if not same_bits(a, b)]
    for i, a, b in others:
        if not is_close(a, b):
            places = np.flatnonzero((a != b) & ~((a != a) & (b != b)))
            few = places[:4]
            said = f"output {i}: {a.ravel()[few]} instead of {b.ravel()[few]} ({len(places)} of {a.size})"
            return outcome("unlike", said)
    return outcome("close" if others else "equal")


def _data(x: Any) -> Any:
    """An array, or the words of keys."""
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _in_order(arrays: Sequence[Array], axis: int) -> list[Array]:
    """Arrays that are sorted together, sorted by the bits of all of them."""
    flat = [np.moveaxis(_one_nan(a), axis, 0).reshape(a.shape[axis], -1) for a in arrays]
    order = np.empty(flat[0].shape, np.int64)
    for j in range(order.shape[1]):
        order[:, j] = sorted(range(len(order)), key=lambda i: [f[i, j].tobytes() for f in flat])
    return [np.take_along_axis(f, order, 0) for f in flat]


def same_bits(a: Array, b: Array) -> bool:
    """Whether arrays have the same bits; any NaN is as another."""
    if a.dtype.kind == "c":
        return same_bits(a.real, b.real) and same_bits(a.imag, b.imag)
    return _one_nan(a).tobytes() == _one_nan(b).tobytes()


def _one_nan(x: Array) -> Array:
    """An array with equal bits in all NaN."""
    return np.where(x != x, np.asarray(np.nan, x.dtype), x) if is_float(x.dtype.name) else x


def is_close(a: Array, b: Array) -> bool:
    """Whether floats or complex numbers agree within the tolerance of JAX's tests, of each number or of the largest
    one: in another order, a sum of numbers that cancel is another one."""
    if not is_float(a.dtype.name) and not is_complex(a.dtype.name):
        return False
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    bound = default_tolerance()[a.dtype]
    wanted = b.astype(wide)
    largest = np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0)
    return np.allclose(a.astype(wide), wanted, bound, bound * largest, equal_nan=True)


def run(chosen: Sequence[Any], form: str = "written", console: Console | None = None) -> list[Outcome]:
    """The outcomes of harnesses in a form, sorted by name; `console` shows the progress."""
    size = 1 if form == "searched" else BATCH
    together = [h for h in chosen if h.group_name not in ROUTINES]
    programs: Any = [[h] for h in chosen if h.group_name in ROUTINES]
    programs += [together[i : i + size] for i in range(0, len(together), size)]
    if console is not None:
        programs = track(programs, "harnesses", console=console, transient=True)
    done: list[Outcome] = []
    for program in programs:
        done += judged([case_of(h, form) for h in program], form)
        jax.clear_caches()
    return sorted(done, key=lambda o: o.name)


def spread(cases: Sequence[Any]) -> list[Any]:
    """One harness of each primitive, of dtypes that differ."""
    by_primitive: dict[str, list[Any]] = {}
    for h in cases:
        by_primitive.setdefault(h.group_name, []).append(h)
    return [hs[(7 * i) % len(hs)] for i, hs in enumerate(by_primitive.values())]


def table(outcomes: Sequence[Outcome]) -> str:
    """A table of the document: primitives whose uses are not all equal or close, and one row for all others."""
    rows = [f"| primitive | harnesses | {' | '.join(OUTCOMES)} | left to JAX |", "|---|" + "--:|" * 7 + "---|"]
    groups = {p: [o for o in outcomes if o.primitive == p] for p in sorted({o.primitive for o in outcomes})}
    smooth = [p for p, own in groups.items() if all(o.outcome in OUTCOMES[:2] for o in own)]
    parts = {p: own for p, own in groups.items() if p not in smooth}
    parts[f"{len(smooth)} others"] = [o for p in smooth for o in groups[p]]
    for name, own in (*parts.items(), ("all", outcomes)):
        counts = Counter(o.outcome for o in own)
        left = Counter(n for o in own if o.outcome == "opaque" for n in o.text.split(", "))
        said = ", ".join(f"`{n}` {c}" for n, c in left.most_common()) if name != "all" else ""
        numbers = " | ".join(str(counts[o] or "") for o in OUTCOMES)
        rows.append(f"| {name} | {len(own)} | {numbers} | {said} |")
    return "\n".join(rows)


def main(
    only: Annotated[str, typer.Option(help="primitives by commas; all unless given")] = "",
    form: Annotated[str, typer.Option(help=f"one of: {', '.join(FORMS)}")] = FORMS[0],
    every: Annotated[int, typer.Option(help="run one harness of so many")] = 1,
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the outcomes here")] = None,
    write: Annotated[bool, typer.Option("--write", help="write the table of docs/coverage.md")] = False,
) -> None:
    """JAX's own harnesses of its primitives through `rx.jit`."""
    if form not in FORMS:
        raise typer.BadParameter(f"--form {form}; accepted: {', '.join(FORMS)}")
    console = Console(width=None if sys.stdout.isatty() else 200)
    cases = harnesses([p for p in only.split(",") if p])
    found = run(spread(cases)[::8] if quick else cases[::every], form, console)
    shown = Table("primitive", "harnesses", *OUTCOMES)
    for p in sorted({o.primitive for o in found}):
        own = Counter(o.outcome for o in found if o.primitive == p)
        shown.add_row(p, str(own.total()), *(str(own[o] or "") for o in OUTCOMES))
    console.print(shown)
    for o in found:
        if o.outcome in FAILED:
            console.print(f"{o.outcome}: {o.name}: {o.text}", markup=False, highlight=False, soft_wrap=True)
    counts = Counter(o.outcome for o in found)
    console.print(f"{len(found)} harnesses: {', '.join(f'{counts[o]} {o}' for o in OUTCOMES)}", highlight=False)
    if json_out is not None:
        json_out.write_text(json.dumps([asdict(o) for o in found], indent=1))
    if write and not only and not quick and every == 1 and form == FORMS[0]:
        write_between(DOCUMENT, BEGIN, END, f"{len(found)} harnesses (JAX {jax.__version__}).\n\n{table(found)}")
    raise typer.Exit(1 if any(o.outcome in FAILED for o in found) else 0)


if __name__ == "__main__":
    typer.run(main)
