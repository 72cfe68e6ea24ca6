"""Rules about loops and calls that move work out of loops and calls, or calls into their callers.

They change no arithmetic. The moved work is pure and defined for all values, so it may run even if a loop makes no
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from relax_eg.errors import OperatorError
from relax_eg.ir import heads
from relax_eg.ir.annotations import Shape, Tensor, Tuple, substitute
from relax_eg.ir.calls import call_function, call_sizes, function_ref, inline_call
from relax_eg.ir.control import group_arguments, in_one_kernel, is_one_kernel, runs_of, scan, while_loop
from relax_eg.ir.expr import Expr, rebuild, tuple_, tuple_get, var
from relax_eg.ir.module import Function
from relax_eg.ir.partition import frontier, missing_sizes, remaining_origins, replace_names, split, static_expressions
from relax_eg.memo import Memo
from relax_eg.ops import api as op
from relax_eg.ops.libraries import instantiate
from relax_eg.rules.book.loop_parts import in_parts, steps_in_parts
from relax_eg.rules.checking.schema_trials import (
    calls,
    scans,
    scans_in_other_form,
    scans_of_parts,
    short_scans,
    while_loops,
)
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ProgramQueries, schema

# Contractions are faster for all steps at once: the matrix is read once, and there are enough rows for all cores.
_CONTRACTIONS = frozenset(("matmul", "linear", "conv"))


def loop_invariants(e: Expr, queries: ProgramQueries) -> Expr | None:
    """work that is the same at every step of a loop is done before the loop"""
    runs = runs_of(e.op, e.args, dict(e.attrs))
    found = [_outside(r.function, r.constants, (*r.carry, *r.slices), queries) for r in runs]
    if not any(found):
        return None
    made = [(f[0], f[1]) if f else (r.function, r.constants) for f, r in zip(found, runs, strict=True)]
    if e.op == heads.WHILE:
        (condition, first), (body, second) = made
        return while_loop(condition, body, first, second, runs[-1].carry)
    return _scan_like(e, *made[0], runs[-1].carry, runs[-1].slices)


def _scan_like(e: Expr, body: Expr, same: Sequence[Expr], carry: Sequence[Expr], xs: Iterable[Expr]) -> Expr:
    more = {name: e.attr(name) for name in ("length", "reverse", "unroll")}
    return scan(body, same, carry, xs, **more)


def calls_ahead(e: Expr, queries: ProgramQueries) -> Expr | None:
    """work of a called function on operands known ahead of the calls is done before the call"""
    if e.args[0].op != heads.FUNCTION:
        return None
    flags = queries.ahead_params(str(e.args[0].attr("name")))
    ahead = [a for a, flag in zip(e.args[1:], flags, strict=True) if flag]
    rest = [a for a, flag in zip(e.args[1:], flags, strict=True) if not flag]
    found = _outside(e.args[0], ahead, rest, queries, flags)
    return None if found is None else call_function(found[0], (*found[1], *rest))


def _outside(
    ref: Expr, same: Sequence[Expr], stepping: Sequence[Expr], queries: ProgramQueries, flags: Sequence[bool] = ()
) -> tuple[Expr, Sequence[Expr]] | None:
    """Returns a version of function `ref` without the work that needs only the operands `same`, which are equal at all
    steps, and the operands to pass before the `stepping` ones: the results of that work, and those of `same` that the
    function still reads.

    The parameters for `same` come first, or where `flags` is true. Returns None if no work can be moved.
    """
    function = queries.best(str(ref.attr("name")), outside=True)
    if function is None:
        return None
    flags = flags or [True] * len(same) + [False] * len(stepping)
    given = dict(zip((p for p, flag in zip(function.params, flags, strict=True) if flag), same, strict=True))
    if any(p.annotation != a.annotation for p, a in given.items()):
        return None  # the function names its sizes differently
    cut = split(function, {str(p.attr("name")) for p in given})
    if not cut.prepare.result.args or missing_sizes(cut.main):
        return None
    inner = queries.add(cut.main, "inner")
    kept = [a for p, a in given.items() if p.attr("name") in cut.kept]
    return function_ref(inner), [*inline_call(cut.prepare, list(given.values())), *kept]


def loop_steps(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    """a contraction that depends on no earlier step of a scan is done for all steps at once

    Tries the body in its best form first, then as written, because the best form may have merged work that depends
    on earlier steps with work that does not."""
    name = str(group_arguments(e.op, e.args, dict(e.attrs)).functions[0].attr("name"))
    best = queries.best(name)
    made = None if best is None else _batched(e, best, queries)
    written = queries.as_written(name) if made is None else None
    return made if written in (None, best) else _batched(e, written, queries)


def _batched(e: Expr, function: Function, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    """The scan `e` with what depends on no earlier step done ahead, and that scan with parts as slices."""
    p = group_arguments(e.op, e.args, dict(e.attrs))
    if not p.xs:
        return None
    n, m = len(p.constants), len(p.constants) + len(p.carry)
    same, carry, xs = function.params[:n], function.params[n:m], function.params[m:]
    if any(q.annotation != a.annotation for q, a in zip(same, p.constants, strict=True)):
        return None
    fixed = static_expressions(function, {str(q.attr("name")) for q in same})
    per_step = static_expressions(function, {str(q.attr("name")) for q in (*same, *xs)}) - fixed
    heavy = _with_contractions(function, per_step)
    cut = [v for v in frontier(function, per_step) if v in heavy]
    if not cut:
        return None
    names = {v: var(f"step{i}", v.annotation) for i, v in enumerate(cut)}
    once = Function(f"{function.name}_steps", (*same, *xs), (), tuple_(cut))
    batched = queries.batched(once, [False] * len(same) + [True] * len(xs), e.attr("length"))
    if batched is None:
        return None
    blocks, result = replace_names(function, names)
    params, origins = (*same, *carry, *xs, *names.values()), remaining_origins(function, names)
    rest = replace(function, params=params, blocks=blocks, result=result, origins=origins)
    stacked = inline_call(batched, [*p.constants, *p.xs])
    used = set(rest.expressions())
    still = {q: a for q, a in zip((*same, *xs), (*p.constants, *p.xs), strict=True) if q in used or _is_shape(q)}
    same, xs = ([q for q in some if q in still] for some in (same, xs))
    rest = replace(rest, params=(*same, *carry, *xs, *names.values()))
    if missing_sizes(rest):
        return None
    rest = queries.add(rest, "rest")
    made = _scan_like(e, function_ref(rest), [still[q] for q in same], p.carry, [*(still[q] for q in xs), *stacked])
    divided = in_parts(made, rest, queries)
    return (made,) if divided is None else (made, divided)


def _is_shape(param: Expr) -> bool:
    return isinstance(param.annotation, Shape)


def _with_contractions(function: Function, within: set[Expr]) -> set[Expr]:
    """Returns the expressions in `within` that are a contraction or follow from one inside it."""
    found: set[Expr] = set()
    for e in function.expressions():
        if e in within and (e.op in _CONTRACTIONS or any(a in found for a in e.args)):
            found.add(e)
    return found


# limit: operators, including those of callees, of a function that is inlined if it is called once, and if it is called
# more often. A repeated block that `ir.outline` made a function has more.
_MOST_CALLED_ONCE, _MOST_OPERATORS = 256, 12


def calls_inlined(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a call of a small function, or of one that is called once, is the body of the function"""
    called = e.args[0] if e.op == heads.TUPLE_GET else e
    if called.op != heads.CALL:
        return None
    try:
        found = _body(called, queries, _MOST_CALLED_ONCE, [])
    except OperatorError:  # the body does not apply to these operands at all sizes; the call reports that
        return None
    if found is None:
        return None
    return tuple_get(found[0], e.attr("index")) if e.op == heads.TUPLE_GET else found[0]


