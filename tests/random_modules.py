"""Random modules as text: dtypes of 8 to 128 bits, tuples, calls, branches, loops, symbolic sizes, steps.

What a value is like is known while the text is made: how large it may be, and whether it is exact, which integers and
floats of few digits are. Only exact values decide (comparisons, conversions to integers, positions), so that results
may differ by rounding alone, and by how much follows from the largest value that led to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from random_values import (
    COMPLEX,
    DIGITS,
    DTYPES,
    FLOATS,
    INTEGERS,
    LARGEST,
    LOG_SIZE,
    PART,
    Body,
    NoFitError,
    Program,
    Text,
    Value,
    bits,
    broad,
    function_text,
    is_integer,
    is_plain,
    led,
)


def _arithmetic(b: Body) -> None:
    x = b.value(lambda v: v.dtype != "bool")
    name, y = b.partner(x)
    sign = b.one("+-*")
    left, right = b.one([(x.name, name), (name, x.name)])
    if sign == "*":
        size, fraction = x.size + y.size + (x.dtype in COMPLEX), x.fraction + y.fraction
    else:
        size, fraction = max(x.size, y.size) + 1, max(x.fraction, y.fraction)
    b.add(f"{left} {sign} {right}", Value("", x.dtype, broad(x, y), size, fraction, **led(x, y)))


def _quotient(b: Body) -> None:
    x = b.value(lambda v: is_integer(v.dtype))
    name, y = b.partner(x)
    kind = b.one(["divide", "remainder"])
    b.add(f"R.op.{kind}({x.name}, {name})", Value("", x.dtype, broad(x, y), bits(x.dtype), 0.0))


def _bits(b: Body) -> None:
    x = b.value(lambda v: is_integer(v.dtype) or v.dtype == "bool")
    wide = bits(x.dtype)
    if x.dtype == "bool":
        y = b.value(lambda v: v.dtype == "bool" and v.dims in (x.dims, ()))
        kind = b.one(["logical_and", "logical_or", "logical_xor"])
        b.add(f"R.op.{kind}({x.name}, {y.name})", Value("", "bool", x.dims, 1))
        return
    name, y = b.partner(x)
    kind = b.one(["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "right_shift_logical"])
    if kind == "right_shift_logical" and x.dtype.startswith("u"):
        raise NoFitError
    if kind.endswith(("shift", "logical")) and b.flag(0.8):
        by = int(b.text.rng.integers(0, wide))
        name, y = f'R.const({by}, "{x.dtype}")', Value("", x.dtype, (), 6)
    b.add(f"R.op.{kind}({x.name}, {name})", Value("", x.dtype, broad(x, y), wide))


def _unary(b: Body) -> None:
    x = b.value(lambda v: v.dtype != "bool")
    same = {"size": x.size, "fraction": x.fraction, **led(x)}
    if is_integer(x.dtype):
        if x.dtype.startswith("u"):
            kind = b.one(["sign", "bitwise_not", "square", "population_count", "count_leading_zeros"])
        else:
            kind = b.one(["negative", "abs", "bitwise_not", "square", "population_count"])
        size = {"square": 2 * x.size}.get(kind, max(x.size, 7))
        b.add(f"R.op.{kind}({x.name})", Value("", x.dtype, x.dims, size if kind != "bitwise_not" else bits(x.dtype)))
        return
    if x.dtype in COMPLEX:
        kind = b.one(["negative", "conj", "real", "imag"])
        dtype = PART[x.dtype] if kind in ("real", "imag") else x.dtype
        b.add(f"R.op.{kind}({x.name})", Value("", dtype, x.dims, **same))
        return
    kind = b.one(
        ["negative", "abs", "floor", "ceil", "round", "sign", "tanh", "sin", "cos", "sigmoid", "square", "sqrt"]
    )
    if kind in ("floor", "ceil", "round", "sign") and not x.decides:
        raise NoFitError
    if kind in ("floor", "ceil", "round"):
        made = Value("", x.dtype, x.dims, x.size + 1, 0.0, **led(x))
    elif kind == "sign":
        made = Value("", x.dtype, x.dims, 1, 0.0, **led(x))
    elif kind == "square":
        made = Value("", x.dtype, x.dims, 2 * x.size, 2 * x.fraction, **led(x))
    elif kind in ("negative", "abs"):
        made = Value("", x.dtype, x.dims, **same)
    else:
        if kind in ("sin", "cos", "sqrt") and (x.size > 8 or not x.exact):
            raise NoFitError  # what is a little off would be far off
        made = Value("", x.dtype, x.dims, max(x.size / 2, 1), 0.0, x.peak, False)
        if kind == "sqrt":
            b.add(f"R.op.sqrt(R.op.abs({x.name}))", made)
            return
    b.add(f"R.op.{kind}({x.name})", made)


def _astype(b: Body) -> None:
    x = b.value()
    to = b.one(DTYPES)
    if to == x.dtype or (x.dtype in COMPLEX and to not in COMPLEX):
        raise NoFitError
    if to in INTEGERS and not x.decides:
        raise NoFitError
    if to == "bool" and not x.exact:
        raise NoFitError
    if to in FLOATS and x.size > LARGEST[to]:
        raise NoFitError
    size = x.size if to not in INTEGERS or x.dtype in (*INTEGERS, "bool") else min(x.size, bits(to))
    if to == "bool":
        b.add(f'R.op.astype({x.name}, "bool")', Value("", "bool", x.dims, 1))
        return
    fraction = x.fraction if to not in INTEGERS else 0.0
    b.add(
        f'R.op.astype({x.name}, "{to}")',
        Value("", to, x.dims, size if to not in INTEGERS else max(size, 1), fraction, **led(x)),
    )


def _compare(b: Body) -> None:
    x = b.value(lambda v: v.decides and v.dtype != "bool")
    y = b.value(lambda v: v.dtype == x.dtype and v.decides and v.dims in (x.dims, (), x.dims[-1:]))
    sign = b.one(["<", "<=", ">", ">=", "==", "!="])
    name = b.number(x)[0] if b.flag(0.3) else y.name
    b.add(f"{x.name} {sign} {name}", Value("", "bool", x.dims, 1))


def _where(b: Body) -> None:
    c = b.value(lambda v: v.dtype == "bool")
    x = b.value(lambda v: v.dims == c.dims or c.dims == ())
    y = b.value(lambda v: v.dtype == x.dtype and v.dims == x.dims)
    made = Value("", x.dtype, x.dims, max(x.size, y.size), max(x.fraction, y.fraction), **led(x, y))
    kind = b.one(["where", "where", "maximum", "minimum"])
    if kind != "where" and (x.dtype in COMPLEX or x.dtype == "bool"):
        raise NoFitError
    b.add(f"R.op.where({c.name}, {x.name}, {y.name})" if kind == "where" else f"R.op.{kind}({x.name}, {y.name})", made)


def _reduce(b: Body) -> None:
    x = b.value(lambda v: len(v.dims) > 0)
    kind = b.one(["any", "all"] if x.dtype == "bool" else ["sum", "sum", "prod", "max", "min", "mean"])
    if kind == "mean" and x.dtype not in FLOATS:
        raise NoFitError
    if x.dtype in COMPLEX and kind != "sum":
        raise NoFitError
    axis = b.one([None, *range(len(x.dims))])
    count = LOG_SIZE * (len(x.dims) if axis is None else 1)
    count += sum(d.count("*") for d in x.dims) * LOG_SIZE
    keep = b.flag(0.3)
    dims = () if axis is None else (*x.dims[:axis], *x.dims[axis + 1 :])
    if keep:
        dims = tuple("1" if axis in (None, i) else d for i, d in enumerate(x.dims))
    size, fraction, like = x.size, x.fraction, led(x)
    if kind == "sum":
        size += count
    elif kind == "prod":
        size, fraction = size * 2.0**count, fraction * 2.0**count
    elif kind == "mean":
        like["exact"] = False
    b.add(f"R.op.{kind}({x.name}, {axis}, {keep})", Value("", x.dtype, dims, size, fraction, **like))


def _position(b: Body) -> None:
    x = b.value(lambda v: len(v.dims) > 0 and v.decides and v.dtype != "bool")
    axis = b.one(range(len(x.dims)))
    dtype = b.one(["int32", "int64", "int64", "uint32", "int16"])
    kind = b.one(["argmax", "argmin", "argsort"])
    if kind == "argsort":
        b.add(f'R.op.argsort({x.name}, {axis}, "{dtype}")', Value("", dtype, x.dims, 5))
        return
    dims = (*x.dims[:axis], *x.dims[axis + 1 :])
    b.add(f'R.op.{kind}({x.name}, {axis}, False, "{dtype}")', Value("", dtype, dims, 5))


def _scan(b: Body) -> None:
    x = b.value(lambda v: len(v.dims) > 0 and v.dtype != "bool" and v.dtype not in COMPLEX)
    axis = b.one(range(len(x.dims)))
    kind = b.one(["cumsum", "cummax", "cummin", "sort", "flip", "cumprod"])
    count = LOG_SIZE * (1 + x.dims[axis].count("*"))
    size, fraction = x.size, x.fraction
    if kind == "cumsum":
        size += count
    elif kind == "cumprod":
        size, fraction = size * 2.0**count, fraction * 2.0**count
    b.add(f"R.op.{kind}({x.name}, {axis})", Value("", x.dtype, x.dims, size, fraction, **led(x)))


def _made(b: Body) -> None:
    kind = b.one(["iota", "iota", "dim", "const", "full"])
    dtype = b.one(DTYPES)
    if dtype == "bool":
        raise NoFitError
    if kind == "const":
        text, made = b.number(Value("", dtype, (), 1))
        b.add(text, made)
    elif kind == "full":
        text, made = b.number(Value("", dtype, (), 1))
        dims = tuple(b.size() for _ in range(b.one([1, 2])))
        b.add(f"R.op.broadcast_to({text}, ({''.join(d + ', ' for d in dims)}))", replace(made, dims=dims))
    elif kind == "dim":
        if dtype in COMPLEX:
            raise NoFitError
        dim = b.one(["", *[f"{b.one(b.sizes)} * " for _ in b.sizes[:1]]]) + b.size()
        b.add(f'R.op.dim_value({dim}, "{dtype}")', Value("", dtype, (), 2 * LOG_SIZE + 1))
    else:
        dims = tuple(b.size() for _ in range(b.one([1, 1, 2])))
        axis = b.one(range(len(dims)))
        shape = "".join(f"{d}, " for d in dims)
        b.add(f'R.op.iota(({shape}), {axis}, "{dtype}")', Value("", dtype, dims, 3))


def _move(b: Body) -> None:
    x = b.value(lambda v: 0 < len(v.dims) < 4)
    kind = b.one(["transpose", "flat", "expand", "broadcast", "concat", "slice", "stack", "pad", "index"])
    made = replace(x)
    rank = len(x.dims)
    if kind == "transpose":
        order = [int(i) for i in b.text.rng.permutation(rank)]
        b.add(f"R.op.permute_dims({x.name}, {tuple(order)})", replace(made, dims=tuple(x.dims[i] for i in order)))
    elif kind == "flat":
        if rank < 2:
            raise NoFitError
        b.add(f"R.op.reshape({x.name}, ({' * '.join(x.dims)},))", replace(made, dims=("*".join(x.dims),)))
    elif kind == "expand":
        axis = b.one(range(rank + 1))
        b.add(f"R.op.expand_dims({x.name}, {axis})", replace(made, dims=(*x.dims[:axis], "1", *x.dims[axis:])))
    elif kind == "broadcast":
        dims = (b.size(), *x.dims)
        b.add(f"R.op.broadcast_to({x.name}, ({''.join(d + ', ' for d in dims)}))", replace(made, dims=dims))
    elif kind in ("concat", "stack"):
        y = b.value(lambda v: v.dtype == x.dtype and v.dims == x.dims)
        both = replace(made, size=max(x.size, y.size), fraction=max(x.fraction, y.fraction), **led(x, y))
        if kind == "stack":
            b.add(f"R.op.stack([{x.name}, {y.name}], 0)", replace(both, dims=("2", *x.dims)))
        else:
            b.add(f"R.op.concat([{x.name}, {y.name}], 0)", replace(both, dims=(f"2*{x.dims[0]}", *x.dims[1:])))
    elif kind == "slice":
        step = b.one(["[::-1]", "[:1]", "[-1:]"])
        dims = x.dims if step == "[::-1]" else ("1", *x.dims[1:])
        b.add(f"{x.name}{step}", replace(made, dims=dims))
    elif kind == "index":
        b.add(f"{x.name}[{b.one([0, -1])}]", replace(made, dims=x.dims[1:]))
    else:
        if x.dtype == "bool" or x.dims[0].count("*"):
            raise NoFitError
        around = [(1, 0)] + [(0, 0)] * (rank - 1)
        b.add(f"R.op.pad({x.name}, {around})", replace(made, dims=(f"1+{x.dims[0]}", *x.dims[1:])))


def _take(b: Body) -> None:
    x = b.value(lambda v: len(v.dims) > 0)
    at = b.value(lambda v: is_integer(v.dtype) and len(v.dims) < 2 and v.decides)
    mode = b.one(["clip", "clip", "fill"])
    if mode == "fill" and (x.dtype == "bool" or is_integer(x.dtype)):
        mode = "clip"
    axis = b.one(range(len(x.dims)))
    dims = (*x.dims[:axis], *at.dims, *x.dims[axis + 1 :])
    if len(dims) > 4:
        raise NoFitError
    b.add(f'R.op.take({x.name}, {at.name}, {axis}, "{mode}")', replace(x, dims=dims, exact=x.exact and mode == "clip"))


def _product(b: Body) -> None:
    x = b.value(lambda v: 0 < len(v.dims) < 3 and v.dtype != "bool")
    y = b.value(lambda v: v.dtype == x.dtype and 0 < len(v.dims) < 3 and v.dims[0] == x.dims[-1])
    count = LOG_SIZE * (1 + x.dims[-1].count("*"))
    size = x.size + y.size + count + (x.dtype in COMPLEX)
    dims = (*x.dims[:-1], *y.dims[1:])
    b.add(f"{x.name} @ {y.name}", Value("", x.dtype, dims, size, x.fraction + y.fraction, **led(x, y)))


def _one_hot(b: Body) -> None:
    x = b.value(lambda v: is_integer(v.dtype) and len(v.dims) < 3)
    dtype, depth = b.one(["int64", "float32", "float64", "uint64", "int8"]), b.size()
    b.add(f'R.op.one_hot({x.name}, {depth}, "{dtype}")', Value("", dtype, (*x.dims, depth), 1))


def _tuple(b: Body) -> None:
    x, y = b.value(), b.value()
    name = b.name("t")
    b.line(f"{name} = ({x.name}, {y.name})")
    for i, v in enumerate((x, y)):
        b.add(f"{name}[{i}]", v)


def _call(b: Body) -> None:
    """A call of an existing function or of a new one."""
    if b.depth >= 2 or b.indent != "    ":
        raise NoFitError
    args = [b.value(is_plain) for _ in range(b.one([1, 2, 2, 3]))]
    signature = [(a.dtype, a.dims) for a in args]
    known = [h for h in b.text.helpers if [(p.dtype, p.dims) for p in h[1]] == signature
             and all(p.size >= a.size and p.fraction >= a.fraction and p.peak >= a.peak and p.exact <= a.exact
                     for p, a in zip(h[1], args, strict=True))]  # fmt: skip
    if known and b.flag():
        name, _, results, many = b.one(known)
    else:
        name = b.text.fresh()
        params = [replace(a, name=f"p{i}") for i, a in enumerate(args)]
        inner = Body(b.text, params, b.depth + 1)
        for _ in range(b.one([2, 4, 6])):
            _step(inner)
        many = b.flag()
        results = [inner.value() for _ in range(2 if many else 1)]
        inner.line(f"return ({', '.join(v.name for v in results)}{',' if many and len(results) == 1 else ''})")
        b.text.functions.append(function_text(name, params, inner))
        b.text.helpers.append((name, params, results, many))
    call = f"{name}({', '.join(a.name for a in args)})"
    if not many:
        b.add(call, results[0])
        return
    whole = b.name("t")
    b.line(f"{whole} = {call}")
    for i, v in enumerate(results):
        b.add(f"{whole}[{i}]", v)


def _branch(b: Body) -> None:
    x = b.value(lambda v: v.decides)
    condition = x.name if x.dims == () else f"R.op.any({x.name})"
    if x.dtype != "bool":
        condition = f"R.op.any({x.name} {b.one(['<', '>', '=='])} {b.number(x)[0]})"
    if b.indent != "    ":
        raise NoFitError
    sides: list[Body] = []
    for _ in range(2):
        inner = Body(b.text, [], 9, b.indent + "    ")
        inner.values, inner.sizes, inner.count = list(b.values), b.sizes, b.count + 1000 * (len(sides) + 1)
        for _ in range(b.one([1, 2, 3])):
            _step(inner)
        sides.append(inner)
    first, second = (s.values for s in sides)
    pairs = [(x, y) for x in first for y in second if (x.dtype, x.dims) == (y.dtype, y.dims)]
    new = [(x, y) for x, y in pairs if x not in b.values or y not in b.values]
    if not new:
        raise NoFitError
    x, y = b.one(new)
    name = b.name("b")
    b.line(f"if {condition}:")
    b.lines += [*sides[0].lines, f"{b.indent}    {name} = {x.name}"]
    b.line("else:")
    b.lines += [*sides[1].lines, f"{b.indent}    {name} = {y.name}"]
    made = Value(name, x.dtype, x.dims, max(x.size, y.size), max(x.fraction, y.fraction), **led(x, y))
    b.values.append(made)


def _loop(b: Body) -> None:
    """A scan over an array, or over a given number of steps."""
    if b.depth > 0 or b.indent != "    ":
        raise NoFitError
    name, whole = b.text.fresh(), b.name("t")
    if b.flag():
        xs = b.value(lambda v: 0 < len(v.dims) < 3 and is_plain(v) and is_integer(v.dtype))
        x = replace(xs, name="x", dims=xs.dims[1:])
        carry = replace(x, name="c", size=bits(xs.dtype))
        inner = Body(b.text, [carry, x], 9)
        for _ in range(b.one([1, 2, 3])):
            _step(inner)
        after = inner.value(lambda v: (v.dtype, v.dims) == (carry.dtype, carry.dims))
        given = inner.value()
        inner.line(f"return ({after.name}, {given.name})")
        b.text.functions.append(function_text(name, [carry, x], inner))
        b.line(f"{whole} = R.scan({name}, R.op.max({xs.name}, 0), {xs.name}, constants=0, carry=1, "
               f'length=R.dim("{xs.dims[0]}"), reverse={b.flag(0.3)}, unroll=1)')  # fmt: skip
        b.add(f"{whole}[0]", carry)
        b.add(f"{whole}[1]", replace(given, dims=(xs.dims[0], *given.dims)))
        return
    start = b.value(lambda v: is_integer(v.dtype) and is_plain(v) and len(v.dims) < 3)
    counter = b.one(["int32", "int64", "uint64", "int8"])
    carry = replace(start, name="c", size=bits(start.dtype))
    at = Value("i", counter, (), 4)
    inner = Body(b.text, [carry], 9)
    for _ in range(b.one([1, 2, 3])):
        _step(inner)
    after = inner.value(lambda v: (v.dtype, v.dims) == (carry.dtype, carry.dims))
    inner.line(f"return (i + 1, {after.name})")
    b.text.functions.append(function_text(name, [at, carry], inner))
    test = Body(b.text, [at, carry], 9)
    test.line(f"return i < {b.one([0, 1, 3, 7])}")
    b.text.functions.append(function_text(f"{name}_test", [at, carry], test))
    b.line(f'{whole} = R.while_loop({name}_test, {name}, R.const(0, "{counter}"), {start.name}, '
           "condition_constants=0, body_constants=0)")  # fmt: skip
    b.add(f"{whole}[0]", at)
    b.add(f"{whole}[1]", carry)


def _sized_by_values(b: Body) -> None:
    """A step: a call whose result size depends on values."""
    if not b.text.steps or b.indent != "    " or b.depth > 0:
        raise NoFitError
    x = b.value(lambda v: v.decides and v.dtype not in ("bool", *COMPLEX))
    kind = b.one(["unique", "unique", "flatnonzero", "masked_select"])
    flat, found = b.name("s"), b.name("s")
    size = b.name("u")
    dtype, made = x.dtype, x
    if kind == "flatnonzero":
        dtype = b.one(["int32", "int64"])
        expression, made = f'R.op.flatnonzero({flat}, "{dtype}")', Value("", dtype, (), 7)
    elif kind == "unique":
        expression = f"R.op.unique({flat})"
    else:
        expression = f"R.op.masked_select({flat}, {flat} != {flat}[0])"
    if not x.dims and kind == "masked_select":
        raise NoFitError
    b.line(f"{flat} = R.op.reshape({x.name}, (-1,))")
    b.line(f"{found} = {expression}")
    cast = f'R.match_cast({found}, R.Tensor(("{size}",), "{dtype}"))'
    if kind == "unique":
        b.add(cast, replace(made, dims=(size,)))
        b.sizes = [*b.sizes, size]
    else:  # there may be none
        empty = b.name("s")
        b.line(f"{empty} = {cast}")
        b.add(f"R.op.sum({empty})", replace(made, dims=(), size=made.size + 4 * LOG_SIZE))
    b.text.stepped = True


_STEPS: tuple[Callable[[Body], None], ...] = (
    *(_arithmetic,) * 6, *(_quotient,) * 2, *(_bits,) * 2, *(_unary,) * 3, *(_astype,) * 6, *(_compare,) * 3,
    *(_where,) * 3, *(_reduce,) * 4, *(_position,) * 2, *(_scan,) * 2, *(_made,) * 4, *(_move,) * 4, *(_take,) * 2,
    *(_product,) * 2, _one_hot, *(_tuple,) * 2, *(_call,) * 3, *(_branch,) * 3, *(_loop,) * 4, *(_sized_by_values,) * 4,
)  # fmt: skip


def _step(b: Body) -> None:
    """One or more lines, if the draw fits."""
    made, lines = b.one(_STEPS), len(b.lines)
    try:
        made(b)
    except NoFitError:
        assert len(b.lines) == lines, "lines that nobody needs"


def random_module(seed: int, steps: bool = False, most: int = 10, name: str = "main") -> Program:
    """Returns the module of this seed, with up to `most` lines in its entry of this name. `steps`: whether sizes may
    depend on values."""
    rng = np.random.default_rng(seed)
    text = Text(rng, steps, f"{name}_" if name != "main" else "")
    params: list[Value] = []
    for i in range(int(rng.integers(1, 4))):
        dtype = text.one(DTYPES)
        dims = tuple(text.one(["n", "n", "m", "2", "3", "1"]) for _ in range(text.one([0, 1, 1, 2, 2])))
        size = 2.0
        if is_integer(dtype):
            size = float(text.one([3, 3, bits(dtype) // 2, bits(dtype)]))
            size = min(size, bits(dtype) - (not dtype.startswith("u")))
        params.append(Value("xyz"[i], dtype, dims, size, 2.0 if dtype in DIGITS else 0.0, size))
    body = Body(text, params, 0)
    for _ in range(int(rng.integers(2, most + 1))):
        _step(body)
    made = [v for v in body.values if v not in params] or params
    results = [text.one(made[-4:]) for _ in range(text.one([1, 1, 2, 3]))]
    if made[-1] not in results:
        results.append(made[-1])
    body.line(f"return {results[0].name}" if len(results) == 1 else f"return ({', '.join(v.name for v in results)})")
    whole = "\n".join([*text.functions, function_text(name, params, body)])
    return Program(whole, tuple(params), tuple(results), text.stepped)


def together(seeds: Sequence[int], steps: bool = False) -> Program:
    """Returns one module whose entry calls the entries of the modules of these seeds, so that one search and few
    executables serve all."""
    made = [random_module(seed, steps, name=f"m{seed}") for seed in seeds]
    params = [replace(p, name=f"{p.name}{seed}") for seed, one in zip(seeds, made, strict=True) for p in one.params]
    lines: list[str] = []
    names: list[str] = []
    for seed, one in zip(seeds, made, strict=True):
        lines.append(f"r{seed} = m{seed}({', '.join(f'{p.name}{seed}' for p in one.params)})")
        for i in range(len(one.results)):
            name = f"r{seed}_{i}" if len(one.results) > 1 else f"r{seed}"
            lines += [f"{name} = r{seed}[{i}]"] if len(one.results) > 1 else []
            names.append(name)
    declared = ", ".join(f"{p.name}: {p.annotation}" for p in params)
    entry = f"def main({declared}):\n" + "".join(f"    {x}\n" for x in (*lines, f"return ({', '.join(names)},)"))
    text = "\n".join([*(one.text for one in made), entry])
    results = tuple(v for one in made for v in one.results)
    return Program(text, tuple(params), results, any(one.steps for one in made))
