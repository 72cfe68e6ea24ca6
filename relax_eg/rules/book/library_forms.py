"""Rules that rewrite programs as people write them to the calls of library routines.

They run in the phase "library" and only where a routine is available. Some prepare patterns (softmax by hand, scales,
transposed products), some match whole forms of attention (the parts of `jax.nn.dot_product_attention`, heads first or
last, masks selected or added), and some make a call more specific (causal masks, repeated keys).
"""

from __future__ import annotations

import itertools
from typing import Any

from relax_eg.dtypes import HALF
from relax_eg.ir.expr import const
from relax_eg.ops import api as op
from relax_eg.ops.libraries import LIBRARIES, call_library
from relax_eg.rules.book.attention import repeated
from relax_eg.rules.book.libraries import attention_names, causal, conditions
from relax_eg.rules.rule_set import RuleSet

forms = RuleSet("forms")
_HEADS = (0, 2, 1, 3)  # given: the permutation that moves heads before positions, and back
_TURNED = (0, 1, 3, 2)  # given: the permutation that exchanges the last two axes
# Conditions on `f`, the value of masked logits. With `_NEVER`, it is below any logit, and finite, because a row without
# any position is then a mean and not NaN. With `_HARDLY`, logits may be below it, and such a row has another value.
_NEVER = ("f <= -1e30", "f >= -3.5e38")
_HARDLY = ("f <= -1e9", "f > -1e30")


def _rule(shapes: str, *tags: str, numerics: Any = "reassociate", **options: Any) -> Any:
    return forms.rule(shapes, phase="library", numerics=numerics, tags=(*tags, "library"), **options)


# --- preparation ---


@_rule("x: *b n, m: *b", "softmax", when="n >= 1")
def softmax_by_hand(x: Any, m: Any) -> Any:
    """exp(x - m) / sum(exp(x - m)) = softmax(x) for any shift m of each row, such as its maximum"""
    last = x.ndim - 1
    e = op.exp(x - op.expand_dims(m, last))
    return e / op.expand_dims(op.sum(e, last), last), op.softmax(x)


@_rule("x: *b n, m: *b 1", "softmax", when="n >= 1")
def softmax_by_hand_keeping_axes(x: Any, m: Any) -> Any:
    """exp(x - m) / sum(exp(x - m)) = softmax(x), with the axis of the sum kept"""
    e = op.exp(x - m)
    return e / op.sum(e, x.ndim - 1, keepdims=True), op.softmax(x)


@_rule("x: b h d t, p: b h s t", "attention")
def product_transposed(x: Any, p: Any) -> Any:
    """X P' = (P X')': the weights of an attention first"""
    return x @ op.permute_dims(p, _TURNED), op.permute_dims(p @ op.permute_dims(x, _TURNED), _TURNED)


@_rule("q: b h s d, k: b h d t, c:", "attention")
def scale_into_query(q: Any, k: Any, c: Any) -> Any:
    """(Q K) c = (Q c) K: an attention's scale"""
    return (q @ k) * c, (q * c) @ k


@_rule("q: b h s d, k: b h d t, c:", "attention", when="d >= 1")
def divisor_into_query(q: Any, k: Any, c: Any) -> Any:
    """(Q K) / c = (Q / c) K: an attention's scale"""
    return (q @ k) / c, (q / c) @ k


def _logits(q: Any, k: Any, how: str) -> Any:
    """q k: "wide" converts it to float32, "summed" sums it in float32."""
    made = op.matmul(q, k, out_dtype="float32") if how == "summed" else q @ k
    return op.astype(made, "float32") if how == "wide" else made


def _scale_of_wide_logits(dtype: str, how: str, divides: bool) -> None:
    def sides(q: Any, k: Any, c: Any) -> Any:
        made = _logits(q, k, how)
        scaled = _scaled(q, op.divide(1.0, c) if divides else c)
        return made / c if divides else made * c, _logits(scaled, k, how)

    _rule(
        f"q: b h s d @ {dtype}, k: b h d t @ {dtype}, c: @ float32", "attention", when="d >= 1" if divides else (),
        name=f"{'divisor' if divides else 'scale'}_into_query_{dtype}{'_summed' if how == 'summed' else ''}",
        doc="an attention's scale (logits in float32)",
    )(sides)  # fmt: skip


for _dtype, _how, _divides in itertools.product(HALF, ("wide", "summed"), (False, True)):
    _scale_of_wide_logits(_dtype, _how, _divides)


@_rule("c: *b @ bool", "attention", numerics="exact")
def choice_of_truth(c: Any) -> Any:
    """where(c, true, false) = c"""
    if c.ndim == 0:
        return None
    return op.where(c, op.broadcast_to(const(True), c.shape), op.broadcast_to(const(False), c.shape)), c


@_rule("x: *b @ int32", "attention", numerics="exact")
def nothing_added(x: Any) -> Any:
    """x + 0 = x"""
    return x + const(0), x


