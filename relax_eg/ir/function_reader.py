"""Reads one function of module text: its statements, their blocks, and the functions that are made from them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from relax_eg.argument_checks import did_you_mean
from relax_eg.errors import OperatorError, SpecError
from relax_eg.ir import heads
from relax_eg.ir.annotations import Annotation, Data, Tensor, Tuple, dims_of
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.branches import Branch, choose, clashes, join_branches
from relax_eg.ir.data import all_sizes, sizes_in_data
from relax_eg.ir.devices import copied_to, declared_device, to_device
from relax_eg.ir.expr import Expr, fresh_name, postorder, tuple_, tuple_get, unused_name, var
from relax_eg.ir.lambdas import with_lambdas_in_place
from relax_eg.ir.lattice import covers
from relax_eg.ir.module import Binding, Block, Function
from relax_eg.ir.nested import NestedFunctions
from relax_eg.ir.origin import Origin
from relax_eg.ir.partition import casts_of_data
from relax_eg.ir.patterns import MatchReader, PlainLines, with_one_return
from relax_eg.ir.reader import is_docstring, is_size_declaration, unqualified_name
from relax_eg.ir.reading import ModuleScope
from relax_eg.ir.steps import effect_of
from relax_eg.ir.values import ExpressionReader

STATEMENTS = "`name = expression`, `with R.dataflow():`, `if condition:`, `match value:`, or `return expression`"
LOOPS = "a function that calls itself, R.scan(Module.step, ...) or R.while_loop(Module.condition, Module.step, ...)"
TOLD = "another parameter that has the size, or its use in a `case` that takes out a tensor of it"
OUTPUTS = "R.output(names) as the last line of the dataflow block"


def _is_step(e: Expr) -> bool:
    """Whether `e` cannot stand in a dataflow block, whatever the functions are that it calls."""
    return e.op in heads.BEYOND_TENSORS or (e.op not in heads.MEMORY and effect_of(e, frozenset()) is not None)


def _listed(statement: ast.stmt | list[ast.stmt]) -> list[ast.stmt]:
    return statement if isinstance(statement, list) else [statement]


def _function_attributes(statement: ast.stmt) -> ast.Call | None:
    """Returns the call of a line `R.func_attr(...)`, else None."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return call if isinstance(call, ast.Call) and unqualified_name(call.func) == "func_attr" else None


