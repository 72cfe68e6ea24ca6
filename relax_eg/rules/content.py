"""The exact content of a rule as a token (`ir.tokens`), by which search results are stored outside this process.

The token of a function consists of its compiled code, the values over which it closes, and the globals that it
mentions. Users' functions, classes and modules are followed recursively. Objects of Python's library, numpy, JAX and
this package count by name; the cache key has to include their versions. Nothing is evaluated.

Shipped verdicts must be valid for longer. So `text_token` uses source text instead of compiled code, and also follows
this package's definitions of operators. The code on which all verdicts depend is in the files of `CHECKER`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import linecache
import sys
import types
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from relax_eg.ir.tokens import LIBRARY_PACKAGES, NoContentError, class_name, is_library_class, raise_no_content, token
from relax_eg.ops.libraries import Library
from relax_eg.ops.record import TABLE, Operator
from relax_eg.rules.format import expression_text
from relax_eg.rules.rule import Rule, instances
from relax_eg.rules.schemas import Schema

# Fields of a rule that are documentation, tests or caches.
_NO_CONTENT = ("doc", "where", "tags", "trials", "_instances")
_NO_MEMBERS = ("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__")

# Files of the package on which every test and proof depends, whatever operators the rule has: the checkers, dtypes,
# arithmetic of sizes, index equations and the reference interpreter. `text_token` follows nothing into these files.
CHECKER = (
    "dtypes.py", "rules/*.py", "rules/checking/*.py", "rules/pieces/*.py", "rules/verify_formal/*.py",
    "rules/windows/*.py", "shapes/*.py", "tir/*.py", "ir/annotations.py", "ir/expr.py", "ops/facts.py",
    "ops/interpret.py", "ops/libraries.py", "ops/record.py", "ops/shorthand.py",
)  # fmt: skip
# Names of files in rules/ that match `CHECKER` but on which no verdict depends.
_NO_CHECKER = (
    "__init__ __main__ checking/certificates checking/program_accuracy checking/schema_answers checking/verification "
    "content answer_cache matching replacements"
).split()
_PACKAGE = Path(__file__).parents[1]
BOOKS = "relax_eg.rules.book."
_FOLLOWED = ("relax_eg.ops.", BOOKS)


def is_of_book(function: Any) -> bool:
    """Whether a function is one of the books of this package."""
    return (function.__module__ or "").startswith(BOOKS)


def rule_token(rule: Rule | Schema) -> Any:
    """The token of a rule. Raises NoContentError if the rule uses a value that has no token."""
    content = _Content()
    fields = {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule) if f.name not in _NO_CONTENT}
    library = fields.pop("library", None)
    if library is not None:  # the function of a library rule is made from the pattern and this record
        fields |= {"function": library.pattern, "library": library.content}
    return (type(rule).__name__, *[(name, content.of(value)) for name, value in fields.items()])


def value_token(value: Any) -> Any:
    """The token of any value that a rule uses. Raises NoContentError if it has none."""
    return _Content().of(value)


def text_token(value: Any) -> Any:
    """The token of any value that a rule uses, by source text. Raises NoContentError if it has none."""
    return _Text().of(value)


def meanings(operators: Iterable[str]) -> str:
    """Hashes of the meanings of operators, one per line. A name that is not in the table (a variable, a call) has no
    hash."""
    return "\n".join(f"{name} {_meaning(TABLE[name]) if name in TABLE else ''}" for name in sorted(operators))


@functools.lru_cache(1 << 10)
def _meaning(operator: Operator) -> str:
    """A hash of an operator's parameters, attributes, deduction function, index equations, reference and definition."""
    said = (operator.parameters, operator.attributes, operator.deduce, operator.equations, operator.reference)
    return digest(repr(text_token(said if operator.definition is None else (*said, operator.definition))))


@functools.lru_cache(1)
def checker() -> str:
    """A hash of the files of `CHECKER` without comment lines and empty lines. Docstrings count."""
    files = sorted({f.relative_to(_PACKAGE).as_posix() for pattern in CHECKER for f in _PACKAGE.glob(pattern)})
    apart = {f"rules/{name}.py" for name in _NO_CHECKER}
    texts = {f: (_PACKAGE / f).read_text(encoding="utf-8") for f in files if f not in apart}
    return digest("\n".join(f"{f}\n{_code_lines(text.splitlines())}" for f, text in texts.items()))


def digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _code_lines(lines: Iterable[str]) -> str:
    """The lines without empty lines and comment lines."""
    return "\n".join(t for line in lines if (t := line.rstrip()) and not t.lstrip().startswith("#"))


