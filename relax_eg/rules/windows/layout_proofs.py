"""Proofs of other ways to write convolutions, in networks with channels last too.

A network with channels last is proved image by image: each is the operator of images that are transposed, for all
values of these. So a proof is as long as its longest step, and equal layers are proved once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relax_eg.errors import RelaxEgError
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE
from relax_eg.rules.shared_parts import why_not_equal_over_shared
from relax_eg.rules.signature import Numerics
from relax_eg.rules.windows.channels_last import ChannelsLast, is_image, permuted, to_first, to_last
from relax_eg.shapes import Dim

_MOST_WINDOWS = 2  # limit: operators of windows in a step: places of one window times those of the next are compared


def why_not_same_network(
    left: Expr, right: Expr, is_large: Callable[[Dim], bool], seconds: float, numerics: Numerics
) -> str:
    """Why two ways to write an image are not shown equal, of which the right one may have images with channels last;
    empty if they are.

    - `is_large`: whether so many bytes of patches are not made (`ChannelsLast`).
    - `seconds`: of processor time, for each step.
    """
    layout = ChannelsLast(lambda x: False, is_large=is_large)
    images = [x for x in postorder((left,)) if is_image(x)]
    last: dict[Expr, Expr] = {}
    for x in images:
        try:
            last[x] = layout.at(x, permuted(x.shape, to_last(x.ndim)))
        except RelaxEgError:  # it does not exist at all sizes
            return f"{x.op} with channels last does not exist"
    todo, done = [(left, right)], {left}
    while todo:
        e, other = todo.pop()
        inside = set(postorder((other,)))
        operands = [a for a in dict.fromkeys(e.args) if a in last and last[a] in inside]
        if why := _why_not_step(e, other, {a: last[a] for a in operands}, seconds, numerics):
            return why
        new = [a for a in operands if a not in done]
        done.update(new)
        todo += [(a, op.permute_dims(last[a], to_first(a.ndim))) for a in new]
    return ""


def _why_not_step(left: Expr, right: Expr, last: Mapping[Expr, Expr], seconds: float, numerics: Numerics) -> str:
    """Why the sides are not shown equal for all values of images that are the keys of `last`, the values of which are
    these with channels last."""
    made: dict[Expr, Expr] = {}
    if left in postorder((right,)):  # which nothing was moved through
        made[left] = var("image", left.annotation)
    for i, (x, moved) in enumerate(last.items()):
        made[x] = image = var(f"image {i}", x.annotation)
        if moved is not x:
            made[moved] = op.permute_dims(image, to_last(x.ndim))
    a, b = substitute_exprs((left, right), made)
    if a is b:
        return ""
    windows = [e for e in postorder((a,)) if {"low", "dilation"} <= dict(e.attrs).keys()]
    if len(windows) > _MOST_WINDOWS:
        return "several windows are read one after the other"
    # Extremes of windows have the same bits: they meet the same elements in the same order.
    ways = dict.fromkeys((numerics,) if any(TABLE[e.op].kernel is not None for e in windows) else ("exact", numerics))
    why = ""
    for way in ways:
        why = why_not_equal_over_shared(a, b, seconds, way)
        if not why:
            break
    return why
