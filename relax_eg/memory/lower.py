"""Lowers a planned entry to a module with explicit memory: kernels fill tensors in storages, in the planned order.

So a plan is handed to a backend that puts values at offsets (`relax-eg plan --explicit`). Calls of functions are
inlined: the module lists the steps of a runtime. It prints, parses, passes the check of well-formedness and can be
interpreted. Tests compare its results with those of the original module.
"""

from __future__ import annotations

from collections.abc import Mapping

from relax_eg.errors import MemoryPlanError
from relax_eg.ir import (
    MATCH_CAST,
    Annotation,
    Attrs,
    Binding,
    Block,
    Expr,
    Function,
    Module,
    Tensor,
    Tuple,
    alloc_storage,
    alloc_tensor,
    call_into,
    kill,
    node,
    substitute,
    tuple_,
    var,
)
from relax_eg.ir.calls import reachable_functions
from relax_eg.ir.expr import fresh_name
from relax_eg.ir.heads import STATIC
from relax_eg.memory.plan import Plan
from relax_eg.memory.program import MemoryProgram, Step, Tree, operands_of
from relax_eg.ops import api
from relax_eg.ops.fused import viewed_value
from relax_eg.ops.libraries import with_sizes_of
from relax_eg.shapes import Dim


def lower_plan(plan: Plan, module: Module) -> Module:
    """`module` with an entry that computes in the storages of `plan` on CPUs. Values without a place there get
    storages of their own. MemoryPlanError for a module with a `match_cast` or with sizes that depend on values."""
    return _Lowering(plan, module).run()


class _Lowering:
    def __init__(self, plan: Plan, module: Module) -> None:
        self.plan, self.module = plan, module
        self.program: MemoryProgram = plan.program
        self.bindings: list[Binding] = []
        self.vars: dict[int, Expr] = {}  # by value
        self.storages: list[Expr] = []
        self.names: set[str] = {str(p.attr("name")) for p in module.main.params}

    def run(self) -> Module:
        f = self.module.main
        if self.plan.live.unsized or any(e.op == MATCH_CAST for g in self.module for e in g.expressions()):
            raise MemoryPlanError(
                f"{f.name}(): sizes inside are known only when it runs, so its memory has no explicit form; accepted: "
                "functions without match_cast, whose values have sizes that the arguments tell"
            )
        arguments = [n for n, v in enumerate(self.program.values) if v.role == "argument"]
        parameters = [a for p in f.params for a in _fields(p)]
        self.vars.update(zip(arguments, parameters, strict=True))
        self.vars.update((v, e) for e, v in self.program.constants.items())
        for n, s in enumerate(self.plan.storages):
            name = "arena" if self.plan.layout == "arena" else f"storage{n}"
            self.storages.append(self._bind(name, alloc_storage(s.bytes)))
        for s in self.program.steps:
            into = [self._allocate(v) for v in (*s.workspaces, *s.writes)][len(s.workspaces) :]
            self._bind(f"ran{s.number}", call_into(self._kernel(s), into))
            self._kill_dead_values(s)
        result = self._tree_expr(self.program.result, f.result.annotation)
        entry = Function(f.name, f.params, (Block(tuple(self.bindings), dataflow=False),), result, assume=f.assume)
        return Module((entry, *reachable_functions(entry.expressions(), {g.name: g for g in self.module})))

    def _bind(self, name: str, value: Expr) -> Expr:
        bound = var(fresh_name(name, self.names, "_"), value.annotation)
        self.bindings.append(Binding(bound, value))
        return bound

    def _allocate(self, v: int) -> Expr:
        """Emits `alloc_tensor` for a value, and returns its variable."""
        value = self.program.values[v]
        a = value.annotation
        assert a.shape is not None and a.dtype is not None and value.bytes is not None
        place = self.plan.places.get(v)
        if place is not None:
            storage, offset = self.storages[place.storage], place.offset
        else:
            storage, offset = self._bind("storage", alloc_storage(value.bytes)), Dim.of(0)
        self.vars[v] = self._bind(_identifier(value.name), alloc_tensor(storage, offset, a.shape, a.dtype))
        return self.vars[v]

    def _kill_dead_values(self, s: Step) -> None:
        """Emits `kill` for values whose last use is this step, except for operands that an output of the step has
        overwritten."""
        places = self.plan.places
        over = [places[w] for w in s.writes if w in places]
        for v in self.program.dead_values[s.number]:
            if not (v in s.reads and places.get(v) in over):
                self._bind("end", kill(self.vars[v]))

    def _kernel(self, s: Step) -> Expr:
        """The kernel, applied to the variables of its operands, with sizes in the entry's terms."""
        e = s.kernel
        trees = dict(zip(operands_of(e), s.operands, strict=True))
        sizes: Mapping[str, Dim] = s.sizes

        def operand(a: Expr) -> Expr:
            wanted = substitute(a.annotation, dict(sizes))
            if a.op in STATIC:
                return node(a.op, (), _attrs_at(a.attrs, sizes), wanted)
            return self._tree_expr(trees[viewed_value(a)], wanted)

        annotation = substitute(e.annotation, dict(sizes))
        return node(e.op, [operand(a) for a in e.args], _attrs_at(e.attrs, sizes), annotation)

    def _tree_expr(self, tree: Tree, wanted: Annotation) -> Expr:
        """The expression of a tree of values, with the annotation `wanted`."""
        if isinstance(tree, tuple):
            fields = wanted.fields if isinstance(wanted, Tuple) else ()
            return tuple_(self._tree_expr(t, a) for t, a in zip(tree, fields, strict=True))
        if tree is None:
            raise MemoryPlanError(f"{self.module.main.name}(): {wanted} is no tensor and has no explicit form")
        return self._reshape_to(self.vars[tree], wanted)

    def _reshape_to(self, e: Expr, wanted: Annotation) -> Expr:
        """`e` reshaped to the shape of `wanted`."""
        if e.annotation == wanted or not isinstance(wanted, Tensor) or wanted.shape is None:
            return e
        return api.reshape(e, wanted.shape)


def _fields(p: Expr) -> list[Expr]:
    """The expressions of the tensors in a parameter."""
    if isinstance(p.annotation, Tuple):
        return [e for i in range(len(p.annotation.fields)) for e in _fields(p[i])]
    return [p] if isinstance(p.annotation, Tensor) else []


def _attrs_at(attrs: Attrs, sizes: Mapping[str, Dim]) -> list[tuple[str, object]]:
    return [(name, with_sizes_of(value, sizes)) for name, value in attrs]


def _identifier(name: str) -> str:
    text = "".join(c if c.isalnum() else "_" for c in name)
    return text if text[:1].isalpha() else f"t{text}"