class FunctionReader:
    """A reader of one function."""

    def __init__(self, scope: ModuleScope, definition: ast.FunctionDef) -> None:
        self.scope = scope
        self.definition = definition
        self.reader = scope.reader
        self.source = scope.reader.source
        self.origins: dict[Expr, Origin] = {}
        self.values = ExpressionReader(scope)
        self.values.sizes.update(scope.surroundings.sizes if scope.surroundings is not None else ())
        self.inside: set[str] = set()  # sizes that only tensors inside of data tell
        self.lines: dict[str, int] = {}  # line where each name is bound
        self.blocks: list[Block] = []
        self.assume: tuple[str, ...] = ()
        self.attributes: tuple[tuple[str, Any], ...] = ()
        self.emitted: dict[str, Expr] = {}  # variables of steps that the text does not name
        self.nested = NestedFunctions(definition.name, self.values, self._inner)
        self.values.anonymous = self.nested.anonymous
        self.words = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name)}
        self.words |= {n.name for n in ast.walk(definition) if isinstance(n, ast.MatchAs) and n.name is not None}
        self.words |= {n.arg for n in ast.walk(definition) if isinstance(n, ast.arg)}
        self.values.words = self.words

    def read(self) -> Function:
        return self.read_with(self.scope.params(self.definition))

    def _inner(self, definition: ast.FunctionDef, names: Mapping[str, Expr], params: list[Expr]) -> Function:
        """Reads a function inside of this one, which may use `names`."""
        inner = FunctionReader(self.scope, definition)
        inner.values.names |= names
        return inner.read_with(params)

    def read_with(self, params: list[Expr]) -> Function:
        """Reads the function with these parameters."""
        d = self.definition
        for p in params:
            name = str(p.attr("name"))
            self._name(name, d)
            self.values.names[name] = p
            self.values.sizes.update(v for d in dims_of(p.annotation) for v in d.variables)
        declared = {a.arg: a.annotation for a in d.args.args}
        copies = [self._placed(p, declared.get(str(p.attr("name")))) for p in params]
        moved = [Binding(c, e) for c, e in copies if c is not e]
        inside = {v for p in params for v in sizes_in_data(p.annotation)}
        self.inside = inside - {v for p in params for x in dims_of(p.annotation) for v in x.variables}
        if any(isinstance(n, ast.Name) and n.id == d.name for s in d.body for n in ast.walk(s)):
            # The data of its last call may have no tensor.
            self.values.hidden.update(
                {v: ("a size inside of data, which no argument tells", TOLD) for v in self.inside}
            )
            self.inside = set()
        self.values.sizes |= self.inside
        if moved:
            self.blocks.append(Block(tuple(moved), dataflow=False))
        unpacked = PlainLines(self.words)
        named = with_lambdas_in_place(d.body, self.source)
        body = [s for line in named for s in _listed(unpacked.visit(line))]
        lines = [s for s in body if _function_attributes(s) is None]
        lines = with_one_return(lines, self.words, self.source)
        attributes = [a for s in d.body if (a := _function_attributes(s)) is not None]
        said = [self.reader.function_attributes(a) for a in attributes]
        self.assume = tuple(text for assumed, _ in said for text in assumed)
        others = {k: v for _, found in said for k, v in found.items()}
        marks = [m for m in d.decorator_list if isinstance(m, ast.Call)]
        if any(k.arg == "private" and self.reader.attribute(k.value) is True for m in marks for k in m.keywords):
            others["private"] = True
        self.attributes = tuple(others.items())
        end, result = self._body(lines)
        if end is None or result is None:
            raise self.source.error(d, f"function `{d.name}` returns nothing", "`return expression` as its last line")
        returned: list[Binding] = []
        result = self._returned(result, d.returns, returned)
        self._end_steps(returned)
        self.blocks[:0] = casts_of_data(params, self.blocks, result, self.inside, self.words)
        return self._function(params, end, lines, result)

    def _returned(self, value: Expr, written: ast.expr | None, copies: list[Binding]) -> Expr:
        """The result on the devices of its annotation, with the steps that copy it there."""
        a, device = value.annotation, self._device(written)
        if device is not None and copied_to(value) != device:
            copies.append(Binding(var(fresh_name("returned", self.words), a), to_device(value, device)))
            return copies[-1].var
        if not isinstance(a, Tuple) or not isinstance(written, ast.Call):
            return value
        only = written.args[0] if len(written.args) == 1 else None
        many = only.elts if isinstance(only, (ast.List, ast.Tuple)) else written.args
        if len(many) != len(a.fields) or (value.op == heads.TUPLE and len(value.args) != len(many)):
            return value  # the text contradicts itself, which whoever builds the module checks
        before = len(copies)
        fields = [self._returned(tuple_get(value, i), w, copies) for i, w in enumerate(many)]
        return tuple_(fields) if len(copies) > before else value

    def _placed(self, p: Expr, written: ast.expr | None) -> tuple[Expr, Expr]:
        """The variable of a parameter on the device of its annotation, and its value: itself where there is none."""
        device = self._device(written)
        if device is None:
            return p, p
        name = str(p.attr("name"))
        copy = var(fresh_name(f"{name}_placed", self.words), p.annotation)
        self.values.names[name] = copy
        return copy, to_device(p, device)

    def _device(self, written: ast.expr | None) -> str | None:
        try:
            return declared_device(written)
        except SpecError as error:
            assert written is not None
            raise self.source.at_position(written, error, "R.Tensor((4,), dtype, device)") from None

    def _body(self, statements: list[ast.stmt]) -> tuple[ast.Return | None, Expr | None]:
        """Reads statements up to a `return`, and returns that statement and its value."""
        steps: list[Binding] = []
        for statement in statements:
            self.scope.line = statement.lineno
            if isinstance(statement, ast.Return):
                if statement.value is None:
                    problem = f"function `{self.definition.name}` returns nothing"
                    raise self.source.error(statement, problem, "`return expression`")
                self.values.emit = partial(self._emit, steps)
                declared = self.scope.signatures.get(self.definition.name)
                is_function = isinstance(statement.value, ast.Lambda) and declared is not None
                result = self.values.expression(statement.value, declared.result if declared and is_function else None)
                self.values.emit = None
                self._end_steps(steps)
                return statement, result
            region = self._region(statement)
            if region == "dataflow":
                self._end_steps(steps)
                self._dataflow(statement)
            elif region == "bindings" and isinstance(statement, ast.With):
                self._end_steps(steps)
                for inner in statement.body:
                    self._step(inner, steps)
                self.blocks.append(Block(tuple(steps), dataflow=False))
                steps = []
            else:
                self._step(statement, steps)
        self._end_steps(steps)
        return None, None

    def _emit(self, steps: list[Binding], at: ast.expr, value: Expr) -> Expr:
        """Binds a value that has to be a step of its own, and returns its variable."""
        name = unused_name("lv", {*self.lines, *self.emitted, *self.words})
        self.emitted[name] = var(name, value.annotation)
        steps.append(Binding(self.emitted[name], value))
        if self.scope.surroundings is not None:
            self.origins.setdefault(value, Origin((self.scope.surroundings.line(at),)))  # type: ignore[arg-type]
        return self.emitted[name]

    def _end_steps(self, steps: list[Binding]) -> None:
        if steps:
            self.blocks.append(Block(tuple(steps), dataflow=False))
            steps.clear()

    def _function(self, params: list[Expr], end: ast.Return, lines: list[ast.stmt], result: Expr) -> Function:
        d = self.definition
        assert end.value is not None
        if end is not lines[-1]:
            raise self.source.error(end, "lines follow this `return`", "`return` as the last line of the function")
        self._keep_line(end, end.value, result)
        declared = self.scope.signatures.get(d.name)
        if declared is not None and not covers(declared.result, result.annotation):
            problem = f"function `{d.name}` returns {result.annotation} and is declared to return {declared.result}"
            raise self.source.error(end.value, problem, "the declaration to say what is returned")
        self.scope.signatures[d.name] = Signature(tuple(p.annotation for p in params), result.annotation)
        origins = MappingProxyType(self.origins)
        return Function(d.name, tuple(params), tuple(self.blocks), result, origins, self.assume, self.attributes)

    def _region(self, statement: ast.stmt) -> str | None:
        """Returns `dataflow`, `bindings` or `inline` if the statement is a `with` of one, else None."""
        if not isinstance(statement, ast.With):
            return None
        item = statement.items[0]
        call = item.context_expr
        kind = unqualified_name(call.func) if isinstance(call, ast.Call) and not call.args else None
        if kind not in ("dataflow", "bindings", "inline") or len(statement.items) > 1 or item.optional_vars:
            raise self.source.error(call, "this opens no region", "with R.dataflow(): (or R.bindings, R.inline)")
        return kind

    def _step(self, statement: ast.stmt, steps: list[Binding]) -> None:
        """Reads one statement of a binding block."""
        self.values.emit = partial(self._emit, steps)
        try:
            self._read_step(statement, steps)
        finally:
            self.values.emit = None

    def _read_step(self, statement: ast.stmt, steps: list[Binding]) -> None:
        if isinstance(statement, ast.Pass) or is_docstring(statement) or is_size_declaration(statement):
            return
        if isinstance(statement, ast.If):
            self._if(statement, steps)
            return
        if isinstance(statement, ast.Match):
            self._match(statement, steps)
            return
        if isinstance(statement, ast.FunctionDef):
            value = self.nested.definition(statement)
            if value.op != heads.FUNCTION:
                bound = var(self._name(statement.name, statement), value.annotation)
                steps.append(Binding(bound, value))
                value = bound
            self.values.names[statement.name] = value
            return
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._effect(statement.value, steps)
            return
        if self._region(statement) == "inline":
            assert isinstance(statement, ast.With)
            self.values.emit = None
            for inner in statement.body:
                name, value, _ = self._assignment(inner)
                self.values.names[name] = value
            return
        if self._names_module(statement) or self.values.upstream.machine.declares_heap(statement):
            return
        name, value, bound = self._assignment(statement)
        self.values.names[name] = bound
        if steps and value is steps[-1].var and self.emitted.get(steps[-1].name) is value:
            del self.emitted[steps[-1].name]  # the value gets the name that the text gives it
            value = steps.pop().value
        steps.append(Binding(bound, value))

    def _names_module(self, statement: ast.stmt) -> bool:
        """Whether a statement is `cls = Module`: another name for the module."""
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        named = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name) and statement.value.id
        if not isinstance(target, ast.Name) or not named or named not in self.scope.classes - self.values.names.keys():
            return False
        self.scope.classes.add(target.id)
        return True

    def _if(self, statement: ast.If, steps: list[Binding]) -> None:
        condition = self.values.expression(statement.test)
        self._keep_line(statement, statement.test, condition)
        a = condition.annotation
        if not isinstance(a, Tensor) or a.ndim not in (0, None) or a.dtype not in ("bool", None):
            raise self.source.error(statement.test, f"the condition is {a}", "a bool scalar")
        if not statement.orelse and self.scope.surroundings is None:
            raise self.source.error(statement, "this `if` has no `else`", "an `else` that binds the same names")
        branches = [self._branch(statement.body), self._branch(statement.orelse)]
        names = [self.scope.fresh(f"{self.definition.name}_{stem}") for stem in ("then", "else")]
        self._choose(statement, condition, branches, names, steps)

    def _match(self, statement: ast.Match, steps: list[Binding]) -> None:
        reader = MatchReader(self.source, self.reader.types, self.words | self.lines.keys())
        for s in reader.simple(statement):
            if isinstance(s, ast.Match):
                self._cases(s, steps)
            else:
                self._read_step(s, steps)

    def _cases(self, statement: ast.Match, steps: list[Binding]) -> None:
        """Reads a `match` with one case for each constructor."""
        value = self.values.expression(statement.subject)
        a, patterns = value.annotation, [c.pattern for c in statement.cases if isinstance(c.pattern, ast.MatchClass)]
        cls = patterns[0].cls
        assert isinstance(cls, ast.Attribute)
        definition = self.reader.types[ast.unparse(cls.value)]
        if not isinstance(a, Data) or a.definition != definition:
            problem = f"`{ast.unparse(statement.subject)}` is {a}, and {ast.unparse(cls)} makes a {definition.name}"
            raise self.source.error(statement.subject, problem, f"a value of {definition.name}")
        branches: list[Branch] = []
        for i, (case, pattern) in enumerate(zip(statement.cases, patterns, strict=True)):
            named = [p.name or "" for p in pattern.patterns if isinstance(p, ast.MatchAs)]
            branches.append(self._branch(case.body, dict(zip(named, a.fields(i), strict=True))))
        names = [self.scope.fresh(f"{self.definition.name}_{c.name}") for c in definition.constructors]
        self._choose(statement, value, branches, names, steps)

    def _effect(self, call: ast.Call, steps: list[Binding]) -> None:
        """Reads a line that binds no name."""
        before = len(steps)
        value = self.values.expression(call)
        if value.op == heads.TUPLE and not value.args:
            return  # nothing is to be done for it
        if len(steps) == before or steps[-1].var is not value:
            raise self.source.error(call, "this line binds no name", STATEMENTS)

    def _choose(
        self, statement: ast.stmt, of: Expr, read: list[Branch], functions: list[str], steps: list[Binding]
    ) -> None:
        """Adds the steps of an `if` or `match`."""
        branches = self._with_earlier_values(read)
        try:
            made, value, results = choose(of, branches, functions)
        except OperatorError as error:
            raise self.source.at_position(statement, error, "branches that give values of the same kind") from None
        for f in made:
            self.scope.add(f)
        for name, why in clashes(branches).items():
            self.values.hidden[name] = (why, "branches that give values of the same kind")
            self.values.names.pop(name, None)
        for name in {n for b in branches for n in b.names} - {*results, *clashes(branches)}:
            others = "the other branch" if len(branches) == 2 else "the other branches"
            self.values.hidden[name] = ("bound in one branch only", f"a value for `{name}` in {others} too")
        own = [self._name(name, statement) for name in results]
        stem = "found" if value.op == heads.MATCH else "cond"
        whole = unused_name(stem, self.lines)
        self.lines[whole] = statement.lineno
        lines = join_branches(whole, value, own)
        if self.scope.surroundings is not None:
            self.origins[value] = Origin((self.scope.surroundings.line(statement),))
        self.values.names |= {name: b.var for name, b in zip(results, lines[1:], strict=True)}
        steps += lines

    def _with_earlier_values(self, branches: list[Branch]) -> list[Branch]:
        """Completes each branch with the earlier value of every name that only others bind again."""
        before = self.values.names
        both = {n: before[n] for b in branches for n in b.names if n in before}
        return [replace(b, names={**both, **b.names}) for b in branches]

    def _branch(self, statements: list[ast.stmt], fields: Mapping[str, Annotation] = MappingProxyType({})) -> Branch:
        """Reads a branch. `fields`: the names of the fields that a `match` binds there."""
        inner = FunctionReader(self.scope, self.definition)
        inner.values.names = dict(self.values.names)
        inner.values.hidden = dict(self.values.hidden)
        inner.values.sizes = set(self.values.sizes)
        inner.values.upstream.machine.heaps = {n: dict(s) for n, s in self.values.upstream.machine.heaps.items()}
        inner.lines = dict(self.lines)
        inner.emitted = dict(self.emitted)
        variables = {name: var(inner._name(name, statements[0]), a) for name, a in fields.items()}
        inner.values.names |= variables
        inner.values.sizes.update(v for a in fields.values() for d in dims_of(a) for v in d.variables)
        end, _ = inner._body(statements)
        if end is not None:
            raise self.source.error(end, "a branch returns", "`return` as the last line of the function")
        before = {**self.values.names, **variables}
        names = {n: e for n, e in inner.values.names.items() if before.get(n) is not e}
        self.lines.update(inner.lines if self.scope.surroundings is not None else {})
        return Branch(tuple(inner.blocks), names, MappingProxyType(inner.origins), tuple(variables.values()))

    def _dataflow(self, region: ast.stmt) -> None:
        assert isinstance(region, ast.With)
        before = self._state()
        if self._pure_region(region):
            return
        # A step stands in it, as a `match_cast`: its lines become steps.
        self._restore(before)
        steps: list[Binding] = []
        names = set(self.values.names)
        outputs: set[str] = set()
        for statement in region.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(call, ast.Call) and unqualified_name(call.func) == "output":
                outputs = {a.id for a in call.args if isinstance(a, ast.Name)}
                continue
            self.scope.line = statement.lineno
            self._step(statement, steps)
        self._end_steps(steps)
        for name in set(self.values.names) - names - outputs:
            del self.values.names[name]
            listed = f"`{name}` to be listed in the R.output of that block"
            self.values.hidden[name] = ("local to its dataflow block", listed)

    def _state(self) -> Any:
        scope, values = self.scope, self.values
        kept = (values.names, values.hidden, values.sizes, self.lines, self.emitted, self.origins, scope.names)
        return [type(x)(x) for x in kept], len(scope.branch_functions), len(self.blocks)  # type: ignore[reportUnknownVariableType]

    def _restore(self, state: Any) -> None:
        scope, values = self.scope, self.values
        kept, functions, blocks = state
        values.names, values.hidden, values.sizes, self.lines, self.emitted, self.origins, scope.names = kept
        del scope.branch_functions[functions:], self.blocks[blocks:]

    def _pure_region(self, region: ast.With) -> bool:
        """Reads a dataflow block; False if a value in it is a step."""
        bindings: dict[str, Binding] = {}
        seen: set[Expr] = set()
        outputs: list[str] | None = None
        for statement in region.body:
            self.scope.line = statement.lineno
            if outputs is not None:
                raise self.source.error(statement, "a line follows R.output", OUTPUTS)
            if is_docstring(statement) or is_size_declaration(statement):
                continue
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                if self.values.upstream.reads(statement.value) is not None:
                    return False
                outputs = self._outputs(statement.value, bindings)
                continue
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
                return False
            name, value, bound = self._assignment(statement)
            if any(_is_step(e) for e in postorder([value], stop=lambda e: e.op == heads.VAR or e in seen)):
                return False
            seen.update(postorder([value], stop=seen.__contains__))
            self.values.names[name] = value
            bindings[name] = Binding(bound, value)
        if outputs is None:
            raise self.source.error(region, "this dataflow block has no outputs", OUTPUTS)
        for name, binding in bindings.items():
            if name in outputs:
                self.values.names[name] = binding.var
            else:
                del self.values.names[name]
                listed = f"`{name}` to be listed in the R.output of that block"
                self.values.hidden[name] = ("local to its dataflow block", listed)
        self.blocks.append(Block(tuple(bindings[name] for name in outputs)))
        return True

    def _outputs(self, call: ast.Call, bindings: Mapping[str, Binding]) -> list[str]:
        if unqualified_name(call.func) != "output" or call.keywords:
            raise self.source.error(call, "this line binds no name", f"{STATEMENTS}; {OUTPUTS}")
        names: list[str] = []
        for arg in call.args:
            if not isinstance(arg, ast.Name) or arg.id not in bindings:
                text = ast.unparse(arg)
                raise self.source.error(
                    arg, f"`{text}` is not bound in this block{did_you_mean(text, bindings)}", OUTPUTS
                )
            if arg.id in names:
                raise self.source.error(arg, f"`{arg.id}` is listed twice", OUTPUTS)
            names.append(arg.id)
        return names

    def _assignment(self, statement: ast.stmt) -> tuple[str, Expr, Expr]:
        """Returns name, value and variable of `name: annotation = value`."""
        self.scope.line = statement.lineno
        target: ast.expr | None = None
        if isinstance(statement, ast.AnnAssign):
            target = statement.target
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        assert target is None or isinstance(statement, (ast.Assign, ast.AnnAssign))
        if target is None or not isinstance(target, ast.Name) or statement.value is None:  # type: ignore[union-attr]
            if isinstance(statement, (ast.For, ast.While)):
                raise self.source.error(statement, "loops are not read as Python has them", LOOPS)
            raise self.source.error(statement, "this line binds no name", STATEMENTS)
        written: ast.expr = statement.value  # type: ignore[union-attr]
        declared = self.reader.annotation(statement.annotation) if isinstance(statement, ast.AnnAssign) else None
        is_exact = self.values.upstream.machine.knows_more(written)
        value = self.values.expression(written, None if is_exact or isinstance(written, ast.Name) else declared)
        if value.annotation != declared:
            self.values.check_declared(written, value.annotation, declared)
        device = self._device(statement.annotation) if isinstance(statement, ast.AnnAssign) else None
        if device is not None and copied_to(value) is None:
            value = to_device(self.values.step(written, value, value.op != heads.VAR), device)
        annotation = value.annotation if is_exact else declared or value.annotation
        bound = var(self._name(target.id, target), annotation)
        self._keep_origin(statement, written, value)
        self.values.sizes.update(v for d in dims_of(annotation) for v in d.variables)
        self.values.sizes |= all_sizes(value) if value.op == heads.MATCH_CAST else set()
        return target.id, value, bound

    def _keep_origin(self, statement: ast.stmt, written: ast.expr, value: Expr) -> None:
        """Records the origin of a value. In module text the origin is in a comment; in a script it is the statement."""
        if self.scope.surroundings is not None:
            self._keep_line(statement, written, value)
        elif not isinstance(written, ast.Name) and (origin := self.source.origin(statement)) is not None:
            self.origins[value] = origin

    def _keep_line(self, statement: ast.stmt, written: ast.expr, value: Expr) -> None:
        """In a script, records the source line of every node that a statement computes."""
        if self.scope.surroundings is None or isinstance(written, ast.Name):
            return
        origin = Origin((self.scope.surroundings.line(statement),))
        for e in postorder([value], stop=lambda e: e.op == heads.VAR or e in self.origins):
            if e.op not in heads.IN_PLACE:
                self.origins.setdefault(e, origin)

    def _name(self, name: str, at: ast.expr | ast.arg | ast.stmt) -> str:
        """Returns the variable name for a value bound to `name`, unique because a text may bind a name again."""
        own = unused_name(name, {*self.lines, *self.emitted})
        self.lines[own] = at.lineno
        return own
