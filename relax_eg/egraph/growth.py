"""How far rules may take the graph, known before they run.

A round is let loose only when the nodes it can add fit. What it can add is bounded in steps, each dearer and sharper
than the one before, and only as many are taken as are needed:

1. table sizes: a left side has at most as many matches as the product of its tables' rows, and an operator inside it
   at most as many rows as the largest class can have members;
2. counting: the left side as an engine rule of its own that adds nothing (a *counter*). Its matches are the rule's;
3. the engine's tables, read once: where even counting would take too long, matches are bounded in time linear in the
   tables, by summing along the left side's tree; in a small graph that comes before counting;
4. writing down, for a rule alone, the nodes that its matches ask for, and counting those that are not there yet.

A bound may exceed the truth and is never below it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.egraph.engine import Engine, Row, Value
from relax_eg.egraph.patterns import Atom, Compiled
from relax_eg.ir.expr import Expr

COUNTED_PER_SECOND = 5_000_000  # matches a counter gets through, about half of what was measured
COUNTED_ANYWAY = 1_000_000.0  # whatever the budget of seconds
READ_ANYWAY = 2_000  # nodes of a graph whose tables are read before anything is counted
WRITTEN_DOWN = 1_000_000  # matches whose nodes may be written down, whatever room there is,
WRITTEN_FOR_ROOM = 8  # and else so many for each node there is room for

Pattern = tuple[tuple[Atom, ...], tuple[str, ...]]  # atoms, and further facts


@dataclass(frozen=True, slots=True)
class Forecast:
    """At most so many matches, adding at most so many nodes."""

    matches: int
    nodes: int

    def within(self, room: Forecast) -> bool:
        return self.matches <= room.matches and self.nodes <= room.nodes


class Join(enum.Enum):
    """How an atom hangs on those before it, and so how many rows of its table can go with one match of them."""

    KEYED = 0  # every argument is fixed: one row
    MEMBER = 1  # its class is fixed: the members of a class
    FREE = 2  # any row


@dataclass(frozen=True, slots=True)
class _Step:
    atom: Atom
    join: Join
    link: str  # the variable through which it hangs on the atoms before it; "" where there is none


@dataclass(eq=False, slots=True)
class _Left:
    """A left side, or the beginning of one. `counter`: the ruleset of its counter, if it has one; `counted`: the
    matches that counter has seen."""

    steps: tuple[_Step, ...]
    filters: tuple[str, ...]
    counter: str = ""
    counted: int = 0

    @property
    def is_product(self) -> bool:
        """Whether it has parts that no variable relates."""
        return any(s.join is Join.FREE and not s.link for s in self.steps[1:])

    def most(
        self, sizes: Mapping[str, int], members: int, start: int = 0, found: int = 1, end: int | None = None
    ) -> int:
        """The most matches of the steps up to `end` that table sizes allow, given `found` of those before `start`."""
        for step in self.steps[start:end]:
            if step.join is Join.FREE:
                found *= sizes.get(step.atom.table, 0)
            elif step.join is Join.MEMBER:
                found *= min(sizes.get(step.atom.table, 0), members)
        return found


@dataclass(eq=False, slots=True)
class _Use:
    """A rule's use of a left side. Of instances with different parameters only one can match at one place.

    `firings`, `nodes`: matches and new nodes of the rule for one match of the left side; `once`: nodes it adds once;
    `done`: what the counter had seen when the rule last ran.
    """

    left: _Left
    instances: dict[tuple[Expr, ...], list[int]] = field(default_factory=dict[tuple[Expr, ...], list[int]])
    firings: int = 0
    nodes: int = 0
    once: int = 0
    done: int = 0


class Growth:
    """Bounds what rules can do to one e-graph."""

    def __init__(self, engine: Engine, operators: Collection[str]) -> None:
        """`operators`: their symbols, more of them as time goes on."""
        self._engine = engine
        self._operators = operators
        self._affordable = COUNTED_ANYWAY  # so many matches may be counted for one left side
        self._lefts: dict[Pattern, _Left] = {}
        self._beginnings: dict[tuple[_Step, ...], _Left] = {}
        self._uses: dict[str, dict[_Left, _Use]] = {}
        self._instances: dict[str, list[Compiled]] = {}
        self._tables: dict[str, list[Row]] = {}  # of the graph as it is, and what they say of left sides
        self._beyond: dict[_Left, int] = {}
        self._relations: set[str] = set()  # of these, `absent_` stay empty: counters name them so as to add nothing
        self._numbered = 0

    def allow(self, seconds: float) -> None:
        """Count no longer than a budget of `seconds` permits."""
        self._affordable = max(COUNTED_ANYWAY, seconds * COUNTED_PER_SECOND)

    def tables(self) -> dict[str, list[Row]]:
        """The engine's tables of operators, read once between two rounds."""
        self._tables = self._tables or self._engine.tables(self._operators)
        return self._tables

    def begin(self) -> None:
        """Note that the graph may be another: a round begins."""
        self._beyond.clear()
        self._tables = {}

    def add(self, rule: str, params: tuple[Expr, ...], compiled: Compiled) -> None:
        """Learn of one more instance of `rule`."""
        self._instances.setdefault(rule, []).append(compiled)
        pattern = (compiled.atoms, compiled.filters)
        left = self._lefts.get(pattern)
        if left is None:
            left = self._lefts[pattern] = _Left(_steps(compiled.atoms), compiled.filters)
        uses = self._uses.setdefault(rule, {})
        use = uses.get(left)
        if use is None:
            use = uses[left] = _Use(left)
        use.done = 0  # the new instance has not run yet, whatever the older ones have
        use.once += compiled.leaves + len(compiled.ground)
        same = use.instances.setdefault(params, [0, 0])
        same[0] += 1
        same[1] += len(compiled.right)
        use.firings, use.nodes = max(use.firings, same[0]), max(use.nodes, same[1])

    def ran(self, rules: Iterable[str]) -> None:
        """Note that these rules ran, on the graph of the last forecast."""
        self.begin()
        for rule in rules:
            for left, use in self._uses.get(rule, {}).items():
                use.done, use.once = left.counted, 0

    def forecast(self, rules: Iterable[str], sizes: Mapping[str, int], nodes: int, room: Forecast) -> Forecast:
        """What these rules do at most when they run next, all at once, on a graph of `nodes` nodes with these table
        sizes. As sharp as it takes to see that it is within `room`, or as sharp as counting their matches makes it."""
        uses = [u for r in rules for u in self._uses.get(r, {}).values()]
        members = _members(sizes, nodes)
        most = {u.left: 0 for u in uses}
        for left in most:
            most[left] = left.most(sizes, members)
        counted: set[_Left] = set()
        total = _total(uses, most, counted)
        if nodes <= READ_ANYWAY and not total.within(room):  # tables of a small graph tell, and need no counters
            for left in most:
                most[left] = min(most[left], _matches(left.steps, self.tables())) if most[left] else 0
            total = _total(uses, most, counted)
        for doubtful in (_largest(uses, most, room), [n for n in most if most[n]]):
            if total.within(room):
                break
            counted |= self._count(doubtful, most, sizes, members)
            total = _total(uses, most, counted)
        return total

    def forecast_alone(self, rule: str, sizes: Mapping[str, int], nodes: int, room: Forecast) -> Forecast:
        """The same for one rule, and as sharp as can be."""
        total = self.forecast([rule], sizes, nodes, room)
        if total.nodes > room.nodes and total.matches <= max(WRITTEN_DOWN, WRITTEN_FOR_ROOM * room.nodes):
            return Forecast(total.matches, min(total.nodes, self._missing(rule)))
        return total

    def beyond_counting(self, rule: str, sizes: Mapping[str, int], nodes: int) -> int:
        """How many matches a left side of `rule` has, if that is more than can be counted; else 0."""
        members = _members(sizes, nodes)
        return max((self._if_beyond(n, sizes, members) for n in self._uses.get(rule, {})), default=0)

    def _count(
        self, lefts: Iterable[_Left], most: dict[_Left, int], sizes: Mapping[str, int], members: int
    ) -> set[_Left]:
        """Bring the counters of `lefts` up to date, but for those whose matches are too many to be counted: there
        `most` is sharpened. Returns what was counted."""
        ready: set[_Left] = set()
        for left in lefts:
            beyond = self._if_beyond(left, sizes, members)
            if beyond:
                most[left] = min(most[left], beyond)
            else:
                ready.add(left)
        self._run(ready)
        return ready

    def _if_beyond(self, left: _Left, sizes: Mapping[str, int], members: int) -> int:
        """The most matches of `left` there can be, if they are too many to be counted; else 0."""
        if self._can_be_counted(left, sizes, members):
            return 0
        if left not in self._beyond:
            self._beyond[left] = _matches(left.steps, self.tables())
        found = self._beyond[left]
        return found if found > self._affordable else 0

    def _can_be_counted(self, left: _Left, sizes: Mapping[str, int], members: int) -> bool:
        """Whether table sizes show that the matches of `left` can be counted. Where they allow too many, beginnings of
        it are counted first, each as long as sizes show that it can; but not of unrelated parts, whose matches surely
        multiply."""
        start, found = 0, 1
        while left.most(sizes, members, start, found) > self._affordable:
            end = start
            while left.most(sizes, members, start, found, end + 1) <= self._affordable:
                end += 1
            if end == start or left.is_product:
                return False
            beginning = self._beginnings.setdefault(left.steps[:end], _Left(left.steps[:end], ()))
            self._run([beginning])
            start, found = end, beginning.counted
        return True

    def _run(self, lefts: Iterable[_Left]) -> None:
        """Count what is new. Matches whose rows changed are counted again, so the sum is never below the truth."""
        commands: list[str] = []
        by_name: dict[str, _Left] = {}
        for left in lefts:
            if not left.counter:
                self._numbered += 1
                left.counter = f"count_{self._numbered}"
                commands += self._counter(left)
            by_name[left.counter] = left
        self._engine.run(commands)
        for name, n in self._engine.step(*sorted(by_name)).items():
            by_name[name].counted += n

    def _counter(self, left: _Left) -> list[str]:
        """The rule that matches `left` and does nothing. It names every variable: those that no action names, the
        engine does not enumerate."""
        atoms = [s.atom for s in left.steps]
        values = _variables(v for a in atoms for v in (*a.operands, a.output))
        commands, nothing = self._row("absent", values, _variables(v for a in atoms for v in a.sizes))
        facts = " ".join([*(a.fact for a in atoms), *left.filters])
        return [*commands, f"(ruleset {left.counter})", _rule(left.counter, facts, f"(delete {nothing})", left.counter)]

    def _row(self, table: str, values: Sequence[str], sizes: Sequence[str]) -> tuple[list[str], str]:
        """A row of a relation for so many values and sizes, after the commands that declare it if it is new."""
        symbol = f"{table}_{len(values)}_{len(sizes)}_"
        row = f"({' '.join((symbol, *values, *sizes))})"
        if symbol in self._relations:
            return [], row
        self._relations.add(symbol)
        return [f"(relation {symbol} ({'T ' * len(values)}{'Dim ' * len(sizes)}))"], row

    def _missing(self, rule: str) -> int:
        """How many nodes the matches of `rule` ask for that are not there. O(all its matches).

        What a node is made of is written into a relation, so that nodes asked for twice count once; then the rows are
        counted, and those whose node is there. These engine rules are used once: they have to see all matches.
        """
        self._numbered += 1
        write, count, wipe = (f"{what}_{self._numbered}" for what in ("write", "compare", "wipe"))
        commands = [f"(ruleset {name})" for name in (write, count, wipe)]
        found = asked = 0
        for c in self._instances[rule]:
            found += c.leaves + len(c.ground)
            made_by = {a.output: a for a in (*c.ground, *c.right)}
            rows: list[str] = []
            for atom in c.right:
                below = _below(atom, made_by)
                values = _variables(v for a in below for v in a.operands if v not in made_by)
                sizes = _variables(v for a in below for v in a.sizes)
                declared, row = self._row(f"asked_{asked}", values, sizes)
                absent, nothing = self._row("absent", values, sizes)
                there = " ".join(a.fact for a in below)
                commands += [*declared, *absent, _rule(wipe, row, f"(delete {row})")]
                commands.append(_rule(count, row, f"(delete {nothing})", f"{count}_{asked}"))
                commands.append(_rule(count, f"{row} {there}", f"(delete {nothing})", f"{count}_{asked}_there"))
                rows.append(row)
                asked += 1
            commands.append(_rule(write, c.facts, " ".join(rows)))
        self._engine.run(commands)
        self._engine.step(write)
        for name, n in self._engine.step(count).items():
            found += -n if name.endswith("_there") else n
        self._engine.step(wipe)
        return found


