"""Laws that a search finds in programs, JAX's own functions and their gradients first, and what they save.

    python -m benchmarks.mined
    python -m benchmarks.mined --mine docs/mined_laws_beside_all_books.json --size 0 --whole [--pool gradients]
    python -m benchmarks.mined --mine docs/mined_laws.json [--pool corpus] [--only softplus] [--size 2] [--minutes 20]
    python -m benchmarks.mined --sift docs/mined_laws.json
    python -m benchmarks.mined --gains docs/mined_laws.json [--pool corpus] [--only pdf] [--whole]
    python -m benchmarks.mined --mine docs/mined_laws.json --families found

Without an option it counts what the files in `docs` have. `--pool`: JAX's functions (`benchmarks/functions`), the
programs of the corpus, their gradients, the functions of libraries, or single functions of libraries
(`benchmarks/library_cases/parts.py`).

`--mine` looks for cheaper terms in fragments of what the rules that ship, without the books `traced` and `orders`, make
of each program, and adds the laws that are proved to the file. Programs that the file has are left out, so a run that
was stopped goes on. With `--size 0` only functions of elements are looked at, whose terms are in tables that all
programs share (`driver.laws.tables`); that takes a second for a program besides its search. `--families`: adds the laws
of families of operators that are new (`docs/found_laws.json`), from the folder that `python -m benchmarks.discovery
--save` writes.

`--sift` asks which of the laws follow from the others and the known rules, and which from the books that were left out.

`--gains` uses the laws of the file that do not follow as rules besides the known ones, on the programs of a pool. A law
saves what a program takes longer by prediction without it, where all other laws are there. Laws of families whose
sides have the same operators are left out, and those with an operator that a program has neither as written nor as
optimized. Programs that were asked are left out.

With `--whole` the books `traced` and `orders` are known, too: `docs/mined_laws_beside_all_books.json` has laws that
such runs found. What these save was asked with the laws of both files there.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.corpus import CORPUS
from benchmarks.corpus.fired import corpus_rules
from benchmarks.discovery_gains import of_corpus, of_functions, of_libraries, optimized
from benchmarks.found_rules import canonical
from benchmarks.functions import GROUPS
from benchmarks.least_laws import law_of
from benchmarks.library_cases.case import Use
from benchmarks.library_cases.parts import PARTS
from relax_eg.discovery.laws import doc_of, file_text, load
from relax_eg.discovery.sifting import reached
from relax_eg.driver.laws.mining import Miner
from relax_eg.driver.laws.ranking import LEAST_SAVING, Optimize
from relax_eg.driver.laws.tables import ElementTables
from relax_eg.egraph import Budget
from relax_eg.errors import RelaxEgError
from relax_eg.frontends import trace
from relax_eg.ir.expr import CONSTANT, VAR, postorder
from relax_eg.ir.module import Module
from relax_eg.rules import Rule, RuleSet
from relax_eg.rules.rule import instances

LAWS = Path(__file__).parent.parent / "docs" / "mined_laws.json"
BESIDE = LAWS.with_name("mined_laws_beside_all_books.json")
NEW = LAWS.with_name("found_laws.json")
FAMILY = "family "  # of operators, in place of a program
BUDGET = Budget(nodes=4000, seconds=60, growth=math.inf)  # of the question whether a law follows
QUICK_PROGRAMS = 1
TERMS = 20_000  # of one size for a fragment
POOLS = ("functions", "corpus", "gradients", "libraries", "parts")
SECOND = ", second derivative"
OF_CORPUS = ", gradient of the corpus"
MINED_FIRST = ("jax.nn", "jax.scipy", "jax.numpy", "jax.scipy.stats")  # groups, the others after them
LEFT_OUT = ("traced", "orders")  # books whose laws may be found again


@dataclass
class MinedLaw:
    """A law that was found in a program and proved.

    - `text`, `source`, `numerics`, `theory`: as of an offer.
    - `program`: where it was found.
    - `follows`: whether it follows from known rules and the other laws of the file.
    - `again`: whether a book that was left out has it: it follows with that book.
    - `saves`: of programs that take at least 2% longer without it, the share of the predicted time that it saves.
    - `saves_whole`: the same where all books that ship are known.
    """

    text: str
    source: str
    numerics: str
    theory: str
    program: str
    follows: bool = False
    again: bool = False
    saves: dict[str, float] = field(default_factory=dict[str, float])
    saves_whole: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def name(self) -> str:
        """Of its rule."""
        return self.source.rpartition("def ")[2].partition("(")[0]


@dataclass
class Found:
    """What a file has.

    - `laws`: the laws.
    - `programs`: of each program that was looked at, the operators after the known rules.
    - `asked`, `asked_whole`: of each program that was asked for gains, the share of its predicted time that all laws
      save together, where the books in `LEFT_OUT` are not known, and where they are.
    - `counts`: how far fragments came, as of a miner, in all programs that were looked at since it is counted.
    """

    laws: list[MinedLaw]
    programs: dict[str, str]
    asked: dict[str, float]
    asked_whole: dict[str, float]
    counts: dict[str, int] = field(default_factory=dict[str, int])

    @staticmethod
    def read(file: Path) -> Found:
        data: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"laws": [], "programs": {}}
        laws = [MinedLaw(**x) for x in data["laws"]]
        return Found(laws, data["programs"], data.get("asked", {}), data.get("asked_whole", {}), data.get("counts", {}))

    def write(self, file: Path) -> None:
        rest = {"programs": self.programs, "asked": self.asked, "asked_whole": self.asked_whole, "counts": self.counts}
        file.write_text(json.dumps({"laws": [asdict(x) for x in self.laws], **rest}, indent=1) + "\n")

    def rules(self) -> RuleSet:
        return load(file_text([x.source for x in self.laws], {}, "Mined laws.", "mined"), "mined")


def names(pool: str) -> list[str]:
    """The programs of a pool: of functions gradients first, and no draws of random numbers."""
    if pool == "corpus":
        return list(CORPUS)
    if pool == "gradients":
        return [f"{n}{OF_CORPUS}" for n, p in CORPUS.items() if not (isinstance(p.made_of, Module) or p.keywords)]
    if pool == "parts":
        return [f"{n}{more}" for more in (", gradient", "") for n in PARTS]
    if pool == "libraries":
        from benchmarks.library_cases import CASES

        return [f"{case.library}: {case.name}{more}" for case in CASES for more in ("", ", gradient")]
    groups = [*MINED_FIRST, *(g for g in GROUPS if g not in (*MINED_FIRST, "jax.random"))]
    return [f"{n}{more}" for more in (", gradient", SECOND, "") for group in groups for n in GROUPS[group]]


def lazily(name: str) -> Optimize:
    """The program of a name, made when it is asked for."""

    @cache
    def program() -> Optimize:
        if name in CORPUS:
            return of_corpus()[name]
        if (of := name.removesuffix(", gradient")) in PARTS:
            fn, specs = PARTS[of]
            return partial(optimized, trace(fn if of == name else Use(fn, specs).gradient, *specs))
        if name.endswith(OF_CORPUS):
            p = CORPUS[name.removesuffix(OF_CORPUS)]
            assert not isinstance(p.made_of, Module)
            return partial(optimized, trace(Use(p.made_of, p.specs).gradient, *p.specs))
        if ": " in name:
            return of_libraries(lambda n: n == name)[name]
        if name.endswith(SECOND):
            return partial(optimized, second_derivative(name.removesuffix(SECOND)))
        return of_functions([name])[name]

    return lambda rules: program()(rules)


def second_derivative(name: str) -> Module:
    """The derivative of a function's gradient, of numbers that depend on all elements of it."""
    fn, specs = next(own[name] for own in GROUPS.values() if name in own)
    return trace(Use(Use(fn, specs).gradient, specs).gradient, *specs)


