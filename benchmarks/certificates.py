"""Genuine and forged certificates of corpus programs: genuine ones must verify, forged ones must not; and the seconds
that a check takes.

    python -m benchmarks.certificates [--programs 100] [--forged 200]

Three kinds are forged: a step of each schema between expressions that are not equal; a use of each rule with conditions
that are not declared; and genuine certificates with one part replaced (`FORGERIES`).
"""

from __future__ import annotations

import base64
import copy
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median
from typing import Annotated, Any

import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.corpus import CORPUS, Program
from relax_eg.explain.certificate import certificate
from relax_eg.explain.reader import CertificateReader, program_text
from relax_eg.explain.result import Derivation, DerivationPart
from relax_eg.explain.steps import Equation, Goal, RuleStep, Step, equation
from relax_eg.ir.expr import VAR, Expr, const, postorder, var
from relax_eg.ir.module import Module, pure_function
from relax_eg.ops import api as op
from relax_eg.rules import NUMERICS, Claim, Rule, Schema
from relax_eg.rules.checking.schema_answers import Answers
from relax_eg.rules.content import lasting_hash
from relax_eg.rules.rule import instances
from relax_eg.shapes import Dim, Relation, Scope

Data = dict[str, Any]
# Every schema that ships, including those that are not in the default set.
BOOKS = rx.rules.default + rx.rules.legalization + rx.rules.workspace


def verified(data: Data) -> str:
    """Returns the result of checking a certificate. ExplanationError if it does not hold."""
    return str(rx.types.Certificate(data).verify(BOOKS))


def plain(found: rx.types.Certificate) -> Data:
    """A certificate as it is read from a file."""
    return json.loads(json.dumps(found.data))


# --- genuine ones ---


def variants(program: Program, number: int) -> Iterator[dict[str, Any]]:
    """Options of `optimize` for a program: its own; in turn also bounds, an assumption, a fixed size, and kernels."""
    made_of, own = program.made_of, program.options
    if not isinstance(made_of, Module):
        made_of = rx.trace(made_of, *program.specs, bounds=own.get("bounds"), **program.keywords)
    sizes = made_of.main.size_variables
    said = own.get("bounds") or ()
    said = [said] if isinstance(said, (str, Mapping)) else said
    if not sizes or number % 5 == 0:
        yield {}
    elif number % 5 == 1:
        yield {"bounds": {sizes[0]: (4, 2048)}, "at": {sizes[0]: 64}}
    elif number % 5 == 2:
        yield {"bounds": [*said, f"{sizes[0]} % 4 == 0"]}
    elif number % 5 == 3:
        yield {"bounds": [*said, {sizes[-1]: (2, None)}], "at": {sizes[-1]: 128}}
    else:
        yield {"execution": "kernels"}


# --- forged from nothing ---


def schema_certificate(schema: Schema, wrong: tuple[Expr, Expr]) -> Data:
    """Returns a certificate with one step, by which the schema turns one expression into the other."""
    told = Answers(large_bytes=0.0, sizes={("extent", str(d)): 64 for e in wrong for d in e.shape})
    return _of_one_step(Equation(schema, (wrong,), answers=told), schema.numerics)


def _of_one_step(e: Equation, numerics: str) -> Data:
    left, right = e.pairs[0]
    params = [x for x in postorder((left, right)) if x.op == VAR]
    before, after = (Module((pure_function("main", params, [x]),)) for x in (left, right))
    part = DerivationPart("main", 0, (Goal(left, right, [(RuleStep(e, 0, True), right)]),))
    derivation = Derivation(
        "forged", before, before, after, {"main": after.main}, (part,), BOOKS, tuple(NUMERICS), Scope(), {}
    )
    data = json.loads(json.dumps(certificate(derivation, None)))
    data["numerics"] = list(NUMERICS[: 1 + NUMERICS.index(numerics)])  # type: ignore[arg-type]
    return data


def wrong_pairs() -> Iterator[tuple[str, tuple[Expr, Expr]]]:
    """Yields pairs of different expressions that are equal, or nearly so, at small sizes and at 0 and 1."""
    i, x = var("i", rx.Tensor("n", "int32")), var("x", rx.Tensor("n"))
    n = Dim.var("n")
    yield "square", (op.multiply(i, i), i)
    yield "above 10", (op.where(op.greater(i, const(10)), op.multiply(i, const(0)), i), i)
    below = op.less(op.iota((n,), 0, "int32"), const(30))
    yield "below 30", (op.where(below, x, op.multiply(x, const(0.0))), x)
    yield "sum", (op.add(x, x), x)
    y = var("y", rx.Tensor("n n"))
    yield "matmul", (op.matmul(y, y), y)


