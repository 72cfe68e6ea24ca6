"""`best.explain()`: repeats the search with every match recorded, and finds a derivation in the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relax_eg.backend.family import SearchSpec
from relax_eg.backend.lowering.lower import library_call
from relax_eg.driver.batching import batch_function
from relax_eg.driver.certified import Certificate
from relax_eg.driver.fixed import remaining_statements
from relax_eg.driver.limits.checkpointed import Checkpoints
from relax_eg.driver.limits.fissioned import Fissions, rule_of
from relax_eg.driver.options import Options, Sizes, weight_names
from relax_eg.driver.units import RecordedBlock, SearchResult, Units
from relax_eg.errors import ExplanationError
from relax_eg.explain.check import replay
from relax_eg.explain.derive import derive
from relax_eg.explain.record import Recording
from relax_eg.explain.result import Derivation, DerivationPart
from relax_eg.explain.steps import Equation
from relax_eg.explain.text import Explanation
from relax_eg.extract.selection.weights import FRUGAL
from relax_eg.frontends import Source
from relax_eg.ir.calls import reachable_functions, without_calls
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Module
from relax_eg.memory.pinned import without_order
from relax_eg.rules.checking.schema_answers import Values
from relax_eg.rules.conditions import ValueGuard, key_of
from relax_eg.rules.facts.parameter_facts import known_facts
from relax_eg.shapes import Scope

_ORDERED = (
    "\nthe steps of the program that runs are in a stated order, in which some may run again: "
    "without `after`, which is the identity, it is the program above"
)
_SEGMENTED = (
    "\nthe program that runs computes the steps of loops again in segments, one after the other, where their gradients "
    "read what these kept; without segments, which no step of a derivation is about, it is that program:"
)


def explain_choice(traced: Source, options: Options, spec: SearchSpec, chosen: Module | None, at: Sizes) -> Explanation:
    """The replayed derivation of the `chosen` program (None: kept as written) from the one as written.

    - `spec`: the search that found it.
    - `at`: the binding for which a variant of a family was extracted; empty for a program for all bindings.

    ExplanationError if the search finds another program this time (the clock may have stopped either search), or if a
    step of the derivation does not hold.
    """
    # Programs for single bindings and for other executions were extracted from the e-graphs of this search.
    # Within a limit, a search with a price of a byte has e-graphs of its own.
    made = SearchSpec() if at else spec
    is_limited = options.memory_limit is not None or options.time_limit is not None
    held = made.held if is_limited else None
    first = replace(made, execution=options.executions[0], own_kernels=False, as_written=False, held=held)
    options, asked = options.searched(first), options.searched(spec)
    if chosen is None:
        return Explanation(_empty_derivation(traced, options), None, kind=Certificate)
    plain = without_order(chosen) if is_limited else chosen
    remark = _ORDERED if plain != chosen else ""
    looped = _derivation_in_loops(traced, options, plain) if is_limited else None
    if looped is not None:
        return Explanation(looped, replay(looped, library_call, batch_function), (), Certificate, remark)
    if is_limited and (segments := _segments_of(traced.module, options, plain)):
        return Explanation(_empty_derivation(traced, options), None, (), Certificate, remark + segments)
    units = Units(traced.module, options, weight_names(traced, options), record=True)
    again = units.run()
    extracted = replace(asked, bindings=(dict(at),) if at else asked.bindings)

    def is_chosen() -> bool:
        return _in_kernels(again, plain) if spec.has_kernels else again.module == plain

    if spec != first:
        again = units.extract_again(extracted)
    for share in (1.0, *FRUGAL) if at and not is_chosen() else ():
        again = units.extract_again(extracted, share)
        if is_chosen():
            break
    loops: Sequence[Equation] = ()
    if not is_chosen() and is_limited:
        base = without_calls(again.module)
        if segments := _segments_of(base, options, plain):
            plain, remark = base, remark + segments
        loops = _loops_of(base, options, plain) or ()
        if base != again.module:  # the steps inside of repeated blocks are needed at each place
            units = Units(traced.module, replace(options, sharing=False), weight_names(traced, options), record=True)
            again = units.run()
        again = _ending_at(again, units, plain)
    if not is_chosen():
        raise ExplanationError(
            f"{traced.name}: the search came to another program this time, so there is nothing on record of the one "
            "that was chosen; a larger budget(seconds=...) keeps the clock from deciding"
        )
    derivation = _derivation(traced, options, units, again, loops)
    rows = [row for o in again.outcomes for row in o.block.kernels]
    kernels = tuple(f"  {r.times} x {r.name}: {', '.join(r.operators)}" for r in rows)
    return Explanation(derivation, replay(derivation, library_call, batch_function), kernels, Certificate, remark)


def _ending_at(found: SearchResult, units: Units, chosen: Module) -> SearchResult:
    """A recorded search as if it had come to the `chosen` program, which a price of a byte or loops over pieces made of
    what it found. ExplanationError if functions of the two have the same name and are not the same."""
    blocks = {(f.name, n): tuple(block.values) for f in chosen for n, block in enumerate(f.blocks)}
    searched = {f.name for f in units.module}
    for f in chosen:
        if f.name not in searched and found.functions.get(f.name, f) != f:
            raise ExplanationError(f"{chosen.main.name}: the search made another function `{f.name}` this time")
    recorded = [replace(r, chosen=blocks.get((r.function, r.block), r.chosen)) for r in found.recorded]
    functions = {**found.functions, **{f.name: f for f in chosen}}
    return replace(found, module=chosen, functions=functions, recorded=recorded)


def _in_kernels(found: SearchResult, chosen: Module) -> bool:
    """Whether a recorded search, which returns programs in operators, came to the `chosen` kernels."""
    values = {(f.name, n): tuple(block.values) for f in chosen for n, block in enumerate(f.blocks)}
    mine = ((o.place, o.block.forms[0]) for o in found.outcomes)
    kernels = {place: tuple(form.values) for place, form in mine if form.built is not None}
    return all(values.get(place, own) == own for place, own in kernels.items())


def _empty_derivation(traced: Source, options: Options) -> Derivation:
    module, scope = _with_all_statements(traced.module, options.scope)
    functions = {f.name: f for f in module}
    return Derivation(
        traced.name, module, module, module, functions, (), options.rules, options.numerics, scope, dict(options.facts)
    )


def _derivation_in_loops(traced: Source, options: Options, chosen: Module) -> Derivation | None:
    """The derivation of the program as written in loops over pieces, which are made without a search; None if the
    program chosen is another one."""
    steps = _loops_of(traced.module, options, chosen)
    if steps is None:
        return None
    before, after = (m.main.blocks[0].bindings for m in (traced.module, chosen))
    goals = derive(Recording(), [b.value for b in before], [b.value for b in after], steps, lambda *_: False)
    empty, (end, _) = _empty_derivation(traced, options), _with_all_statements(chosen, options.scope)
    part = DerivationPart(end.main.name, 0, tuple(goals))
    return replace(empty, chosen=end, functions={f.name: f for f in (*empty.shared, *end)}, parts=(part,))


def _loops_of(module: Module, options: Options, chosen: Module) -> list[Equation] | None:
    """The loops over pieces that make the `chosen` program of a module; None if none do. They have to be proved, as no
    rule proposes loops in these numbers of pieces."""
    rules = {s.name: s for s in options.rules.schemas}
    found = Fissions(module, options.bindings[0], rules)
    if found.module != module:  # with calls, which a derivation would have to replace
        return None
    for region in found.regions:
        for pieces, is_finest in found.ways(region):
            made = found.cut(region, pieces, is_finest)
            if made is not None and made == chosen:
                return [Equation(rules[rule_of(region)], (pair,)) for pair in found.loops[made].items()]
    return None


def _segments_of(module: Module, options: Options, chosen: Module) -> str:
    """What is said of the loops of a module that the `chosen` program computes in segments; "" if it does not."""
    found = Checkpoints(module, options.bindings[0])
    made = next((segments for ways in found.ways() for segments in ways if found.cut(segments) == chosen), {})
    return "\n  ".join((_SEGMENTED, *(found.described(*x) for x in made.items()))) if made else ""


def _with_all_statements(module: Module, scope: Scope) -> tuple[Module, Scope]:
    """`module`, whose entry states all assumptions about sizes, and a scope with exactly those."""
    entry = module.main
    assume = remaining_statements(scope, entry)
    stated = Module(tuple(replace(f, assume=assume) if f is entry else f for f in module))
    return stated, Scope(assume=assume)


def _derivation(
    traced: Source, options: Options, units: Units, found: SearchResult, loops: Sequence[Equation]
) -> Derivation:
    parts = _parts(units, found, loops)
    written, scope = _with_all_statements(units.written, options.scope)
    shared, _ = _with_all_statements(units.module, options.scope)
    chosen, _ = _with_all_statements(found.module, options.scope)
    best = {**found.functions, chosen.main.name: chosen.main}
    needed = {f.name: best[f.name] for f in (*shared, *chosen)}
    ends = [x for p in parts for e in p.equations for pair in e.pairs for x in pair]
    bodies = [x for f in needed.values() for x in f.expressions()]
    needed |= {f.name: f for f in reachable_functions([*ends, *bodies], best)}
    return Derivation(
        traced.name, written, shared, chosen, needed, tuple(parts), options.rules, options.numerics, scope,
        dict(options.facts),
    )  # fmt: skip


def _parts(units: Units, search: SearchResult, loops: Sequence[Equation]) -> list[DerivationPart]:
    """The derivations of each changed block, and of the forms of functions from which a rule made something used in
    them. `loops`: steps of the entry that are not on record."""
    found: list[DerivationPart] = []
    forms: dict[str, dict[Values, None]] = {}
    # Callers first: they determine which forms of their callees are needed.
    for searched in reversed(search.recorded):
        more = loops if searched.function == units.module.main.name else ()
        part = _part(searched, units, tuple(forms.get(searched.function, ())), more)
        if not part.forms and all(g.start is g.end for g in part.results):
            continue
        found.append(part)
        forms_of_answers = [e.answers.forms for e in part.equations if e.answers is not None]
        for (_, name), values in (item for answers in forms_of_answers for item in answers.items()):
            known = [search.functions[name].values, *(f.values for f in units.module if f.name == name)]
            if values is not None and values not in known:
                forms.setdefault(name, {})[values] = None
    return found[::-1]


def _part(searched: RecordedBlock, units: Units, forms: Sequence[Values], more: Sequence[Equation]) -> DerivationPart:
    schemas = {s.name: s for s in units.options.rules.schemas}
    proposed = [
        Equation(schemas[rule], ((old, new),), answers=answers)
        for (old, new, rule), answers in searched.alternatives.items()
    ]
    known = known_facts(searched.declared_facts.facts, searched.declared_facts.exact, searched.scope)

    def holds(guard: ValueGuard, value: Expr) -> bool:
        return known.has(value, key_of(guard))

    count = len(searched.written)
    ends = [x for values in (searched.chosen, *forms) for x in values]
    starts = [*searched.written] * (1 + len(forms))
    goals = derive(searched.recording, starts, ends, [*proposed, *more], holds)
    each = [tuple(goals[i : i + count]) for i in range(0, len(goals), count)]
    return DerivationPart(searched.function, searched.block, each[0], tuple(each[1:]))
