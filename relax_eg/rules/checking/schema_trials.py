"""The programs on which schemas are tested, and the test: proposals are compared with the original nodes.

A schema carries generators of programs (`Schema.trials`): random loops, calls, sums, kernels, uses of operators.

The loops are small and have random bodies: products of a matrix that is the same at every step with the carried values
and with the slices, and sums of these. Lengths are 0 to 3 and values are small integers. Arithmetic is exact, so any
difference refutes the schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import call_function, function_ref
from relax_eg.ir.control import scan, while_loop
from relax_eg.ir.expr import CALL, CALL_TIR, SCAN, WHILE, Expr, const, postorder, tuple_, var
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ops import api as op
from relax_eg.ops.difference import largest_magnitude
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.record import call
from relax_eg.rules.checking.drawing import Drawn, floats_for, integers_for, one_of, variables
from relax_eg.rules.schemas import ExtractionStep, ModuleAnswers, Schema, Trial, Trials, as_tuple, main_of, trial_of
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, loops, program, stage, sum_

PROGRAMS = 60  # limit: random programs on which a schema is tested
_KERNEL_PROGRAMS = 400  # limit: programs of two operators each for a fusion step, which applies to few of them
# limit: proposals that are tried to be proved, and seconds of processor time from which on no more are
_MOST_PROOFS, _PROVING = 24, 15.0


def first_difference(schema: Schema, programs: int | None = None) -> tuple[int, str]:
    """The number of correct proposals of `schema` before the first wrong one, and the text of the wrong one, or of the
    error that was raised, with its program ("" if there is none)."""
    right = 0
    trials = schema.trials or _by_operators(schema)
    programs = programs or (_KERNEL_PROGRAMS if isinstance(schema, ExtractionStep) else PROGRAMS)
    for seed in range(programs):
        rng = np.random.default_rng(seed)
        trial = one_of(rng, trials)(rng)
        queries = trial.queries
        try:
            proposals = schema.proposals(trial.node, queries)
            if not proposals:
                continue
            before, *after = (_value(trial, e) for e in (trial.node, *proposals))
        except RelaxEgError as e:
            return right, f"  {e}\n{trial.module}"
        for proposed, value in zip(proposals, after, strict=True):
            if _equal(before, value, trial.tolerance):
                continue
            inputs = "\n".join(
                f"  {p.attr('name')} = {np.asarray(a).tolist()}"
                for p, a in zip(trial.module.main.params, trial.args, strict=True)
            )
            shown = Module((main_of(trial.module.main.params, proposed), *queries.functions.values()))
            return right, f"{trial.module}\n  becomes\n{shown}\n  at\n{inputs}\n  {before} became {value}"
        right += 1
    return right, ""


def proved_proposals(schema: Schema) -> tuple[str, str]:
    """Which of the proposals for test programs are proved, as text: all, some or none of those that are tried; and why
    one is not."""
    assert schema.prove is not None, "the rule proves nothing"
    trials, shown, why = schema.trials or _by_operators(schema), 0, ""
    tried, end = 0, time.thread_time() + _PROVING
    for seed in range(PROGRAMS):
        rng = np.random.default_rng(seed)
        trial = one_of(rng, trials)(rng)
        for proposed in schema.proposals(trial.node, trial.queries):
            reason = schema.prove(trial.node, proposed, trial.queries.facts, trial.queries.functions)
            tried, shown, why = tried + 1, shown + (not reason), why or reason
        if tried >= _MOST_PROOFS or time.thread_time() > end:
            break
    return "" if not shown else "proposals proved" if shown == tried else "some proposals proved", why


def _value(trial: Trial, e: Expr) -> tuple[Any, ...]:
    module = Module((main_of(trial.module.main.params, e), *trial.queries.functions.values()))
    found = evaluate(module, trial.args, arithmetic=trial.arithmetic)
    return found if isinstance(found, tuple) else (found,)


def _equal(before: tuple[Any, ...], after: tuple[Any, ...], tolerance: float = 0.0) -> bool:
    if len(before) != len(after) or any(np.shape(a) != np.shape(b) for a, b in zip(before, after, strict=True)):
        return False
    pairs = zip(before, after, strict=True)
    if not tolerance:
        return all(bool(np.all((a == b) | ((a != a) & (b != b)))) for a, b in pairs)  # NaN is NaN
    return all(
        np.allclose(a, b, tolerance, tolerance * largest_magnitude(np.asarray(a)), equal_nan=True) for a, b in pairs
    )


def _by_operators(schema: Schema) -> tuple[Trials, ...]:
    """The test programs of a schema that carries none: those that have one of its operators."""
    if len(schema.operators) > len(_WITH):  # a rule about operators in general
        return (uses_of(schema.operators),)
    found = dict.fromkeys(make for op, make in _WITH.items() if op in schema.operators)
    if not found:
        raise schema.error(
            f"no test programs have {', '.join(sorted(schema.operators))}; {', '.join(_WITH)} do; "
            "trials=, functions that draw others, is accepted"
        )
    return tuple(found)


def kernels(rng: np.random.Generator) -> Trial:
    """A program of one operator over others: elementwise ones, movements, reductions and matmuls of small matrices."""
    k = int(rng.integers(1, 4))
    params = x, y, v = variables("x: k k, y: k k, v: k")
    size = Dim.var("k")

    def drawn(operands: Sequence[Expr]) -> Expr:
        a, b = (one_of(rng, operands) for _ in range(2))
        made = (
            lambda: op.add(a, b), lambda: op.multiply(a, v), lambda: op.negative(a), lambda: op.maximum(a, b),
            lambda: op.permute_dims(a, (1, 0)), lambda: op.matmul(a, b), lambda: op.linear(a, b),
            lambda: op.matmul(a, a), lambda: op.broadcast_to(op.sum(a, 1, keepdims=True), (size, size)),
            lambda: op.sum(a, int(rng.integers(2))), lambda: op.max(a, 1), lambda: op.matmul(a, v),
            lambda: op.reshape(a, (size * size,)), lambda: op.expand_dims(a, int(rng.integers(3))),
            lambda: op.subtract(a, op.sum(b, 1, keepdims=True)),
        )  # fmt: skip
        return one_of(rng, made)()

    inner = [e for e in (drawn((x, y)) for _ in range(6)) if e.ndim == 2] or [op.add(x, y)]
    node = drawn(inner)
    return trial_of(params, node, integers_for(rng, params, -3, 3, k=k), nodes=())


def uses_of(operators: Collection[str]) -> Trials:
    """The generator of uses of one operator, of each family in `operators` that index equations distinguish:
    elementwise, movement, reduction, contraction, several results."""

    def use(rng: np.random.Generator) -> Trial:
        n, m, k = (int(rng.integers(0, 4)) for _ in range(3))
        x, y, z, w, w0, i = variables("x: n m, y: n m, z: m k, w: m, w0:, i: k @ int32")
        rows, columns = Dim.var("n"), Dim.var("m")
        uses: list[tuple[str, tuple[Expr, ...], dict[str, Any]]] = [
            ("add", (x, y), {}), ("multiply", (x, w), {}), ("maximum", (x, w), {}), ("negative", (x,), {}),
            ("where", (op.less(x, y), x, y), {}), ("permute_dims", (x,), {"axes": (1, 0)}),
            ("reshape", (x,), {"shape": (rows * columns,)}), ("concat", (x, y), {"axis": 0}),
            ("flip", (x,), {"axes": (1,)}), ("expand_dims", (x,), {"axes": (1,)}), ("triu", (x,), {}),
            ("broadcast_to", (w,), {"shape": (Dim.of(2), columns)}), ("full", (w0,), {"shape": (Dim.of(2),)}),
            ("take", (x, i), {"axis": 1, "mode": "clip"}), ("sum", (x,), {"axes": (1,)}), ("max", (x,), {"axes": (0,)}),
            ("split", (op.concat([x, y], axis=0),), {"sections": (rows, rows), "axis": 0}),
            ("cumsum", (x,), {"axis": 1}), ("matmul", (x, z), {}), ("matmul", (x, w), {}), ("linear", (x, y), {}),
        ]  # fmt: skip
        fitting = [u for u in uses if u[0] in operators and not (u[0] in ("take", "max") and not m * n)]
        name, operands, attributes = one_of(rng, fitting)
        node = call(name, operands, attributes)
        params = tuple(e for e in postorder((node,)) if e.op == "var")
        return trial_of(params, node, integers_for(rng, params, -3, 3, n=n, m=m, k=k))

    return use


def long_products(rng: np.random.Generator) -> Trial:
    """A product of few rows and columns that contracts a long axis."""
    depth = 512 * int(rng.integers(8, 20))
    rows, columns = (int(rng.integers(0, 3)) for _ in range(2))
    params = x, w = variables(f"x: n {depth}, w: {depth} {columns}")
    return trial_of(params, op.matmul(x, w), integers_for(rng, params, -2, 2, n=rows), nodes=())


def small_products(rng: np.random.Generator) -> Trial:
    """A product of small matrices, of batches of them, or with vectors, with or without a transpose."""
    turned = bool(rng.integers(2))
    left = ("k", "m k", "b m k", "b c m k")[int(rng.integers(4))]
    right = "n k" if turned else ("k", "k n", "b k n")[int(rng.integers(2 if left == "b c m k" else 3))]
    params = x, y = variables(f"x: {left}, y: {right}")
    node = (op.linear if turned else op.matmul)(x, y)
    sizes = {"b": 2, "c": 3, **{name: int(rng.integers(0, 5)) for name in "mkn"}}
    return trial_of(params, node, integers_for(rng, params, -2, 2, **sizes), nodes=(), contracting=1e9)


def decoders(rng: np.random.Generator) -> Trial:
    """A product with a matrix that is decoded from codes per block, codes per element, and scales."""
    rows, blocks, columns = (int(rng.integers(0, 4)) for _ in range(3))
    each = int(rng.integers(4, 9))
    g, m = Dim.var("g"), Dim.var("m")
    x, a, b, s = params = variables(f"x: n {each}*g, a: g m, b: {each} m, s: m")
    shape = (g, Dim.of(each), m)
    first, second = op.broadcast_to(op.expand_dims(a, 1), shape), op.broadcast_to(op.expand_dims(b, 0), shape)
    made = (op.add, op.multiply, op.maximum)[int(rng.integers(3))](first, second)
    if rng.integers(2):
        counted = op.reshape(op.iota((Dim.of(each),), 0, "float32"), (1, each, 1))
        made = op.multiply(made, op.broadcast_to(counted, shape))
    weight = op.reshape(made, (g * each, m))
    if rng.integers(2):
        weight = op.multiply(weight, s)
    turned = bool(rng.integers(2))
    node = op.linear(x, op.permute_dims(weight, (1, 0))) if turned else op.matmul(x, weight)
    return trial_of(params, node, integers_for(rng, params, -3, 3, n=rows, g=blocks, m=columns))


def coded_products(rng: np.random.Generator) -> Trial:
    """A product of two matrices, or a vector and a matrix, of which each stands for bytes: with or without a zero, and
    scaled or not, in float32 or int32."""
    rows, depth, columns = (int(rng.integers(1, 5)) for _ in range(3))
    wide, turned, is_row = ("float32", "int32")[int(rng.integers(2))], bool(rng.integers(2)), not rng.integers(4)
    shapes = ((depth,) if is_row else (rows, depth), (columns, depth) if turned else (depth, columns))
    drawn = Drawn(rng)

    def operand(name: str, shape: tuple[int, ...], axis: int) -> Expr:
        small = tuple(1 if a == axis % len(shape) else n for a, n in enumerate(shape))
        of_bytes = ("int8", "uint8")[int(rng.integers(2))]
        made = op.astype(drawn.any_of(name, shape, of_bytes), wide)
        if rng.integers(2):
            made = op.subtract(made, op.astype(drawn.any_of(f"{name}_zero", small, of_bytes), wide))
        for i in range(int(rng.integers(3))):
            made = op.multiply(made, drawn.between(f"{name}_scale{i}", one_of(rng, ((), small)), wide, -3, 3))
        return made

    x, w = operand("x", shapes[0], -1), operand("w", shapes[1], -1 if turned else -2)
    if turned and rng.integers(2):
        node = op.matmul(x, op.permute_dims(w, (1, 0)))
    else:
        node = op.linear(x, w) if turned else op.matmul(x, w)
    return trial_of(drawn.params, node, tuple(drawn.args), "numpy", 1e-5)


# chosen: accepted error of a product with a weight of codes, relative to the largest element of the result. Half a step
# is 1/14 of the largest element of a group of four bits, 1/254 of a column's of eight, and 1/16 of an fp8 number.
_CODED = {"int8": 0.05, "int4": 0.5, "fp8": 0.3}


def products_with_weights(kind: str) -> Trials:
    """The generator of products with a matrix that is known ahead, for codes of this kind."""

    def product(rng: np.random.Generator) -> Trial:
        rows, depth, columns = int(rng.integers(1, 5)), 32 * int(rng.integers(1, 4)), int(rng.integers(1, 6))
        turned = bool(rng.integers(2))
        shapes = ((rows, depth), (columns, depth) if turned else (depth, columns))
        params = x, w = tuple(var(name, Tensor(shape, "float32")) for name, shape in zip("xw", shapes, strict=True))
        node = op.linear(x, w) if turned else op.matmul(x, w)
        args = tuple(rng.uniform(0.5, 1.0, shape).astype(np.float32) for shape in shapes)
        return trial_of(params, node, args, "numpy", _CODED[kind], ahead_values=(w,))

    return product


def workspaces(rng: np.random.Generator) -> Trial:
    """A call of a kernel with workspaces: a matrix product in parts that are summed afterwards, which may be scaled by
    row sums in a second workspace. Either, both or none of the two buffers is a workspace."""
    parts, each, rows, columns = (int(rng.integers(1, 4)) for _ in range(4))
    n, m = Dim.var("n"), Dim.var("m")
    i, j, s, r = loops("i j s r")
    x, w = Buffer("X", (n, Dim.of(parts * each)), "float32"), Buffer("W", (Dim.of(parts * each), m), "float32")
    part = stage(Buffer("P", (Dim.of(parts), n, m), "float32"), (s, i, j),
                 sum_(x[i, s * each + r] * w[s * each + r, j], over=(r, each)))  # fmt: skip
    of_row = stage(Buffer("R", (n,), "float32"), i, sum_(x[i, r], over=(r, parts * each)))
    scaled = bool(rng.integers(2))
    total = sum_(part[s, i, j], over=(s, parts))
    whole = stage(Buffer("Y", (n, m), "float32"), (i, j), total * of_row[i] if scaled else total)
    stages = (part, of_row, whole) if scaled else (part, whole)
    own = [name for name in ("P", *(["R"] * scaled)) if rng.integers(4)]
    kernel = program("kernel", (x, w), *stages, workspaces=own)
    params = variables(f"x: a {parts * each}, w: {parts * each} {columns}")
    return trial_of(params, call_tir(kernel, params), integers_for(rng, params, -2, 2, a=rows), nodes=())


def convolutions(rng: np.random.Generator) -> Trial:
    """A convolution over one or two axes: dense or depthwise, strided and dilated or transposed, padded.

    Axes and windows may have size 1."""
    rank, channels = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    transposed, depthwise = rng.integers(4) == 0, bool(rng.integers(2))
    small = [int(rng.integers(4)) == 0 for _ in range(rank)]
    sizes = [1 if s else int(rng.integers(1, 6)) for s in small]
    window = [1 if s and rng.integers(2) else int(rng.integers(1, 4)) for s in small]
    steps, between, around = [1] * rank, [1] * rank, [1] * rank
    pads = [(int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in range(rank)]
    if transposed:
        between, pads = list(window), [(k - 1, k - 1) for k in window]
    else:
        steps, around = ([int(n) for n in rng.integers(1, 3, rank)] for _ in range(2))
    groups, out = (channels, channels) if depthwise else (1, int(rng.integers(1, 4)))
    images, kernel = (int(rng.integers(0, 3)), channels, *sizes), (out, channels // groups, *window)
    params = (var("x", Tensor(images, "float32")), var("w", Tensor(kernel, "float32")))
    node = op.conv(*params, steps, pads, around, groups, between)
    return trial_of(params, node, floats_for(rng, params), "numpy")


def networks_of_convolutions(rng: np.random.Generator) -> Trial:
    """Two to four convolutions over one or two axes, dense or depthwise, strided or transposed, with pooling, shifts of
    channels, gates from sums over the image, residuals and joints between them."""
    rank, channels = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    space = [int(n) for n in rng.integers(1, 6, rank)]
    x = e = var("x", Tensor((int(rng.integers(0, 3)), channels, *space), "float32"))
    params = [x]

    def parameter(*shape: int) -> Expr:
        params.append(var(f"w{len(params)}", Tensor(shape, "float32")))
        return params[-1]

    for _ in range(int(rng.integers(2, 5))):
        window, out = [int(n) for n in rng.integers(1, 4, rank)], int(rng.integers(1, 4))
        pads, before, channels = [(k // 2, k - 1 - k // 2) for k in window], e, e.shape[1].value
        draw = int(rng.integers(5))
        if draw == 0:
            steps = [int(n) for n in rng.integers(1, 3, rank)]
            e = op.conv(e, parameter(channels, 1, *window), steps, pads, groups=channels)
        elif draw == 1:
            edges = [(k - 1, k - 1) for k in window]
            e = op.conv(e, parameter(out, channels, *window), padding=edges, input_dilation=window)
        else:
            window = [1] * rank if draw == 2 else window
            pads = [(0, 0)] * rank if draw == 2 else pads
            e = op.conv(e, parameter(out, channels, *window), [int(rng.integers(1, 3))] * rank, pads)
        e = _between(e, before, parameter, rng)
    return trial_of(params, e, floats_for(rng, params, -1, 1), "numpy")


def _between(e: Expr, before: Expr, parameter: Callable[..., Expr], rng: np.random.Generator) -> Expr:
    """What stands between two convolutions, of which the first made `e` of `before`."""
    rank = e.ndim - 2
    gate = op.sum(e, tuple(range(2, 2 + rank)), keepdims=True)
    pooled = (1, 1, *[2] * rank), (1, 1, *[1] * rank), [(0, 0)] * 2 + [(1, 1)] * rank
    made = (
        lambda: e, lambda: op.relu(e), lambda: op.multiply(e, gate), lambda: op.concat([e, op.negative(e)], 1),
        lambda: op.add(e, op.reshape(parameter(e.shape[1].value), (1, e.shape[1], *[1] * rank))),
        lambda: op.reduce_window(e, "max", *pooled),
        lambda: op.add(e, before) if e.shape == before.shape else op.subtract(e, gate),
        lambda: op.flip(e, 2), lambda: op.pad(e, [(0, 0), (0, 1)] + [(1, 0)] * rank, 1.0),
    )  # fmt: skip
    return one_of(rng, made)()


def nested_sums(rng: np.random.Generator) -> Trial:
    """A randomly nested sum of three to eight terms: matrix products and elementwise products, some scaled."""
    k = int(rng.integers(1, 4))
    *matrices, scalar = params = variables("w0: k k, w1: k k, w2: k k, w3: k k, s:")

    def term() -> Expr:
        a, b, c = (matrices[int(rng.integers(4))] for _ in range(3))
        made = (a, op.matmul(a, b), op.matmul(op.matmul(a, b), c), op.matmul(a, op.matmul(b, c)))
        products = (op.multiply(a, b), op.multiply(op.multiply(a, b), c), op.multiply(op.matmul(a, b), scalar))
        return (*made, *products)[int(rng.integers(7))]

    terms = [term() for _ in range(int(rng.integers(3, 9)))]
    while len(terms) > 1:
        i = int(rng.integers(len(terms) - 1))
        joined = (op.add, op.subtract)[int(rng.integers(2))](terms[i], terms[i + 1])
        terms[i : i + 2] = [op.negative(joined) if rng.integers(6) == 0 and len(terms) > 2 else joined]
    return trial_of(params, terms[0], integers_for(rng, params, -3, 3, k=k))


def _of_function(kind: str, rng: np.random.Generator, is_known: bool = False) -> Trial:
    k, t = int(rng.integers(1, 4)), int(rng.integers(0, 4))
    length = Dim.of(t) if is_known else Dim.var("t")
    rows = f"{length} k" if kind == "scan" else "k"
    matrix, same, carried, xs, count = variables(f"w: k k, c: k, h: k, x: {rows}, n: @ int32")
    body = _body(rng, kind)
    queries = ModuleAnswers({body.name: body}, (True, True, False, False) if kind == "call" else ())
    params = (matrix, same, carried, xs)
    if kind == "scan":
        reverse = bool(rng.integers(2))
        node = scan(function_ref(body), (matrix, same), (carried,), (xs,), length=length, reverse=reverse)
    elif kind == "call":
        node = call_function(function_ref(body), params)
    else:
        params = (matrix, same, carried, count)
        limit, i, h = variables("x0: @ int32, x1: @ int32, x2: k")
        queries.functions["condition"] = pure_function("condition", (limit, i, h), [op.less(i, limit)])
        condition = function_ref(queries.functions["condition"])
        node = while_loop(condition, function_ref(body), (count,), (matrix, same), (const(0), carried))
    module = Module((main_of(params, node), *queries.functions.values()))
    last = (np.asarray(t, object),) if kind == "while" else integers_for(rng, (xs,), -2, 2, k=k, t=t)
    drawn = integers_for(rng, (matrix, same, carried), -2, 2, k=k)
    return Trial(module, node, (*drawn, *last), queries)


def _body(rng: np.random.Generator, kind: str) -> Function:
    """A random loop body over a constant matrix, a constant vector, a carried vector, and a slice or a counter."""
    w, c, h = variables(f"x0: k k, x1: k, {'x3' if kind == 'while' else 'x2'}: k")
    i, x = variables("x2: @ int32, x3: k")
    matrices: list[Expr] = [w, op.matmul(w, w)]
    vectors: list[Expr] = [c, h] if kind == "while" else [c, h, x, op.matmul(x, matrices[int(rng.integers(2))])]
    for _ in range(int(rng.integers(3, 8))):
        a, b = (one_of(rng, vectors) for _ in range(2))
        m = one_of(rng, matrices)
        made = (op.matmul(m, a), op.matmul(a, m), op.add(a, b), op.subtract(a, b), op.multiply(a, b))
        vectors.append(one_of(rng, made))
    outputs = vectors[-1], vectors[-1 - int(rng.integers(3))]
    if kind == "while":
        return _returning((w, c, i, h), (op.add(i, const(1)), outputs[0]))
    return _returning((w, c, h, x), outputs)


def scans(rng: np.random.Generator) -> Trial:
    """A scan of a random body."""
    return _of_function("scan", rng)


def scans_of_parts(rng: np.random.Generator) -> Trial:
    """A scan of a body that adds to a slice, and reads parts of the sum."""
    k, t, reverse = int(rng.integers(2, 5)), int(rng.integers(0, 4)), bool(rng.integers(2))
    x, h, w, b = variables("x0: 2*k, x1: k, x2: k 2*k, x3: 2*k")
    params, size = (w, b, h, x), Dim.var("k")
    total = x
    for _ in range(int(rng.integers(0, 3))):
        made = op.add(total, b), op.multiply(total, op.matmul(h, w)), op.subtract(b, total), op.multiply(total, total)
        total = one_of(rng, made)
    halves = op.strided_slice(total, (0,), (size,)), op.strided_slice(total, (size,), (2 * size,))
    others = op.strided_slice(op.add(b, halves[0][0:1]), (0,), (size,)), op.multiply(*halves), x[0:size]
    outputs = op.add(op.multiply(h, halves[0]), halves[1]), others[int(rng.integers(3))]
    body = _returning(params, outputs)
    args = variables("w: k 2*k, b: 2*k, h: k, x: t 2*k")
    length = Dim.var("t")
    node = scan(function_ref(body), args[:2], args[2:3], args[3:], length=length, reverse=reverse)
    values = integers_for(rng, args, -2, 2, k=k, t=t)
    return Trial(Module((main_of(args, node), body)), node, values, ModuleAnswers({body.name: body}, ()))


class _OtherBest(ModuleAnswers):
    """Answers in which the best form of a function is another than the one as written."""

    def best(self, name: str, outside: bool = False) -> Function | None:
        found = super().best(name, outside)
        values = () if found is None else found.result.args
        return None if found is None else replace(found, result=tuple_([op.negative(op.negative(v)) for v in values]))

    def as_written(self, name: str) -> Function | None:
        return super().best(name)


def scans_in_other_form(rng: np.random.Generator) -> Trial:
    """A scan of a random body whose best form is another."""
    trial = scans(rng)
    return replace(trial, queries=_OtherBest(trial.queries.functions))


def short_scans(rng: np.random.Generator) -> Trial:
    """A scan of a random body, with a known number of steps."""
    return _of_function("scan", rng, is_known=True)


def while_loops(rng: np.random.Generator) -> Trial:
    """A `while_loop` that counts to a limit."""
    return _of_function("while", rng)


def calls(rng: np.random.Generator) -> Trial:
    """A call of a random function, of which two arguments are known ahead."""
    return _of_function("call", rng)


def _returning(params: Sequence[Expr], outputs: Sequence[Expr]) -> Function:
    made = pure_function("body", params, outputs)
    return replace(made, result=as_tuple(made.result))


# By operator, the programs that have it: for schemas that carry none.
_WITH: dict[str, Trials] = {
    SCAN: scans, WHILE: while_loops, CALL: calls, "add": nested_sums, "subtract": nested_sums, CALL_TIR: workspaces,
    "matmul": long_products,
}  # fmt: skip