def without_premises(rule: Rule) -> Iterator[Data]:
    """Yields a certificate that uses a rule with conditions on operands and sizes of which no facts are known; nothing
    if the rule has no conditions, or if they hold for all sizes."""
    for instance in instances(rule, limit=3):
        asked = [g for g in instance.guards if isinstance(g, Claim) or (isinstance(g, Relation) and not _always(g))]
        if asked and rule.library is None:
            sizes = {v: Dim.var(v) for p in instance.params for d in p.shape for v in d.variables}
            yield _of_one_step(equation(instance, instance.params, sizes), rule.numerics)
            return


def _always(g: Relation) -> bool:
    return isinstance(rx.prove(str(g), Scope()), rx.types.Proved)


# --- forged from genuine ones ---

Forgery = Callable[[Data, Random], bool]
FORGERIES: dict[str, Forgery] = {}


def forgery(change: Forgery) -> Forgery:
    FORGERIES[change.__name__] = change
    return change


def _rules(d: Data) -> list[Data]:
    return [e for p in d["parts"] for e in p["rules"]]


def _other(rng: Random, count: int, place: int) -> int:
    return rng.choice([i for i in range(count) if i != place])


def _terms(d: Data) -> int:
    function = next(f for f in d["programs"]["modules"][0] if f[0] == "terms")
    return len(function[2][0][1])


def _name(d: Data, term: int) -> str:
    """Returns the name of a term that is a variable; "" for other terms."""
    function = next(f for f in d["programs"]["modules"][0] if f[0] == "terms")
    op, _, attributes, _ = d["programs"]["nodes"][function[2][0][1][term][1]]
    return attributes[1] if op == VAR else ""


@forgery
def side_replaced(d: Data, rng: Random) -> bool:
    """A step leads to another expression."""
    steps = [s for p in d["parts"] for g in p["goals"] for s in g[2]]
    if not steps or _terms(d) < 2:
        return False
    step = rng.choice(steps)
    step[1] = _other(rng, _terms(d), step[1])
    return True


@forgery
def operand_replaced(d: Data, rng: Random) -> bool:
    """A rule is used on another operand, or a schema between other expressions."""
    uses = [e for e in _rules(d) if e.get("operands") or "pairs" in e]
    if not uses or _terms(d) < 2:
        return False
    e = rng.choice(uses)
    places = e["operands"] if "operands" in e else e["pairs"][0]
    i = rng.randrange(len(places))
    places[i] = _other(rng, _terms(d), places[i])
    return True


@forgery
def rule_exchanged(d: Data, rng: Random) -> bool:
    """A step names another rule, with its content."""
    if not _rules(d):
        return False
    e = rng.choice(_rules(d))
    alike = [*BOOKS.schemas] if "pairs" in e else [*BOOKS]
    other = rng.choice([r for r in alike if r.name != e["rule"]])
    e["rule"], e["content"] = other.name, lasting_hash(other)
    return True


@forgery
def class_upgraded(d: Data, rng: Random) -> bool:
    """The certificate claims a stricter numerics class than its steps have."""
    if len(d["numerics"]) < 2:
        return False
    d["numerics"].pop()
    return True


@forgery
def class_loosened(d: Data, rng: Random) -> bool:
    """The certificate claims a looser numerics class than its steps have."""
    if len(d["numerics"]) == len(NUMERICS):
        return False
    d["numerics"] = list(NUMERICS[: len(d["numerics"]) + 1])
    return True


@forgery
def assumption_added(d: Data, rng: Random) -> bool:
    """The certificate assumes a statement about sizes that the program as written does not assume."""
    d["assumptions"].append("n % 1024 == 0")
    return True


@forgery
def assumption_dropped(d: Data, rng: Random) -> bool:
    """The certificate omits a statement about sizes that the program as written assumes."""
    if not d["assumptions"]:
        return False
    d["assumptions"].pop(rng.randrange(len(d["assumptions"])))
    return True


@forgery
def assumed_in_one_program(d: Data, rng: Random) -> bool:
    """The program as written, its text and the certificate assume a statement that the chosen program does not
    assume."""
    statement = "1 == 0"
    d["assumptions"].append(statement)
    for f in d["programs"]["modules"][0]:
        if f[0].startswith(("written:", "shared:")) and f[0].partition(":")[2] == "main":
            f[5].append(statement)
    return True


@forgery
def fact_invented(d: Data, rng: Random) -> bool:
    """A fact is declared of a value that is no parameter, or an unknown fact of a parameter."""
    if rng.random() < 0.5 or not d["facts"]:
        d["facts"]["lv"] = ["positive"]
    else:
        d["facts"][rng.choice(sorted(d["facts"]))] = ["large"]
    return True


