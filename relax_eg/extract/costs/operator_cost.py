"""Prices operators by themselves on a device inside one XLA program (`execution="whole"`).

Flops and bytes come from the operators' index equations, as expressions in the sizes. Matmuls, reductions, gathers,
concatenations and opaque calls are kernels, elementwise code costs a share of its memory traffic, views cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from relax_eg.dtypes import itemsize
from relax_eg.extract.costs.amounts import (
    NONE,
    Amounts,
    adds_neighbours,
    bytes_moved,
    kind_of,
    program_amounts,
    work_of,
)
from relax_eg.extract.costs.by_jax import AS_OURS, AsJaxLowers, ByJax
from relax_eg.extract.costs.cost_model import CostModel, NodeCost, map_bindings, price_each_binding
from relax_eg.extract.costs.hoisting import PLATFORMS, constants, enclosing_loops
from relax_eg.extract.costs.implied_matmuls import LINEAR
from relax_eg.extract.costs.matmuls import (
    Contracted,
    Matmul,
    calling_seconds,
    cpu_operand_seconds,
    matmul_seconds,
    packing_seconds,
    price_contraction,
    share_of_peak,
)
from relax_eg.extract.costs.numbers import Number, choose, is_column, maximum, minimum
from relax_eg.extract.costs.sized_device import SizedDevice
from relax_eg.extract.fusions.operators import MATMULS
from relax_eg.extract.fusions.place import KernelPlace
from relax_eg.extract.fusions.seconds import (
    ARITHMETIC,
    DENSE,
    LEAST,
    STORED,
    loop_flops,
    reduced_alone,
    wakes_alone,
)
from relax_eg.extract.profiles.kinds import KernelKind, kernel_kind
from relax_eg.extract.profiles.profile import Profile
from relax_eg.figures import binding_text
from relax_eg.ir.annotations import Annotation, Tensor, Tuple, dims_of
from relax_eg.ir.control import alternatives, arguments_of, group_arguments, is_one_kernel, runs_of, steps_of
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CALL_TIR, SCAN, Expr, postorder
from relax_eg.ir.heads import CORE, LOOPS, RUNNING, WITHOUT_KERNEL
from relax_eg.ir.module import Function
from relax_eg.ops import Site, bytes_of, counts, get, pattern_kind, site_of
from relax_eg.ops.fused import ProgramUse, called_program
from relax_eg.ops.libraries import Library, checked_cost, library_of
from relax_eg.ops.movement import moves_last_axis
from relax_eg.ops.record import movement_operators, operators_run_as, operators_where
from relax_eg.shapes import Dim
from relax_eg.tir import Contraction, PatternKind

_FREE = movement_operators("view", "repeat", "make")
_COPIES = operators_run_as("copy", "transfer")
# What XLA for CPUs generates code of: all but routines of libraries, sorts and scatters. The sizes of a matmul decide.
_GENERATED = operators_where(lambda o: o.equations is not None or o.kernel == "hash") - operators_run_as("conv")
# chosen: share of a fusible operator's memory traffic that is charged, because its value often stays in registers
_FUSED_SHARE = 0.3
ASSUMED_TRIPS = 16  # chosen: steps of a `while_loop`, whose number does not follow from types
_INSIDE = RUNNING | {CALL_TIR}  # core heads of which a kernel may consist, if what they run is generated
_NUMBER = 8  # given: bytes read and written to count a step


@dataclass(frozen=True, slots=True)
class Effort:
    """The arithmetic of a part of a kernel at a binding of sizes.

    - `flops`: all flops.
    - `contracting`, `other`: seconds of contractions, and of all other arithmetic.
    - `generated_seconds`: seconds of the contractions if XLA generates their code.
    - `vector`: whether a contraction is a matrix times a vector.
    """

    flops: Number
    contracting: Number
    other: Number
    generated_seconds: Number = 0.0
    vector: Number = False


class OperatorCost(SizedDevice):
    """The prices of operators by themselves, by a device profile or by another model, memoised per use of an operator.
    `WholeCost` adds what depends on the program around them.

    - `profile`, `binding`: as in `SizedDevice`.
    - `functions`: the functions of the module by name, which calls and control flow run.
    - `cost`: another model, which then prices the operators.
    - `unusable`: the library routines that nothing executes here.
    - `by_operator`: whether operators are priced by themselves in functions, too, as a selection adds them up.
    """

    def __init__(
        self,
        profile: Profile,
        binding: Mapping[str, Number],
        functions: Mapping[str, Function] | None = None,
        cost: CostModel | None = None,
        unusable: frozenset[str] = frozenset(),
        by_operator: bool = False,
    ) -> None:
        super().__init__(profile, binding)
        self.cost = cost
        self.unusable = unusable
        self.by_operator = by_operator
        self.functions = functions or {}
        # Entries per column; 0: no column.
        self._columns = max((len(n) for n in self.binding.values() if is_column(n)), default=0)
        self._memo: dict[tuple[object, ...], NodeCost] = {}
        # The nodes of functions in their places, by the identity of the function (`extract.costs.walk`).
        self.known_nodes: dict[int, tuple[Function, list[Placed]]] = {}
        self._models: dict[tuple[object, ...], OperatorCost] = {}
        self._running: frozenset[str] = frozenset()  # functions being priced: a recursive call adds nothing
        self._around: tuple[Number, ...] = ()  # steps of the loops around the priced function, innermost first
        self.constants: Mapping[str, int] = {}  # per parameter: the number of loops around in which it is constant
        self.sliced: frozenset[str] = frozenset()  # parameters of which each step of a scan reads its own part
        self.as_jax_lowers: AsJaxLowers = lambda e, is_in_loop, size: AS_OURS
        self.is_in_loop = False  # whether a loop runs the priced function

    @property
    def fuses_into_matmuls(self) -> bool:
        """Whether XLA makes matmuls of several nodes (`extract.costs.implied_matmuls`)."""
        return self.cost is None

    def copies_transposed(self, rows: Dim) -> bool:
        """Whether XLA copies the transposed matrix of a matmul of `rows` rows (`extract.costs.implied_matmuls`)."""
        return self.profile.platform == "cpu" and self.representative(rows) <= 1

    @property
    def knows_fusions(self) -> bool:
        """Whether nodes are priced by the kernels that XLA's compiler makes of a function."""
        return self.cost is None and not self.by_operator and self.profile.has_known_fusions

    def in_place(self, site: Site, result: Annotation, cost: NodeCost, place: KernelPlace) -> NodeCost:
        """The cost of an operator in its place in the kernels of its function. `cost`: by itself."""
        raise NotImplementedError

    def run_cost(self, site: Site, result: Annotation) -> NodeCost:
        """The cost of a call or control node, including everything that its functions do."""
        raise NotImplementedError

    def times(self, site: Site) -> Dim:
        """How often a call or control node runs its functions: the length of a scan, `ASSUMED_TRIPS` of a while loop,
        else 1."""
        steps = steps_of(site.op, site.attrs)
        return Dim.of(ASSUMED_TRIPS) if steps is None else steps

    def trips(self, site: Site) -> list[tuple[Function, Number, OperatorCost]]:
        """The functions that a call or control node runs, how often each runs, and the model at the sizes inside
        each."""
        names = [n for n in site.attrs.get("functions", ()) if n in self.functions and n not in self._running]
        # If only one of several functions runs, all are assumed to be equally likely.
        times: Number = 1.0 * self.evaluate(self.times(site)) / alternatives(site.op, site.attrs)
        return [(self.functions[n], times, self.inside(self.functions[n], site)) for n in names]

    def sizes_inside(self, function: Function, site: Site) -> dict[str, Dim]:
        """The size variables of `function` that the operands at this site determine, as expressions in the caller's
        sizes."""
        runs = zip(site.attrs["functions"], runs_of(site.op, site.operands, site.attrs), strict=False)
        arguments = next((arguments_of(run) for name, run in runs if name == function.name), ())
        found: dict[str, Dim] = {}
        for p, a in zip(function.params, arguments, strict=False):
            for wanted, d in zip(dims_of(p.annotation), dims_of(a), strict=False):
                if str(wanted) in wanted.variables and d.variables <= self.binding.keys():
                    found.setdefault(str(wanted), d)
        return found

    def inside(self, function: Function, site: Site, in_one_kernel: bool | None = None) -> OperatorCost:
        """The model at the sizes of `function` at this site. `in_one_kernel`: whether it is a part of one kernel; None:
        as `is_one_kernel` says."""
        if in_one_kernel is None:
            in_one_kernel = self.is_one_kernel(site)
        sizes = self.sizes_inside(function, site)
        same = constants(site, function) if self.profile.platform in PLATFORMS else {}
        attrs = tuple(site.attrs.items()) if same or site.op in LOOPS else ()
        key = (function.name, tuple(sizes.items()), site.op, attrs, in_one_kernel)
        model = self._models.get(key)
        if model is None:
            binding = {v: self.evaluate(d) for v, d in sizes.items()}
            device = self._device_inside(site)
            device = device.in_one_kernel if in_one_kernel else device
            model = self._models[key] = self._model_class(site)(device, binding, self.functions, self.cost)
            model._running = self._running | {function.name}
            model.by_operator, model.as_jax_lowers = self.by_operator, self.as_jax_lowers
            model.is_in_loop = self.is_in_loop or site.op in LOOPS
            if site.op == SCAN:
                whole = site["constants"] + site["carry"]
                model.sliced = frozenset(str(p.attr("name")) for p in function.params[whole:])
            if same:
                model.constants = same
                model._around = enclosing_loops(site, self.evaluate(self.times(site)), self._around)
        return model

    def _device_inside(self, site: Site) -> Profile:
        """The profile of the device for the functions that are run at this site.

        Inside a loop no fresh memory is needed, because memory of results is allocated before the first step. If the
        steps carry no value, each step reads and writes its own part of the arrays, so the cache is divided among the
        steps. Kernels are warm from the second step on."""
        if site.op not in LOOPS:
            return self.profile
        p, steps = self.profile, maximum(1, self.evaluate(self.times(site)))
        cache = p.cache_bytes / steps if is_map(site) else p.cache_bytes
        warm = min(p.launch, p.loop_launch)
        return replace(p, fresh_bytes=math.inf, cache_bytes=cache, launch=warm + (p.launch - warm) / steps)

    def is_one_kernel(self, site: Site) -> bool:
        """Whether the functions run at this site are parts of one kernel, and nothing around them is."""
        return site.op in LOOPS and is_one_kernel(site.attrs) and not self.profile.is_in_one_kernel

    def hoisted_share(self, far: int) -> Number:
        """The share of an expression's cost that each step pays if XLA hoists the expression out of `far` enclosing
        loops."""
        return 1.0 / maximum(1, math.prod(self._around[:far])) if far else 1.0

    def _model_class(self, site: Site) -> type[OperatorCost]:
        """The class of the model that prices the functions run at this site."""
        return type(self)

    def price(self, site: Site, result: Annotation) -> NodeCost:
        """The cost of one use of an operator whose value has the annotation `result`."""
        # The result of a library call does not follow from operands and attributes, so the key has it too.
        key = (result, site.op, site.operands, tuple(site.attrs.items()))
        found = self._memo.get(key)
        if found is None:
            unusable = site.op == CALL_DPS_LIBRARY and site["name"] in self.unusable
            unusable = unusable or (self.profile.is_in_one_kernel and site.op not in _GENERATED | _INSIDE)
            found = NodeCost(seconds=math.inf) if unusable else self._price(site, result)
            if (
                self.by_operator
                and self.cost is None
                and self.profile.platform == "cpu"
                and has_known_types(site, result)
            ):
                found = reduced_alone(self, site, result, found)
            if self.corrections and site.op not in RUNNING and site.op not in _FREE:
                found = replace(found, seconds=found.seconds * self.kind(site, found).factor(self.corrections))
            found = self._with_memory(found, result) if site.op in STORED and self.cost is None else found
            if not self._is_single_core(site):
                found = replace(found, wakes=found.wakes | wakes_alone(self, site, result, found))
            self._memo[key] = found
        return found

    @property
    def corrections(self) -> Mapping[str, float]:
        """The factors on predicted seconds, by feature of a kind (`extract.profiles.kinds`)."""
        return self.profile.corrections if self.cost is None else {}

    def kind(self, site: Site, cost: NodeCost) -> KernelKind:
        """The kind of the kernel that an operator of this cost is."""
        rows = self._matmul_of(site, cost.flops).as_row.rows if site.op in MATMULS else 0
        return kernel_kind(site, cost, self.profile.cache_bytes, rows)

    def _with_memory(self, found: NodeCost, result: Annotation) -> NodeCost:
        """`found` plus the seconds to allocate memory for the result."""
        each = (bytes_of(a) for a in (result.fields if isinstance(result, Tuple) else (result,)))
        return replace(found, seconds=found.seconds + sum(self.profile.fresh(self.evaluate(n)) for n in each))

    def _is_single_core(self, site: Site) -> bool:
        """Whether no flops of the operator itself are shared by several cores, as those of sorts and running sums."""
        op = site.op
        return op in RUNNING or op in _FREE or (op in self.profile.scalar_rate and pattern_kind(site) not in ARITHMETIC)

    def _price(self, site: Site, result: Annotation) -> NodeCost:
        if site.op in RUNNING:
            return self.run_cost(site, result)
        if self.cost is not None and site.op not in WITHOUT_KERNEL:
            return price_each_binding(self.cost, site, result, self.binding, self._columns)
        if (library := _registered(site, result)) is not None:
            return self._price_library(library, site, result)
        if site.op == CALL_TIR:
            return self._price_tensor_program(site, result)
        done, p = self.amounts(site, result), self.profile
        flops, moved, launches = self.evaluate(done.flops), self.evaluate(done.bytes), done.launches.const
        # A routine with an unknown pattern, or a node that computes nothing.
        if site.op in CORE or not has_known_types(site, result):
            return NodeCost(flops, moved, launches, launches * (p.launch + p.move(moved)))
        if site.op in _FREE:
            return NodeCost(0, 0, 0, LEAST)
        if site.op in STORED:
            return NodeCost(flops, moved, 1, p.launch + self.stored_seconds(site, result, flops, moved))
        if p.transpose_rate and moves_last_axis(site):
            elements = math.prod(self.evaluate(d) for d in site.shape(0))
            return NodeCost(flops, moved, 0, LEAST + elements / p.transpose_rate)
        if site.op in _COPIES:
            return NodeCost(flops, moved, 1, p.launch + p.move(moved))
        rate = self.loop_rate(site.op, site.operands)
        if not launches:
            work = loop_flops(self, site, result, flops)
            return NodeCost(flops, moved, 0, LEAST + work / rate + _FUSED_SHARE * p.move(moved))
        return NodeCost(flops, moved, 1, p.launch + loop_flops(self, site, result, flops) / rate + p.move(moved))

    def _price_tensor_program(self, site: Site, result: Annotation) -> NodeCost:
        """The cost of a `call_tir` by its equations, as XLA runs it."""
        placed, done, p = called_program(site.operands, site.attrs), self.amounts(site, result), self.profile
        moved, launches = self.evaluate(done.bytes), done.launches.const
        if placed is None:
            return NodeCost(0, moved, launches, p.launch + p.move(moved))
        effort = self.effort(site.op, placed)
        if kind_of(placed.program) <= PatternKind.INJECTIVE:
            # XLA fuses a program that only moves elements into its reader in some places and copies in others.
            seconds = LEAST + launches * p.launch + effort.other + _FUSED_SHARE * p.move(moved)
        else:
            seconds = p.launch + maximum(effort.contracting, p.move(moved)) + effort.other
            seconds += sum(self._operand_seconds(c, placed.sizes) for c in work_of(placed.program).contractions)
        return NodeCost(effort.flops, moved, launches, seconds)

    def _operand_seconds(self, c: Contraction, sizes: Mapping[str, Dim]) -> Number:
        """Seconds in which operands that are computed for a contraction pass through memory; 0 except on CPUs."""
        made, sources = self.number(c.made, sizes), self.number(c.sources, sizes)
        return cpu_operand_seconds(self.profile, made, sources) if self.profile.platform == "cpu" else 0.0

    def amounts(self, site: Site, result: Annotation) -> Amounts:
        """The amounts of one use of an operator, as expressions in the sizes, without those of the functions that a
        call or control node runs."""
        if (library := _registered(site, result)) is not None:
            definition, sizes = library.sizes_at(site.operands, dict(site["attrs"]))
            inside = [e for e in postorder(definition.results) if e.op not in CORE and e.op not in _FREE]
            flops = sum((counts(site_of(e)).flops.substitute(sizes) for e in inside), NONE)
            return Amounts(flops, bytes_moved(site, result), Dim.of(1))
        placed = called_program(site.operands, site.attrs) if site.op == CALL_TIR else None
        if placed is not None:
            return program_amounts(placed, int(kind_of(placed.program) >= PatternKind.INJECTIVE))
        if site.op in WITHOUT_KERNEL:
            return Amounts()
        if site.op in CORE or not has_known_types(site, result):
            return Amounts(NONE, bytes_moved(site, result), Dim.of(1))
        if site.op in _FREE:
            return Amounts()
        count, kind = counts(site), pattern_kind(site)
        fused = kind in (PatternKind.ELEMENT_WISE, PatternKind.BROADCAST, PatternKind.INJECTIVE)
        alone = site.op in DENSE or site.op in _COPIES or not fused
        return Amounts(count.flops, count.bytes_read + count.bytes_written, Dim.of(int(alone)))

    def effort(self, op: str, placed: ProgramUse) -> Effort:
        """The arithmetic of the tensor program of operator `op`."""
        done = work_of(placed.program)
        rate = self.loop_rate(op, placed.program.inputs)
        if self.profile.tap_rate and adds_neighbours(placed.program):
            rate = self.profile.tap_rate
        other = maximum(0, self.number(done.other_flops, placed.sizes))
        flops = other + sum(self.number(c.flops, placed.sizes) for c in done.contractions)
        each = [self.contraction(c, placed.sizes) for c in done.contractions]
        vector: Number = False
        for c in each:
            vector = vector | c.vector
        return Effort(flops, sum(c.seconds for c in each), other / rate, sum(c.generated_seconds for c in each), vector)

    def loop_amounts(self, site: Site, result: Annotation) -> Amounts:
        """What a scan on a GPU launches and moves beside the kernels of its steps.

        Before the first step it stores its state, memory for stacked results, and the number of the step. Each step
        writes its part of every stacked result, and adds to the number."""
        if site.op != SCAN or self.profile.platform != "gpu" or not self.knows_fusions:
            return Amounts()
        steps, first, carried = self.times(site), site["constants"], site["carry"]
        state = site.operands[first : first + carried]
        stacked = result.fields[carried:] if isinstance(result, Tuple) else ()
        parts = sum(map(bytes_of, stacked), NONE)
        moved = 2 * sum(map(bytes_of, state), NONE) + 3 * parts + _NUMBER * (1 + steps)
        return Amounts(NONE, moved, (len(stacked) + 1) * steps + Dim.of(len(state) + len(stacked) + 1))

    def number(self, d: Dim, sizes: Mapping[str, Dim]) -> Number:
        """The value at the binding of `d`, a size of a program that is called with `sizes`."""
        return self.evaluate(d.substitute(sizes) if sizes else d)

    def contraction(self, c: Contraction, sizes: Mapping[str, Dim]) -> Contracted:
        """The seconds of a matmul or convolution whose operands are in memory."""
        rows, columns, depth = (self.number(d, sizes) for d in (c.rows, c.columns, c.depth))
        matmul = Matmul(self.number(c.flops, sizes), rows, columns, depth, c.dtype)
        return price_contraction(self.profile, matmul, c.windowed, c.transposed)

    def stored_seconds(self, site: Site, result: Annotation, flops: Number, moved: Number) -> Number:
        """Seconds of an operator of `STORED`: its arithmetic, or its memory traffic if that takes longer."""
        if site.op in MATMULS:
            return self._matmul(site, flops, moved)
        if site.op in DENSE:
            return maximum(self._dense(site, flops), self.profile.move(moved))
        return self._conv(site, result, flops, moved)

    def _matmul(self, site: Site, flops: Number, moved: Number) -> Number:
        """Seconds of a matmul: the longer of its arithmetic, which is slower for thin sides, and its memory traffic;
        times the penalty of the weight's layout; plus fixed costs."""
        weight = self.evaluate(bytes_of(site.operands[1]))
        matmul = self._matmul_of(site, flops)
        turned, matmul = matmul.is_turned, matmul.as_row
        weight = choose(turned, self.evaluate(bytes_of(site.operands[0])), weight)
        seconds = maximum(matmul_seconds(self.profile, matmul), self.profile.move(moved))
        seconds = seconds + packing_seconds(self.profile, matmul)
        stored, row = self.profile.linear_factor(matmul.rows), matmul.columns * itemsize(matmul.dtype)
        in_order = self.profile.in_order_factor(matmul.rows, row, weight)
        seconds = seconds * (stored if site.op == LINEAR else choose(turned, stored, in_order))
        seconds = seconds + calling_seconds(self.profile, matmul)
        return seconds + (self.profile.joining(matmul.rows, flops) if len(site.shape(1)) == 2 else 0.0)

    def _matmul_of(self, site: Site, flops: Number) -> Matmul:
        """The sizes of a matmul."""
        a = [self.evaluate(d) for d in site.shape(0)]
        b = [self.evaluate(d) for d in site.shape(1)]
        # With one plain matrix on the right all leading axes of the left operand are rows; with batches on both sides
        # only the last one is.
        rows = math.prod(a[:-1]) if len(b) <= 2 else math.prod(a[-2:-1])
        columns = b[0] if site.op == LINEAR else math.prod(b[1:][-1:])
        return Matmul(flops, rows, columns, a[-1], site.dtype(0))

    def _dense(self, site: Site, flops: Number) -> Number:
        """Seconds of a factorisation or of triangular systems, at a share of the matmul rate; the share is lower for
        small sides and for few right-hand sides. What chooses between factors launches more, and takes a step."""
        p, (rows, columns) = self.profile, (self.evaluate(d) for d in site.shape(0)[-2:])
        kernel = get(site.op).kernel
        if kernel == "factorisation":
            share = p.factor_share * share_of_peak((minimum(rows, columns),), (p.factor_half,))
        else:
            right = self.evaluate(site.shape(1)[-1 if site.attrs.get("left_side", True) else -2])
            share = p.solve_share * share_of_peak((rows, right), p.solve_half)
        choice = p.launch + p.step if kernel == "guarded_solve" else 0.0
        return flops / (p.rate(site.dtype(0)) * share) + choice

    def _conv(self, site: Site, result: Annotation, flops: Number, moved: Number) -> Number:
        """Seconds of a convolution, priced as the matmul of its windows: output positions by window elements by output
        channels.

        If the profile has a `transpose_rate`, an ungrouped convolution also transposes its images on the way in and
        out, and its kernel, because XLA's code wants channels last. The rows of its windows are gathered; XLA makes a
        matmul of a convolution by a single element. The zeros that `input_dilation` puts between elements are skipped.
        Grouped convolutions run in other, slower code.
        """
        p = self.profile
        assert isinstance(result, Tensor) and result.shape is not None
        groups = site["groups"]
        batch, _, *space = (self.evaluate(d) for d in result.shape)
        out, *window = (self.evaluate(d) for d in site.shape(1))
        columns, depth, turned = out // groups, math.prod(window), 0.0
        flops = flops / math.prod(site["input_dilation"])
        if groups == 1:
            if p.transpose_rate:
                elements = sum(math.prod(self.evaluate(d) for d in site.shape(i)) for i in (0, 1))
                elements = elements + batch * out * math.prod(space)
                turned = elements / p.transpose_rate
            product = Matmul(flops, batch * math.prod(space), columns, depth, site.dtype(0))
            gathered = product.rows * math.prod(window[1:-1]) * p.window_row * (math.prod(window[1:]) > 1)
            seconds = matmul_seconds(p, product) * p.conv_factor + gathered
        else:
            seconds = flops / (p.rate(site.dtype(0)) * share_of_peak((columns, depth), p.group_half) * p.group_share)
        return turned + maximum(seconds, p.move(moved))

    def _price_library(self, library: Library, site: Site, result: Annotation) -> NodeCost:
        """The cost of a registered routine, by its own cost function if it has one.

        Otherwise the price is that of the pattern as one kernel, whose intermediate values never reach memory, divided
        by the measured or declared speed."""
        definition, sizes = library.sizes_at(site.operands, dict(site["attrs"]))
        inside, p = OperatorCost(self.profile, {v: self.evaluate(d) for v, d in sizes.items()}), self.profile
        flops: Number = 0
        seconds: Number = 0.0
        for e in postorder(definition.results):
            if e.op in CORE or e.op in _FREE:
                continue
            within = site_of(e)
            count = inside.evaluate(counts(within).flops)
            flops += count
            if e.op in STORED:
                seconds += inside.stored_seconds(within, e.annotation, count, 0)
            else:
                seconds += count / self.loop_rate(e.op, within.operands)
        moved: Number = self.evaluate(bytes_moved(site, result))
        if callable(library.cost):
            of_library = library.cost

            def price(at: Mapping[str, Number], flops: Number, moved: Number) -> NodeCost:
                text = binding_text(at)
                found = of_library(flops, moved, p)
                return NodeCost(flops, moved, 1, checked_cost(library, found, f"at {text}"))

            return map_bindings(price, self._columns, inside.binding, flops, moved)
        if library.name in p.library_speed:  # only arithmetic is faster: no routine is faster than memory
            seconds = maximum(seconds / p.library_speed[library.name], p.move(moved))
        else:
            seconds = maximum(seconds, p.move(moved)) / (library.cost or 1.0)
        return NodeCost(flops, moved, 1, p.launch + seconds)


