"""Laws as rules that a person would have written: the most general typed function of an equality, and its text."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from relax_eg.discovery.grammar import Grammar, OperatorForm
from relax_eg.discovery.table import EqualPair
from relax_eg.discovery.terms import Term, leaves_of, operators_of, size_of
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr, constant_value
from relax_eg.ops import api
from relax_eg.rules.book import default
from relax_eg.rules.check import without_checks
from relax_eg.rules.format import expression_text
from relax_eg.rules.rule import Rule, instances
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.signature import Numerics
from relax_eg.shapes import Dim
from relax_eg.tir import TensorProgram

# given: infix operators of Python and their precedences
_INFIX = {"add": ("+", 1), "subtract": ("-", 1), "multiply": ("*", 2), "divide": ("/", 2), "matmul": ("@", 2)}
_HIGHEST = 9  # given: precedence of a name
_AXES = ("axes", "axis")


@dataclass(frozen=True)
class Signature:
    """A typing of the variables of a law.

    - `shapes`: the text of the rule's signature.
    - `axis`: how the axes of operators are written: "plain", "last" (-1), or the name of an attribute variable.
    - `attrs`: what the attribute variable ranges over; empty if there is none.
    """

    shapes: str
    axis: str = "plain"
    attrs: str = ""


def signatures(c: EqualPair, grammar: Grammar) -> Iterator[Signature]:
    """The typings of a candidate, the most general first: any number of axes, with one operand that broadcasts; any
    axis; more axes in front."""
    used = _variables(c, grammar)
    forms = [grammar.forms[n] for n in (*operators_of(c.left), *operators_of(c.right))]
    has_program = any(f.program is not None for f in forms)
    texts = {n: str(s.text) for n, s in grammar.signature.items()}
    names = [str(grammar.variables[i].attr("name")) for i in used]

    def shapes(of: dict[str, str], open_dtype: str = "") -> str:
        parts: list[str] = []
        for n in names:
            given = grammar.signature[n].dtype
            dims = of[n].partition("@")[0].strip()
            wanted = given or ("float32" if has_program else open_dtype)
            parts.append(f"{n}: {dims}".rstrip() + (f" @ {wanted}" if wanted else ""))
        return ", ".join(parts)

    every = {grammar.variables[i].shape for i in used}
    on_axes = [f for f in forms if any(k in _AXES for k, _ in f.attributes)]
    on_sizes = any(isinstance(v, tuple) and any(isinstance(d, Dim) for d in v) for f in forms for _, v in f.attributes)  # type: ignore[reportUnknownVariableType]
    has_block = any("*" in t and t != "*b" for t in texts.values())
    if len(every) == 1 and not has_program and not on_sizes and not has_block:
        (shape,) = every
        if not c_sizes(c) and shape:
            if not on_axes and not any(f.op in OF_MATRICES for f in forms):
                if len(names) > 1:
                    yield Signature(shapes({n: "*c" if n == names[-1] else "*a *c" for n in texts}))
                yield Signature(shapes(dict.fromkeys(texts, "*b")))
            values = {(k, v) for f in on_axes for k, v in f.attributes if k in _AXES}
            if len(values) == 1:
                ((attribute, _),) = values
                ops = list(dict.fromkeys(f.op for f in on_axes))
                yield Signature(shapes(dict.fromkeys(texts, "*b")), "axes", f"{' | '.join(ops)}.{attribute}")
        last = len(shape) - 1
        if on_axes and all(_is_last(f, last) for f in on_axes) and last >= 0:
            yield Signature(shapes(dict.fromkeys(texts, f"*b {shape[-1]}")), "last")
    yield Signature(shapes(texts))
    yield Signature(shapes(texts, "float32"))


# given: operators about the last axes
OF_MATRICES = frozenset(("matmul", "linear", "triu", "tril", "cholesky", "triangular_solve"))


def c_sizes(c: EqualPair) -> frozenset[str]:
    """The sizes that the condition of a candidate names."""
    return frozenset() if c.condition is None else c.condition.sizes


def _is_last(f: OperatorForm, last: int) -> bool:
    return all(v in (last, (last,)) for k, v in f.attributes if k in _AXES)


def _variables(c: EqualPair, grammar: Grammar) -> list[int]:
    return sorted({v for v in leaves_of(c.left) if v < grammar.variable_count})


def is_reversible(c: EqualPair, grammar: Grammar) -> bool:
    """Whether the right side binds all variables, so that the law is a rule in both directions."""
    right = {v for v in leaves_of(c.right) if v < grammar.variable_count}
    return not isinstance(c.right, int) and right == set(_variables(c, grammar))


def is_symmetric(c: EqualPair) -> bool:
    """Whether the law is itself in the other direction, under other names of variables."""
    found: dict[int, int] = {}

    def same(a: Term, b: Term) -> bool:
        if isinstance(a, int) or isinstance(b, int):
            return isinstance(a, int) and isinstance(b, int) and found.setdefault(a, b) == b
        return a[0] == b[0] and len(a) == len(b) and all(map(same, a[1:], b[1:]))

    return same(c.left, c.right) and all(found.get(b) == a for a, b in found.items())


class Writer:
    """Writes laws as functions, with names that neither those it wrote have nor the rules that ship, so that sets of
    both can be combined."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._names = {r.name for r in (*default, *default.schemas)}

    # --- names and texts ---

    def name(self, c: EqualPair) -> str:
        stem = self._stem(c)
        name, n = stem, 1
        while name in self._names:
            n += 1
            name = f"{stem}_{n}"
        self._names.add(name)
        return name

    def _stem(self, c: EqualPair) -> str:
        t, g = c.left, self.grammar
        root = g.forms[t[0]].op
        inner = [a for a in t[1:] if not isinstance(a, int)]
        leaves = [a for a in t[1:] if isinstance(a, int)]
        if isinstance(c.right, int) and c.right in g.filled and not inner and len(set(leaves)) == 1:
            return f"{root}_of_itself"
        if not inner:
            constants = [_word(g.leaves[a]) for a in leaves if a >= g.variable_count]
            if constants:
                return f"{root}_with_{'_'.join(constants)}"
            if len(leaves) > 1 and len(set(leaves)) == 1:
                return f"{root}_of_itself"
            return f"{root}_commutes" if c.right == (t[0], *reversed(t[1:])) else f"{root}_of_variables"
        if all(n == t[0] for n in (*operators_of(t), *operators_of(c.right))) and len(t) > 2:
            is_flat = size_of(t) == size_of(c.right)
            return f"{root}_associates" if is_flat else f"{root}_of_{root}"
        return f"{root}_of_{'_and_'.join(g.forms[a[0]].op for a in inner)}"

    def text(self, c: EqualPair) -> str:
        """The law as a formula."""
        left, right = (expression_text(self.grammar.expression(t)) for t in (c.left, c.right))
        return f"{left} = {right}{_condition_text(c)}"

    # --- functions ---

    def source(self, c: EqualPair, name: str, signature: Signature, numerics: Numerics, both: bool = False) -> str:
        """The function of a law, with its decorator. `both`: for both directions wherever that is possible; otherwise
        only where neither side is smaller."""
        same_size = both or size_of(c.left) == size_of(c.right)
        is_both = same_size and is_reversible(c, self.grammar) and ("*c" in signature.shapes or not is_symmetric(c))
        options = [f'"{signature.shapes}"']
        if signature.attrs:
            options.append(f'attrs={{"{signature.axis}": "{signature.attrs}"}}')
        if c.condition is not None:
            quoted = ", ".join(f'"{w}"' for w in c.condition.when)
            options.append(f"when={quoted}" if len(c.condition.when) == 1 else f"when=({quoted})")
        options.append(f'numerics="{numerics}"')
        if is_both:
            options.append("both=True")
        if isinstance(c.right, int):
            options.append('phase="simplify"')
        names = [str(self.grammar.variables[i].attr("name")) for i in _variables(c, self.grammar)]
        parameters = [*names, *([signature.axis] if signature.attrs else [])]
        sides = ", ".join(self._code(t, signature, names)[0] for t in (c.left, c.right))
        decorator = f"@_rule({', '.join(options)})"
        return (
            f"{_wrapped(decorator)}\n"
            f"def {name}({', '.join(f'{p}: Any' for p in parameters)}) -> Any:\n"
            f'    """{_general_text(self.text(c), signature)}"""\n'
            f"    return {sides}\n"
        )

    def _code(self, t: Term, s: Signature, names: Sequence[str]) -> tuple[str, int]:
        g = self.grammar
        if isinstance(t, int):
            if t < g.variable_count:
                return str(g.variables[t].attr("name")), _HIGHEST
            if t in g.filled:
                return self._filled_code(t, names), _HIGHEST
            value = constant_value(g.leaves[t]).item()
            return repr(value), _HIGHEST if value >= 0 else 0
        form = g.forms[t[0]]
        parts = [self._code(a, s, names) for a in t[1:]]
        if form.op in _INFIX and not form.attributes and form.program is None:
            sign, level = _INFIX[form.op]
            a, b = parts
            left = a[0] if a[1] >= level else f"({a[0]})"
            right = b[0] if b[1] > level else f"({b[0]})"
            return f"{left} {sign} {right}", level
        if form.op == "negative" and form.program is None:
            return f"-{parts[0][0] if parts[0][1] == _HIGHEST else f'({parts[0][0]})'}", 3
        inside = ", ".join(p for p, _ in parts)
        if form.program is not None:
            return f"rx.call_tir({form.op}, ({inside}{',' if len(parts) == 1 else ''}))", _HIGHEST
        return self._operator_code(form, inside, s), _HIGHEST

    def _filled_code(self, t: int, names: Sequence[str]) -> str:
        """A constant in the shape of a variable; of one that the law has, if there is one."""
        c, v = self.grammar.filled[t]
        own = [x for x in self.grammar.variables if x.annotation == v.annotation and x.attr("name") in names]
        name, value = (own or [v])[0].attr("name"), constant_value(c).item()
        if value in (0, 1):
            return f"op.{'ones' if value else 'zeros'}_like({name})"
        return f"op.full({name}.shape, {value!r}, {name}.dtype)"

    def _operator_code(self, form: OperatorForm, inside: str, s: Signature) -> str:
        function = getattr(api, form.op, None)
        attributes = {k: self._attribute_code(k, v, s) for k, v in form.attributes}
        if function is None:
            given = ", ".join(f'"{k}": {v}' for k, v in attributes.items())
            return f'call("{form.op}", ({inside},), {{{given}}})'
        known = inspect.signature(function).parameters
        if form.op in ("concat", "stack"):
            inside = f"[{inside}]"
        for k, v in attributes.items():
            word = k if k in known else "axis" if k == "axes" and "axis" in known else k
            inside += f", {word}={v}"
        return f"op.{form.op}({inside})"

    def _attribute_code(self, name: str, value: Any, s: Signature) -> str:
        if name in _AXES and s.attrs:
            return s.axis
        if name in _AXES and s.axis == "last":
            return "-1"
        if isinstance(value, tuple) and any(isinstance(d, Dim) for d in value):  # type: ignore[reportUnknownVariableType]
            inner = ", ".join(self._size_code(d) for d in value)  # type: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            return f"({inner}{',' if len(value) == 1 else ''})"  # type: ignore[reportUnknownArgumentType]
        if isinstance(value, tuple) and len(value) == 1 and name in _AXES:  # type: ignore[reportUnknownArgumentType]
            return repr(value[0])
        return json.dumps(value) if isinstance(value, str) else repr(value)

    def _size_code(self, d: Any) -> str:
        """A size as it is taken from the shapes of variables."""

        def found(m: re.Match[str]) -> str:
            for v in self.grammar.variables:
                for axis, size in enumerate(v.shape):
                    if str(size) == m[0]:
                        return f"{v.attr('name')}.shape[{axis}]"
            return m[0]

        return re.sub(r"[^\W\d]\w*", found, str(d))

    def rule(self, source: str) -> list[Rule]:
        """The rules of a function's text, unchecked. Raises RelaxEgError if it makes none."""
        return list(load(self.file([source]), "law"))

    def file(
        self, sources: Sequence[str], title: str = "Laws that a search found and proved.", book: str = "found"
    ) -> str:
        """A file of rules with these functions."""
        return file_text(sources, self.grammar.programs, title, book)

    def general(self, c: EqualPair, name: str, numerics: Numerics, both: bool = False) -> Iterator[str]:
        """The texts of a law whose rule has the law as an instance, the most general first."""
        wanted = self.grammar.expression(c.left), self.grammar.expression(c.right)
        for s in signatures(c, self.grammar):
            text = self.source(c, name, s, numerics, both)
            try:
                (rule, *_) = self.rule(text)
                if s.attrs or s.axis == "last" or "*" in s.shapes:
                    if not _has_instance(rule, wanted):
                        continue
                elif next(iter(instances(rule, limit=1)), None) is None:
                    continue
            except RelaxEgError:
                continue
            yield text


