"""A derivation as plain data, which is checked without the search that found it and without the e-graph engine.

The data holds both programs (exactly, and as text for people) and what is needed to make each step again: the rule by
name and content, the values of its variables, and the expressions before and after the step. Expressions are nodes of
one table, so a certificate is about as long as the programs and the steps together.

A certificate claims that the chosen program computes the same as the program as written, within the loosest of the
`numerics` classes, for all sizes that the program as written admits (`R.func_attr` says which) and all arguments that
have the `facts`. `verify` checks this claim. `status`, `place` and `proofs` are remarks by the writer of the
certificate, which `verify` does not read.
"""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

from relax_eg.argument_checks import PATH, accepts
from relax_eg.errors import ExplanationError, RelaxEgError
from relax_eg.explain.check import Replay, replay
from relax_eg.explain.programs import changes
from relax_eg.explain.reader import CertificateReader, NumberedObjects, program_text
from relax_eg.explain.result import Derivation, DerivationPart
from relax_eg.explain.steps import Equation, Goal, RuleStep, Step
from relax_eg.ir.expr import Expr, tuple_, var
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.origin import Origins
from relax_eg.ir.packed import pack
from relax_eg.plain_data import DAMAGED, read_json, write_file
from relax_eg.rules import RuleSet
from relax_eg.rules.checking.certificates import status
from relax_eg.rules.checking.schema_answers import Answers, Batched
from relax_eg.rules.content import lasting_hash

VERSION = 4  # given: version of the format; other versions are refused


@dataclass(frozen=True)
class UnaidedCertificate:
    """A derivation as plain data, which `verify` checks in full.

    - `data`: the data, as written to JSON.
    - `batched`: applies functions to slices; without it, steps by rules about loops do not hold.
    """

    data: Mapping[str, Any]
    batched: Batched | None = field(default=None, repr=False, compare=False)

    @accepts(path=PATH)
    def save(self, path: str | Path) -> None:
        """Writes the certificate as JSON."""
        text = json.dumps(self.data, separators=(",", ":"), ensure_ascii=False)
        write_file(path, text, ExplanationError, "the certificate")

    @classmethod
    @accepts(path=PATH)
    def load(cls, path: str | Path) -> Self:
        """Reads what `save` wrote. ExplanationError if the file is not a certificate."""
        try:
            data = read_json(Path(path).read_bytes())
        except OSError as e:
            raise ExplanationError(f"{path} cannot be read: {e.strerror or e}") from None
        except ValueError as e:
            raise ExplanationError(f"{path} is no certificate: {e}") from None
        if not isinstance(data, dict) or data.get("format") != "relax-eg certificate":
            accepted = "a file that `best.certificate().save(path)` wrote is accepted"
            raise ExplanationError(f"{path} is no certificate: {accepted}")
        return cls(data)

    def verify(self, rules: RuleSet) -> Replay:
        """Replays every step by rules of `rules`. ExplanationError names the step that does not hold, or the data that
        cannot be read or checked."""
        data: Any = self.data
        if not isinstance(data, Mapping) or data.get("version") != VERSION:  # type: ignore[reportUnknownMemberType]
            version = data.get("version") if isinstance(data, Mapping) else None  # type: ignore[reportUnknownMemberType]
            raise ExplanationError(f"certificate of version {version}; this is version {VERSION}")
        with _as_explanation_errors("read"):
            derivation = CertificateReader(self.data, rules).derivation()
        with _as_explanation_errors("checked"):
            found = replay(derivation, batched=self.batched)
            for part, row in zip(derivation.parts, self.data["parts"], strict=True):
                _check_programs(part, row["programs"])
        if found.numerics != derivation.numerics:
            said, are = (", ".join(classes) for classes in (derivation.numerics, found.numerics))
            raise ExplanationError(f"the certificate says that its steps are of class {said}; they are of class {are}")
        return found

    @property
    def premises(self) -> str:
        """The premises of the derivation as text: the numerics classes, and the declarations on sizes and values. Of
        other sizes it assumes only that they are at least 1. ExplanationError if the data lacks them."""
        try:
            facts = ((name, fact) for name, facts in self.data["facts"].items() for fact in facts)
            declared = [*self.data["assumptions"], *(f"{name} is {fact.replace('_', ' ')}" for name, fact in facts)]
            classes = f"rules of class {', '.join(self.data['numerics'])}"
            return f"{classes}; given {', '.join(declared)}" if declared else classes
        except DAMAGED as e:
            raise ExplanationError(f"the certificate cannot be read: {type(e).__name__}: {e}") from None


@contextmanager
def _as_explanation_errors(done: str) -> Generator[None]:
    """Raises ExplanationError in place of any error while data is `done` ("read", "checked"), because the data is not
    trusted and may cause any error."""
    try:
        yield
    except ExplanationError:
        raise
    except RelaxEgError as e:
        raise ExplanationError(f"the certificate cannot be {done}: {e}") from e
    except KeyError as e:
        raise ExplanationError(f"the certificate cannot be {done}: there is no {e} where there should be") from e
    except Exception as e:  # the data may have any form at all
        text = str(e).partition("\n")[0] or "something is missing"
        raise ExplanationError(f"the certificate cannot be {done}; it holds what none holds: {text}") from e