def content_hash(rule: Rule | Schema) -> str:
    """A hash of the content of `rule`. It may differ between processes, see `lasting_hash`."""
    if isinstance(rule, Schema):
        return digest(_schema_text(rule))
    signature = [(n, tuple(map(str, s.dims)), s.dtype) for n, s in rule.signature.items()]
    attributes = [(n, s, rule.choices(n)) for n, s in rule.attributes.items()]
    declared = rule.name, signature, attributes, rule.sizes, rule.when, rule.numerics, rule.reverse
    return digest("\n".join([repr(declared), *_function_text(rule), *_library_text(rule)]))


def lasting_hash(rule: Rule | Schema) -> str:
    """`content_hash` if it is the same in every process; empty if the rule contains something that can only be
    identified within this process."""
    if isinstance(rule, Schema):
        return content_hash(rule) if is_of_book(rule.propose) else ""
    try:
        if rule.library is not None:
            value_token(rule.library.content[1])
    except NoContentError:
        return ""
    return content_hash(rule)


def _schema_text(schema: Schema) -> str:
    """The source file of a shipped schema. Any other schema gets a text that is unique in this process, so that it is
    tested once per process: its function may use anything."""
    if not is_of_book(schema.propose):
        return f"{schema.name!r} {id(schema.propose)}"
    file = Path(__file__).parent / "book" / f"{schema.propose.__module__.rpartition('.')[2]}.py"
    return f"{schema.name!r} {file.read_text(encoding='utf-8')}"


def _library_text(rule: Rule) -> Iterator[str]:
    """The name, requirements and target of the routine, if the rule lowers to a library call."""
    if rule.library is not None:
        name, target, requires, *_ = rule.library.content
        yield repr((name, requires))
        try:
            yield repr(value_token(target))
        except NoContentError:  # the target can be identified in this process only
            yield f"{type(target).__name__} {id(target)}"


def _function_text(rule: Rule) -> Iterator[str]:
    try:
        yield repr(text_token(rule.library.pattern if rule.library else rule.function))
    except NoContentError:
        # The source is not available, or a value has no content token: the instances stand for the function.
        for instance in instances(rule, limit=32):
            typed = ", ".join(map(repr, instance.params))
            left, right = (" ; ".join(map(expression_text, side)) for side in (instance.left, instance.right))
            yield f"{typed}: {left} => {right}"