def _has_instance(rule: Rule, wanted: tuple[Expr, Expr]) -> bool:
    """Whether the rule states the wanted equality, up to names of sizes, at one of its ranks, and exists at others."""
    found = list(instances(rule, limit=24, dtypes=("float32",)))
    texts = {(expression_text(i.left[0]), expression_text(i.right[0])) for i in found}
    shown = expression_text(wanted[0]), expression_text(wanted[1])
    return len(found) > 1 and shown in texts


def _general_text(text: str, s: Signature) -> str:
    """The formula of a law, with the axes of operators as the signature has them."""
    if s.attrs:
        return re.sub(r"ax[ei]s=(\([^)]*\)|\d+)", "axes", text)
    return re.sub(r"ax[ei]s=(\([^)]*\)|\d+)", "-1", text) if s.axis == "last" else text


def doc_of(source: str) -> str:
    """The formula in the text of a law's function."""
    return source.partition('"""')[2].partition('"""')[0]


def _condition_text(c: EqualPair) -> str:
    return "" if c.condition is None else f" for {' and '.join(map(_plain_condition, c.condition.when))}"


def _plain_condition(text: str) -> str:
    fact, _, name = text.rstrip(")").partition("(")
    return {"nonnegative": f"{name} >= 0", "positive": f"{name} > 0", "nonzero": f"{name} != 0"}.get(fact, text)