def known_rules() -> RuleSet:
    """The rules that ship, without those of the books whose laws may be found again."""
    rules = corpus_rules()
    left_out = {r.name for book in LEFT_OUT for r in getattr(rx.rules, book)}
    return RuleSet("known", [r for r in rules if r.name not in left_out], rules.schemas)


def mine(programs: Mapping[str, Optimize], file: Path, size: int, seconds: float, whole: bool) -> None:
    """Adds the laws of fragments of programs to a file, until this time has passed."""
    found, end = Found.read(file), time.monotonic() + seconds
    known = corpus_rules() if whole else known_rules()
    names = {r.name for f in {file, LAWS, BESIDE} for r in Found.read(f).rules()}
    miner = Miner("cpu", size, "reassociate", 1, TERMS, known, names, None if size else ElementTables())
    stated, before = {canonical(r) for r in found.rules()}, Counter(found.counts)
    for name, optimize in programs.items():
        if name in found.programs:
            continue
        if time.monotonic() > end:
            break
        began = time.monotonic()
        operators, unproved = "", 0
        try:
            best = optimize(known)
            operators = " ".join(sorted({e.op for f in best.module for e in f.expressions()}))
            miner.least = LEAST_SAVING * best.report.after.seconds
            made = miner.mined(best.module, dict(best.report.at))
            offers, unproved = made.offers, len(made.unproved)
        except (RelaxEgError, TypeError, ValueError, NotImplementedError) as e:  # of integers there is no gradient
            print(f"{name}: {' '.join(str(e).splitlines()[:1])}", flush=True)
            offers = ()
        for o in offers:
            (law, *_) = load(file_text([o.source], {}, "", "mined"), "mined")
            if o.is_new and canonical(law) not in stated:
                stated.add(canonical(law))
                print(f"  {name}: {o}", flush=True)
                found.laws.append(MinedLaw(o.text, o.source, o.numerics, o.theory, name))
        found.programs[name] = operators
        found.counts = dict(before + miner.counts)
        found.write(file)
        print(f"{name}: {time.monotonic() - began:.1f} s, {len(offers)} proved, {unproved} not", flush=True)
    print(f"{len(found.laws)} laws from {len(found.programs)} programs")