@dataclass(slots=True, eq=False)
class Placed:
    """A node of a function, as a model prices it.

    - `node`: the expression.
    - `site`: the site as which it is priced; None for a node that XLA computes inside a matmul.
    - `hoisted_out_of`: the number of enclosing loops that XLA hoists it out of.
    - `place`: what it adds to the kernels of the function, where XLA's fusions are known; None: as the model prices it
      by itself.
    - `slower`: how many times as long it takes as its site by itself.
    - `by_jax`: what JAX makes of it, where it lowers the program as it is written.
    - `cost`: its cost in one run of the function, without the share that hoisting saves; None: not known yet.
    """

    node: Expr
    site: Site | None
    hoisted_out_of: int
    place: KernelPlace | None
    slower: float
    by_jax: ByJax = AS_OURS
    cost: NodeCost | None = None

    def cost_by(self, model: OperatorCost) -> NodeCost:
        if self.site is None:
            return NodeCost()
        if self.cost is None:
            found = model.price(self.site, self.node.annotation)
            if self.slower != 1.0:
                found = replace(found, seconds=found.seconds * self.slower)
            if self.place is not None:
                found = model.in_place(self.site, self.node.annotation, found, self.place)
            if self.by_jax is not AS_OURS:
                found = replace(found, seconds=self.by_jax.seconds(found.seconds, model))
            self.cost = replace(found, launches=0) if model.profile.is_in_one_kernel else found
        return self.cost


def _registered(site: Site, result: Annotation) -> Library | None:
    """The registered routine that the site calls with known shapes and dtypes, so that its pattern can be priced."""
    return library_of(site) if has_known_types(site, result) else None


def has_known_types(site: Site, result: Annotation) -> bool:
    """Whether the shapes and dtypes of the operands and of the result are known."""
    annotations = (a for a in (*site.operands, result) if isinstance(a, Tensor))
    return all(a.shape is not None and a.dtype is not None for a in annotations)


def is_map(site: Site) -> bool:
    """Whether the site is a scan whose steps carry no value."""
    return site.op == SCAN and not group_arguments(site.op, site.operands, site.attrs).carry
