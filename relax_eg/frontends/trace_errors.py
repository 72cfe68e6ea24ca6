"""Error messages that tell the user why a function cannot be traced."""

from __future__ import annotations

import inspect
import linecache
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from relax_eg import logs
from relax_eg.errors import RelaxEgError, TraceError
from relax_eg.frontends.sources import called_function, is_about_a_symbolic_size, user_line
from relax_eg.frontends.specs import Leaf
from relax_eg.shapes.constraints import dim_of_jax
from relax_eg.shapes.multiples import deciding_multiples
from relax_eg.shapes.relation import read_statement

# What JAX says of a division that has to leave no remainder, by its own name in reshapes and splits.
_REMAINDER = re.compile(r"The remainder (.+) should be 0|does not result in an equal division: rest is (.+)")
_NEGATED = {">=": "<", ">": "<=", "<=": ">", "<": ">="}
_SHOWN = 6  # limit: arguments listed in a message

_BRANCH = (
    "jnp.where, jax.lax.cond or jax.lax.while_loop where the decision depends on the value of an array; "
    "functools.partial(fn, flag=True) where it is known before the call"
)
_SIZE = (
    "an integer for that size in the spec, declared bounds that decide the comparison, "
    "or code that holds for every size"
)
_SIZE_AS_NUMBER = (
    "an integer for that size in the spec; or a function of jax.numpy, which takes symbolic sizes: "
    "jnp.sqrt(x.shape[-1]) instead of math.sqrt or ** 0.5, jnp.zeros instead of np.zeros, "
    "x.shape[0] instead of len(x), jax.lax.fori_loop or jax.lax.scan instead of range"
)
_SIZE_ALONE = "an integer for that size in the spec; or rx.jit without dims, which makes a program for each size"
_NUMPY = "jax.numpy instead of numpy; functools.partial for values that are known before the call"
_RELAX = (
    "the program in Relax text, where R.unique, R.nonzero and R.masked_select give as many elements as there are, and "
    "R.match_cast names their number"
)
_ARRAYS = "arrays, numbers and pytrees of them as arguments and results of the functions called"
_SHAPES = "specs whose sizes and dtypes fit together; equal sizes need equal names"


def check_output(fn: Callable[..., Any], name: str, path: Any, value: Any) -> Any:
    """`value`, a leaf of the result of `fn`. TraceError unless it is an array or a number."""
    try:
        jax.typeof(value)
    except TypeError:
        place = jax.tree_util.keystr(path)
        raise TraceError(
            f"cannot trace `{name}`{_place(fn)}: result{place} is of type {type(value).__name__}\n  accepted: {_ARRAYS}"
        ) from None
    return value


def trace_error(
    fn: Callable[..., Any],
    name: str,
    leaves: Sequence[Leaf],
    error: Exception,
    undecided: tuple[str, str] | None = None,
) -> TraceError:
    """The TraceError for an exception that JAX raised while tracing `fn`. `undecided`: the result of
    `undecided_comparison`."""
    called = called_function(error) if is_about_a_symbolic_size(error) else None
    lines = [f"cannot trace `{name}`{_place(fn)}: {_reason(error)}" + (f", in JAX's `{called}`" if called else "")]
    where = user_line(error)
    if where is not None:
        text = linecache.getline(*where).strip()
        lines.append(f"  at {os.path.basename(where[0])}:{where[1]}" + (f": {text}" if text else ""))
    accepted = _accepted(error)
    if accepted is not _SHAPES and accepted is not _SIZE:
        undecided = None
    if accepted is _SHAPES and leaves:
        shown = [f"{leaf.path} {leaf.annotation.short}" for leaf in leaves[:_SHOWN]]
        if len(leaves) > _SHOWN:
            shown.append(f"and {len(leaves) - _SHOWN} more")
        lines.append(f"  with {', '.join(shown)}")
    if undecided is not None:
        decided = f"{accepted}; bounds={undecided[0]!r} or bounds={undecided[1]!r}, which decides it"
        accepted = _multiples(undecided) or decided
    lines.append(f"  accepted: {accepted}")
    return TraceError("\n".join(lines), undecided)


