"""Laws as rules that a person would have written: the most general typed function of an equality, and its text."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from relax_eg.discovery.grammar import Grammar, OperatorForm
from relax_eg.discovery.table import EqualPair
from relax_eg.discovery.terms import Term, leaves_of, operators_of, size_of
from relax_eg.discovery.typings import AXES, ON_LAST_AXIS, Signature, is_symmetric, is_whole, signatures, variables_of
from relax_eg.errors import DiscoveryError, RelaxEgError
from relax_eg.ir.expr import VAR, Expr, constant_value, fresh_name, postorder
from relax_eg.ops import api
from relax_eg.rules.book import default
from relax_eg.rules.checking.check import without_checks
from relax_eg.rules.format import expression_text
from relax_eg.rules.rule import Rule, instances
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.signature import Numerics
from relax_eg.shapes import Dim
from relax_eg.tir import TensorProgram

# given: infix operators of Python and their precedences
_INFIX = {"add": ("+", 1), "subtract": ("-", 1), "multiply": ("*", 2), "divide": ("/", 2), "matmul": ("@", 2)}
_HIGHEST = 9  # given: precedence of a name


def is_reversible(c: EqualPair, grammar: Grammar) -> bool:
    """Whether the right side binds all variables, so that the law is a rule in both directions."""
    right = {v for v in leaves_of(c.right) if v < grammar.variable_count}
    return not isinstance(c.right, int) and right == set(variables_of(c, grammar))


class Writer:
    """Writes laws as functions, with names that neither those it wrote have nor the rules that ship, so that sets of
    both can be combined."""

    def __init__(self, grammar: Grammar, names: set[str] | None = None) -> None:
        """`names`: those that are taken besides, to which the new ones are added."""
        self.grammar = grammar
        self._names = set[str]() if names is None else names
        self._names |= {r.name for r in (*default, *default.schemas)}

    # --- names and texts ---

    def name(self, c: EqualPair) -> str:
        return fresh_name(re.sub(r"\W", "_", self._stem(c)), self._names, "_", 2)

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

    def source(
        self, c: EqualPair, name: str, typed: Sequence[Signature], numerics: Numerics, both: bool | None = False
    ) -> str:
        """The function of a law, with a decorator for each typing of one kind. `both`: for both directions wherever
        that is possible; False: only where neither side is smaller; None: from left to right alone."""
        same_size = both or (both is not None and size_of(c.left) == size_of(c.right))
        decorators: list[str] = []
        for n, t in enumerate(typed, 1):
            options = [f'"{t.shapes}"', *([f'name="{name}_typed_{n}"'] if n > 1 else [])]
            if t.attrs:
                options.append(f'attrs={{"{t.axis}": "{t.attrs}"}}')
            if c.condition is not None:
                quoted = ", ".join(f'"{w}"' for w in c.condition.when)
                options.append(f"when={quoted}" if len(c.condition.when) == 1 else f"when=({quoted})")
            options.append(f'numerics="{numerics}"')
            if same_size and is_reversible(c, self.grammar) and (not is_symmetric(c) or "*a" in t.shapes):
                options.append("both=True")
            if isinstance(c.right, int):
                options.append('phase="simplify"')
            decorators.append(_wrapped(f"@_rule({', '.join(options)})"))
        names = [str(self.grammar.variables[i].attr("name")) for i in variables_of(c, self.grammar)]
        signature = typed[0]
        parameters = [*names, *([signature.axis] if signature.attrs else [])]
        sides = ", ".join(self._code(t, signature, names)[0] for t in (c.left, c.right))
        return (
            "\n".join(decorators) + f"\ndef {name}({', '.join(f'{p}: Any' for p in parameters)}) -> Any:\n"
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
            return _number(value), _HIGHEST if value >= 0 else 0
        form = g.forms[t[0]]
        parts = [self._code(a, s, names) for a in t[1:]]
        if form.op in _INFIX and not form.attributes and form.is_operator:
            sign, level = _INFIX[form.op]
            a, b = parts
            left = a[0] if a[1] >= level else f"({a[0]})"
            right = b[0] if b[1] > level else f"({b[0]})"
            return f"{left} {sign} {right}", level
        if form.op == "negative" and form.is_operator:
            return f"-{parts[0][0] if parts[0][1] == _HIGHEST else f'({parts[0][0]})'}", 3
        inside = ", ".join(p for p, _ in parts)
        if form.program is not None:
            return f"rx.call_tir({form.op}, ({inside}{',' if len(parts) == 1 else ''}))", _HIGHEST
        if form.is_library:
            more = "".join(f", {k}={v!r}" for k, v in form.attributes)
            return f'op.library("{form.op}", {inside}{more})', _HIGHEST
        rank = len(g.type_of(t[1])[0]) if len(t) > 1 else 0
        return self._operator_code(form, inside, rank, s, names), _HIGHEST

    def _filled_code(self, t: int, names: Sequence[str]) -> str:
        """A constant in the shape of a variable; of one that the law has, if there is one."""
        c, v = self.grammar.filled[t]
        own = [x for x in self.grammar.variables if x.annotation == v.annotation and x.attr("name") in names]
        name, value = (own or [v])[0].attr("name"), constant_value(c).item()
        if value in (0, 1):
            return f"op.{'ones' if value else 'zeros'}_like({name})"
        return f"op.full({name}.shape, {_number(value)}, {name}.dtype)"

    def _operator_code(self, form: OperatorForm, inside: str, rank: int, s: Signature, names: Sequence[str]) -> str:
        """A use of an operator, the first operand of which has `rank` axes where the law was found."""
        function = getattr(api, form.op, None)
        if form.op == "permute_dims" and s.axis == "last":
            if (axes := dict(form.attributes)["axes"]) != _exchanged(rank):
                raise DiscoveryError(f"axes {axes}: an exchange of the last two axes is written with more in front")
            return f"op.swapaxes({inside}, -1, -2)"
        attributes = {
            k: self._attribute_code(k, v, rank, s, names) for k, v in form.attributes if not _is_default(k, v)
        }
        known = {} if function is None else inspect.signature(function).parameters
        words = {k: k if k in known else "axis" if k == "axes" and "axis" in known else k for k in attributes}
        if function is None or not known.keys() >= set(words.values()):  # or it has other arguments
            shown = ", ".join(f'"{k}": {v}' for k, v in attributes.items())
            return f'call("{form.op}", ({inside},), {{{shown}}})'
        if form.op in ("concat", "stack"):
            inside = f"[{inside}]"
        for k, v in attributes.items():
            inside += f"{', ' if inside else ''}{words[k]}={v}"
        return f"op.{form.op}({inside})"

    def _attribute_code(self, name: str, value: Any, rank: int, s: Signature, names: Sequence[str]) -> str:
        if name in AXES and s.attrs:
            return s.axis
        if name in AXES and s.axis == "last":
            from_last = tuple(v - rank for v in value) if isinstance(value, tuple) else value - rank  # type: ignore[reportUnknownVariableType]
            return _plain_axes(from_last)
        if isinstance(value, tuple) and any(isinstance(d, Dim) for d in value):  # type: ignore[reportUnknownVariableType]
            return self._sizes_code(value, s, names)  # type: ignore[reportUnknownArgumentType]
        if name in AXES:
            return _plain_axes(value)
        return json.dumps(value) if isinstance(value, str) else repr(value)

    def _sizes_code(self, value: Sequence[Any], s: Signature, names: Sequence[str]) -> str:
        """Sizes as they are taken from the shapes of variables. Raises DiscoveryError if the law has none with them."""
        own = [x for x in self.grammar.variables if x.attr("name") in names]
        whole = next((f"{x.attr('name')}.shape" for x in own if x.shape == tuple(value)), "")
        if whole:
            return whole
        if own and is_whole(value, ()):
            return f"(0,) * {own[0].attr('name')}.ndim"
        at = self._varying(value, own) if s.axis == "axis" else None
        if at is not None:
            x, axis = at
            here = self._size_code(value[axis], own, axis)
            rest = f"{x.attr('name')}.shape[i]" if value[1 - axis] is x.shape[1 - axis] else "0"
            return f"tuple({here} if i == axis else {rest} for i in range({x.attr('name')}.ndim))"
        inner = ", ".join(self._size_code(d, own) for d in value)
        return f"({inner}{',' if len(value) == 1 else ''})"

    def _varying(self, value: Sequence[Any], own: Sequence[Expr]) -> tuple[Expr, int] | None:
        """A variable and the axis on which bounds of a slice of matrices differ from none at all."""
        for x in own:
            for axis in (0, 1) if len(x.shape) == len(value) == 2 else ():
                others = {d.shape[axis] for d in own if len(d.shape) == 2}
                if len(others) > 1 and (value[1 - axis] is x.shape[1 - axis] or value[1 - axis] == Dim.of(0)):
                    return x, axis
        return None

    def _size_code(self, d: Any, own: Sequence[Expr], any_axis: int | None = None) -> str:
        """A size as it is taken from the shapes of variables; those of `any_axis` along the variable `axis`."""

        def found(m: re.Match[str]) -> str:
            for v in own:
                for axis, size in enumerate(v.shape):
                    if str(size) == m[0]:
                        return f"{v.attr('name')}.shape[{'axis' if axis == any_axis else axis}]"
            raise DiscoveryError(f"no variable of the law has the size {m[0]}")

        return re.sub(r"[^\W\d]\w*", found, str(d))

    def rule(self, source: str) -> list[Rule]:
        """The rules of a function's text, unchecked. Raises RelaxEgError if it makes none."""
        return list(load(self.file([source]), "law"))

    def file(
        self, sources: Sequence[str], title: str = "Laws that a search found and proved.", book: str = "found"
    ) -> str:
        """A file of rules with these functions."""
        return file_text(sources, self.grammar.programs, title, book)

    def general(self, c: EqualPair, name: str, numerics: Numerics, both: bool | None = False) -> Iterator[str]:
        """The texts of a law whose rule has the law as an instance, the most general first."""
        return (text for _, text in self.typed(c, name, numerics, both))

    def typed(
        self, c: EqualPair, name: str, numerics: Numerics, both: bool | None = False, every: bool = False
    ) -> Iterator[tuple[Signature, str]]:
        """As `general`, with the typings. `every`: as in `signatures`."""
        wanted = self.grammar.expression(c.left), self.grammar.expression(c.right)
        for s in signatures(c, self.grammar, every):
            try:
                text = self.source(c, name, [s], numerics, both)
                (rule, *_) = self.rule(text)
                if s.attrs or "*" in s.shapes:
                    if not _has_instance(rule, wanted):
                        continue
                elif next(iter(instances(rule, limit=1)), None) is None:
                    continue
            except RelaxEgError:
                continue
            yield s, text