def gains(programs: Mapping[str, Optimize], file: Path, seconds: float, whole: bool) -> None:
    """Asks programs which laws save something, until this time has passed, and writes it. A program is searched with
    all laws; where it got no cheaper than without them, none is asked for. Programs that were asked are left out."""
    found = Found.read(file)
    known = corpus_rules() if whole else known_rules()
    asked = found.asked_whole if whole else found.asked
    there_too = [Found.read(f) for f in (LAWS, BESIDE) if whole and f != file.resolve()]
    laws = [law for f in (found, *there_too) for law in f.laws]
    follow = {law.name for law in laws if law.follows}
    of_families = {law.name for law in laws if law.program.startswith(FAMILY)}
    rules = [r for f in (found, *there_too) for r in f.rules() if law_of(r.name) not in follow]
    rules = [r for r in rules if law_of(r.name) not in of_families or is_change(r)]
    end = time.monotonic() + seconds
    for name, optimize in programs.items():
        if name in asked:
            continue
        if time.monotonic() > end:
            break
        saved = 0.0
        try:
            best = optimize(known)
            before, there = best.report.after.seconds, operators_in(best)
            near = [r for r in rules if r.left_operators <= there]
            if near and before:
                best = optimize(known + RuleSet("mined", near))
                saved = 1 - best.report.after.seconds / before
            mined = {law_of(r.name) for r in near}
            used = {law_of(r) for r in best.report.rules} & mined or mined  # what was there before has no maker
            # Of equal ways to a value the report names one, so the laws that were found in the program are asked, too.
            used |= {law.name for law in found.laws if law.program == name} & mined
            used = used if saved >= LEAST_SAVING else set[str]()
            for law in found.laws:
                saves = law.saves_whole if whole else law.saves
                saves.pop(name, None)
                if law.name not in used:
                    continue
                others = RuleSet("others", [r for r in near if law_of(r.name) != law.name])
                share = 1 - best.report.after.seconds / optimize(known + others).report.after.seconds
                print(f"{100 * share:3.0f}%  {name}: {law.text}", flush=True)
                if share >= LEAST_SAVING:
                    saves[name] = round(share, 3)
        except (RelaxEgError, TypeError, ValueError, NotImplementedError) as e:  # of integers there is no gradient
            print(f"{name}: {' '.join(str(e).splitlines()[:1])}", flush=True)
        asked[name] = round(saved, 3)
        found.write(file)


def is_change(rule: Rule) -> bool:
    """Whether the right side of a rule has other operators than the left one. Others save nothing by themselves, and
    make searches longer."""
    instance = next(instances(rule, limit=1))
    left, right = (
        sorted(e.op for e in postorder(x) if e.op not in (VAR, CONSTANT)) for x in (instance.left, instance.right)
    )
    return left != right


def operators_in(best: Any) -> set[str]:
    """The operators of a program as written and as optimized."""
    written = {row.op for row in best.report.before.rows}
    return written | {e.op for f in best.module for e in f.expressions()} | {"full", "broadcast_to"}


