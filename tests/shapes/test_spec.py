"""The grammar of specs: what is read, and the exact text of every refusal."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_eg.dtypes import SHORT_NAMES
from relax_eg.errors import SpecError
from relax_eg.shapes import Dim, Spec, Star, parse_signature, parse_spec
from relax_eg.shapes.expression import ACCEPTED
from relax_eg.shapes.spec import DTYPES, parse_dtype

DIMS = "dims separated by spaces: 4, n, 2*n+1, (n + 1), *batch, _"
ENTRY = "`name: dims` separated by commas, such as `a: m k, b: k n, c:`"
ALL_DTYPES = f"{', '.join(DTYPES)}, key<name>, or short forms such as f16, bf16, i32, u8"


@pytest.mark.parametrize(
    ("text", "dims", "dtype"),
    [
        ("", (), None),
        ("  ", (), None),
        ("@ int32", (), "int32"),
        ("b s 768", ("b", "s", 768), None),
        ("b s@i32", ("b", "s"), "int32"),
        ("2*n+1 (n + 1) max(n, m)", ("2*n+1", "n+1", "max(n,m)"), None),
        ("(n)*(m + 1)", ("n*m + n",), None),
        ("*b 2 *c", (Star("b"), 2, Star("c")), None),
        ("_ n _", (None, "n", None), None),
        ("0", (0,), None),
        ("n\n  m", ("n", "m"), None),
        ("2 @ key<fry>", (2,), "key<fry>"),
        ("key @ key", ("key",), "key"),
        ("ceildiv(n,3) n//2 n%4", ("ceildiv(n, 3)", "n//2", "n%4"), None),
        ("select(n<=4,n,4) (m if n > 4 else 2)", ("min(n, 4)", "select(n <= 4, 2, m)"), None),
        ("select(n <= 4, 2, m) b", ("select(n <= 4, 2, m)", "b"), None),
    ],
)
def test_reads(text, dims, dtype):
    expected = tuple(d if d is None or isinstance(d, Star) else Dim.of(d) for d in dims)
    assert parse_spec(text) == Spec(expected, dtype, "text takes no part in equality")
    assert parse_spec(text).text == text.strip()


def test_dtypes():
    assert all(parse_dtype(name) == name for name in DTYPES)
    assert all(parse_dtype(short) == full and full in DTYPES for short, full in SHORT_NAMES.items())


def test_reads_signatures_in_order():
    specs = parse_signature("v: n, a: m max(n, k), b: *b k @ f16, c:")
    assert list(specs) == ["v", "a", "b", "c"]
    assert specs["a"] == parse_spec("m max(n, k)")
    assert specs["b"].text == "*b k @ f16"
    assert specs["c"].dims == ()
    assert parse_signature("\n  a: n,\n  b: m,\n") == {"a": parse_spec("n"), "b": parse_spec("m")}
    assert parse_signature("") == {}


@pytest.mark.parametrize(
    ("text", "line", "problem", "accepted"),
    [
        ("b s @ flot32", "      ^", "`flot32` is not a dtype", f"did you mean `float32`? {ALL_DTYPES}"),
        ("b s @ F32", "      ^", "`F32` is not a dtype", f"did you mean `f32`? {ALL_DTYPES}"),
        ("b s @", "     ^", "a dtype is missing after `@`", ALL_DTYPES),
        ("b @ f16 @ f32", "        ^", "a second `@`", "one dtype, at the end: `b s @ float16`"),
        ("b s int32", "    ^", "`int32` is a dtype, not a dim", "the dtype after `@`: `@ int32`"),
        ("b, s", "^", "dims are separated by spaces, without brackets or commas", DIMS),
        ("[b, s]", "^", "dims are separated by spaces, without brackets or commas", DIMS),
        ("(b, s)", "^", "dims are separated by spaces, not by commas", ACCEPTED),
        ("n + 1", "  ^", "`+` is not a dim", f"an expression with spaces in parentheses; {DIMS}"),
        ("m 2* n", "  ^", "`2*` is not a dim", f"an expression with spaces in parentheses; {DIMS}"),
        ("n -1", "  ^", "`-1` is not a dim", f"an expression with spaces in parentheses; {DIMS}"),
        ("n 2-3", "  ^", "the size -1 is negative", DIMS),
        ("n (m", "  ^", "`(` is never closed", DIMS),
        ("n)", " ^", "`)` without `(`", DIMS),
        ("*", "^", "`*` does not name a block of axes", "`*` and a name: `*batch`"),
        ("b n/2", "  ^", "`/` is not defined on sizes; use `//` (floor) or ceildiv(a, b)", ACCEPTED),
        ("b n//0", "  ^", "division by zero: (n)//0", ACCEPTED),
        ("éé n<3", "   ^", "cannot read `n < 3` in a dimension expression", ACCEPTED),
        ("b (n + foo(n))", "       ^", "cannot read `foo(n)` in a dimension expression", ACCEPTED),
        ("select(n, 1, 2)", "       ^", "`n` does not compare two sizes by == != <= < >= >", ACCEPTED),
        ("select(n<4, 1)", "^", "`select` takes a comparison and two sizes, got 2", ACCEPTED),
        ("select(1<n<4,1,2)", "       ^", "`1 < n < 4` does not compare two sizes by == != <= < >= >", ACCEPTED),
        ("b select(n<4,1,n//0)", "               ^", "division by zero: (n)//0", ACCEPTED),
        (
            "b 9223372036854775808",
            "  ^",
            "no array has an axis of 9223372036854775808",
            "sizes up to 2**63 - 1 = 9223372036854775807",
        ),
        ("max(n)", "^", "`max` takes two arguments, got 1", ACCEPTED),
        ("n**99", "^", "the power 99 is not an integer from 0 to 16", ACCEPTED),
        ("4.5", "^", "cannot read `4.5` in a dimension expression", ACCEPTED),
        ("b 2n", "  ^", "`2n` is neither a number nor a name; a product needs `*`", ACCEPTED),
        ("b n*2if", "    ^", "`2if` is neither a number nor a name; a product needs `*`", ACCEPTED),
        ("'a'", "^", "cannot read `'` in a dimension expression", ACCEPTED),
        ("n#m", " ^", "cannot read `#` in a dimension expression", ACCEPTED),
        ("b n+", "  ^", "`n+` is not a dim", f"an expression with spaces in parentheses; {DIMS}"),
    ],
)
def test_refusals(text, line, problem, accepted):
    with pytest.raises(SpecError) as error:
        parse_spec(text)
    assert str(error.value) == f"{problem}\n  {text}\n  {line}\n  accepted: {accepted}"


@pytest.mark.parametrize(
    ("text", "line", "problem", "accepted"),
    [
        ("a", "^", "expected `name: dims`", ENTRY),
        ("a: n,, b: m", "     ^", "expected `name: dims`", ENTRY),
        ("3: n", "^", "`3` is not a name", ENTRY),
        ("a: n, a: m", "      ^", "`a` is declared twice", "each name once"),
        ("a: n, b: n<m", "         ^", "cannot read `n < m` in a dimension expression", ACCEPTED),
    ],
)
def test_refusals_of_signatures(text, line, problem, accepted):
    with pytest.raises(SpecError) as error:
        parse_signature(text)
    assert str(error.value) == f"{problem}\n  {text}\n  {line}\n  accepted: {accepted}"


def test_a_refusal_shows_the_offending_line_only():
    with pytest.raises(SpecError) as error:
        parse_signature("a: n,\n  b: n<m,\n  c: k")
    assert str(error.value).split("\n")[1:3] == ["    b: n<m,", "       ^"]


def test_a_refusal_shows_the_place_in_a_long_line():
    with pytest.raises(SpecError) as error:
        parse_spec(f"{'a ' * 500}{'7' * 5000} b")
    problem, line, caret, accepted = str(error.value).split("\n")
    assert problem == "an integer of 5000 digits"
    assert line == "  " + "a " * 60 + "7" * 120
    assert caret == " " * 122 + "^"
    assert accepted == "  accepted: integers of at most 4000 digits"


def test_python_syntax_errors_are_refusals():
    # Where the caret stands differs between versions of Python.
    with pytest.raises(SpecError, match=r"^cannot read the dimension expression `if`\n  b if\n"):
        parse_spec("b if")


def test_only_text_is_a_spec():
    with pytest.raises(SpecError) as error:
        parse_spec(("b", "s"))  # pyright: ignore
    assert str(error.value) == "a spec is text such as 'b s 768 @ float16', got ('b', 's') (tuple)"


@pytest.mark.filterwarnings("error")
@given(st.text(alphabet="nm_2 *+-/%(),:@<>#\n\\'\"éi32max", max_size=20))
def test_any_text_is_read_or_refused(text):
    for parse in (parse_spec, parse_signature, Dim.of):
        with contextlib.suppress(SpecError):
            parse(text)


@pytest.mark.parametrize("text", ["(" * 5000 + "n" + ")" * 5000, "+".join(["n"] * 20000), "n\0", "9" * 5000])
def test_monstrous_text_is_read_or_refused(text):
    with contextlib.suppress(SpecError):
        parse_spec(text)
