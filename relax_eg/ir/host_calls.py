"""Calls of functions of the host: Python code that runs beside a program, by name (Relax's packed functions).

Such a call is a `call_dps_library` whose name begins with `host:`, and a step: XLA's programs run before and after it.
`ops.host_functions` has the functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from relax_eg.ir.annotations import Annotation
from relax_eg.ir.expr import CALL_DPS_LIBRARY, Expr, call_dps_library

HOST = "host:"
OWN = "relax_eg."  # functions of this package
PROGRAM = OWN + "program"
Convention = Literal["value", "into", "in_place"]


def host_call(
    name: str,
    args: Iterable[Expr],
    out: Annotation,
    *,
    pure: bool,
    convention: Convention = "value",
    in_place: Sequence[int] = (),
    literals: Sequence[tuple[int, Any]] = (),
) -> Expr:
    """Returns the call of the host function `name`.

    - `out`: annotates the result.
    - `pure`: whether it has no effects.
    - `convention`: whether the function returns its result, writes it into arrays that follow the arguments, or writes
      it into the arguments `in_place`, of which it gets copies; -1 there stands for an array after the arguments.
    - `literals`: further arguments that are text, numbers or None, each with its place.
    """
    attrs: list[tuple[str, Any]] = [("convention", convention)] if convention != "value" else []
    attrs += [("in_place", tuple(in_place))] if in_place else []
    attrs += [("literals", tuple(literals))] if literals else []
    return call_dps_library(HOST + name, args, out, attrs, pure)


def is_host_call(e: Expr) -> bool:
    """Whether `e` calls a function of the host."""
    return e.op == CALL_DPS_LIBRARY and str(e.attr("name")).startswith(HOST)