def _rule(ruleset: str, facts: str, actions: str, name: str = "") -> str:
    return f"(rule ({facts}) ({actions}) :ruleset {ruleset}" + (f' :name "{name}")' if name else ")")


def _below(atom: Atom, made_by: Mapping[str, Atom]) -> list[Atom]:
    """`atom` and the other new nodes that it is made of."""
    found, todo = dict[Atom, None](), [atom]
    while todo:
        a = todo.pop()
        found[a] = None
        todo += [made_by[v] for v in a.operands if v in made_by]
    return list(found)


def _members(sizes: Mapping[str, int], nodes: int) -> int:
    """The most members a class can have: every other class has at least one of the nodes. Classes are counted by their
    annotations, which is too few where some cannot be formed, and as if those with several were none."""
    return nodes - (sizes.get("has_ann", 0) - sizes.get("doubled", 0)) + 1


def _is_variable(term: str) -> bool:
    return bool(term) and term[0] != "("


def _variables(terms: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(_is_variable, terms)))


def _steps(atoms: Sequence[Atom]) -> tuple[_Step, ...]:
    """The atoms from the roots down, those first that fewest rows can satisfy once the ones before are fixed."""
    rest, bound, steps = list(reversed(atoms)), set[str](), list[_Step]()
    while rest:
        atom = min(rest, key=lambda a: _join(a, bound).value)
        rest.remove(atom)
        join = _join(atom, bound)
        hooks = [atom.output] if join is Join.MEMBER else [v for v in atom.operands if v in bound]
        steps.append(_Step(atom, join, hooks[0] if hooks else ""))
        bound.update(filter(_is_variable, atom.columns))
    return tuple(steps)