@forgery
def facts_dropped(d: Data, rng: Random) -> bool:
    """A declared fact that a step needs is left out."""
    claimed = [
        e for e in _rules(d) if "operands" in e and any("derived from what is declared" in p for p in e["proofs"])
    ]
    # What follows from the operators alone needs no declaration.
    if not any(_name(d, place) in d["facts"] for e in claimed for place in e["operands"]):
        return False
    d["facts"] = {}
    return True


@forgery
def sizes_altered(d: Data, rng: Random) -> bool:
    """A rule is used at another size."""
    uses = [(e, k) for e in _rules(d) if "pairs" not in e for k in e["sizes"]]
    if not uses:
        return False
    e, k = rng.choice(uses)
    e["sizes"][k] = f"{e['sizes'][k]} + 1"
    return True


@forgery
def instance_altered(d: Data, rng: Random) -> bool:
    """A rule is used at another rank or dtype."""
    uses = [e for e in _rules(d) if "pairs" not in e]
    if not uses:
        return False
    e = rng.choice(uses)
    if e["ranks"] and rng.random() < 0.5:
        e["ranks"][0] += 1
        return True
    if "float32" not in e["dtype"] or all(r.name != e["rule"] or not r.has_open_dtype for r in BOOKS):
        return False
    e["dtype"] = "float64"
    return True


@forgery
def turned_round(d: Data, rng: Random) -> bool:
    """A step uses a rule in the other direction."""
    steps = [s for p in d["parts"] for g in p["goals"] for s in g[2] if s[0] == "rule"]
    if not steps:
        return False
    step = rng.choice(steps)
    step[4] = not step[4]
    return True


@forgery
def constant_altered(d: Data, rng: Random) -> bool:
    """A number in an attribute or a constant of one node is replaced in all places."""
    rows = [r for r in d["programs"]["constants"] if r[0] == "here" and r[4] and r[1] in ("float32", "int32")]
    if not rows:
        return False
    blob = bytearray(base64.b64decode(d["constants"]))
    blob[rng.choice(rows)[3] + 3] ^= 1
    d["constants"] = base64.b64encode(bytes(blob)).decode()
    return True


@forgery
def result_replaced(d: Data, rng: Random) -> bool:
    """The derivation ends in another expression."""
    parts = [p for p in d["parts"] if len(p["goals"]) > 1]
    if not parts:
        return False
    p = rng.choice(parts)
    i = rng.randrange(len(p["results"]))
    p["results"][i] = _other(rng, len(p["goals"]), p["results"][i])
    return True


@forgery
def told_otherwise(d: Data, rng: Random) -> bool:
    """A step of a schema gives a form of a function that the function does not have."""
    uses = [(row, e) for e in _rules(d) if "told" in e for row in e["told"]["forms"] if row[2]]
    if not uses or _terms(d) < 2:
        return False
    row, _ = rng.choice(uses)
    i = rng.randrange(len(row[2]))
    row[2][i] = _other(rng, _terms(d), row[2][i])
    return True


@forgery
def function_altered(d: Data, rng: Random) -> bool:
    """A function is replaced by another one in the chosen program, in the steps and in the text."""
    nodes, functions = d["programs"]["nodes"], d["programs"]["modules"][0]
    later = [f for f in functions if f[0].startswith(("functions:", "chosen:"))]
    values = sorted({value for f in later for block in f[2] for _, value in block[1]})
    choices = [(v, k) for v in values for k in range(v) if nodes[k][3] == nodes[v][3] and nodes[k][0] == "var"]
    if not choices:
        return False
    value, other = rng.choice(choices)
    for f in later:
        for block in f[2]:
            block[1] = [[name, other if v == value else v] for name, v in block[1]]
        f[4] = []
    try:
        d["chosen"] = program_text(Module(tuple(CertificateReader(d, BOOKS).kinds["chosen"])))
    except rx.errors.RelaxEgError:
        return False
    return True


def with_a_forged_step(derivation: Derivation, schema: Schema) -> Data | None:
    """A derivation that goes on, by a rule about whole nodes, to what is not equal; None where its result is no
    number."""
    main = derivation.chosen.main
    parts = [p for p in derivation.parts if p.function == main.name]
    if not parts:
        return None
    part = parts[0]
    goal = part.results[0]
    if not isinstance(goal.end.annotation, rx.Tensor) or goal.end.dtype not in ("float32", "int32"):
        return None
    wrong = op.add(goal.end, goal.end)
    forged = Equation(schema, ((goal.end, wrong),), answers=Answers(large_bytes=0.0))
    steps: list[tuple[Step, Expr]] = [*goal.steps, (RuleStep(forged, 0, True), wrong)]
    longer = replace(part, results=(Goal(goal.start, wrong, steps), *part.results[1:]))
    block = main.blocks[part.block]
    bindings = (replace(block.bindings[0], value=wrong), *block.bindings[1:])
    blocks = (*main.blocks[: part.block], replace(block, bindings=bindings), *main.blocks[part.block + 1 :])
    other = replace(main, blocks=blocks)
    chosen = Module(tuple(other if f is main else f for f in derivation.chosen))
    functions = {**derivation.functions, main.name: other}
    d = replace(
        derivation, chosen=chosen, functions=functions,
        parts=tuple(longer if p is part else p for p in derivation.parts),
    )  # fmt: skip
    data = json.loads(json.dumps(certificate(d, None)))
    data["numerics"] = list(NUMERICS)
    return data