def _multiples(undecided: tuple[str, str]) -> str:
    """The specs in which an undecided division leaves no remainder, for a message; empty where none are found."""
    (relation,) = read_statement(undecided[0])
    found = deciding_multiples(relation) or {}
    instead = " and ".join(f"`{str(d).replace(' ', '')}` in place of `{v}`" for v, d in found.items())
    return f"{instead} in the specs, so that the division leaves no remainder" if instead else ""


def undecided_comparison(error: Exception) -> tuple[str, str] | None:
    """For an error about a comparison of sizes that JAX could not decide: the comparison and its negation, of which one
    holds. An equality says that a division leaves no remainder, and is spelled as JAX spells it. None for other
    errors."""
    rest = _REMAINDER.search(str(error))
    if rest is not None:
        left = rest[1] or rest[2]
        return (f"{left} == 0", f"{left} != 0") if "mod(" in left else None
    asked = re.search(r"'([^']+)' (>=|>|<=|<) '([^']+)' is inconclusive", str(error))
    if asked is None:
        return undecided_extreme(str(error))
    try:
        left, op, right = dim_of_jax(asked[1]), asked[2], dim_of_jax(asked[3])
    except RelaxEgError:  # the size cannot be read as a `Dim`
        return None
    return f"{left} {op} {right}", f"{left} {_NEGATED[op]} {right}"


def undecided_extreme(text: str) -> tuple[str, str] | None:
    """Returns two statements, either of which decides the first `min` or `max` in a message of JAX; None if there is
    none. Such messages are about shapes that do not fit because one was cut at a size: `(min(128, n - 1), 64)`."""
    for found in re.finditer(r"\b(?:min|max)\(", text):
        sides = _arguments(text, found.end())
        if len(sides) == 2:
            try:
                left, right = (dim_of_jax(s.strip()) for s in sides)
            except RelaxEgError:
                continue
            # The variable size stands first, as a reader expects.
            if left.is_const:
                left, right = right, left
            return f"{left} <= {right}", f"{left} > {right}"
    return None


def _arguments(text: str, start: int) -> Sequence[str]:
    """The arguments of a call whose opening parenthesis ends at `start`; empty if the parenthesis is not closed."""
    depth, pieces, begun = 1, list[str](), start
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0 or (depth == 1 and text[i] == ","):
            pieces.append(text[begun:i])
            begun = i + 1
        if depth == 0:
            return pieces
    return ()


def cause(error: BaseException) -> BaseException | None:
    """`error` at debug level 3 and above, so that JAX's own traceback is shown; otherwise None."""
    return error if logs.level() >= 3 else None


def _place(fn: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""


def _reason(error: Exception) -> str:
    """The first sentence of JAX's message."""
    said = re.sub("'_DimExpr' object|_DimExpr", "a symbolic size", str(error))
    text = (
        " ".join(re.split(r"\n\n|\n(?=This error arises|The error occurred)", said)[0].split()) or type(error).__name__
    )
    sentence = re.split(r"(?<=[^.A-Z])\.(?:\s|$)", text, maxsplit=1)[0]
    return sentence if len(sentence) <= 300 else sentence[:297] + "..."


def _accepted(error: Exception) -> str:
    if isinstance(error, (jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError)):
        return _NUMPY
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return f"jnp.where with three arguments, whose result is as large as the operands; or {_RELAX}"
    if re.search(r"size argument of|jnp\.\w+ must be statically specified|unique\(\)|nonzero", str(error)):
        return f"`size=...`, the number of elements of the result; or {_RELAX}"
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return _BRANCH
    if "of non-constant size" in str(error):  # jax.lax.associative_scan
        return _SIZE_ALONE
    if is_about_a_symbolic_size(error):
        return _SIZE_ALONE if called_function(error) else _SIZE_AS_NUMBER
    if type(error).__name__ == "InconclusiveDimensionOperation" or "shape polymorphism" in str(error):
        return _SIZE
    if re.search(r"not a valid JAX type|abstract array|non-array|must be arrays", str(error)):
        return _ARRAYS
    return _SHAPES
