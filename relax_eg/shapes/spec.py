"""The grammar of signatures: `spec := dims ['@' dtype]`, and `name: spec, name: spec` for rules.

A dim is an integer, a name, `*name` (any number of axes), `_` (unknown), or an expression without spaces or in
parentheses. `""` is a scalar. Examples: `"b s 768"`, `"*b 2*n+1 @ float16"`, `"(n + 1) _"`, `"@ int32"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeAlias

from relax_eg.dtypes import KEY_DTYPE, NUMBERS, SHORT_NAMES
from relax_eg.errors import SpecError
from relax_eg.limits import LARGEST_INT64
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.expression import fold_expression, refusal
from relax_eg.shapes.piecewise import FUNCTIONS

ANY_KEY = "key"
"""The dtype of PRNG keys of the generator that this process uses."""

DTYPES = (*NUMBERS, ANY_KEY)

_DIMS = "dims separated by spaces: 4, n, 2*n+1, (n + 1), *batch, _"


def accepted_dtypes(name: str) -> str:
    """Returns the accepted dtypes for an error about `name`, with a similar name if there is one."""
    near = get_close_matches(name.lower(), [*DTYPES, *SHORT_NAMES], n=1)
    hint = f"did you mean `{near[0]}`? " if near else ""
    return f"{hint}{', '.join(DTYPES)}, key<name>, or short forms such as f16, bf16, i32, u8"


@dataclass(frozen=True, slots=True)
class Star:
    """`*name`: stands for any number of axes."""

    name: str

    def __str__(self) -> str:
        return f"*{self.name}"


SpecDim: TypeAlias = Dim | Star | None


@dataclass(frozen=True, slots=True)
class Spec:
    """A shape and a dtype as written.

    - `dims`: a dim of None is unknown (`_`).
    - `dtype`: None if not given.
    - `text`: the source text; not part of equality.
    """

    dims: tuple[SpecDim, ...]
    dtype: str | None
    text: str = field(compare=False)


def parse_spec(text: str) -> Spec:
    """Parses one spec: `"b s 768 @ float16"`."""
    return _Reader(text).spec()


def parse_signature(text: str) -> dict[str, Spec]:
    """Parses the signature of a rule, in order: `"a: m k, b: k n, c:"`. `c:` is a scalar; a trailing comma is
    allowed."""
    return _Reader(text).signature()


def parse_dtype(text: str) -> str:
    """Returns the full name of a dtype given by its full or short name: `"f16"` -> `"float16"`."""
    return _Reader(text).dtype()


@dataclass(frozen=True, slots=True)
class _Reader:
    """A parser of parts of one source, given as positions in it, so that every error points at its place."""

    source: str

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            kind = type(self.source).__name__
            raise SpecError(f"a spec is text such as 'b s 768 @ float16', got {self.source!r} ({kind})")

    def signature(self) -> dict[str, Spec]:
        specs: dict[str, Spec] = {}
        commas = [i for i, c in self._outside_parentheses(0, len(self.source)) if c == ","]
        starts = [0, *(i + 1 for i in commas)]
        for start, end in zip(starts, [*commas, len(self.source)], strict=True):
            if not self.source[start:end].strip() and end == len(self.source):
                continue  # empty source, or after a trailing comma
            name, colon = self._name(start, end)
            if name in specs:
                raise self._refuse(self._skip(start, end), f"`{name}` is declared twice", "each name once")
            specs[name] = self.spec(colon + 1, end)
        return specs

    def _name(self, start: int, end: int) -> tuple[str, int]:
        """Returns the name before the colon in a part of a signature, and the position of the colon."""
        at = self._skip(start, end)
        colon = self.source.find(":", start, end)
        accepted = "`name: dims` separated by commas, such as `a: m k, b: k n, c:`"
        if colon < 0:
            raise self._refuse(at, "expected `name: dims`", accepted)
        name = self.source[start:colon].strip()
        if not name.isidentifier():
            raise self._refuse(at, f"`{name}` is not a name", accepted)
        return name, colon

    def spec(self, start: int = 0, end: int | None = None) -> Spec:
        end = len(self.source) if end is None else end
        text = self.source[start:end].strip()
        marks = [i for i, c in self._outside_parentheses(start, end) if c == "@"]
        if len(marks) > 1:
            raise self._refuse(marks[1], "a second `@`", "one dtype, at the end: `b s @ float16`")
        if not marks:
            return Spec(self._dims(start, end), None, text)
        return Spec(self._dims(start, marks[0]), self.dtype(marks[0] + 1, end), text)

    def dtype(self, start: int = 0, end: int | None = None) -> str:
        end = len(self.source) if end is None else end
        name = self.source[start:end].strip()
        if name in DTYPES or KEY_DTYPE.fullmatch(name):
            return name
        if name in SHORT_NAMES:
            return SHORT_NAMES[name]
        problem = f"`{name}` is not a dtype" if name else "a dtype is missing after `@`"
        raise self._refuse(self._skip(start, end), problem, accepted_dtypes(name))

    def _dims(self, start: int, end: int) -> tuple[SpecDim, ...]:
        return tuple(self._dim(at, to) for at, to in self._words(start, end))

    def _dim(self, start: int, end: int) -> SpecDim:
        word = self.source[start:end]
        if word == "_":
            return None
        if word.startswith("*"):
            return self._star(word, start)
        if word in NUMBERS:
            raise self._refuse(start, f"`{word}` is a dtype, not a dim", f"the dtype after `@`: `@ {word}`")
        if word[0] == "[" or word[-1] == ",":
            raise self._refuse(start, "dims are separated by spaces, without brackets or commas", _DIMS)
        if word[0] in "+-" or word[-1] in "+-*/%":
            raise self._refuse(start, f"`{word}` is not a dim", f"an expression with spaces in parentheses; {_DIMS}")
        dim = fold_expression(word, Dim.of, Dim.var, FUNCTIONS, source=self.source, start=start)
        if dim.is_const and dim.value < 0:
            raise self._refuse(start, f"the size {dim} is negative", _DIMS)
        if dim.is_const and dim.value > LARGEST_INT64:
            raise self._refuse(start, f"no array has an axis of {dim}", f"sizes up to 2**63 - 1 = {LARGEST_INT64}")
        return dim

    def _star(self, word: str, start: int) -> Star:
        name = word[1:]
        try:
            Dim.var(name)
        except SpecError:
            raise self._refuse(start, f"`{word}` does not name a block of axes", "`*` and a name: `*batch`") from None
        return Star(name)

    def _words(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields start and end of each word: a stretch without spaces outside parentheses."""
        begin = None
        for i, c in self._outside_parentheses(start, end):
            if c.isspace():
                if begin is not None:
                    yield begin, i
                begin = None
            elif begin is None:
                begin = i
        if begin is not None:
            yield begin, end

    def _outside_parentheses(self, start: int, end: int) -> Iterator[tuple[int, str]]:
        """Yields position and character of each character outside parentheses, and of the outermost parentheses."""
        opened: list[int] = []
        for i in range(start, end):
            c = self.source[i]
            if c == ")":
                if not opened:
                    raise self._refuse(i, "`)` without `(`", _DIMS)
                opened.pop()
            if not opened:
                yield i, c
            if c == "(":
                opened.append(i)
        if opened:
            raise self._refuse(opened[-1], "`(` is never closed", _DIMS)

    def _skip(self, start: int, end: int) -> int:
        """Returns the first position that is not a space, or `end`."""
        return next((i for i in range(start, end) if not self.source[i].isspace()), end)

    def _refuse(self, position: int, problem: str, accepted: str) -> SpecError:
        return refusal(self.source, position, problem, accepted)