def _join(atom: Atom, bound: set[str]) -> Join:
    if all(v in bound or not _is_variable(v) for v in (*atom.operands, *atom.sizes)):
        return Join.KEYED
    return Join.MEMBER if atom.output in bound else Join.FREE


def _total(uses: Iterable[_Use], most: Mapping[_Left, int], counted: set[_Left]) -> Forecast:
    matches = nodes = 0
    for u in uses:
        n = most[u.left]
        if n and u.left in counted:
            n = min(n, u.left.counted - u.done)
        if n:
            matches += n * u.firings
            nodes += n * u.nodes + u.once
    return Forecast(matches, nodes)


def _largest(uses: Iterable[_Use], most: Mapping[_Left, int], room: Forecast) -> list[_Left]:
    """The left sides that may take most of `room`: so many that the others together surely fit."""
    shares: dict[_Left, float] = {}
    for u in uses:
        n = most[u.left]
        share = max(n * u.firings / max(room.matches, 1), n * u.nodes / max(room.nodes, 1))
        shares[u.left] = shares.get(u.left, 0.0) + share
    largest = sorted(shares, key=lambda n: -shares[n])
    rest = sum(shares.values())
    for i, left in enumerate(largest):
        if rest <= 0.9:
            return largest[:i]
        rest -= shares[left]
    return largest


