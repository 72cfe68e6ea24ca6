"""Bounds on how much rules can grow the graph, found before the rules run.

A round runs only if the nodes that it can add fit the budget. The bound is found in steps, each more expensive and
sharper than the one before. The steps end as soon as a bound shows that the round fits:

1. Table sizes: a left side has at most as many matches as the product of its tables' rows, and an operator inside it
   contributes at most as many rows as the largest class can have members.
2. Counting: the left side becomes an engine rule of its own that adds nothing (a *counter*). Its matches are the
   rule's matches.
3. The engine's tables, read once: if even counting would take too long, matches are bounded in time linear in the
   tables, by summing along the tree of the left side. In a small graph this step comes before counting.
4. Enumeration, for a single rule: the nodes that its matches would add are written into relations, and those that the
   graph lacks are counted.

A bound may exceed the true number and is never below it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.egraph.engine import Engine, TableRow, Value
from relax_eg.egraph.patterns import Compiled
from relax_eg.egraph.query import QueryAtom
from relax_eg.ir.expr import Expr
from relax_eg.traversal import reached

COUNTED_PER_SECOND = 5_000_000  # chosen: matches that a counter finds in a second, about half of the measured number
ALWAYS_COUNTABLE = 1_000_000.0  # limit: matches that may be counted whatever the budget of seconds
SMALL_GRAPH = 2_000  # limit: nodes of a graph whose tables are read before anything is counted
ENUMERATED = 1_000_000  # limit: matches whose nodes may be enumerated, whatever the room
ENUMERATED_PER_NODE = 8  # limit: matches whose nodes may be enumerated for each node of room, if that allows more
_SAFE_SHARE = 0.9  # chosen: share of the room; left sides whose shares sum to at most this are counted last

Pattern = tuple[tuple[QueryAtom, ...], tuple[str, ...]]  # atoms, and further facts


@dataclass(frozen=True, slots=True)
class Forecast:
    """Upper bounds on matches and on the nodes that they add."""

    matches: int
    nodes: int

    def fits(self, room: Forecast) -> bool:
        """Whether both bounds are at most those of `room`."""
        return self.matches <= room.matches and self.nodes <= room.nodes


class Join(enum.Enum):
    """How an atom depends on those before it. This bounds the rows of its table that one match of those can have."""

    KEYED = 0  # every argument is fixed: one row
    MEMBER = 1  # its class is fixed: as many rows as a class has members
    FREE = 2  # neither is fixed: all rows


@dataclass(frozen=True, slots=True)
class _Step:
    """An atom of a left side, in the order in which atoms are matched."""

    atom: QueryAtom
    join: Join
    link: str  # the variable that ties it to the atoms before it; "" if there is none


@dataclass(eq=False, slots=True)
class _Left:
    """A left side, or the first steps of one.

    - `steps`: its atoms, in the order in which they are matched.
    - `filters`: its other facts.
    - `counter`: the ruleset of its counter; "" if it has none.
    - `counted`: the matches that the counter has found so far.
    """

    steps: tuple[_Step, ...]
    filters: tuple[str, ...]
    counter: str = ""
    counted: int = 0

    @property
    def is_product(self) -> bool:
        """Whether it has parts that share no variable."""
        return any(s.join is Join.FREE and not s.link for s in self.steps[1:])

    def row_bound(
        self, sizes: Mapping[str, int], members: int, start: int = 0, found: int = 1, end: int | None = None
    ) -> int:
        """Returns a bound on the matches of the steps up to `end`, from the sizes of tables, the most `members` of a
        class, and `found` matches of the steps before `start`."""
        for step in self.steps[start:end]:
            if step.join is Join.FREE:
                found *= sizes.get(step.atom.table, 0)
            elif step.join is Join.MEMBER:
                found *= min(sizes.get(step.atom.table, 0), members)
        return found


@dataclass(eq=False, slots=True)
class _Use:
    """The use of a left side by the instances of one rule.

    - `left`: the left side.
    - `instances`: by parameters, the number of instances and the nodes that they add for one match. Of instances with
      different parameters only one can match at one place.
    - `firings`: most matches of the rule for one match of the left side.
    - `nodes`: most new nodes of the rule for one match of the left side.
    - `ground_nodes`: nodes that the rule adds once, whatever the number of matches.
    - `counted_at_run`: matches that the counter had found when the rule last ran.
    """

    left: _Left
    instances: dict[tuple[Expr, ...], list[int]] = field(default_factory=dict[tuple[Expr, ...], list[int]])
    firings: int = 0
    nodes: int = 0
    ground_nodes: int = 0
    counted_at_run: int = 0


class Growth:
    """Bounds the matches of rules in one e-graph and the nodes that they add."""

    def __init__(self, engine: Engine, operators: Collection[str]) -> None:
        """`operators`: the symbols of the operators; the caller adds to the collection over time."""
        self._engine = engine
        self._operators = operators
        self._affordable = ALWAYS_COUNTABLE  # matches that may be counted for one left side
        self._lefts: dict[Pattern, _Left] = {}
        self._beginnings: dict[tuple[_Step, ...], _Left] = {}
        self._uses: dict[str, dict[_Left, _Use]] = {}
        self._instances: dict[str, list[Compiled]] = {}
        self._tables: dict[str, list[TableRow]] = {}  # of the present graph
        self._table_bounds: dict[_Left, int] = {}  # bounds on matches, from `_tables`
        self._relations: set[str] = set()  # those named `absent_` stay empty: counters only delete from them
        self._numbered = 0

    def allow(self, seconds: float) -> None:
        """Limits counting to what a budget of `seconds` permits."""
        self._affordable = max(ALWAYS_COUNTABLE, seconds * COUNTED_PER_SECOND)

    def tables(self) -> dict[str, list[TableRow]]:
        """Returns the engine's tables of operators, read once between two rounds."""
        self._tables = self._tables or self._engine.tables(self._operators)
        return self._tables

    def begin(self) -> None:
        """Begins a round: discards the tables read and their bounds, because the graph may have changed."""
        self._table_bounds.clear()
        self._tables = {}

    def add(self, rule: str, params: tuple[Expr, ...], compiled: Compiled) -> None:
        """Adds an instance of `rule`."""
        self._instances.setdefault(rule, []).append(compiled)
        pattern = (compiled.atoms, compiled.filters)
        left = self._lefts.get(pattern)
        if left is None:
            left = self._lefts[pattern] = _Left(_steps(compiled.atoms), compiled.filters)
        uses = self._uses.setdefault(rule, {})
        use = uses.get(left)
        if use is None:
            use = uses[left] = _Use(left)
        use.counted_at_run = 0  # the new instance has not run on the matches counted so far
        use.ground_nodes += compiled.leaves + len(compiled.ground_nodes)
        total = use.instances.setdefault(params, [0, 0])
        total[0] += 1
        total[1] += len(compiled.right)
        use.firings, use.nodes = max(use.firings, total[0]), max(use.nodes, total[1])

    def record_run(self, rules: Iterable[str]) -> None:
        """Records that these rules ran on the graph of the last forecast."""
        self.begin()
        for rule in rules:
            for left, use in self._uses.get(rule, {}).items():
                use.counted_at_run, use.ground_nodes = left.counted, 0

    def forecast(self, rules: Iterable[str], sizes: Mapping[str, int], nodes: int, room: Forecast) -> Forecast:
        """Returns a bound on the matches and new nodes of these rules when they next run, all at once, on a graph of
        `nodes` nodes with these table sizes. The bound is sharpened until it fits `room`, or as far as counting can."""
        uses = [u for r in rules for u in self._uses.get(r, {}).values()]
        members = _members(sizes, nodes)
        most = {u.left: 0 for u in uses}
        for left in most:
            most[left] = left.row_bound(sizes, members)
        counted: set[_Left] = set()
        total = _total(uses, most, counted)
        if nodes <= SMALL_GRAPH and not total.fits(room):  # reading a small graph's tables needs no counters
            for left in most:
                most[left] = min(most[left], _matches(left.steps, self.tables())) if most[left] else 0
            total = _total(uses, most, counted)
        for doubtful in (_largest(uses, most, room), [n for n in most if most[n]]):
            if total.fits(room):
                break
            counted |= self._count(doubtful, most, sizes, members)
            total = _total(uses, most, counted)
        return total

    def forecast_alone(self, rule: str, sizes: Mapping[str, int], nodes: int, room: Forecast) -> Forecast:
        """Returns the bound of `forecast` for one rule; if it does not fit, the new nodes are enumerated where the
        limits on enumeration allow it."""
        total = self.forecast([rule], sizes, nodes, room)
        if total.nodes > room.nodes and total.matches <= max(ENUMERATED, ENUMERATED_PER_NODE * room.nodes):
            return Forecast(total.matches, min(total.nodes, self._missing(rule)))
        return total

    def uncountable_matches(self, rule: str, sizes: Mapping[str, int], nodes: int) -> int:
        """Returns a bound on the matches of a left side of `rule` if they are too many to count; else 0."""
        members = _members(sizes, nodes)
        return max((self._uncountable(n, sizes, members) for n in self._uses.get(rule, {})), default=0)

    def _count(
        self, lefts: Iterable[_Left], most: dict[_Left, int], sizes: Mapping[str, int], members: int
    ) -> set[_Left]:
        """Brings the counters of `lefts` up to date and returns the left sides counted. For a left side with too many
        matches to count, it sharpens the bound in `most` instead."""
        ready: set[_Left] = set()
        for left in lefts:
            bound = self._uncountable(left, sizes, members)
            if bound:
                most[left] = min(most[left], bound)
            else:
                ready.add(left)
        self._run(ready)
        return ready

    def _uncountable(self, left: _Left, sizes: Mapping[str, int], members: int) -> int:
        """Returns a bound on the matches of `left` if they are too many to count; else 0."""
        if self._is_countable(left, sizes, members):
            return 0
        if left not in self._table_bounds:
            self._table_bounds[left] = _matches(left.steps, self.tables())
        found = self._table_bounds[left]
        return found if found > self._affordable else 0

    def _is_countable(self, left: _Left, sizes: Mapping[str, int], members: int) -> bool:
        """Whether table sizes show that the matches of `left` can be counted. If the sizes allow too many matches,
        beginnings of `left` are counted first, each as long as the sizes show to be countable. Left sides whose parts
        share no variable are excluded, because the matches of the parts multiply."""
        start, found = 0, 1
        while left.row_bound(sizes, members, start, found) > self._affordable:
            end = start
            while left.row_bound(sizes, members, start, found, end + 1) <= self._affordable:
                end += 1
            if end == start or left.is_product:
                return False
            beginning = self._beginnings.setdefault(left.steps[:end], _Left(left.steps[:end], ()))
            self._run([beginning])
            start, found = end, beginning.counted
        return True

    def _run(self, lefts: Iterable[_Left]) -> None:
        """Counts new matches. Matches whose rows changed are counted again, so the sum is never too low."""
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
        """Returns the commands for a rule that matches `left` and does nothing. Its action names every variable,
        because the engine does not enumerate variables that no action names."""
        atoms = [s.atom for s in left.steps]
        values = _variables(v for a in atoms for v in (*a.operands, a.output))
        commands, nothing = self._row("absent", values, _variables(v for a in atoms for v in a.sizes))
        facts = " ".join([*(a.fact for a in atoms), *left.filters])
        return [*commands, f"(ruleset {left.counter})", _rule(left.counter, facts, f"(delete {nothing})", left.counter)]

    def _row(self, table: str, values: Sequence[str], sizes: Sequence[str]) -> tuple[list[str], str]:
        """Returns the commands that declare a relation if it is new, and its row with these values and sizes."""
        symbol = f"{table}_{len(values)}_{len(sizes)}_"
        row = f"({' '.join((symbol, *values, *sizes))})"
        if symbol in self._relations:
            return [], row
        self._relations.add(symbol)
        return [f"(relation {symbol} ({'T ' * len(values)}{'Dim ' * len(sizes)}))"], row

    def _missing(self, rule: str) -> int:
        """Returns the number of nodes that the matches of `rule` would add to the graph. O(all its matches).

        The operands and sizes of each node are written into a relation, so a node of two matches counts once. Then the
        rows are counted, less those whose node exists. These engine rules are used only once, because they must see all
        matches.
        """
        self._numbered += 1
        write, count, wipe = (f"{what}_{self._numbered}" for what in ("write", "compare", "wipe"))
        commands = [f"(ruleset {name})" for name in (write, count, wipe)]
        found = asked = 0
        for c in self._instances[rule]:
            found += c.leaves + len(c.ground_nodes)
            made_by = {a.output: a for a in (*c.ground_nodes, *c.right)}
            rows: list[str] = []
            for atom in c.right:
                new = _new_nodes(atom, made_by)
                values = _variables(v for a in new for v in a.operands if v not in made_by)
                sizes = _variables(v for a in new for v in a.sizes)
                declared, row = self._row(f"asked_{asked}", values, sizes)
                absent, nothing = self._row("absent", values, sizes)
                there = " ".join(a.fact for a in new)
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


