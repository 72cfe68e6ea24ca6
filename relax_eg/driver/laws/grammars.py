"""Grammars whose terms may be cheaper than fragments: of the operators of these, and others of their kind."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.discovery.grammar import Grammar, OperatorForm
from relax_eg.discovery.terms import Term
from relax_eg.dtypes import is_float, is_integer
from relax_eg.errors import DiscoveryError
from relax_eg.ir.expr import CONSTANT, VAR, Expr, constant_value, postorder
from relax_eg.ops.record import TABLE, operators_run_as
from relax_eg.shapes import Dim

# given: operators of the kind of products and sums, and of functions of elements, which terms may have besides
_OF_PRODUCTS = ("matmul", "multiply", "permute_dims(axes=(1,0))", "sum(axes=(0,))", "sum(axes=(1,))")
_OF_ELEMENTS = ("add", "multiply", "negative")
# given: operators that may be written by each other
_KINDS = (
    frozenset(("where", "greater", "less", "greater_equal", "less_equal", "maximum", "minimum", "abs", "relu")),
    frozenset(("exp", "log", "expm1", "log1p", "sigmoid", "tanh", "softplus")),
    frozenset(("sqrt", "rsqrt", "divide", "reciprocal")),
)
# given: reductions over the axis of operators that say more than these
_TOTALS = {
    "cumsum": ("sum",),
    "cumprod": ("prod",),
    "cummax": ("max",),
    "cummin": ("min",),
    "sort": ("max", "min"),
}
_FEWEST = ("maximum", "minimum", "abs", "exp", "log", "sigmoid", "tanh", "sqrt", "rsqrt")  # given: those that terms get


def grammar_of(
    roots: Sequence[Expr], params: Sequence[Expr], holes: Sequence[Expr] = (), operators: str = ""
) -> tuple[Grammar, list[Term]]:
    """A grammar with the operators of fragments, and `operators` or others of their kind, and the fragments as its
    terms. `holes`: variables that are no leaves of terms; the first is term -1, the next -2, and so on."""
    forms: dict[Expr, OperatorForm] = {}
    constants: dict[float, None] = {}
    dtypes: dict[str, None] = {}
    for e in postorder(roots):
        if e.op == CONSTANT:
            if constant_value(e).ndim or not (is_float(e.dtype) or is_integer(e.dtype)):
                raise DiscoveryError("a constant that no grammar has")
            constants[float(constant_value(e).item())] = None
            dtypes[e.dtype] = None
        elif e.op != VAR:
            defaults = {a.name: a.default for a in TABLE[e.op].attributes}
            given = tuple((k, v) for k, v in e.attrs if v is not defaults[k] and v != defaults[k])
            forms[e] = OperatorForm(e.op, len(e.args), given)
    contracts = any(f.op in operators_run_as("matmul") or f.op == "sum" for f in forms.values())
    used = {f.op for f in forms.values()}
    kinds = frozenset[str]().union(*(k for k in _KINDS if k & used)).intersection(_FEWEST)
    more = _OF_PRODUCTS if contracts and all(len(p.shape) <= 2 for p in params) else (*_OF_ELEMENTS, *sorted(kinds))
    axes = [(f.op, dict(f.attributes).get("axis", 0)) for f in forms.values() if f.op in _TOTALS]
    more = (*more, *dict.fromkeys(f"{name}(axes=({axis},))" for op, axis in axes for name in _TOTALS[op]))
    signature = ", ".join(
        f"{p.attr('name')}: {' '.join(map(_size_text, p.shape))}" + ("" if p.dtype == "float32" else f" @ {p.dtype}")
        for p in params
    )
    asked = operators.split("|") if operators else more
    grammar = Grammar([*dict.fromkeys(forms.values()), *asked], signature, tuple(constants), tuple(dtypes))
    places = {f: n for n, f in enumerate(grammar.forms)}
    terms: dict[Expr, Term] = {h: -1 - n for n, h in enumerate(holes)}
    for e in postorder(roots):
        if e in terms:
            continue
        leaf = next((i for i in (*grammar.operands, *grammar.filled) if grammar.leaves[i] is e), None)
        terms[e] = leaf if leaf is not None else (places[forms[e]], *(terms[a] for a in e.args)) if e in forms else None
    if any(t is None for t in terms.values()):
        raise DiscoveryError("a leaf that no grammar has")
    return grammar, [terms[r] for r in roots]


def _size_text(d: Dim) -> str:
    text = str(d)
    return text if text.isalnum() else f"({text})"
