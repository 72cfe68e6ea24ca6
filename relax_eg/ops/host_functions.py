"""Functions of the host by name, and their calls on numpy arrays.

    @rx.script.register_function("my.scale")
    def scale(x):                       # numpy arrays, shapes as tuples of integers, text, numbers
        return x * 2

A text that calls a name that is not registered reads, prints and optimizes; the call is an error when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from relax_eg.argument_checks import FLAG, TEXT, accepts, short_repr
from relax_eg.dtypes import numpy_dtype
from relax_eg.errors import HostError, OptionError, RelaxEgError, ShapeError
from relax_eg.ir.annotations import Annotation, Data, Shape, Tensor, Tuple
from relax_eg.ir.data import map_annotated
from relax_eg.ir.devices import TO_DEVICE
from relax_eg.ir.expr import Expr
from relax_eg.ir.host_calls import HOST, OWN, PROGRAM
from relax_eg.shapes import Dim
from relax_eg.tir.imperative import run_program

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])

HOST_FUNCTIONS: dict[str, Callable[..., Any]] = {}


@overload
def register_function(name: str, fn: None = None, *, replace: bool = False) -> Callable[[F], F]: ...
@overload
def register_function(name: str, fn: F, *, replace: bool = False) -> F: ...
@accepts(OptionError, name=TEXT, replace=FLAG)
def register_function(name: str, fn: F | None = None, *, replace: bool = False) -> F | Callable[[F], F]:
    """Makes a Python function callable by programs under `name`, as by `R.call_packed("name", x)`. Also a decorator.

    The function gets numpy arrays, shapes as tuples of integers, and data, text and numbers as they are. It runs on the
    host, in the process that runs the program; a saved program holds its name only.

    - `replace`: whether a function that has the name is replaced.

    OptionError for what is not callable, or for a name that another function has.
    """
    if fn is None:
        return lambda made: register_function(name, made, replace=replace)
    if not callable(fn):
        raise OptionError(f"register_function({name!r}, {short_repr(fn)}): a function is accepted")
    if name.startswith(OWN):
        raise OptionError(
            f"register_function({name!r}): names with `{OWN}` are this package's; another name is accepted"
        )
    if HOST_FUNCTIONS.get(name, fn) is not fn and not replace:
        raise OptionError(f"register_function({name!r}): another function has this name; replace=True is accepted")
    HOST_FUNCTIONS[name] = fn
    return fn


def run_host_call(call: Expr, args: Sequence[Any], sizes: Mapping[str, int]) -> Any:
    """Returns the result of a call of a host function on numpy arrays.

    HostError for a name that is not registered, for a result that does not fit its annotation, and for an exception of
    the function.
    """
    name = str(call.attr("name")).removeprefix(HOST)
    attrs = dict(call.attr("attrs"))
    found = _OWN.get(name) if name.startswith(OWN) else HOST_FUNCTIONS.get(name, BUILTINS.get(name))
    if found is None:
        known = ", ".join(sorted(HOST_FUNCTIONS)) or "none"
        raise HostError(
            f'no function of the host is named "{name}"; registered are: {known}\n'
            f'  accepted: rx.script.register_function("{name}", function) before the call'
        )
    convention = attrs.get("convention", "value")
    try:
        if convention == "value":
            made = found(*_with_literals(args, attrs))
        else:
            made = _filled(found, args, call.annotation, attrs, sizes)
    except RelaxEgError:
        raise
    except Exception as error:
        raise HostError(f'the host function "{name}" raised {type(error).__name__}: {str(error)[:500]}') from error
    return _checked(name, made, call.annotation, sizes)


def _with_literals(args: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    given = list(args)
    for place, value in attrs.get("literals", ()):
        given.insert(place, value)
    return given


def _filled(
    fn: Callable[..., Any], given: Sequence[Any], out: Annotation, attrs: Mapping[str, Any], sizes: Mapping[str, int]
) -> Any:
    """Returns what a function writes into arrays: fresh ones after the arguments, or copies of arguments."""
    fields = list(out.fields) if isinstance(out, Tuple) else [out]
    places = attrs.get("in_place") or (-1,) * len(fields)
    # A tensor program may store into what it reads.
    changed = range(len(given)) if fn is run_program else places
    arrays = [np.array(x) if i in changed and isinstance(x, np.ndarray) else x for i, x in enumerate(given)]
    fresh = [_empty(a, sizes) for a, i in zip(fields, places, strict=False) if i < 0]
    fn(*_with_literals(arrays, attrs), *fresh)
    left = iter(fresh)
    made = [next(left) if i < 0 else arrays[i] for i in places]
    return tuple(made) if isinstance(out, Tuple) else made[0]


def _empty(a: Annotation, sizes: Mapping[str, int]) -> Array:
    if not isinstance(a, Tensor) or a.shape is None or a.dtype is None:
        raise HostError(f"a result that is filled is annotated {a}; a tensor of known sizes and dtype is accepted")
    return np.zeros([int(d.evaluate(sizes)) for d in a.shape], numpy_dtype(a.dtype))


def _checked(name: str, made: Any, out: Annotation, sizes: Mapping[str, int], place: str = "") -> Any:
    where = f'the host function "{name}" gives{place and f" {place}:"}'
    if isinstance(out, Tuple):
        if not out.fields:
            return ()
        if not isinstance(made, (tuple, list)) or len(made) != len(out.fields):  # type: ignore[reportUnknownArgumentType]
            raise HostError(f"{where} {short_repr(made)}, annotated {out}")
        return tuple(_checked(name, x, a, sizes) for x, a in zip(made, out.fields, strict=True))  # type: ignore[reportUnknownArgumentType]
    if isinstance(out, Data):
        try:
            return map_annotated("result", out, made, lambda where, a, x: _checked(name, x, a, sizes, where))
        except ShapeError as error:
            raise HostError(f'the host function "{name}": its {error}, annotated {out}') from None
    if isinstance(out, Shape):
        found = tuple(int(n) for n in made)
        if not _fits(out.dims, out.ndim, found, sizes):
            raise HostError(f"{where} the shape {found}, annotated {out}")
        return found
    if isinstance(out, Tensor):
        array = np.asarray(made)
        right = out.dtype is None or array.dtype == numpy_dtype(out.dtype)
        if not right or not _fits(out.shape, out.ndim, array.shape, sizes):
            shape = [d.evaluate(sizes) if d.variables <= sizes.keys() else d for d in out.shape or ()]
            wanted = f"[{', '.join(map(str, shape))}]" if out.shape is not None else f"rank {out.ndim}"
            raise HostError(
                f"{where} {array.dtype}{list(array.shape)}, annotated {out.dtype} {wanted}\n"
                "  accepted: a result that has the annotation of its call"
            )
        return array
    return made


def _fits(dims: Sequence[Dim] | None, rank: int | None, shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Whether a shape has the rank and the known sizes that an annotation says."""
    known = ((d, n) for d, n in zip(dims or (), shape, strict=False) if d.variables <= sizes.keys())
    return rank in (None, len(shape)) and all(d.evaluate(sizes) == n for d, n in known)