def _matches(steps: Sequence[_Step], tables: Mapping[str, list[Row]]) -> int:
    """The number of matches, when each step is held to the variable it hangs on and no other. O(rows of its tables)."""
    counted = [(i, s) for i, s in enumerate(steps) if i == 0 or s.join is not Join.KEYED]  # of the others, one row each
    binder: dict[str, tuple[int, int]] = {}  # variable -> step and column that fix it
    hanging: list[list[tuple[int, int]]] = [[] for _ in steps]  # by step: column, and the step hanging there
    for i, s in counted:
        if s.link in binder:
            owner, column = binder[s.link]
            hanging[owner].append((column, i))
        for column, v in enumerate(s.atom.columns):
            if _is_variable(v):
                binder.setdefault(v, (i, column))
    weights: list[dict[Value, int]] = [{} for _ in steps]
    found = 1
    for i, s in reversed(counted):
        own = s.atom.columns.index(s.link) if s.link in binder and binder[s.link][0] != i else -1
        total = 0
        for r in tables.get(s.atom.table, ()):
            row = (*r.inputs, r.output)
            weight = 1
            for column, below in hanging[i]:
                weight *= weights[below].get(row[column], 0)
            if own >= 0:
                weights[i][row[own]] = weights[i].get(row[own], 0) + weight
            total += weight
        if own < 0:
            found *= total
    return found