@_rule("c: 1 *b @ bool, x: 1 *b, y:", "broadcast", numerics="exact")
def choice_needs_no_broadcast(c: Any, x: Any, y: Any) -> Any:
    """where(c, x, broadcast(y)[None]) = where(c, x, y)"""
    if x.ndim == 1:
        return None
    return op.where(c, x, op.expand_dims(op.broadcast_to(y, x.shape[1:]), 0)), op.where(c, x, y)


@_rule("x: *a *c, y: *c", "broadcast", attrs={"f": "add | multiply"}, numerics="exact")
def row_needs_no_axes_in_front(x: Any, y: Any, f: Any) -> Any:
    """f(x, y[None]) = f(x, y) for sums and products with a row"""
    lead = x.ndim - y.ndim
    return (f(x, op.expand_dims(y, tuple(range(lead)))), f(x, y)) if lead > 0 else None


# --- attention, heads before positions ---

_BIASES = ("b h s t", "b 1 s t", "b 1 1 t", "1 1 s t", "s t")


def _heads_first(kind: str, name: str, dtype: str, how: str, extra: str, rare: bool = False) -> None:
    """Adds the rule for softmax(edited(q k)) v, where the last two axes of k are exchanged before.

    - `dtype`: the dtype of the operands; "" for any.
    - `how`: "wide" where the logits are converted to float32, "summed" where they are summed in float32, "" where they
      have the dtype of the operands.
    - `extra`: the sizes of a bias.
    - `rare`: whether logits may reach the value of masked logits.
    """
    at, of_logits = (f" @ {dtype}", " @ float32" if how else f" @ {dtype}") if dtype else ("", "")
    shapes = f"q: b h s d{at}, k: b h d t{at}, v: b h t d{at}"
    suffix = "_".join(x for x in (dtype, how, extra.replace(" ", "_"), "rare" if rare else "") if x)

    def sides(q: Any, k: Any, v: Any, *more: Any) -> Any:
        logits = _logits(q, k, how)
        right = [q, op.permute_dims(k, _TURNED), v]
        if kind == "mask":
            logits = op.where(more[0], logits, more[1])
            right.append(more[0])
        elif kind == "bias":
            right.append(op.broadcast_to(op.astype(more[0], "float32"), logits.shape))
            logits = logits + more[0]
        return op.astype(op.softmax(logits), q.dtype) @ v, call_library(name, *right, r=1)

    declared = {"": "", "bias": f", extra: {extra}{of_logits}", "mask": f", extra: b h s t @ bool, f:{of_logits}"}
    fill = () if kind != "mask" else _HARDLY if rare else _NEVER
    _rule(
        shapes + declared[kind], "attention", name, name="_".join(x for x in (_plain(name), "by_hand", suffix) if x),
        doc="attention by hand, heads before positions", when=(*conditions(name, "b h s t d"), *fill),
        numerics="approximate" if rare else "reassociate",
    )(sides)  # fmt: skip


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _dtypes(name: str) -> tuple[str, ...]:
    return LIBRARIES[name].requires.dtypes


def _all_heads_first(kind: str, name: str) -> None:
    for dtype, how in ((d, w) for d in _dtypes(name) for w in (("", "wide", "summed") if d in HALF else ("",))):
        if kind == "mask" and dtype != "float32" and not how:
            continue  # no half-precision number is below all logits
        for extra in _BIASES if kind == "bias" else ("",):
            _heads_first(kind, name, dtype, how, extra)
        if kind == "mask":
            _heads_first(kind, name, dtype, how, "", rare=True)


# --- attention as jax.nn.dot_product_attention is traced: positions before heads, groups of heads on their own axis ---