def _print(*args: Any) -> tuple[()]:
    *values, text = args
    print(text.format(*values) if text else " ".join(map(str, values)))
    return ()


def _assert(condition: Any, *args: Any) -> tuple[()]:
    *values, text = args
    if not bool(np.all(condition)):
        raise HostError("an assertion of the program failed" + (f": {text.format(*values)}" if text else ""))
    return ()


def _function(name: str) -> Callable[..., Any]:
    found = HOST_FUNCTIONS.get(name, BUILTINS.get(name))
    if found is None:
        makes = f'rx.script.register_function("{name}", function) makes it'
        raise HostError(f'no function of the host is named "{name}"; {makes}')
    return found


def _index(i: Any) -> int:
    """A number that is an argument: a size is a shape of one."""
    return int(i[0]) if isinstance(i, tuple) else int(i)


# Relax's functions of the virtual machine that run here; `ir.vm_builtins` reads the others. A function that
# is registered under a name goes first.
BUILTINS: Mapping[str, Callable[..., Any]] = {
    "vm.builtin.tuple_getitem": lambda fields, i: fields[_index(i)],
    "vm.builtin.read_if_cond": lambda x: np.bool_(np.all(x)),
    "vm.builtin.null_value": lambda: None,
    "vm.builtin.to_device": lambda x, *device: x,
}


_OWN: Mapping[str, Callable[..., Any]] = {
    OWN + "print": _print,
    OWN + "assert": _assert,
    OWN + "function": _function,
    OWN + "text": lambda text: text,
    OWN + "apply": lambda f, *args: f(*args),
    TO_DEVICE: lambda x, device: x,
    OWN + "shape_of": lambda x: x.shape,
    OWN + "tensor_to_shape": lambda x: tuple(int(n) for n in x),
    OWN + "shape_to_tensor": lambda s: np.asarray(s, np.int64),
    OWN + "reshape": lambda x, s: x.reshape(s),
    OWN + "broadcast_to": lambda x, s: np.broadcast_to(x, s),
    OWN + "full": lambda s, value: np.full(s, value),
    PROGRAM: run_program,
}
