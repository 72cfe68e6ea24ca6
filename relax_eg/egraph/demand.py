"""Functions that the engine asks Python to evaluate, once for each tuple of arguments.

A rule that needs an answer (the annotation of a new node, a sum of sizes, whether a guard holds) writes its question
into a table. Between rounds, `Demand.answer_questions` reads the questions and inserts the answers. Later matches find
the answers by a plain lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from relax_eg.egraph.engine import Engine, SExpr
from relax_eg.egraph.vocabulary import Opcode, Vocabulary
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.shapes import Dim


@dataclass(slots=True)
class Question:
    """A demanded function.

    - `symbol`: its name in the engine.
    - `answer`: returns the engine command that records the answer for a tuple of arguments, or None if there is no
      answer; the rules that asked then never fire.
    - `asked`: the tuples of arguments that are answered, each as text.
    """

    symbol: str
    answer: Callable[[list[SExpr]], str | None]
    asked: set[str] = field(default_factory=set)

    @property
    def need(self) -> str:
        """The relation that holds the questions."""
        return f"need_{self.symbol}"


Operands = tuple[tuple[int | None, str | None] | None, ...]  # rank and dtype of each operand; None if it is no tensor
AnnotatedUse = tuple[str, Operands]  # the symbol of an opcode, and its operands


def annotated_use(o: Opcode, operands: Iterable[Annotation]) -> AnnotatedUse:
    """Returns the symbol of an opcode with the rank and dtype of its operands, or the symbol alone if the opcode fixes
    its annotation. A rule is compiled only once the uses on its left side exist."""
    return o.symbol, operands_of(o.annotation, operands)


def operands_of(fixed: Annotation | None, operands: Iterable[Annotation]) -> Operands:
    """Returns the rank and dtype of each operand; an empty tuple if the annotation of the result is `fixed`."""
    if fixed is not None:
        return ()
    return tuple((a.ndim, a.dtype) if isinstance(a, Tensor) else None for a in operands)


class Demand:
    """The demanded functions of one e-graph. `uses` holds every annotated use of an operator."""

    def __init__(self, engine: Engine, vocabulary: Vocabulary) -> None:
        self.uses: set[AnnotatedUse] = set()
        self._engine = engine
        self._words = vocabulary
        self._questions: dict[str, Question] = {}
        self._dim_functions: dict[tuple[str, tuple[str, ...]], str] = {}
        self._conditions: dict[tuple[str, tuple[str, ...]], str] = {}

    def annotation_of(self, o: Opcode) -> list[str]:
        """Returns the commands by which the engine annotates nodes of opcode `o`."""
        xs = " ".join(f"x{i}" for i in range(o.arity))
        ds = " ".join(f"d{i}" for i in range(o.size_count))
        anns = " ".join(f"a{i}" for i in range(o.arity))
        known = " ".join(f"(has_ann x{i} a{i})" for i in range(o.arity))
        found = f"(= e ({o.symbol} {xs} {ds})) {known}"
        if o.annotation is not None:
            self.uses.add(annotated_use(o, ()))
            fixed = self._words.annotation(o.annotation)
            return [f"(rule ((= e ({o.symbol} {xs} {ds}))) ((has_ann e {fixed})) :ruleset annotate)"]
        symbol = f"ann_{o.symbol}"

        def answer(args: list[SExpr]) -> str | None:
            operands = tuple(self._words.read_annotation(t) for t in args[: o.arity])
            dims = tuple(self._words.read_dim(t) for t in args[o.arity :])
            try:
                result = o.deduce(operands, dims)
            except OperatorError:
                # The node cannot be formed: it gets no annotation and is never extracted.
                return None
            return self.annotation_entry(o, operands, dims, result)

        self._questions[symbol] = Question(symbol, answer)
        sorts = "Ann " * o.arity + "Dim " * o.size_count
        return [
            f"(function {symbol} ({sorts}) Ann :merge old)",
            f"(relation need_{symbol} ({sorts}))",
            f"(rule ({found} (= r ({symbol} {anns} {ds}))) ((has_ann e r)) :ruleset annotate)",
            f"(rule ({found}) ((need_{symbol} {anns} {ds})) :ruleset annotate)",
        ]

    def annotation_entry(
        self, o: Opcode, operands: tuple[Annotation, ...], dims: tuple[Dim, ...], result: Annotation
    ) -> str:
        """Returns the command that records `result` as the annotation of `o` on these operands and sizes."""
        args = [self._words.annotation(a) for a in operands] + [self._words.dim(d) for d in dims]
        self._questions[f"ann_{o.symbol}"].asked.add(str(" ".join(args)))
        self.uses.add(annotated_use(o, operands))
        return f"(set (ann_{o.symbol} {' '.join(args)}) {self._words.annotation(result)})"

    def is_known(self, o: Opcode, operands: tuple[Annotation, ...], dims: tuple[Dim, ...]) -> bool:
        """Whether the annotation of `o` on these operands and sizes has been recorded."""
        args = [self._words.annotation(a) for a in operands] + [self._words.dim(d) for d in dims]
        return " ".join(args) in self._questions[f"ann_{o.symbol}"].asked

    def dim_function(self, d: Dim, names: tuple[str, ...]) -> tuple[str, list[str]]:
        """Returns the symbol of `d` as a function of the sizes `names`, and the commands that declare it if it is
        new."""
        key = (str(d), names)
        if key in self._dim_functions:
            return self._dim_functions[key], []
        symbol = f"dim_{len(self._dim_functions)}_"
        self._dim_functions[key] = symbol

        def answer(args: list[SExpr]) -> str | None:
            values = dict(zip(names, (self._words.read_dim(t) for t in args), strict=True))
            terms = " ".join(self._words.dim(v) for v in values.values())
            return f"(set ({symbol} {terms}) {self._words.dim(d.substitute(values))})"

        self._questions[symbol] = Question(symbol, answer)
        sorts = "Dim " * len(names)
        # Two entries become one when their sizes are unioned; their answers are then proved equal as well.
        return symbol, [f"(function {symbol} ({sorts}) Dim :merge old)", f"(relation need_{symbol} ({sorts}))"]

    def condition(
        self, text: str, names: tuple[str, ...], holds: Callable[[dict[str, Dim]], bool]
    ) -> tuple[str, list[str]]:
        """Returns the symbol of a guard over the sizes `names`, and the commands that declare it if it is new."""
        key = (text, names)
        if key in self._conditions:
            return self._conditions[key], []
        symbol = f"holds_{len(self._conditions)}_"
        self._conditions[key] = symbol

        def answer(args: list[SExpr]) -> str | None:
            values = dict(zip(names, (self._words.read_dim(t) for t in args), strict=True))
            if not holds(values):
                return None
            return f"({symbol} {' '.join(self._words.dim(v) for v in values.values())})"

        self._questions[symbol] = Question(symbol, answer)
        sorts = "Dim " * len(names)
        return symbol, [f"(relation {symbol} ({sorts}))", f"(relation need_{symbol} ({sorts}))"]

    def answer_questions(self, sizes: dict[str, int], seen: dict[str, int]) -> bool:
        """Answers new questions. Returns whether there were any answers.

        - `sizes`: number of rows of each table.
        - `seen`: number of rows of each question table that are already read; this method updates it.
        """
        commands: list[str] = []
        for q in list(self._questions.values()):
            n = sizes.get(q.need, 0)
            if n == seen.get(q.need, 0):
                continue
            seen[q.need] = n
            for term in self._engine.terms(q.need):
                key = " ".join(_flat(t) for t in term[1:])
                if key in q.asked:
                    continue
                q.asked.add(key)
                command = q.answer(term[1:])
                if command is not None:
                    commands.append(command)
        self._engine.run(commands)
        return bool(commands)


def _flat(term: Any) -> str:
    return term if isinstance(term, str) else f"({' '.join(_flat(t) for t in term)})"
