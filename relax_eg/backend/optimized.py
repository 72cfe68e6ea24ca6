"""Optimized functions, which `optimize` returns: they run on XLA and carry their modules and reports."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.core import Tracer

from relax_eg.backend.call_keys import MOST_SHOWN, NOT_SHOWN, is_tracing, shown
from relax_eg.backend.checks import bind_sizes
from relax_eg.backend.compare import AS_WRITTEN, ITSELF, Check, against_reference, compared
from relax_eg.backend.executables import EXECUTABLES, Executables, executables
from relax_eg.backend.family import Family, Variant
from relax_eg.backend.program import Program, in_order, without_notes
from relax_eg.backend.ready import Ready
from relax_eg.errors import OptionError, RelaxEgError, ShapeError
from relax_eg.explain.certificate import UnaidedCertificate
from relax_eg.explain.text import Explanation
from relax_eg.ir.module import Module
from relax_eg.memo import Memo
from relax_eg.reports import CostReport


class Optimized:
    """An optimized function: call it like the function it came from.

    - `variants`: all programs of the family.
    - `module`: the chosen program.
    - `report`: its predicted cost, and why it was chosen.
    - `compiler_options`: the options XLA compiles it with.

    The last three are those of the variant for the first binding of `at`.
    """

    _usually_kept = EXECUTABLES

    def __init__(
        self,
        program: Program,
        variants: tuple[Variant, ...],
        weights: tuple[str, ...],
        tolerance: float,
        explained: Callable[[], Explanation],
    ) -> None:
        self._explained = explained
        self._explanation: Explanation | None = None
        self._program = program
        self.variants = variants
        self._executables = executables(program.at_sizes, self._usually_kept)
        self._family = Family(program, variants)
        self._weights = weights
        self._wide = program.wide
        self._binds = bool(weights) and not self._family.kept
        self._weight_indices = tuple(i for i, a in enumerate(program.arguments) if a in weights)
        self._names = program.names_without(frozenset())
        self._weight_places, self._weights_tree = _places_of(program.in_tree, self._weight_indices)
        self._tolerance = tolerance
        self._whole = self._executables.jit(self.to_jax())
        self._compiled = self._family.compiled(self._executables, self._of_variant)
        self._shown = shown(program.params, program.in_tree) if self._compiled else None
        self._by_shown = Memo[Any, Any](MOST_SHOWN)
        self._latest: tuple[Ready, list[weakref.ref[Any]]] | None = None  # bound to the weights of the latest call

    @property
    def module(self) -> Module:
        return self.variants[0].module

    def count_among(self, others: Executables) -> None:
        """Makes its executables count among `others`, too. To be called before the first call of the function."""
        others.hold(self._executables)

    @property
    def report(self) -> CostReport:
        return self.variants[0].report

    @property
    def compiler_options(self) -> Mapping[str, str]:
        """The options found best: pass them as `jax.jit(best.to_jax(), compiler_options=...)`."""
        return self.variants[0].compiler_options

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs on XLA. ShapeError or BoundsError for arguments that do not fit, before anything runs.

        With `weights`, what depends on them alone is computed at the first call with these very arrays and kept.
        """
        if self._wide and self._program.is_elsewhere:
            args, kwargs = self._as_given(args, kwargs)
            with self._program.width():
                return self(*args, **kwargs)
        if kwargs:  # JAX would compile again for each split into positional and keyword arguments
            args, kwargs = in_order(self._names, args, kwargs)
        if not self._binds:
            return self._run(args, kwargs)
        places = self._weight_places
        if places is not None and not kwargs and len(args) > places[-1]:
            held, tree = jax.tree_util.tree_flatten([args[i] for i in places])
            latest = self._latest
            if latest is not None and tree == self._weights_tree and _are(latest[1], held):
                return latest[0](*[x for i, x in enumerate(args) if i not in places])
        p = self._program
        leaves = p.leaves(args, kwargs)
        held = [leaves[i] for i in self._weight_indices]
        # Identity is a safe key for immutable arrays only: numpy arrays may change, and tracers end with their trace.
        if any(not isinstance(x, jax.Array) or isinstance(x, Tracer) for x in held):
            return self._run(args, kwargs)
        latest = self._latest
        if latest is None or not _are(latest[1], held):
            latest = self._latest = self._bind(held), [weakref.ref(x) for x in held]
        ready = latest[0]
        return ready.run([x for i, x in enumerate(leaves) if i not in ready.indices])

    def _as_given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call of a 64-bit program made outside JAX's x64 mode, as JAX takes them there."""
        p = self._program
        return jax.tree_util.tree_unflatten(p.in_tree, p.as_given(p.leaves(args, kwargs)))

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return (self._whole if self._compiled is None else self._of_options(args, kwargs))(*args, **kwargs)
        except RelaxEgError as e:
            raise without_notes(e) from None
        except (TypeError, OverflowError):
            # `jax.jit` refuses non-arrays and numbers out of range before our check, whose error names the argument.
            self._program.check(self._program.leaves(args, kwargs))
            raise

    def _of_options(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function that runs a call, where variants have compiler options.

        Under a trace it is the one without options: the outer `jit` decides on them.
        """
        assert self._compiled is not None and self._shown is not None
        if is_tracing():
            return self._whole
        try:
            key = self._shown(args, kwargs)
        except NOT_SHOWN:
            return self._compiled(self._family.at_leaves(self._program.leaves(args, kwargs)))
        found = self._by_shown.get(key)
        if found is None:
            found = self._compiled(self._family.at_leaves(self._program.leaves(args, kwargs)))
            self._by_shown[key] = found
        return found

    def to_jax(self) -> Callable[..., Any]:
        """The chosen program as a JAX function of the same arguments. It composes with jit, grad, vmap and sharding.

        Its derivatives are those of the function as written. To compile it, `compiler_options` may be passed.
        """
        program, family = self._program, self._family

        def optimized(*args: Any, **kwargs: Any) -> Any:
            leaves = program.as_given(program.leaves(args, kwargs))
            with program.width():
                leaves = program.check(leaves)
                return family.programs[family.at_leaves(leaves)].differentiable(leaves)

        optimized.__name__ = program.name
        return optimized

    def _of_variant(self, index: int) -> Callable[..., Any]:
        program = self._family.programs[index]

        def variant(*args: Any, **kwargs: Any) -> Any:
            return program.differentiable(program.check(program.leaves(args, kwargs)))

        variant.__name__ = program.name
        return variant

    def prepare(self, *weights: Any, **named: Any) -> Ready:
        """Computes what depends on the weights alone, once.

        Takes the arguments declared as `weights`, in their order or by name. The result takes the other arguments.
        OptionError for missing, repeated or other arguments; ShapeError for a weight with the wrong number of arrays.
        """
        if not self._weights:
            raise OptionError("prepare(): no weights were declared; pass weights=(...) to optimize")
        given = dict(zip(self._weights, weights, strict=False))
        twice = set(given) & set(named)
        given |= named
        if twice or len(weights) > len(self._weights) or set(given) != set(self._weights):
            raise OptionError(
                f"prepare() takes the weights {', '.join(self._weights)}; got {', '.join([*given, *twice]) or 'none'}"
            )
        p = self._program
        leaves: list[Any] = []
        for w in self._weights:
            found = jax.tree_util.tree_leaves(given[w])
            expected = [i for i, a in enumerate(p.arguments) if a == w]
            if len(found) != len(expected):
                raise ShapeError(f"prepare(): `{w}` has {len(found)} arrays, optimized for {len(expected)}")
            leaves += list(zip(expected, found, strict=True))
        leaves.sort(key=lambda pair: pair[0])
        arrays = p.as_given([x for _, x in leaves], [i for i, _ in leaves])
        with p.width():
            return self._bind(arrays)

    def _bind(self, weights: list[Any]) -> Ready:
        """The function with its weights bound to these arrays, one for each parameter."""
        return Ready(self._family, self._executables, self._weight_indices, weights)

    @property
    def _near(self) -> float:
        """The tolerance for the difference from the results of the function as written."""
        return self._tolerance

    def check(self, /, *args: Any, **kwargs: Any) -> Check:
        """Checks the declared facts of these arguments, and compares the results with those as written."""
        args, kwargs = self._as_given(args, kwargs)
        with self._program.width():
            return self._checked(args, kwargs)

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Check:
        p = self._program
        leaves = p.check(p.leaves(args, kwargs))
        broken = tuple(p.violations(leaves))
        ours, found = self(*args, **kwargs), None
        if p.kept and not p.from_function:  # comparing a module with itself would show nothing
            found = against_reference(p.written(), ours, leaves, self._near)
        if found is None:
            written = jax.jit(lambda *xs: p.original(list(xs)))(*leaves)
            found = compared(ours, written, self._near, ITSELF if self._family.kept else AS_WRITTEN)
        return replace(found, passed=found.passed and not broken, violations=broken)

    def explain(self) -> Explanation:
        """The derivation of the chosen program from the one as written, step by step; printed, it reads like a proof.

        The search is repeated with all matches recorded, and the derivation is replayed: conditions are proved again,
        and every expression is evaluated by the reference interpreter. ExplanationError where a step does not hold, or
        no derivation is found.
        """
        if self._explanation is None:
            with self._program.width():
                self._explanation = self._explained()
        return self._explanation

    def certificate(self) -> UnaidedCertificate:
        """The derivation as plain data. `.save(path)` writes it; `relax-eg verify --certificate` checks it without
        repeating the search. Raises what `explain` raises."""
        return self.explain().certificate()

    def is_own(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a call with these arguments runs the optimized program; otherwise it runs the function as written.

        It does where the function, traced for the sizes of these arguments, is the program that was optimized. Raises
        what the function raises at these sizes.
        """
        p = self._program
        return p.other_at(p.sizes([jax.numpy.shape(x) for x in p.leaves(args, kwargs)])) is None

    def sizes_of(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The values of the size variables for these arguments; bounds are not checked.

        ShapeError where the shapes contradict the signature.
        """
        p = self._program
        return bind_sizes(p.name, p.params, [jax.numpy.shape(x) for x in p.leaves(args, kwargs)])

    def statistics(self) -> Any:
        """Statistics of the executables of a function that runs padded to capacities (`AtCapacity.statistics`).

        OptionError for any other function: JAX compiles it for each shape that is called.
        """
        raise self._at_its_very_sizes("statistics()")

    def compile_ahead(self, *at: Mapping[str, int], background: bool = False) -> None:
        """Compiles a function that runs padded to capacities before its first call (`AtCapacity.compile_ahead`).

        OptionError for any other function.
        """
        raise self._at_its_very_sizes("compile_ahead()")

    def _at_its_very_sizes(self, asked: str) -> OptionError:
        return OptionError(
            f"{asked}: {self._program.name}() runs at its very sizes, for each of which JAX compiles it when it is "
            "called; accepted: a function with sizes that vary, optimized with dynamic='auto' or 'capacity' to one XLA "
            "program (with numerics='exact', dynamic='capacity')"
        )

    def save(self, path: str | Path) -> None:
        """Writes the function to a file. `rx.load` reads it in any process, and it runs there without a search.

        ArtifactError where the program holds an object of this process, such as a callback, or where the file cannot be
        written.
        """
        from relax_eg.backend.artifact import save

        save(self, self._program, self._weights, self._tolerance, path)

    def __repr__(self) -> str:
        r = self.report
        return f"<optimized {r.name}: {r.predicted_gain:.2f}x predicted on {r.target}>"


def _places_of(tree: Any, weights: Sequence[int]) -> tuple[tuple[int, ...] | None, Any]:
    """The places of the weights among the positional arguments of calls with structure `tree`, and the structure of the
    list of these arguments. (None, None) unless these arguments consist of exactly the weights, in order."""
    args, _ = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    places = [i for i, a in enumerate(args) if not set(jax.tree_util.tree_leaves(a)).isdisjoint(weights)]
    given = [args[i] for i in places]
    if not places or jax.tree_util.tree_leaves(given) != list(weights):
        return None, None
    return tuple(places), jax.tree_util.tree_structure(given)


def _are(refs: Sequence[weakref.ref[Any]], arrays: Sequence[Any]) -> bool:
    """Whether `refs` refer to exactly these arrays, by identity."""
    return len(refs) == len(arrays) and all(map(operator.is_, [r() for r in refs], arrays))