def add_families(folder: str, file: Path) -> None:
    """Adds the laws of families that are new (`docs/found_laws.json`), from the files that `python -m
    benchmarks.discovery --save` writes."""
    found = Found.read(file)
    new = {(x["family"], x["law"]): x for x in json.loads(NEW.read_text())}
    there = {x.text for x in found.laws}
    taken = {x.name for x in found.laws}
    for path in sorted(Path(folder).glob("*.py")):
        body = path.read_text().partition("_rule = found.rule\n")[2]
        for source in re.findall(r"^@_rule.*?(?=^@_rule|\Z)", re.sub(r"\n\n+(?=@_rule)", "\n", body), re.M | re.S):
            text = doc_of(source)
            law = new.get((path.stem, text))
            if law is None or text in there:
                continue
            name = re.search(r"^def (\w+)\(", source, re.M)
            assert name is not None
            fresh = next(n for k in itertools.count(1) if (n := f"{path.stem}_{name[1]}_{k}") not in taken)
            taken.add(fresh)
            renamed = source.replace(f"def {name[1]}(", f"def {fresh}(").replace(f'"{name[1]}_typed', f'"{fresh}_typed')
            found.laws.append(MinedLaw(text, renamed, law["numerics"], "", f"{FAMILY}{path.stem}"))
    found.write(file)


def sift(file: Path) -> None:
    """Says of the laws which follow from the others and known rules, the largest first, and which the books have."""
    found, known = Found.read(file), known_rules()
    rules = list(found.rules())
    kept = {law.name: [r for r in rules if law_of(r.name) == law.name] for law in found.laws}
    for law in sorted(found.laws, key=lambda x: -len(x.text)):
        own = kept.pop(law.name)
        instance = next(instances(own[0], limit=1))
        law.again = reached(instance, corpus_rules(), BUDGET)
        law.follows = reached(instance, known + RuleSet("others", [r for x in kept.values() for r in x]), BUDGET)
        if not law.follows:
            kept[law.name] = own
        print(f"{'follows' if law.follows else '       '} {'again' if law.again else '     '} {law.text}", flush=True)
    found.write(file)


def summary(file: Path) -> str:
    """What a file says, in figures."""
    found = Found.read(file)
    own = [x for x in found.laws if not x.follows]
    saving, beside = [x for x in own if x.saves], [x for x in own if x.saves_whole]
    elsewhere = [x for x in saving if x.saves.keys() - {x.program}]
    share = f"{100 * LEAST_SAVING:.0f}%"
    counts = ", ".join(f"{n} {what}" for what, n in found.counts.items())
    return (
        f"{file.name}: {len(found.programs)} programs gave {len(found.laws)} proved laws, {len(own)} of which do not "
        f"follow from the others; {len(saving)} of these save at least {share} of a program without the books "
        f"{' and '.join(LEFT_OUT)}, {len(elsewhere)} of one in which they were not found; "
        f"{sum(x.again for x in saving)} of the {len(saving)} are in a book by now; {len(beside)} saved as much beside "
        f"all books" + (f"; fragments of elements: {counts}" if counts else "")
    )


def main(
    mined: Annotated[Path | None, typer.Option("--mine", help="add the laws of programs to this file")] = None,
    gained: Annotated[Path | None, typer.Option("--gains", help="ask which laws of this file save something")] = None,
    sifted: Annotated[Path | None, typer.Option("--sift", help="ask which laws of this file follow")] = None,
    only: Annotated[str, typer.Option("--only", help="programs whose name contains this, or one of 'a|b'")] = "",
    pool: Annotated[str, typer.Option("--pool", help=f"one of {', '.join(POOLS)}")] = "functions",
    size: Annotated[int, typer.Option("--size", help="operators of a cheaper term; 0: tables")] = 2,
    families: Annotated[str, typer.Option("--families", help="add the new laws of families in this folder")] = "",
    whole: Annotated[bool, typer.Option("--whole", help="know all books that ship")] = False,
    minutes: Annotated[float, typer.Option("--minutes", help="stop after the program of this time")] = 60,
    quick: Quick = False,
) -> None:
    if pool not in POOLS:
        raise typer.BadParameter(f"--pool {pool}: one of {', '.join(POOLS)} is accepted")
    chosen = (n for n in names(pool) if any(part in n for part in only.split("|")))
    programs = {n: lazily(n) for n in islice(chosen, QUICK_PROGRAMS if quick else None)}
    if families:
        if mined is None:
            raise typer.BadParameter("--families: the file to which laws are added is needed, as --mine")
        add_families(families, mined)
    elif mined is not None:
        mine(programs, mined, size, 60 * minutes, whole)
    if sifted is not None:
        sift(sifted)
    if gained is not None:
        gains(programs, gained, 60 * minutes, whole)
    for file in dict.fromkeys(x for x in (mined, sifted, gained) if x is not None) or (LAWS, BESIDE):
        print(summary(file))


if __name__ == "__main__":
    typer.run(main)