# What a body is made of: the name of a function, the function, and how many calls it has.
_Called = tuple[str, Function | None, int]

# limit: calls whose bodies are kept. Each result of a call asks for its body, one after the other.
_MOST_KNOWN = 64
_known = Memo[tuple[Expr, int], tuple[list[_Called], tuple[Expr, int] | None]](_MOST_KNOWN)


def _body(e: Expr, queries: ProgramQueries, most: int, asked: list[_Called]) -> tuple[Expr, int] | None:
    """Returns the result of a call without the call, and its number of operators; a call that stays counts as one.
    Returns None if there are more than `most`, or if the function is not one pure block whose sizes the call binds.

    `asked`: gets the functions of which it is made. A body that is known is asked about again, so that the answers are
    those of `queries`.
    """
    found = _known.get((e, most))
    if found is None or [_called(name, queries) for name, _, _ in found[0]] != found[0]:
        inner: list[_Called] = []
        found = inner, _body_anew(e, queries, most, inner)
        _known[e, most] = found
    asked += found[0]
    return found[1]


def _called(name: str, queries: ProgramQueries) -> _Called:
    function = queries.as_written(name)
    return name, function, 0 if function is None else queries.calls(name)


def _body_anew(e: Expr, queries: ProgramQueries, most: int, asked: list[_Called]) -> tuple[Expr, int] | None:
    name = str(e.args[0].attr("name")) if e.args[0].op == heads.FUNCTION else ""
    if not name:
        return None
    asked.append(_called(name, queries))
    _, function, calls = asked[-1]
    if function is None or missing_sizes(function):
        return None
    params, operands = [p.annotation for p in function.params], [a.annotation for a in e.args[1:]]
    sizes = call_sizes(params, operands)
    if not set(function.size_variables) <= sizes.keys():
        return None
    if any(substitute(p, sizes) != a for p, a in zip(params, operands, strict=True)):
        return None  # the call checks at run time whether its operands fit
    inside = [x for x in function.expressions() if x.op not in heads.PASSIVE]
    most = most if calls <= 1 else min(most, _MOST_OPERATORS)  # a loop that runs it does not call it
    count = len(inside)
    if count > most or any(x.op == heads.SHARD_MAP for x in inside):
        return None
    env = dict(zip(function.params, e.args[1:], strict=True))
    for b in function.blocks[0].bindings:
        (env[b.var],) = instantiate([b.value], env, sizes)
    (result,) = instantiate([function.result], env, sizes)

    def inlined(x: Expr, args: tuple[Expr, ...]) -> Expr:
        nonlocal count
        made = heads.with_operands(x, args)
        inner = _body(made, queries, most - count + 1, asked) if made.op == heads.CALL else None
        if inner is None:
            return made
        count += inner[1] - 1
        return inner[0]

    (result,) = rebuild([result], inlined, {a: a for a in e.args})
    return (result, count) if result.annotation == e.annotation else None


