"""Families: with `bounds=` and no single `at`, `optimize` finds several programs, each for the sizes it is best at.

One saturated e-graph serves all sizes: programs are extracted from it at corners, on a grid and at random sizes, until
several extractions in a row bring nothing better. Each program is priced at thousands of sizes at once
(`prices.seconds_at`). The fewest programs that are near the best everywhere are chosen, and the bounds are split into
boxes, by sizes, products of sizes and remainders, each served by one program (`extract.cover`). It is proved that the
boxes cover the bounds and do not overlap; without a proof one program serves all sizes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from relax_eg.backend.family import SearchSpec
from relax_eg.driver.clock.measured import CandidateProgram, Search
from relax_eg.driver.options import Sizes, scope_allows
from relax_eg.driver.prices import NEVER_SLOWER, is_lowered_otherwise, seconds_at
from relax_eg.extract.boundary import boundary
from relax_eg.extract.costs.numbers import evaluate
from relax_eg.extract.cover import GAINING, NEARER, CoverBox, Partition, choose_programs, cost_ratios
from relax_eg.extract.family_rows import FamilyRow, VariantRow
from relax_eg.extract.profiles.profile import AS_USUAL
from relax_eg.extract.report import AS_WRITTEN, Crossover, Curve, Series
from relax_eg.extract.selection.weights import FRUGAL, prepared_bytes
from relax_eg.figures import binding_text
from relax_eg.ir.annotations import Tensor, dims_of
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Module
from relax_eg.ir.partition import split
from relax_eg.logs import log_at, report_progress, stage
from relax_eg.ops import bytes_of
from relax_eg.shapes import Dim, Proved, Scope
from relax_eg.shapes.dispatch import Dispatch
from relax_eg.shapes.guards import Bound, Guard, prove_partition
from relax_eg.shapes.relation import atoms_of

MOST = 6  # limit: variants of a family
NOTHING_NEW, BY_CLOCK = "nothing new", "time limit"
_SAMPLES = 3000  # chosen: sample points at which every program is priced
_FRESH = (2, 3, 4, 5, 6, 7)  # chosen: seeds of further random sizes, on which the guards are tested
_LATTICE = 1500  # chosen: sample points on a lattice, at most
# chosen: sizes of the lattice along each variable, by how many variables vary: about _LATTICE points together
_LATTICE_LEVELS = {1: _LATTICE, 2: 36, 3: 11, 4: 6, 5: 4}
_LEVELS = {1: 9, 2: 5, 3: 3}  # chosen: sizes of the extraction grid along each variable, by how many vary
_GRID = 64  # limit: points of that grid
_CORNERS = 16  # limit: corners of the bounds at which programs are extracted
_QUIET = 12  # chosen: extractions in a row without news after which the pool counts as complete
_QUIETEST = 40  # chosen: the same, where extraction is cheap
_NEWS = 1.003  # chosen: a program counts as new if it is so many times cheaper than all in the pool
_WORK = 40_000  # limit: product of candidates and extractions
_FEWEST, _MOST_EXTRACTIONS = 8, 80  # limit: extractions, however many candidates there are
_CURVE = 33  # limit: sizes of a curve
_CURVES = 4  # limit: size variables that have a curve
_FRUGAL_POINTS = 4  # limit: points at which programs that prepare less are extracted
_FULL_SUMS = 4  # limit: size variables; polynomials in more have products of two at most, and powers need fewer
# given: times cheaper at which guards separate a program from the one as written: midway between may and must replace
_LIKE = 1 + (NEVER_SLOWER - 1) * (1 + GAINING) / 2
_MODULI = 2  # limit: divisors per size variable
_LARGE = 4  # limit: values whose bytes guards may compare
_MOVED, _MOVED_OF = 16, 8  # chosen: points that replace disallowed ones: at least so many, else one in so many
_PARTED = 1.5  # given: limit between ratio 1 of the serving program and ratio 2 of all others


@dataclass(frozen=True, slots=True)
class Member:
    """A variant of a family.

    - `candidate`: its program.
    - `guard`: the sizes that it serves.
    - `at`: the binding of its report.
    - `served`: the bindings of `at` that it serves.
    """

    candidate: CandidateProgram
    guard: Guard
    at: Sizes
    served: tuple[Sizes, ...]


@dataclass(frozen=True, slots=True)
class FoundVariants:
    """The variants that a search for a family found.

    - `members`: the variants, the one for the first of `at` first.
    - `fallback`: the index of the one for symbolic sizes.
    - `programs`: all programs that were compared.
    - `row`: the row of the family in the report.
    - `variants`: the row of each variant in the report.
    - `curves`: the cost of the variants over each size.
    """

    members: tuple[Member, ...]
    fallback: int
    programs: tuple[CandidateProgram, ...]
    row: FamilyRow
    variants: tuple[VariantRow, ...]
    curves: tuple[Curve, ...]


@stage("family")
def family(search: Search) -> FoundVariants:
    """The variants of a program for all sizes that its options allow."""
    started = time.perf_counter()
    pool = _Pool(search)
    pool.fill()
    ratios = pool.ratios()
    chosen, limit, open_ = choose_programs(ratios, MOST, pool.fits_prepared_limit)
    if len(open_):
        pool.fill_frugally(open_)
        ratios = pool.ratios()
        chosen, limit, open_ = choose_programs(ratios, MOST, pool.fits_prepared_limit)
    members, guards, served_by, proof = _partition(pool, ratios, chosen, limit)
    for seed in _FRESH:
        if len(members) > 1 and pool.add_missed_sizes(members, guards, limit, seed):
            ratios = pool.ratios()
            members, guards, served_by, proof = _partition(pool, ratios, chosen, limit)
    own = np.array([members[s] for s in served_by])
    costly = pool.ratios(prices_are_known=True)
    regrets, worst = costly[own, np.arange(len(own))], costly[members].max(1)
    fallback = int(np.argmin(worst))
    row = FamilyRow(
        pool.extractions, pool.stop, len(pool.programs), len(own), proof, max(0.0, float(regrets.max()) - 1),
        pool.prepared(members), time.perf_counter() - started,
    )  # fmt: skip
    made = [_member(pool, p, g, served_by == i, i == 0) for i, (p, g) in enumerate(zip(members, guards, strict=True))]
    rows = tuple(
        VariantRow(
            f"variant {i + 1}", str(m.guard), m.at, () if m.candidate.entry is None else m.candidate.entry.rules,
            float((served_by == i).mean()), max(0.0, float(regrets[served_by == i].max(initial=1.0)) - 1),
            m.candidate.entry is None, i == fallback, pool.prepared([p]),
            search.candidate_options(m.candidate).execution,
        )
        for i, (m, p) in enumerate(zip(made, members, strict=True))
    )  # fmt: skip
    log_at(
        1, f"{search.traced.name}: {len(made)} variants of {row.programs} programs from {row.extractions} extractions"
    )
    return FoundVariants(tuple(made), fallback, tuple(pool.programs), row, rows, _curves(pool, made))


# --- the pool ---


class _Pool:
    """Programs and their costs at sample points. The first is the program as written."""

    def __init__(self, search: Search) -> None:
        options = search.options
        self.search = search
        self.scope = options.scope
        self.names = list(options.bindings[0])
        self.ranges = options.ranges
        self.varying = [v for v, (low, high) in self.ranges.items() if low < high]
        self.moduli = _moduli(search.traced.module, self.scope, self.varying)
        self.visits = self._visits()
        self.columns = self._columns([*self.visits, *self._sample()])
        self.allocation_thresholds = self._allocation_thresholds()
        self.programs: list[CandidateProgram] = []
        self.costs: list[np.ndarray] = []
        self.extractions = 0
        self.stop = ""
        self._prepared: dict[Module, frozenset[Expr]] = {}
        self._add(CandidateProgram(None))

    def _add(self, program: CandidateProgram) -> None:
        self.programs.append(program)
        self.costs.append(self.cost(program, self.columns))

    def cost(self, program: CandidateProgram, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Seconds by which programs are compared: predicted seconds times the doubt about them."""
        return self.seconds(program, columns) * self.search.doubt(program)

    def seconds(self, program: CandidateProgram, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        search, inside = self.search, self.search.candidate_options(program)
        if program.entry is None:
            return seconds_at(search.traced.module, inside, columns)
        return seconds_at(program.entry.module, inside, columns, search.weights)

    def fill(self) -> None:
        """Extract programs until several visits in a row bring nothing new, or a limit is reached."""
        search, options = self.search, self.search.options
        modes = [AS_USUAL, *(options.profile.modes if options.profile.calibrated else ())]
        ways = (search.by_price, *search.other_executions)
        specs = [(replace(spec, mode=mode.name), mode) for spec in ways for mode in modes]
        most = min(max(_WORK // max(1, search.entry().units.candidates), _FEWEST), _MOST_EXTRACTIONS)
        first = len(options.bindings) + 1 + min(_CORNERS, 2 ** len(self.varying))
        deadline = time.thread_time() + options.budget.seconds
        known = set[tuple[Module, SearchSpec]]()
        if not search.weights and not is_lowered_otherwise(search.traced.module, options):
            known.add((search.entry().units.written, search.by_price))
        enough = max(_QUIET, min(most // 2, _QUIETEST))
        quiet = 0
        for i, point in enumerate(self.visits):
            is_asked = i < len(options.bindings)
            if quiet >= enough and i >= first:
                self.stop = NOTHING_NEW
            elif i >= most and not is_asked:
                self.stop = f"limit of {most} extractions"
            elif time.thread_time() > deadline and not is_asked:
                self.stop = BY_CLOCK
            if self.stop:
                break
            before = min(float(c[i]) for c in self.costs)
            for spec, mode in specs:
                entry = search.entry_at(point, spec)
                self.extractions += 1
                if (entry.module, spec) not in known:
                    known.add((entry.module, spec))
                    self._add(CandidateProgram(entry, mode))
            quiet = 0 if before > _NEWS * min(float(c[i]) for c in self.costs) else quiet + 1
            sizes = binding_text(point)
            log_at(2, f"family: extracted at {sizes}, {len(self.programs)} programs")
            report_progress("family", self.extractions, len(self.programs))
        self.stop = self.stop or NOTHING_NEW

    def fill_frugally(self, points: np.ndarray) -> None:
        """Extract programs that prepare less from weights, at some of these points: what several variants prepare
        together must fit."""
        if not self.search.weights:
            return
        known = {p.entry.runs for p in self.programs if p.entry is not None}
        for i in points[np.linspace(0, len(points) - 1, min(len(points), _FRUGAL_POINTS)).astype(int)]:
            point = {v: int(c[i]) for v, c in self.columns.items()}
            for share, spec in itertools.product(FRUGAL, (self.search.by_price, *self.search.other_executions)):
                entry = self.search.entry_at(point, spec, share)
                self.extractions += 1
                if entry.runs not in known:
                    known.add(entry.runs)
                    self._add(CandidateProgram(entry))

    def add_missed_sizes(self, members: Sequence[int], guards: Sequence[Guard], limit: float, seed: int) -> bool:
        """Test the guards on new random sizes; sizes at which they choose a program that is not near although another
        member is nearer become sample points. Returns whether there were any."""
        points = self._allowed(self._random(_SAMPLES, np.random.default_rng(seed)))
        columns = self._columns(points)
        costs = [self.cost(p, columns) for p in self.programs]
        dispatch = Dispatch(guards)
        ratios = cost_ratios(np.array(costs), NEVER_SLOWER)[members]
        served = ratios[[dispatch.index_of(p) for p in points], np.arange(len(points))]
        missed = np.flatnonzero(served > np.maximum(limit, ratios.min(0) * (1 + NEARER)))
        if len(missed):
            self.columns = {v: np.concatenate([c, columns[v][missed]]) for v, c in self.columns.items()}
            self.costs = [np.concatenate([c, new[missed]]) for c, new in zip(self.costs, costs, strict=True)]
            log_at(2, f"family: {len(missed)} of {len(points)} new sizes had another program")
        return bool(len(missed))

    def ratios(self, prices_are_known: bool = False) -> np.ndarray:
        """The cost of each program at each sample point, as a ratio (`cover.cost_ratios`)."""
        return cost_ratios(np.array(self.costs), NEVER_SLOWER, prices_are_known)

    # --- what is prepared from weights ---

    def _cut(self, program: int) -> frozenset[Expr]:
        entry = self.programs[program].entry
        if entry is None or not self.search.weights:
            return frozenset()
        found = self._prepared.get(entry.module)
        if found is None:
            cut = split(entry.module.main, self.search.weights).prepare.result.args
            found = self._prepared[entry.module] = frozenset(cut)
        return found

    def prepared(self, programs: Sequence[int]) -> int:
        """Bytes that the programs prepare together, counting shared values once."""
        return prepared_bytes(frozenset[Expr]().union(*map(self._cut, programs)), self.search.options.bindings[0])

    def fits_prepared_limit(self, programs: Sequence[int]) -> bool:
        """Whether the bytes that the programs prepare together are within the limit."""
        search = self.search
        if not search.weights:
            return True
        held = [p for p in search.traced.module.main.params if str(p.attr("name")) in search.weights]
        limit = search.options.preparable.bytes_for(prepared_bytes(held, search.options.bindings[0]))
        return self.prepared(programs) <= limit

    # --- points ---

    def _columns(self, points: Sequence[Sizes]) -> dict[str, np.ndarray]:
        return {v: np.array([p[v] for p in points], np.int64) for v in self.names}

    def features(self) -> list[Dim]:
        """What guards may compare: sizes, then products and differences of them, then remainders."""
        sizes = [Dim.var(v) for v in self.varying]
        pairs = list(itertools.combinations(sizes, 2))
        products = [a * b for a, b in pairs]
        if len(sizes) > 2:
            products.append(math.prod(sizes[1:], start=sizes[0]))
        remainders = (Dim.var(v) % m for v in self.varying for m in self.moduli.get(v, ()))
        return [
            *dict.fromkeys([*sizes, *products, *self.allocation_thresholds]),
            *(a - b for a, b in pairs),
            *remainders,
        ]

    def _allocation_thresholds(self) -> dict[Dim, list[int]]:
        """Products of sizes that decide whether a value is so large that allocating it takes time, if that differs
        between the sizes; each with the largest products at which it takes none."""
        fresh = self.search.options.profile.fresh_bytes
        tensors = (
            e.annotation for e in self.search.traced.module.main.expressions() if isinstance(e.annotation, Tensor)
        )
        found: dict[Dim, list[int]] = {}
        for size in dict.fromkeys(bytes_of(a) for a in tensors):
            if len(size.terms) != 1 or any(atom.op != "var" for atom in size.terms[0][0]):
                continue
            values = evaluate(size, self.columns)
            if np.min(values) < fresh <= np.max(values) and len(found) < _LARGE:
                ((atoms, each),) = size.terms
                product = math.prod((Dim.var(atom.name) for atom in atoms), start=Dim.of(1))
                found.setdefault(product, []).append(math.ceil((fresh - size.const) / each) - 1)
        return found

    def values(self, dims: Sequence[Dim]) -> list[np.ndarray]:
        """The values of size expressions at the sample points."""
        columns = {v: c.astype(np.float64) for v, c in self.columns.items()}
        return [np.broadcast_to(np.asarray(evaluate(d, columns), np.float64), len(self.costs[0])) for d in dims]

    def boundaries(self, programs: Sequence[int]) -> list[Dim]:
        """Polynomials in the sizes that separate two of the programs; none if fewer than two sizes vary."""
        if len(self.varying) < 2:
            return []
        sizes = [Dim.var(v) for v in self.varying]
        most = len(sizes) if len(sizes) <= _FULL_SUMS else 2
        several = itertools.chain.from_iterable(itertools.combinations(sizes, n) for n in range(most + 1))
        terms = [math.prod(s, start=Dim.of(1)) for s in several]
        groups = [1 + len(sizes) + math.comb(len(sizes), 2), len(terms)]
        if len(sizes) < _FULL_SUMS:
            powers = (s for n in (2, 3) for s in itertools.combinations_with_replacement(sizes, n))
            terms = list(dict.fromkeys([*terms, *(math.prod(s, start=Dim.of(1)) for s in powers)]))
        columns = self.values(terms)
        found: list[Dim] = []
        for p, q in itertools.combinations(sorted(programs), 2):
            other = self.costs[q] if p else _LIKE * self.costs[q]
            whole = boundary(self.costs[p], other, columns, (*groups, len(terms)))
            if whole is not None:
                found.append(sum((c * t for c, t in zip(whole, terms, strict=True) if c), Dim.of(0)))
        return found

    def _visits(self) -> list[dict[str, int]]:
        """The points of extraction: `at`, the middle, corners, then grid and random sizes mixed."""
        given = [dict(b) for b in self.search.options.bindings]
        middle = {v: math.isqrt(low * high) for v, (low, high) in self.ranges.items()}
        ends = ([low, high] if low < high else [low] for low, high in self.ranges.values())
        corners = [dict(zip(self.names, c, strict=True)) for c in itertools.islice(itertools.product(*ends), _CORNERS)]
        rng = np.random.default_rng(0)
        rest = self._lattice(_LEVELS.get(len(self.varying), 2), _GRID, small=False) + self._random(
            _MOST_EXTRACTIONS, rng
        )
        rng.shuffle(rest)  # type: ignore[arg-type]
        return self._allowed([*given, middle, *corners, *rest])

    def _sample(self) -> list[dict[str, int]]:
        rng = np.random.default_rng(1)
        per_size = _LATTICE_LEVELS.get(len(self.varying), 2)
        lattice = self._lattice(per_size, _LATTICE, small=True)
        return self._allowed(lattice + self._random(_SAMPLES - len(lattice), rng))

    def _lattice(self, per_size: int, most: int, small: bool) -> list[dict[str, int]]:
        axes = [levels(*self.ranges[v], per_size, small) for v in self.names]
        if small and math.prod(map(len, axes)) > most:  # truncated, it would leave out whole ranges of some sizes
            return []
        return [dict(zip(self.names, p, strict=True)) for p in itertools.islice(itertools.product(*axes), most)]

    def _random(self, count: int, rng: np.random.Generator) -> list[dict[str, int]]:
        """Random sizes: of every four points two log-uniform and two uniform, because log-uniform points rarely have
        all sizes large; every other point is rounded down to the divisors of the sizes."""
        drawn: list[dict[str, int]] = []
        for i in range(count):
            point: dict[str, int] = {}
            for v, (low, high) in self.ranges.items():
                if i % 4 < 2:
                    drawn_from = math.log(max(low, 1)), math.log(high + 1)
                    size = min(high, max(low, round(math.exp(rng.uniform(*drawn_from)) - 0.5)))
                else:
                    size = int(rng.integers(low, high, endpoint=True))
                for m in self.moduli.get(v, ()) if i % 2 else ():
                    size = size // m * m if size // m * m >= low else size
                point[v] = size
            drawn.append(point)
        return drawn

    def _allowed(self, points: Iterable[dict[str, int]]) -> list[dict[str, int]]:
        """The distinct points that the scope allows; points of the scope replace the others."""
        distinct = {tuple(p.values()): p for p in points}
        found = [p for p in distinct.values() if not self.scope.assumptions or scope_allows(self.scope, p)]
        if len(found) < len(distinct):
            found += self.scope.points(self.names, max(_MOVED, len(distinct) // _MOVED_OF))
        return found


def levels(low: int, high: int, count: int, small: bool = False) -> list[int]:
    """Sizes from low to high in geometric steps; with `small` also all of the smallest ones."""
    if high - low < count:
        return list(range(low, high + 1))
    least = max(low, 1)
    steps = (least * (high / least) ** (i / (count - 1)) for i in range(count))
    first = range(low, min(high, low + count // 4) + 1) if small else ()
    return sorted({low, high, *first, *(min(high, max(low, round(s))) for s in steps)})


def _moduli(module: Module, scope: Scope, names: Sequence[str]) -> dict[str, list[int]]:
    """For each size variable the smallest few divisors it has in the program or in the assumptions."""
    dims = {d for f in module for e in f.expressions() for d in dims_of(e.annotation)}
    dims |= {d for r in scope.relations for d in (r.left, r.right)}
    found: dict[str, set[int]] = {}
    for atom in atoms_of(*dims):
        if atom.op in ("floordiv", "ceildiv") and atom.args[1].is_const and str(atom.args[0]) in names:
            found.setdefault(str(atom.args[0]), set()).add(atom.args[1].value)
    return {v: sorted(m for m in ms if m > 1)[:_MODULI] for v, ms in found.items()}


# --- guards ---


def _partition(
    pool: _Pool, ratios: np.ndarray, chosen: list[int], limit: float
) -> tuple[list[int], list[Guard], np.ndarray, str]:
    """The chosen programs that serve somewhere, the one for the first of `at` first; their guards; for each point the
    member that serves it; and how the cover was proved."""
    plain = pool.features()
    steps = {plain.index(d): cuts for d, cuts in pool.allocation_thresholds.items()}
    for features in ([*plain, *pool.boundaries(chosen)], plain):
        leaves = Partition(ratios[chosen], pool.values(features), len(plain), limit, steps=steps).leaves
        verdict = prove_partition([_guard(leaves, features)], pool.scope)
        if isinstance(verdict, Proved):
            break
        log_at(1, f"{pool.search.traced.name}: the cover of guards is not proved ({verdict})")
    else:
        best = chosen[int(np.argmin(ratios[chosen].max(1)))]
        return [best], [Guard(((),))], np.zeros(ratios.shape[1], np.int64), "trivial: one guard holds everywhere"
    # Point 0 is the first of `at`.
    of_first = next(x.program for x in leaves if (x.points == 0).any())
    first_box = {p: min(_corner(x) for x in leaves if x.program == p) for p in {x.program for x in leaves}}
    order = sorted(first_box, key=lambda p: (p != of_first, first_box[p]))
    served = np.zeros(ratios.shape[1], np.int64)
    for leaf in leaves:
        served[leaf.points] = order.index(leaf.program)
    mine = [sorted((x for x in leaves if x.program == p), key=_corner) for p in order]
    return [chosen[p] for p in order], [_guard(part, features) for part in mine], served, str(verdict)


def _corner(leaf: CoverBox) -> list[tuple[int, int]]:
    """Sort key of boxes: their lower bounds."""
    return [(f, low or 0) for f, (low, _) in sorted(leaf.bounds.items())]


def _guard(leaves: Sequence[CoverBox], features: Sequence[Dim]) -> Guard:
    return Guard(tuple(tuple(_bound(features[f], *x) for f, x in sorted(leaf.bounds.items())) for leaf in leaves))


def _bound(feature: Dim, low: int | None, high: int | None) -> Bound:
    is_remainder = any(atom.op != "var" for monomial, _ in feature.terms for atom in monomial)
    return Bound(feature, 0 if is_remainder and low is None else low, high)


def _member(pool: _Pool, program: int, guard: Guard, mine: np.ndarray, is_first: bool) -> Member:
    """A variant with the binding of its report: the first of `at` that it serves, else the binding it was extracted at,
    else a size in the middle of those it serves."""
    candidate, given = pool.programs[program], pool.search.options.bindings
    served = tuple(b for b in given if guard.holds(b))
    entry = candidate.entry
    if is_first:
        at: Sizes = given[0]
    elif served:
        at = served[0]
    elif entry is not None and entry.at is not None and guard.holds(entry.at):
        at = entry.at
    else:
        points = np.flatnonzero(mine)
        product = math.prod(pool.columns[v][points].astype(float) for v in pool.names)
        middle = points[np.argsort(product, kind="stable")[len(points) // 2]]
        at = {v: int(pool.columns[v][middle]) for v in pool.names}
    return Member(candidate, guard, at, served)


def nearest_guards(groups: Sequence[Sequence[Sizes]]) -> list[Guard]:
    """Guards that separate groups of bindings: the sizes between two bindings are cut at their geometric mean."""
    bindings = [(i, b) for i, group in enumerate(groups) for b in group]
    names = [v for v in bindings[0][1] if len({b[v] for _, b in bindings}) > 1]
    owners = np.array([i for i, _ in bindings])
    ratios = np.where(owners[None, :] == np.arange(len(groups))[:, None], 1.0, 2.0)
    columns = [np.array([b[v] for _, b in bindings], np.int64) for v in names]
    leaves = Partition(ratios, columns, len(columns), _PARTED, len(bindings)).leaves
    mine = [sorted((x for x in leaves if x.program == i), key=_corner) for i in range(len(groups))]
    return [_guard(part, [Dim.var(v) for v in names]) for part in mine]


# --- curves ---


def _curves(pool: _Pool, members: Sequence[Member]) -> tuple[Curve, ...]:
    """The cost of each variant over each size, the others as in the first of `at`, and where the serving variant
    changes."""
    found: list[Curve] = []
    first = pool.search.options.bindings[0]
    for v in pool.varying[:_CURVES]:
        sizes = [n for n in levels(*pool.ranges[v], _CURVE) if scope_allows(pool.scope, {**first, v: n})]
        if len(sizes) < 2:
            continue
        columns = {u: np.full(len(sizes), n, np.int64) for u, n in first.items()} | {v: np.array(sizes, np.int64)}
        rows = {f"variant {i + 1}": pool.seconds(m.candidate, columns) for i, m in enumerate(members)}
        rows[AS_WRITTEN] = pool.seconds(CandidateProgram(None), columns)
        series = tuple(Series(label, tuple(map(float, row))) for label, row in rows.items())
        at = {u: n for u, n in first.items() if u != v}
        found.append(Curve(v, at, tuple(sizes), series, tuple(_crossovers(members, first, v, sizes))))
    return tuple(found)


def _crossovers(members: Sequence[Member], at: Sizes, v: str, sizes: Sequence[int]) -> Iterable[Crossover]:
    """The sizes from which on another variant serves."""

    def serves(n: int) -> int:
        return next(i for i, m in enumerate(members) if m.guard.holds({**at, v: n}))

    for a, b in itertools.pairwise(sizes):
        while serves(a) != serves(b):
            low, high = a, b  # the next change is in (low, high]
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if serves(middle) == serves(a) else (low, middle)
            yield Crossover(high, f"variant {serves(low) + 1}", f"variant {serves(high) + 1}")
            a = high
