"""Extraction from the e-graph of one block: what is chosen there, and the expressions that it stands for.

A step of `Units` that depends on its arguments alone, but for the names of kernels, which a module shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from relax_eg.driver.options import ASSUMED_SIZE, Options
from relax_eg.egraph import Dump
from relax_eg.errors import NotExecutableError
from relax_eg.extract.clock import Clock
from relax_eg.extract.cost import WholeCost
from relax_eg.extract.kernels.build import Built, Names
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.weights import ChosenKernels, cheapest_kernels
from relax_eg.extract.pricing import Pricing
from relax_eg.extract.report import KernelRow, RunnerUp, SelectedRow
from relax_eg.extract.select import problem_of, second_best
from relax_eg.extract.sensitivity import sensitivity
from relax_eg.extract.weights import Chosen, cheapest
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Block, Function
from relax_eg.ir.partition import missing_sizes
from relax_eg.rules.replacements import advice


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """What the values of a block are extracted for.

    - `function`: name of the function that has the block.
    - `functions`: every function in its best form so far.
    - `unusable`: the library routines that may not be called.
    - `weights`: parameters known ahead of the calls.
    - `same`: parameters that are the same at every step. If there are any, a second form of the values is wanted: the
      cheapest one if what follows from these parameters is nearly free, or costs the share `once`.
    - `is_hoisted`: XLA hoists what follows from `same` out of the loop, so both forms are one.
    - `share`: how much may be prepared, as a multiple of the weights' bytes.
    - `names`: the names of kernels; those made here are added.
    - `is_again`: the e-graph was extracted from before; callers have their proposals from that time, and need no second
      form.
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
    share: float
    pricing: Pricing
    clock: Clock
    names: Names
    is_again: bool

    @property
    def bindings(self) -> list[dict[str, int]]:
        """The bindings, with an assumed size for each size variable of the function that the entry does not have."""
        names = missing_sizes(Function("block", (), (self.block,), self.block.bindings[0].value))
        assumed = {v: ASSUMED_SIZE for v in sorted(names)}
        return [{**assumed, **b} for b in self.options.bindings]

    @contextmanager
    def advised(self) -> Generator[None]:
        """Adds to a NotExecutableError which rule sets would help."""
        try:
            yield
        except NotExecutableError as e:
            raise NotExecutableError(f"{e}; {advice(e.operators, self.options.rules)}", e.operators) from None


@dataclass(frozen=True, slots=True)
class BlockForm:
    """The values of a block.

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
    - `held`: the form whose values get prices of bytes in memory.
    - `taken`: the candidate chosen for each class that is computed.
    - `made`: how many chosen nodes each rule made.
    - `selected`: how near the choice is to the best.
    - `kernels`: the kernels that hold several operators.
    """

    forms: tuple[BlockForm, ...]
    held: BlockForm
    taken: Mapping[int, int]
    made: Mapping[str, int]
    selected: SelectedRow
    runner_up: RunnerUp | None = None
    kernels: tuple[KernelRow, ...] = ()


def extracted(read: Dump, asked: BlockRequest) -> ExtractedBlock:
    """The values of a block, of operators that XLA fuses."""
    options, clock = asked.options, asked.clock
    models = [WholeCost(options.profile, b, asked.functions, options.cost, asked.unusable) for b in asked.bindings]
    leaves = asked.once is not None and asked.is_hoisted
    with asked.advised(), clock.running():
        weights, once = (asked.same, asked.once) if leaves else (asked.weights, None)
        chosen = cheapest(read.graph, read.decode, weights, models, once, asked.share, asked.pricing, clock)
    selection, name = chosen.selection, asked.function
    fewer = () if asked.is_again else sensitivity(problem_of(read.graph, chosen.costs), selection.cost)
    row = SelectedRow(name, selection.how, selection.cost, selection.bound, read.graph.node_count, fewer)
    taken = {c: k for c, k in enumerate(selection.choice) if k >= 0}
    made = Counter(rule for c, k in taken.items() if (rule := read.graph.candidates[c][k].made_by))
    runner_up = second_best(read.graph, chosen.costs, selection, name, len(models))
    forms = [_form(read, chosen)]
    if leaves and not asked.is_again:
        forms.append(forms[0])
    elif asked.same and not asked.is_again:
        with clock.running():
            apart = cheapest(read.graph, read.decode, asked.same, models, asked.once, clock=clock)
        forms.append(_form(read, apart))
    return ExtractedBlock(tuple(forms), forms[0], taken, dict(made), row, runner_up)


def _form(read: Dump, chosen: Chosen) -> BlockForm:
    values, makers, stored = read.decode_with_rules(chosen.selection.choice)
    return BlockForm(values, values, {e: (c,) for e, c in stored.items()}, makers, stored)


def extracted_kernels(read: Dump, asked: BlockRequest) -> ExtractedBlock:
    """The values of a block, of kernels that are executables of their own."""
    options = asked.options
    models = [KernelCost(options.profile, b, asked.functions, options.cost, asked.unusable) for b in asked.bindings]

    def kernels(weights: set[str], once: float | None) -> Callable[[], ChosenKernels]:
        def make() -> ChosenKernels:
            with asked.advised(), asked.clock.running():
                return cheapest_kernels(
                    read.graph, read.build, models, options.steps, asked.names, weights, once, asked.pricing,
                    asked.share, asked.clock,
                )  # fmt: skip

        return make

    found = [read.rebuild_in_one_form(kernels(asked.weights, None))]
    if asked.same and not asked.is_again:
        found.append(read.rebuild_in_one_form(kernels(asked.same, asked.once)))
    selection, built = found[0].selection, found[0].built
    taken = {c: w.candidate for c, w in selection.ways.items()}
    for w in selection.ways.values():
        taken |= {} if w.state is None else w.state.members
    row = SelectedRow(asked.function, selection.how, selection.cost, selection.bound, selection.kept, selection.fewer)
    forms = [BlockForm(b.roots, b.operators, b.classes, b.rules, b.stored, b) for b in (x.built for x in found)]
    held = forms[-1] if asked.once is None else forms[0]
    rows = built.rows(asked.function, models[0])
    return ExtractedBlock(tuple(forms), held, taken, dict(built.made), row, None, rows)
