"""Extraction from the e-graph of one block: what is chosen there, and the expressions that it stands for.

A step of `Units` that depends on its arguments alone, but for the names of kernels, which a module shares.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial

from relax_eg.driver.options import ASSUMED_SIZE, Options
from relax_eg.driver.prices import function_seconds, kernel_cost
from relax_eg.egraph import Dump
from relax_eg.errors import NotExecutableError
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.pricing import FREE, Pricing
from relax_eg.extract.kernels.build import Built, Names
from relax_eg.extract.kernels.cost import without_dispatch
from relax_eg.extract.kernels.ways import members_of
from relax_eg.extract.kernels.weights import ChosenKernels, cheapest_kernels
from relax_eg.extract.report import KernelRow, RunnerUp, SelectedRow
from relax_eg.extract.selection.clock import Clock
from relax_eg.extract.selection.refine import refined
from relax_eg.extract.selection.select import problem_of, second_best, without_one_rule
from relax_eg.extract.selection.sensitivity import sensitivity
from relax_eg.extract.selection.weights import Chosen, Preparable, cheapest
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Block, Function
from relax_eg.ir.partition import missing_sizes
from relax_eg.rules.replacements import advice

# chosen: share of the price of a kernel through Pallas at which it is tried inside one XLA program. Beside it, other
# kernels are priced as such, of which XLA stores transposed operands; the price of the whole program decides.
_OWN_SHARE = 0.7


@dataclass(slots=True)
class WholePrices:
    """Seconds of a call of programs of one block, by the kernels that XLA makes of them. The extractions for a block
    price many programs twice, and those that differ have most operators in common.

    - `models`: the model at each binding; none before the first program.
    - `seconds`: by the values of a program, its seconds at each binding.
    """

    models: list[WholeCost] = field(default_factory=list[WholeCost])
    seconds: dict[tuple[Expr, ...], list[float]] = field(default_factory=dict[tuple[Expr, ...], list[float]])


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """What the values of a block are extracted for.

    - `function`: name of the function that has the block.
    - `block`: the block as written.
    - `options`: the options of the search, or with other bindings, another device or another execution.
    - `functions`: every function in its best form so far.
    - `unusable`: the library routines that may not be called.
    - `weights`: parameters known ahead of the calls.
    - `same`: parameters that are the same at every step. If there are any, a second form of the values is wanted: the
      cheapest one if what follows from these parameters is nearly free, or costs the share `once`.
    - `once`: the share of a value's price that is paid if it follows from `same`: 1 / steps in a loop; None: nearly
      free.
    - `is_hoisted`: XLA hoists what follows from `same` out of the loop, so both forms are one.
    - `preparable`: how much may be prepared from weights.
    - `pricing`: the prices of bytes in memory.
    - `clock`: bounds the seconds of extraction.
    - `names`: the names of kernels; those made here are added.
    - `is_again`: the e-graph was extracted from before; callers have their proposals from that time, and need no second
      form.
    - `whole`: the prices of whole programs that were asked for.
    """

    function: str
    block: Block
    options: Options
    functions: Mapping[str, Function]
    unusable: frozenset[str]
    weights: set[str]
    same: set[str]
    once: float | None
    is_hoisted: bool
    preparable: Preparable
    pricing: Pricing
    clock: Clock
    names: Names
    is_again: bool
    whole: WholePrices = field(default_factory=WholePrices)

    @property
    def bindings(self) -> list[dict[str, int]]:
        """The bindings, with an assumed size for each size variable of the function that the entry does not have."""
        names = missing_sizes(Function("block", (), (self.block,), self.block.bindings[0].value))
        assumed = {v: ASSUMED_SIZE for v in sorted(names)}
        return [{**assumed, **b} for b in self.options.bindings]

    @property
    def is_by_price_alone(self) -> bool:
        """Whether nothing but the price of a program counts: no weights are prepared, and no bytes have a price."""
        by_profile = self.options.cost is None and self.options.profile.has_known_fusions
        return by_profile and not self.weights and not self.same and self.pricing == FREE

    @contextmanager
    def advised(self) -> Generator[None]:
        """Adds to a NotExecutableError which rule sets would help."""
        try:
            yield
        except NotExecutableError as e:
            raise NotExecutableError(f"{e}; {advice(e.operators, self.options.rules)}", e.operators) from None


ValuesByRule = tuple[list[Expr], Mapping[Expr, tuple[str, ...]]]  # values, and the rules that made an expression


@dataclass(frozen=True, slots=True)
class BlockForm:
    """The values of a block.

    - `values`: the chosen expression of each binding.
    - `operators`: the values without kernels.
    - `classes`: the classes that an expression computes, its result's last.
    - `makers`: the rules that made an expression.
    - `stored`: the values that may be in memory, with their classes.
    - `built`: the kernels; None: the values are operators.
    """

    values: list[Expr]
    operators: list[Expr]
    classes: Mapping[Expr, tuple[int, ...]]
    makers: Mapping[Expr, tuple[str, ...]]
    stored: Mapping[Expr, int]
    built: Built | None = None


@dataclass(frozen=True, slots=True)
class ExtractedBlock:
    """What was extracted for a block.

    - `forms`: the cheapest values and, if it is wanted, the second form.
    - `priced_form`: the form whose values get prices of bytes in memory.
    - `taken`: the candidate chosen for each class that is computed.
    - `nodes_by_rule`: how many chosen nodes each rule made.
    - `selected`: how near the choice is to the best.
    - `written_cost`: the cost of the block as written; infinite if it is not known.
    - `runner_up`: finds the second best choice, which only a report asks for; None in kernels.
    - `without_rules`: finds the values that are cheapest without a rule of these, and the rules that made them, for
      each of a few rules; none in kernels.
    - `kernels`: the kernels that hold several operators.
    - `refused`: by rule, the candidates that were refused because the program would have lost accuracy.
    """

    forms: tuple[BlockForm, ...]
    priced_form: BlockForm
    taken: Mapping[int, int]
    nodes_by_rule: Mapping[str, int]
    selected: SelectedRow
    written_cost: float = math.inf
    runner_up: Callable[[], RunnerUp | None] = lambda: None
    without_rules: Callable[[], list[ValuesByRule]] = list
    kernels: tuple[KernelRow, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict[str, int])


def extract_operators(read: Dump, request: BlockRequest) -> ExtractedBlock:
    """The values of a block, of operators that XLA fuses."""
    options, clock = request.options, request.clock
    models = [
        WholeCost(options.profile, b, request.functions, options.cost, request.unusable, by_operator=True)
        for b in request.bindings
    ]
    leaves = request.once is not None and request.is_hoisted
    with request.advised(), clock.running():
        weights, once = (request.same, request.once) if leaves else (request.weights, None)
        chosen = cheapest(read.graph, read.decode, weights, models, once, request.preparable, request.pricing, clock)
        added_up, problem = chosen.selection, problem_of(read.graph, chosen.costs)
        if request.is_by_price_alone:
            chosen = replace(chosen, selection=refined(problem, added_up, _price_of_whole(read, request)))
    selection, name = chosen.selection, request.function
    fewer = () if request.is_again else sensitivity(problem, added_up.cost)
    row = SelectedRow(name, selection.how, selection.cost, selection.bound, read.graph.node_count, fewer)
    taken = {c: k for c, k in enumerate(selection.choice) if k >= 0}
    made = Counter(rule for c, k in taken.items() if (rule := read.graph.candidates[c][k].made_by))
    runner_up = cache(lambda: second_best(read.graph, chosen.costs, selection, name, len(models)))

    def without_rules() -> list[ValuesByRule]:
        with clock.running():
            others = without_one_rule(read.graph, problem, selection.choice)
            return [read.decode_with_rules(choice)[:2] for _, choice, cost in others if cost < math.inf]

    forms = [_form(read, chosen)]
    if leaves and not request.is_again:
        forms.append(forms[0])
    elif request.same and not request.is_again:
        with clock.running():
            apart = cheapest(read.graph, read.decode, request.same, models, request.once, clock=clock)
        forms.append(_form(read, apart))
    return ExtractedBlock(
        tuple(forms), forms[0], taken, dict(made), row, selection.written_cost, runner_up, without_rules
    )


def _price_of_whole(read: Dump, request: BlockRequest) -> Callable[[Sequence[int]], float]:
    """The price of a choice's program by the kernels that XLA makes of it: seconds of a call, summed over the bindings
    in units of the first program that is priced."""
    options, block, whole, first = request.options, request.block, request.whole, list[float]()
    if not whole.models:
        make = partial(WholeCost, options.profile, functions=request.functions, unusable=request.unusable)
        whole.models = [make(b) for b in request.bindings]

    def price(choice: Sequence[int]) -> float:
        values = tuple(read.decode_with_rules(choice)[0])
        if values not in whole.seconds:
            function = Function("block", (), (replace(block.with_values(values), dataflow=False),), values[0])
            whole.seconds[values] = [float(function_seconds(function, model, options)) for model in whole.models]
        seconds = whole.seconds[values]
        first[:] = first or seconds
        return sum(x / base for x, base in zip(seconds, first, strict=True))

    return price


def _form(read: Dump, chosen: Chosen) -> BlockForm:
    values, makers, stored = read.decode_with_rules(chosen.selection.choice)
    return BlockForm(values, values, {e: (c,) for e, c in stored.items()}, makers, stored)


def extract_kernels(read: Dump, request: BlockRequest) -> ExtractedBlock:
    """The values of a block, of kernels that are executables of their own; or of operators that XLA fuses, and kernels
    through Pallas among them."""
    options = request.options
    if options.own_kernels:
        options = replace(options, profile=without_dispatch(options.profile))
    models = [kernel_cost(options, b, request.functions, request.unusable) for b in request.bindings]
    for model in models:
        model.by_equations = True
        model.own_share = _OWN_SHARE if options.own_kernels else model.own_share

    def kernels(weights: set[str], once: float | None) -> Callable[[], ChosenKernels]:
        def make() -> ChosenKernels:
            with request.advised(), request.clock.running():
                return cheapest_kernels(
                    read.graph, read.build, models, options.steps, request.names, weights, once, request.pricing,
                    request.preparable, request.clock, options.own_kernels, options.as_written,
                )  # fmt: skip

        return make

    found = [read.rebuild_in_one_form(kernels(request.weights, None))]
    if request.same and not request.is_again:
        found.append(read.rebuild_in_one_form(kernels(request.same, request.once)))
    selection, built = found[0].selection, found[0].built
    taken: dict[int, int] = {}  # kernels overlap: the first that computes a class, of what was computed before
    for c, w in selection.ways.items():
        members = members_of(c, w) if w.several < 0 else selection.several[w.several].members
        for x, k in (*members.items(), (c, w.candidate)):
            taken.setdefault(x, k)
    row = SelectedRow(request.function, selection.how, selection.cost, selection.bound, selection.kept, selection.fewer)
    forms = [BlockForm(b.roots, b.operators, b.classes, b.rules, b.stored, b) for b in (x.built for x in found)]
    held = forms[-1] if request.once is None else forms[0]
    rows = built.rows(request.function, models[0])
    return ExtractedBlock(tuple(forms), held, taken, dict(built.made), row, kernels=rows)