def _word(e: Expr) -> str:
    value = constant_value(e).item()
    words = {0: "zero", 1: "one", -1: "minus_one", 2: "two", 0.5: "half"}
    return words.get(value, re.sub(r"\W", "_", f"{value:g}"))


def _wrapped(decorator: str) -> str:
    """A decorator on one line, or on several if it is longer than a line."""
    if len(decorator) <= 120:  # given: the length of a line in this project
        return decorator
    return decorator + "  # fmt: skip"


def program_text(p: TensorProgram) -> str:
    return f'{p.name} = parse_program(\n    """{p}"""\n)\n'


def file_text(sources: Sequence[str], programs: dict[str, TensorProgram], title: str, book: str) -> str:
    body = "\n\n".join(sources)
    lines = [f'"""{title}"""', "", "from __future__ import annotations", "", "from typing import Any", ""]
    lines += ["import relax_eg as rx"]
    if re.search(r"(?<!\.)\bop\.", body):
        lines.append("from relax_eg.ops import api as op")
    if re.search(r"(?<![\w.])call\(", body):
        lines.append("from relax_eg.ops.record import call")
    if programs:
        lines.append("from relax_eg.tir import parse_program")
    lines += ["", f'{book} = rx.RuleSet("{book}")', f"_rule = {book}.rule", ""]
    lines += [program_text(p) for p in programs.values()]
    return "\n".join(lines) + "\n\n" + body


def load(text: str, name: str) -> RuleSet:
    """The rules of a file's text, unchecked."""
    names: dict[str, Any] = {"__name__": name}
    with without_checks():
        exec(compile(text, f"<{name}>", "exec"), names)
    return next(v for v in names.values() if isinstance(v, RuleSet))