class _Content:
    """A walk over everything that a function uses. The second and later uses of an object are its number."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}

    def of(self, value: Any) -> Any:
        return token(value, self._other)

    def _back_reference(self, value: Any) -> Any:
        """The number of a function, class or module that was met before; None at its first use."""
        known = self.seen.get(id(value))
        if known is not None:
            return ("again", known[0])
        self.seen[id(value)] = (len(self.seen), value)
        return None

    def _other(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self._back_reference(value) or self._function(value)
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
            return self._back_reference(value) or self._class(value)
        if value is Ellipsis:
            return "..."
        return raise_no_content(value)

    def _function(self, f: types.FunctionType) -> Any:
        try:
            cells = [self.of(c.cell_contents) for c in f.__closure__ or ()]
        except ValueError:
            raise NoContentError(f"{f.__qualname__} closes over a variable that has no value yet") from None
        inner = [cells, self.of(f.__defaults__), self.of(f.__kwdefaults__)]
        if self._is_fixed(f.__module__):
            return ("own", f.__module__, f.__qualname__, f.__code__.co_firstlineno, *inner)
        names, scope = _names(f.__code__), f.__globals__
        found = [(n, self._named(scope[n], names)) for n in names if n in scope]
        return ("function", self._code(f.__code__), *inner, found)

    def _named(self, value: Any, names: tuple[str, ...]) -> Any:
        """The token of a global that code mentions. Of a module, only members whose names the code mentions count."""
        if not isinstance(value, types.ModuleType):
            return self.of(value)
        if self._is_fixed(value.__name__):
            return ("module", value.__name__)
        inside = vars(value)
        return self._back_reference(value) or (
            "module",
            value.__name__,
            [(n, self._named(inside[n], names)) for n in names if n in inside],
        )

    def _code(self, code: types.CodeType) -> Any:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return ("code", code.co_code.hex(), code.co_exceptiontable.hex(), counts, names, self.of(code.co_consts))

    def _class(self, kind: type) -> Any:
        if self._is_fixed(kind.__module__):
            return ("class", class_name(kind))
        members = [(n, self.of(v)) for n, v in vars(kind).items() if n not in _NO_MEMBERS]
        return ("class", class_name(kind), members, [self.of(b) for b in kind.__bases__])

    def _is_fixed(self, module: str | None) -> bool:
        """Whether a module belongs to a package that its version identifies."""
        top = (module or "").partition(".")[0]
        return top in LIBRARY_PACKAGES or (top in sys.stdlib_module_names and top != "__main__")


class _Text(_Content):
    """A walk that uses source text, which does not depend on the version of Python, and that follows code into
    operators and the books."""

    def _other(self, value: Any) -> Any:
        if isinstance(value, Library):
            return ("library", value.name, self.of(value.pattern))
        if isinstance(value, (types.FunctionType, type)) or not is_library_class(type(value)):
            return super()._other(value)
        try:
            return super()._other(value)
        except NoContentError:  # an object of numpy or this package: a function in C, a marker such as `REQUIRED`
            return (class_name(type(value)), getattr(value, "__name__", ""))

    def _function(self, f: types.FunctionType) -> Any:
        if not self._is_fixed(f.__module__):
            return super()._function(f)
        _, module, name, line, *inner = super()._function(f)
        return ("own", module, name, line if "<lambda>" in name else 0, *inner)

    def _code(self, code: types.CodeType) -> Any:
        text = source_of(code)
        return super()._code(code) if text is None else ("text", text)

    def _class(self, kind: type) -> Any:
        if self._is_fixed(kind.__module__):
            return super()._class(kind)
        # Members that decorators generate have no source and differ between versions of Python.
        members = sorted((n, v) for n, v in vars(kind).items() if _has_source(v) or not n.startswith("__"))
        return ("class", class_name(kind), [(n, self.of(v)) for n, v in members], [self.of(b) for b in kind.__bases__])

    def _is_fixed(self, module: str | None) -> bool:
        module = module or ""
        return module.partition(".")[0] == "scipy" or (super()._is_fixed(module) and not _is_followed(module))


@functools.lru_cache(1 << 8)
def _is_followed(module: str) -> bool:
    path = f"{module.removeprefix('relax_eg.').replace('.', '/')}.py"
    return module.startswith(_FOLLOWED) and path not in CHECKER


def _has_source(value: Any) -> bool:
    if isinstance(value, property):
        value = value.fget
    f = getattr(value, "__func__", value)
    return isinstance(f, types.FunctionType) and source_of(f.__code__) is not None


@functools.lru_cache(1 << 12)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Global names and attributes that code mentions, including inner functions, in alphabetical order, because their
    order in the code differs between versions of Python."""
    inner = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in _names(c)]
    return tuple(sorted({*code.co_names, *inner}))


@functools.lru_cache(1 << 13)
def source_of(code: types.CodeType) -> str | None:
    """The source text of a function from its first decorator, without empty lines and comment lines; for a lambda, its
    parameters and body. None if the file is not available."""
    linecache.checkcache(code.co_filename)  # the file may have changed and been loaded again
    lines = linecache.getlines(code.co_filename)
    first = code.co_firstlineno - 1
    if not 0 <= first < len(lines):
        return None
    if code.co_name == "<lambda>":
        return _lambda_text(code, lines)
    # This costs a fraction of inspect.getsource, which tokenizes the text.
    indent = len(lines[first]) - len(lines[first].lstrip())
    taken: list[str] = []
    in_body = False
    for line in lines[first:]:
        text = line.strip()
        deeper = not text or len(line) - len(line.lstrip()) > indent
        if in_body and not deeper:
            break
        taken.append(line)
        head = not deeper and text.startswith("def ") and text.partition("#")[0].rstrip().endswith(":")
        in_body = in_body or head or text.startswith(") ->")
    if not in_body:  # a layout that the loop above cannot parse
        try:
            return inspect.getsource(code)
        except (OSError, TypeError, IndentationError):
            return None
    return _code_lines(taken)


def _lambda_text(code: types.CodeType, lines: list[str]) -> str | None:
    """Parameters and body of a lambda, cut out of its lines by position, because a line may hold several lambdas."""
    spans = [
        (line, start, end_line, end)
        for line, end_line, start, end in code.co_positions()
        if line is not None and end_line is not None and start is not None and end is not None and end
    ]
    if not spans:  # Python was started without code positions
        return None
    line, start = min(s[:2] for s in spans)
    end_line, end = max(s[2:] for s in spans)
    # Column positions count bytes.
    text = [t.encode() for t in lines[line - 1 : end_line]]
    text[-1] = text[-1][:end]
    text[0] = text[0][start:]
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return f"lambda {', '.join(parameters)}: {b''.join(text).decode()}"