def _has_instance(rule: Rule, wanted: tuple[Expr, Expr]) -> bool:
    """Whether the rule states the wanted equality, up to names of sizes, at one of its ranks, and exists at others."""
    found = list(instances(rule, limit=24, dtypes=("float32",)))
    return len(found) > 1 and _shown(wanted) in {_shown((i.left[0], i.right[0])) for i in found}


def _shown(sides: tuple[Expr, Expr]) -> tuple[str, ...]:
    """The sides as texts, with sizes named in the order of appearance."""
    names = {v for e in postorder(sides) if e.op == VAR for d in e.shape for v in d.variables}
    numbers: dict[str, int] = {}

    def number(m: re.Match[str]) -> str:
        return f"${numbers.setdefault(m[0], len(numbers))}" if m[0] in names else m[0]

    return tuple(re.sub(r"[^\W\d]\w*", number, expression_text(e)) for e in sides)


def _number(value: Any) -> str:
    """A constant as rules write it."""
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _exchanged(rank: int) -> tuple[int, ...]:
    """The order of axes in which the last two are exchanged."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _is_default(name: str, value: Any) -> bool:
    return name == "strides" and isinstance(value, tuple) and set(value) == {1}  # type: ignore[reportUnknownArgumentType]


def _plain_axes(value: Any) -> str:
    return repr(value[0] if isinstance(value, tuple) and len(value) == 1 else value)  # type: ignore[reportUnknownArgumentType]


def _general_text(text: str, s: Signature) -> str:
    """The formula of a law, with the axes of operators as the signature has them."""
    axes = s.axis if s.attrs else "-1" if s.generality == ON_LAST_AXIS else ""
    return re.sub(r"ax[ei]s=(\([^)]*\)|\d+)", axes, text) if axes else text


def doc_of(source: str) -> str:
    """The formula in the text of a law's function."""
    return source.partition('"""')[2].partition('"""')[0]


def _condition_text(c: EqualPair) -> str:
    return "" if c.condition is None else f" for {' and '.join(map(_plain_condition, c.condition.when))}"


def _plain_condition(text: str) -> str:
    fact, _, name = text.rstrip(")").partition("(")
    bounds = {"nonnegative": f"{name} >= 0", "positive": f"{name} > 0", "nonzero": f"{name} != 0"}
    return bounds.get(fact, f"{name} {fact}" if name else text)


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