# limit: steps of a scan that is unrolled, and operators of all its steps
_MOST_STEPS, _MOST_UNROLLED = 4, 256


def steps_unrolled(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a scan of few steps is its steps, one after the other"""
    loop = e.args[0] if e.op == heads.TUPLE_GET else e
    if (
        loop.op != heads.SCAN
        or not isinstance(loop.annotation, Tuple)
        or not loop.attr("length").is_const
        or not 1 <= loop.attr("length").value <= _MOST_STEPS
    ):
        return None
    length = loop.attr("length").value
    (run,) = runs_of(loop.op, loop.args, dict(loop.attrs))
    carry, stacked = list(run.carry), list[tuple[Expr, ...]]()
    if run.function.op != heads.FUNCTION or not all(isinstance(x.annotation, Tensor) for x in run.slices):
        return None
    for i in reversed(range(length)) if loop.attr("reverse") else range(length):
        slices = [x if length == 1 else op.strided_slice(x, (i, *[0] * (x.ndim - 1)), (i + 1, *x.shape[1:]))
                  for x in run.slices]  # fmt: skip
        call = call_function(run.function, (*run.constants, *carry, *(op.squeeze(x, (0,)) for x in slices)))
        made = _body(call, queries, _MOST_UNROLLED // length, [])
        if made is None:
            return None
        found = [tuple_get(made[0], i) for i in range(len(loop.annotation.fields))]
        carry, ys = found[: len(carry)], found[len(carry) :]
        stacked.append(tuple(op.expand_dims(y, (0,)) for y in ys))
    in_order = stacked[::-1] if loop.attr("reverse") else stacked
    rows = [s[0] if length == 1 else op.concat(s, 0) for s in zip(*in_order, strict=True)]
    made = (*carry, *rows)
    return made[e.attr("index")] if e.op == heads.TUPLE_GET else tuple_(made)


def loop_in_one_kernel(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a loop is one kernel with all of its steps"""
    return None if is_one_kernel(dict(e.attrs)) else in_one_kernel(e, _body_of(e))


def written_loop_in_one_kernel(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a loop is one kernel with all of its steps, and its body as written

    What is cheaper in kernels of its own need not be so inside one."""
    name = str(_body_of(e).attr("name"))
    best, written = queries.best(name), queries.as_written(name)
    if is_one_kernel(dict(e.attrs)) or written in (None, best):
        return None
    return in_one_kernel(e, function_ref(queries.add(written, "kernel")))


def _body_of(loop: Expr) -> Expr:
    return runs_of(loop.op, loop.args, dict(loop.attrs))[-1].function


_LOOPS = (heads.SCAN, heads.WHILE)
functions = RuleSet(
    "functions",
    schemas=(
        schema(loop_invariants, "exact", ("loops",), _LOOPS, (scans, while_loops)),
        schema(loop_steps, "reassociate", ("loops",), (heads.SCAN,), (scans,)),
        schema(steps_in_parts, "exact", ("loops",), (heads.SCAN,), (scans_of_parts,)),
        schema(calls_ahead, "exact", ("calls",), (heads.CALL,), (calls,)),
        schema(calls_inlined, "exact", ("calls",), (heads.CALL, heads.TUPLE_GET), (calls,)),
        schema(steps_unrolled, "exact", ("loops",), (heads.SCAN, heads.TUPLE_GET), (short_scans,)),
        schema(loop_in_one_kernel, "reassociate", ("loops",), _LOOPS, (scans, while_loops), for_every_form=True),
        schema(
            written_loop_in_one_kernel, "reassociate", ("loops",), _LOOPS, (scans_in_other_form,), for_every_form=True
        ),
    ),
)
