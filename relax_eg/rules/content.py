"""What a rule says, exactly, as a token (`ir.tokens`): what is kept of a search outside this process goes by it.

A function counts by its compiled code, the values it closes over, and the globals it mentions, followed into functions,
classes and modules of users. What is of Python's library, numpy, JAX or this package counts by its name; their versions
are for the key to tell. Nothing is evaluated.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from typing import Any

import numpy as np

from relax_eg.ir.tokens import KNOWN, NoContentError, class_name, refuse, token
from relax_eg.rules.rule import Rule
from relax_eg.rules.schemas import Schema

# What a rule tells people, and what it found out of itself.
_NO_CONTENT = ("doc", "where", "tags", "_instances")
_NO_MEMBERS = ("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__")


def rule_token(rule: Rule | Schema) -> Any:
    """The token of a rule. NoContentError where it uses something whose content does not show."""
    content = _Content()
    fields = {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule) if f.name not in _NO_CONTENT}
    library = fields.pop("library", None)
    if library is not None:  # its rule's function is made of the pattern and of this record
        fields |= {"function": library.pattern, "library": library.content}
    return (type(rule).__name__, *[(name, content.of(value)) for name, value in fields.items()])


def value_token(value: Any) -> Any:
    """The token of anything that a rule uses. NoContentError as above."""
    return _Content().of(value)


class _Content:
    """One walk over what a function uses; what is met again counts by its number."""

    def __init__(self) -> None:
        self.met: dict[int, tuple[int, Any]] = {}

    def of(self, value: Any) -> Any:
        return token(value, self._other)

    def _again(self, value: Any) -> Any:
        """The number of a function, class or module that was met before; None the first time."""
        known = self.met.get(id(value))
        if known is not None:
            return ("again", known[0])
        self.met[id(value)] = (len(self.met), value)
        return None

    def _other(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self._again(value) or self._function(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.MethodType):
            return ("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, functools.partial):
            return ("partial", self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, (staticmethod, classmethod)):
            return (type(value).__name__, self.of(value.__func__))
        if isinstance(value, property):
            return ("property", self.of(value.fget))
        if isinstance(value, functools._lru_cache_wrapper):  # type: ignore[reportPrivateUsage]
            return ("cached", self.of(value.__wrapped__))
        if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, (types.ModuleType, type(None))):
            return ("builtin", value.__module__, value.__qualname__)
        if isinstance(value, np.ufunc):
            return ("ufunc", value.__name__)
        if isinstance(value, type):
            return self._again(value) or self._class(value)
        if value is Ellipsis:
            return "..."
        return refuse(value)

    def _function(self, f: types.FunctionType) -> Any:
        try:
            cells = [self.of(c.cell_contents) for c in f.__closure__ or ()]
        except ValueError:
            raise NoContentError(f"{f.__qualname__} closes over a variable that has no value yet") from None
        inner = [cells, self.of(f.__defaults__), self.of(f.__kwdefaults__)]
        if _is_fixed(f.__module__):
            return ("own", f.__module__, f.__qualname__, f.__code__.co_firstlineno, *inner)
        names, scope = _names(f.__code__), f.__globals__
        found = [(n, self._named(scope[n], names)) for n in names if n in scope]
        return ("function", self._code(f.__code__), *inner, found)

    def _named(self, value: Any, names: tuple[str, ...]) -> Any:
        """A global that code mentions; of a module what it takes from there, as far as names tell."""
        if not isinstance(value, types.ModuleType):
            return self.of(value)
        if _is_fixed(value.__name__):
            return ("module", value.__name__)
        inside = vars(value)
        return self._again(value) or (
            "module",
            value.__name__,
            [(n, self._named(inside[n], names)) for n in names if n in inside],
        )

    def _code(self, code: types.CodeType) -> Any:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return ("code", code.co_code.hex(), code.co_exceptiontable.hex(), counts, names, self.of(code.co_consts))

    def _class(self, kind: type) -> Any:
        if _is_fixed(kind.__module__):
            return ("class", class_name(kind))
        members = [(n, self.of(v)) for n, v in vars(kind).items() if n not in _NO_MEMBERS]
        return ("class", class_name(kind), members, [self.of(b) for b in kind.__bases__])


def _is_fixed(module: str | None) -> bool:
    """Whether a module is of a package that its version describes."""
    top = (module or "").partition(".")[0]
    return top in KNOWN or (top in sys.stdlib_module_names and top != "__main__")


@functools.lru_cache(1 << 12)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Global names and attributes that code mentions, inner functions included."""
    inner = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in _names(c)]
    return tuple(dict.fromkeys((*code.co_names, *inner)))