def _new_nodes(atom: QueryAtom, made_by: Mapping[str, QueryAtom]) -> list[QueryAtom]:
    """Returns `atom` and the other new nodes among its operands, at any depth."""
    return list(reached((atom,), lambda a: [made_by[v] for v in a.operands if v in made_by]))


def _members(sizes: Mapping[str, int], nodes: int) -> int:
    """Returns a bound on the members of a class: all nodes but one for each other class. The number of classes is
    bounded from below by the classes with exactly one annotation; classes that cannot be formed have none."""
    return nodes - (sizes.get("has_ann", 0) - sizes.get("doubled", 0)) + 1


def _is_variable(term: str) -> bool:
    return bool(term) and term[0] != "("


def _variables(terms: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(_is_variable, terms)))


def _steps(atoms: Sequence[QueryAtom]) -> tuple[_Step, ...]:
    """Orders the atoms from the roots down: the next atom is the one that fewest rows can satisfy, given those before
    it."""
    rest, bound, steps = list(reversed(atoms)), set[str](), list[_Step]()
    while rest:
        atom = min(rest, key=lambda a: _join(a, bound).value)
        rest.remove(atom)
        join = _join(atom, bound)
        hooks = [atom.output] if join is Join.MEMBER else [v for v in atom.operands if v in bound]
        steps.append(_Step(atom, join, hooks[0] if hooks else ""))
        bound.update(filter(_is_variable, atom.columns))
    return tuple(steps)