@dataclass
class Found:
    """The results of the checks.

    - `genuine`: seconds to check each genuine certificate.
    - `failed`: the reasons why genuine certificates did not verify, by program.
    - `refused`: the number of forged certificates that were refused, by kind.
    - `seconds`: seconds to check each forged certificate.
    - `accepted`: the forged certificates that were not refused.
    - `reasons`: the number of refused certificates by the first 60 characters of the error.
    """

    genuine: list[float] = field(default_factory=list[float])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    refused: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=list[float])
    accepted: list[str] = field(default_factory=list[str])
    reasons: Counter[str] = field(default_factory=Counter[str])

    def try_forged(self, kind: str, data: Data) -> None:
        """Check a forged certificate."""
        started = time.perf_counter()
        try:
            verified(data)
        except rx.errors.ExplanationError as e:
            self.refused[kind] += 1
            self.reasons[str(e)[:60]] += 1
        else:
            self.accepted.append(f"{kind}: {data['name']}")
        self.seconds.append(time.perf_counter() - started)

    def __str__(self) -> str:
        lines = [f"genuine: {len(self.genuine)} verify, {len(self.failed)} do not"]
        if self.genuine:
            lines.append(f"seconds to check one: median {median(self.genuine):.2f}, most {max(self.genuine):.2f}")
        lines.append(f"forged: {sum(self.refused.values())} refused, {len(self.accepted)} accepted")
        lines += [f"  {kind}: {count}" for kind, count in sorted(self.refused.items())]
        if self.seconds:
            lines.append(f"seconds to refuse one: median {median(self.seconds):.3f}, most {max(self.seconds):.2f}")
        return "\n".join([*lines, *self.accepted, *(f"{name}: {why}" for name, why in self.failed.items())])


def from_nothing(found: Found) -> None:
    """Forge a step of every schema, and of every rule with conditions."""
    for schema in BOOKS.schemas:
        for name, wrong in wrong_pairs():
            found.try_forged(f"any pair by {schema.name}", schema_certificate(schema, wrong) | {"name": name})
    for rule in BOOKS:
        for data in without_premises(rule):
            found.try_forged("without premises", data | {"name": rule.name})


def from_genuine(found: Found, data: Data, rng: Random, many: int) -> None:
    """Forge `many` certificates of a genuine one."""
    kinds = rng.sample(sorted(FORGERIES), len(FORGERIES))
    done = 0
    for kind in kinds:
        forged = copy.deepcopy(data)
        if done < many and FORGERIES[kind](forged, rng) and forged != data:
            found.try_forged(kind, forged)
            done += 1


def run(names: Mapping[str, Program], programs: int, forged: int, seed: int = 0) -> Found:
    """Certify programs until optimization has changed `programs` of them, and forge `forged` certificates of these."""
    found, rng = Found(), Random(seed)
    from_nothing(found)
    schemas = [*BOOKS.schemas]
    each = max(1, -(-forged // programs))
    for number, (name, program) in enumerate(names.items()):
        if len(found.genuine) + len(found.failed) >= programs:
            break
        for options in variants(program, number):
            best = program.optimized(**options, target="cpu")  # the same on every machine
            try:
                explained = best.explain()
            except rx.errors.ExplanationError as e:
                found.failed[f"{name} {options}"] = str(e)
                continue
            if not explained.derivation.parts:
                continue
            data = plain(best.certificate())
            started = time.perf_counter()
            try:
                verified(data)
            except rx.errors.ExplanationError as e:
                found.failed[f"{name} {options}"] = str(e)
                continue
            found.genuine.append(time.perf_counter() - started)
            from_genuine(found, data, rng, each)
            longer = with_a_forged_step(explained.derivation, schemas[number % len(schemas)])
            if longer is not None:
                found.try_forged("a forged step at the end", longer)
    return found


def main(
    programs: Annotated[int, typer.Option(help="genuine certificates")] = 100,
    forged: Annotated[int, typer.Option(help="certificates forged of genuine ones")] = 200,
    quick: Quick = False,
) -> None:
    """Check genuine and forged certificates."""
    if quick:
        programs, forged = 1, 1
    print(run(CORPUS, programs, forged))


if __name__ == "__main__":
    typer.run(main)