def certificate(derivation: Derivation, replayed: Replay | None) -> dict[str, Any]:
    """Returns `derivation` as the data of a certificate. ExplanationError if something in it cannot be data."""
    return _Writer(derivation, replayed).data()


def _programs(part: DerivationPart) -> list[dict[str, Any]]:
    """Returns the data of the whole programs of a part, in order: the cause of each."""
    numbers = {g: i for i, g in enumerate(part.goals)}
    return [{"by": c.cause, "goal": numbers[c.goal], "step": c.step} for c in changes(part.results)]


def _check_programs(part: DerivationPart, listed: Sequence[Mapping[str, Any]]) -> None:
    """Raises ExplanationError unless the whole programs of a part are those that the certificate lists."""
    for number, (a, b) in enumerate(zip_longest(listed, _programs(part)), 1):
        x, y = (None if p is None else (p.get("by"), p.get("goal"), p.get("step")) for p in (a, b))
        if x != y:
            words = ["nothing" if p is None else f"`{p[0]}`, step {p[2]} of goal {p[1]}" for p in (x, y)]
            raise ExplanationError(
                f"whole program {number} of `{part.function}` is said to be made by {words[0]}, and the steps make it "
                f"by {words[1]}"
            )


class _Writer:
    """Writes a derivation as the data of a certificate. `terms` numbers the expressions in the table of terms."""

    def __init__(self, derivation: Derivation, replayed: Replay | None) -> None:
        self.derivation = derivation
        self.replayed = replayed or Replay()
        self.terms: dict[Expr, int] = {}

    def data(self) -> dict[str, Any]:
        d = self.derivation
        parts = [self._part(p) for p in d.parts]
        kinds = {"written": d.written, "shared": d.shared, "chosen": d.chosen, "functions": d.functions.values()}
        functions = [replace(f, name=f"{kind}:{f.name}") for kind, module in kinds.items() for f in module]
        bindings = tuple(Binding(var(f"t{i}", e.annotation), e) for e, i in self.terms.items())
        functions.append(Function("terms", (), (Block(bindings),), tuple_(())))
        programs, blob = pack((Module(tuple(functions)),), NumberedObjects())
        return {
            "format": "relax-eg certificate",
            "version": VERSION,
            "name": d.name,
            "written": program_text(d.written),
            "chosen": program_text(d.chosen),
            "numerics": list(self.replayed.numerics),
            "assumptions": list(d.written.main.assume),
            "facts": {name: sorted(facts) for name, facts in d.facts.items()},
            "parts": parts,
            "programs": programs,
            "constants": base64.b64encode(blob).decode(),
        }

    def _term(self, e: Expr) -> int:
        return self.terms.setdefault(e, len(self.terms))

    def _part(self, part: DerivationPart) -> dict[str, Any]:
        equations = {e: i for i, e in enumerate(part.equations)}
        goals = {g: i for i, g in enumerate(part.goals)}
        origins = self.derivation.origins.get(part.function, {})
        return {
            "function": part.function,
            "block": part.block,
            "rules": [self._equation(e, origins) for e in equations],
            "goals": [
                [self._term(g.start), self._term(g.end), [self._step(s, to, equations, goals) for s, to in g.steps]]
                for g in goals
            ],
            "results": [goals[g] for g in part.results],
            "forms": [[goals[g] for g in form] for form in part.forms],
            "programs": _programs(part),
        }

    def _equation(self, e: Equation, origins: Origins) -> dict[str, Any]:
        verdict = status(e.rule)
        place = next((str(origins[x]) for pair in e.pairs for x in pair if x in origins), "")
        common = {"rule": e.rule.name, "content": lasting_hash(e.rule), "status": verdict.status, "place": place}
        proofs = self.replayed.conditions.get(e, [])
        if e.instance is None:
            pairs = [[self._term(a), self._term(b)] for a, b in e.pairs]
            return {**common, "pairs": pairs, "told": self._answers_data(e.answers or Answers()), "proofs": proofs}
        return {
            **common,
            "ranks": list(e.instance.ranks),
            "dtype": e.instance.dtype,
            "attributes": {k: _plain(v) for k, v in e.instance.attributes},
            "operands": [self._term(x) for x in e.operands],
            "sizes": {k: str(v) for k, v in e.sizes},
            "proofs": proofs,
        }

    def _answers_data(self, answers: Answers) -> dict[str, Any]:
        forms = [
            [*asked, None if values is None else [self._term(v) for v in values]]
            for asked, values in answers.forms.items()
        ]
        return {
            "sizes": [[*asked, size] for asked, size in answers.sizes.items()],
            "large": answers.large_bytes,
            "ahead": {name: list(flags) for name, flags in answers.ahead_params.items()},
            "forms": forms,
        }

    def _step(self, step: Step, to: Expr, equations: Mapping[Equation, int], goals: Mapping[Goal, int]) -> list[Any]:
        if isinstance(step, RuleStep):
            return ["rule", self._term(to), equations[step.equation], step.result, step.forward]
        operands = [None if g is None else goals[g] for g in step.operands]
        return ["inside", self._term(to), operands, [[str(x), str(y)] for x, y in step.sizes]]


def _plain(value: Any) -> str:
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise ExplanationError(f"an attribute variable is {text}, which a certificate cannot hold")
    return text