def _from_jax_nn(kind: str, name: str, dtype: str, single: bool = False) -> None:
    """Adds the rules for one kind, routine and dtype. `single`: whether each head has a key of its own, so that a
    causal mask is not copied for groups."""

    def sides(q: Any, k: Any, v: Any, c: Any, *more: Any, r: Any = 1) -> Any:
        b, s, h, d = q.shape
        t, g = k.shape[1], k.shape[2]
        x = op.permute_dims(op.reshape(q, (b, s, g, r, d)), (0, 2, 1, 3, 4))
        wide = {"precision": "BF16_BF16_F32" if dtype == "bfloat16" else "F16_F16_F32", "out_dtype": "float32"}
        how = wide if dtype in HALF else {}
        x = op.matmul(op.reshape(x, (b, g, r * s, d)), op.permute_dims(k, (0, 2, 3, 1)), **how)
        x = op.permute_dims(op.reshape(x, (b, g, s, r, t)) * c, (3, 0, 1, 2, 4))
        heads = [op.permute_dims(_scaled(q, c), _HEADS), op.permute_dims(k, _HEADS), op.permute_dims(v, _HEADS)]
        extra: Any = more[0] if more else None
        if kind == "causal":
            both = op.logical_and(op.broadcast_to(const(True), (b, g, s, t)), op.expand_dims(causal(s, t), (0, 1)))
            extra = op.expand_dims(both, 0) if single else op.broadcast_to(both, (r, b, g, s, t))
        if kind == "bias":
            x = x + extra
        elif kind:
            x = op.where(extra, x, more[-1])
        p = op.permute_dims(op.astype(op.softmax(x), q.dtype), (1, 2, 4, 0, 3))
        o = op.permute_dims(v, (0, 2, 3, 1)) @ op.reshape(p, (b, g, t, r * s))
        o = op.permute_dims(op.reshape(o, (b, g, d, r, s)), (3, 0, 4, 1, 2))
        left = op.reshape(op.permute_dims(o, (1, 2, 3, 0, 4)), q.shape)
        if kind in ("mask", "bias"):
            whole = op.broadcast_to(extra, (r, b, g, s, t))
            over = op.reshape(op.permute_dims(whole, (1, 2, 0, 3, 4)), (b, h, s, t))
            heads.append(over)
        return left, op.permute_dims(call_library(name, *heads, r=r), _HEADS)

    at, wide = f" @ {dtype}", " @ float32"
    base, doc = f"{_plain(name)}_from_jax_nn_{dtype}", "jax.nn.dot_product_attention as it is traced"
    if single:
        shapes = f"q: b s g d{at}, k: b t g d{at}, v: b t g d{at}, c:{wide}, f:{wide}"
        needed = (*conditions(name, "b g s t d"), "f <= -1e30")
        _rule(shapes, "attention", name, name=f"{base}_single", when=needed, doc=doc)(sides)
        return
    shapes = f"q: b s g*r d{at}, k: b t g d{at}, v: b t g d{at}, c:{wide}"
    # By the ending of a rule's name: further operands. In a causal mask every row has a position, so minus infinity is
    # accepted too.
    further: dict[str, dict[str, str]] = {
        "": {"": ""}, "mask": {"": f", extra: r b g s t @ bool, f:{wide}"}, "causal": {"": f", f:{wide}"},
        "bias": {"_row": f", extra: 1 1 1 s t{wide}", "_whole": f", extra: r b g s t{wide}"},
    }  # fmt: skip
    when = (*conditions(name, "b g r s t d"), *{"mask": _NEVER, "causal": _NEVER[:1]}.get(kind, ()))
    for ending, operands in further[kind].items():
        _rule(shapes + operands, "attention", name, name=base + ending, when=when, sizes="r", doc=doc)(sides)


def _scaled(q: Any, c: Any) -> Any:
    """Returns q c, rounded once."""
    return op.astype(op.astype(q, "float32") * c, q.dtype) if q.dtype in HALF else q * c


# --- calls of calls ---


def _causal_call(name: str, special: str, dtype: str) -> None:
    def sides(q: Any, k: Any, v: Any) -> Any:
        b, h, s, _ = q.shape
        t = k.shape[2]
        mask = op.broadcast_to(causal(s, t), (b, h, s, t))
        return call_library(name, q, k, v, mask, r=1), call_library(special, q, k, v, r=1)

    _rule(
        f"q: b h s d @ {dtype}, k: b h t d @ {dtype}, v: b h t d @ {dtype}", "attention", special,
        name=f"{_plain(special)}_of_mask_{dtype}",
        doc="a mask that is a lower triangle is causal", when=conditions(name, "b h s t d"),
    )(sides)  # fmt: skip


def _grouped_call(kind: str, name: str, dtype: str) -> None:
    def sides(q: Any, k: Any, v: Any, *rest: Any, r: Any) -> Any:
        apart = call_library(name, q, repeated(k, r), repeated(v, r), *rest, r=1)
        return apart, call_library(name, q, k, v, *rest, r=r)

    at = f" @ {dtype}"
    shapes = f"q: b g*r s d{at}, k: b g t d{at}, v: b g t d{at}"
    further = {"mask": ", extra: b g*r s t @ bool", "bias": ", extra: b g*r s t @ float32"}.get(kind, "")
    _rule(
        shapes + further, "attention", name, sizes="r", name=f"{_plain(name)}_of_groups_{dtype}",
        doc="keys and values that groups of heads share are not repeated", when=conditions(name, "b g r s t d"),
    )(sides)  # fmt: skip


for _kind in ("", "mask", "bias", "causal"):
    for _routine in attention_names(_kind):
        if _kind != "causal":
            _all_heads_first(_kind, _routine)
        for _dtype in _dtypes(_routine):
            _from_jax_nn(_kind, _routine, _dtype)
            _grouped_call(_kind, _routine, _dtype)
            if _kind == "causal":
                _from_jax_nn(_kind, _routine, _dtype, single=True)
                _masked = _routine.replace("causal", "mask")
                _causal_call(_masked, _routine, _dtype)
