"""What is alive while a program runs, for reports: the memory plan with the source lines.

In kernels it uses the order and the liveness of the plan that the runtime follows. For one XLA program it uses the
values that the pricing cost model predicts XLA to store, in the order of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.detail import MOST_MOMENTS, Held, Memory, Moment
from relax_eg.extract.costs.walk import walk
from relax_eg.extract.kernels.cost import KernelCost, WithOwnKernels
from relax_eg.ir.expr import Expr
from relax_eg.ir.heads import label_of
from relax_eg.ir.memory import first_explicit
from relax_eg.ir.module import Module
from relax_eg.ir.origin import UNKNOWN
from relax_eg.memory import Liveness, Step, StoredValues, lifetimes, plan
from relax_eg.memory.program import Node, Temporary
from relax_eg.ops import site_of
from relax_eg.shapes import Dim

if TYPE_CHECKING:
    from relax_eg.driver.options import Sizes

_HELD = 12  # limit: tensors at the peak that a report names


def memory_of(module: Module, model: WholeCost, binding: Sizes, ahead: set[Expr], in_kernels: bool) -> Memory | None:
    """What is alive while each kernel of a module's entry runs. Values computed `ahead`, from weights, are not counted.
    None for a module that allocates its memory itself."""
    if first_explicit(module) is not None:
        return None
    sizes = dict(binding)
    inside = kernel_temporaries(model, sizes) if in_kernels else None
    stored = None if in_kernels else stored_values(module, model, ahead)
    live = lifetimes(module, sizes, stored=stored, ahead=ahead, temporary=inside)
    steps, values = live.program.steps, live.program.values
    needed = zip(steps, live.at(sizes), strict=True)
    moments = [Moment(n, label_of(s.kernel), _line(s, module)) for s, n in needed]
    if not moments:
        return Memory(0, "", 0, (), temporary=0)
    peak = moments[live.peak_step(sizes)]
    held: list[Held] = []
    for x in live.peak(sizes)[:_HELD]:
        last, n = values[x.values[-1]], int(x.bytes.evaluate(sizes))
        held.append(Held(last.name, last.annotation.short, n, _written(live, x.values, module)))
    at = f"{peak.what} at {peak.line}" if peak.line else peak.what
    inner = live.within_results(sizes) if model.profile.platform == "gpu" and not in_kernels else ()
    temporary = max(live.at(sizes, "result", inner), default=0)
    if inside is not None:  # storages are kept; the plan has them all
        own = (Dim.of(d).evaluate(sizes) for s in steps if (d := inside(s)) is not None)
        temporary = int(plan(module, sizes, ahead).bytes_at(sizes) + max(own, default=0))
    return Memory(peak.bytes, at, _workspace(live, sizes), tuple(_thinned(moments)), tuple(held), temporary)


def stored_values(module: Module, model: WholeCost, ahead: set[Expr]) -> StoredValues:
    """What XLA is predicted to store in the functions that run: the values of nodes that launch a kernel."""
    nodes: dict[Node, Dim | None] = {}
    spaces: dict[Node, Dim] = {}
    beside: dict[Node, Expr] = {}
    anew: dict[Node, tuple[Expr, ...]] = {}
    for v in walk(module.main, model, ahead):
        key = v.function.name, v.node
        if v.runs_functions or v.is_stored:
            nodes[key] = None if v.place is None else v.place.kept
        space = Dim.of(0) if v.place is None else v.place.workspace + v.place.copied
        if isinstance(v.model, WithOwnKernels) and v.site is not None:
            space = space + v.model.own_workspace(v.site, v.node.annotation)
        if space != 0:
            spaces[key] = space
        if v.place is not None and v.place.beside is not None:
            beside[key] = v.place.beside
        if v.place is not None and v.place.anew:
            anew[key] = v.place.anew
    return StoredValues(nodes, spaces, beside, anew)


def kernel_temporaries(model: WholeCost, sizes: Sizes) -> Temporary | None:
    """The bytes that XLA is predicted to allocate inside the kernel of a step; None where kernels are not priced as XLA
    compiles them."""
    if not isinstance(model, KernelCost) or model.as_compiled is None or model.profile.platform != "gpu":
        return None

    def of_step(step: Step) -> Dim | None:
        there = {v: d.evaluate(sizes) for v, d in step.sizes.items() if d.variables <= sizes.keys()}
        priced = KernelCost(model.profile, there, model.functions)
        priced.own_blocks, priced.as_compiled = model.own_blocks, model.as_compiled
        site, result = site_of(step.kernel), step.kernel.annotation
        if (found := priced.compiled(site, result)) is None:
            own = priced.own_workspace(site, result)
            return Dim.of(own) if own else None
        memory = memory_of(Module((found[0],)), found[1], {}, set(), in_kernels=False)
        return None if memory is None or not memory.temporary else Dim.of(memory.temporary)

    return of_step


def _line(step: Step, module: Module) -> str:
    return next(map(str, module[step.function].origins.get(step.kernel, UNKNOWN).lines), "")


def _written(live: Liveness, values: Sequence[int], module: Module) -> str:
    """The source line of the kernel that writes the last of `values`."""
    writer = live.program.writer[values[-1]]
    return "" if writer is None else _line(live.program.steps[writer], module)


def _workspace(live: Liveness, sizes: Sizes) -> int:
    """The workspace bytes of the step that has most of them."""
    of_step: dict[int, int] = {}
    for x in live.lifetimes:
        if x.role == "workspace":
            of_step[x.start] = of_step.get(x.start, 0) + int(x.bytes.evaluate(sizes))
    return max(of_step.values(), default=0)


def _thinned(moments: Sequence[Moment]) -> Iterator[Moment]:
    step = max(1, -(-len(moments) // MOST_MOMENTS))
    for i in range(0, len(moments), step):
        yield max(moments[i : i + step], key=lambda m: m.bytes)