def _join(atom: QueryAtom, bound: set[str]) -> Join:
    if all(v in bound or not _is_variable(v) for v in (*atom.operands, *atom.sizes)):
        return Join.KEYED
    return Join.MEMBER if atom.output in bound else Join.FREE


def _total(uses: Iterable[_Use], most: Mapping[_Left, int], counted: set[_Left]) -> Forecast:
    matches = nodes = 0
    for u in uses:
        n = most[u.left]
        if n and u.left in counted:
            n = min(n, u.left.counted - u.counted_at_run)
        if n:
            matches += n * u.firings
            nodes += n * u.nodes + u.ground_nodes
    return Forecast(matches, nodes)


def _largest(uses: Iterable[_Use], most: Mapping[_Left, int], room: Forecast) -> list[_Left]:
    """Returns the fewest left sides, by largest share of `room`, without which the others together fit."""
    shares: dict[_Left, float] = {}
    for u in uses:
        n = most[u.left]
        share = max(n * u.firings / max(room.matches, 1), n * u.nodes / max(room.nodes, 1))
        shares[u.left] = shares.get(u.left, 0.0) + share
    largest = sorted(shares, key=lambda n: -shares[n])
    rest = sum(shares.values())
    for i, left in enumerate(largest):
        if rest <= _SAFE_SHARE:
            return largest[:i]
        rest -= shares[left]
    return largest


def _matches(steps: Sequence[_Step], tables: Mapping[str, list[TableRow]]) -> int:
    """Returns the number of matches if the variable `link` is all that ties a step to others. O(rows of its tables)."""
    counted = [(i, s) for i, s in enumerate(steps) if i == 0 or s.join is not Join.KEYED]  # the others have one row
    binder: dict[str, tuple[int, int]] = {}  # variable -> step and column that fix it
    linked: list[list[tuple[int, int]]] = [[] for _ in steps]  # by step: its column, and the step linked to that
    for i, s in counted:
        if s.link in binder:
            owner, column = binder[s.link]
            linked[owner].append((column, i))
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
            for column, inner in linked[i]:
                weight *= weights[inner].get(row[column], 0)
            if own >= 0:
                weights[i][row[own]] = weights[i].get(row[own], 0) + weight
            total += weight
        if own < 0:
            found *= total
    return found
