"""Functions spread over a mesh of devices: they run in JAX's SPMD, and XLA's partitioner inserts what they send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax
from jax.core import Tracer

from relax_eg.argument_checks import Kind, accepts, of_types
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.whole import Whole
from relax_eg.errors import OptionError, ShapeError
from relax_eg.ir.placements import DeviceMesh, MeshPlacement
from relax_eg.ops.placing import jax_sharding
from relax_eg.reports.spread import SpreadReport

if TYPE_CHECKING:
    from relax_eg.backend.gpu.spread import SpreadCompilation


class Spread(Optimized):
    """A function spread over a mesh of devices: call it like the function it came from, with arrays placed anywhere.

    - `mesh`: the mesh.
    - `spreading`: who holds what, and what is sent when.
    - `input_placements`, `output_placements`: for each array of the arguments and results, in order.
    - `spreadings`: the same as `spreading` for each of `variants`; the three before are those of the first.

    The rest is that of `Optimized`.
    """

    mesh: DeviceMesh
    spreadings: tuple[SpreadReport, ...]

    @classmethod
    def of(cls, best: Optimized, mesh: DeviceMesh, reports: Sequence[SpreadReport]) -> Self:
        """`best`, a function whose modules annotate placements, with the report of each variant."""
        made = cls(best.solution, best.strategy, best.explain)
        made.mesh, made.spreadings = mesh, tuple(reports)
        return made

    @property
    def spreading(self) -> SpreadReport:
        return self.spreadings[0]

    @property
    def input_placements(self) -> tuple[MeshPlacement, ...]:
        return self.spreading.input_placements

    @property
    def output_placements(self) -> tuple[MeshPlacement, ...]:
        return self.spreading.output_placements

    def in_shardings_of(self, variant: int) -> list[Any]:
        """The shardings of the arrays of the arguments of a variant. DeviceError as `in_shardings`."""
        ranks = [p.annotation.ndim for p in self._program.params]  # type: ignore[union-attr]
        placements = self.spreadings[variant].input_placements
        return [jax_sharding(self.mesh, p, r) for p, r in zip(placements, ranks, strict=True)]

    def out_shardings_of(self, variant: int) -> list[Any]:
        """The shardings of the arrays of the results of a variant. DeviceError as `out_shardings`."""
        placements = self.spreadings[variant].output_placements
        ranks = [max((x + 1 for x in p.parts if isinstance(x, int)), default=0) for p in placements]
        return [jax_sharding(self.mesh, p, r) for p, r in zip(placements, ranks, strict=True)]

    @property
    def in_shardings(self) -> Any:
        """The shardings of the positional arguments, in the structure of these: `jax.jit(f.to_jax(),
        in_shardings=f.in_shardings)`. DeviceError if JAX has fewer devices than the mesh."""
        return jax.tree_util.tree_unflatten(self._program.in_tree, self.in_shardings_of(0))[0]

    @property
    def out_shardings(self) -> Any:
        """The shardings of the results, in their structure. DeviceError if JAX has fewer devices than the mesh."""
        return jax.tree_util.tree_unflatten(self._program.out_tree, self.out_shardings_of(0))

    def variant_of(self, leaves: Sequence[Any]) -> int:
        """The index of the variant that serves a call with these arrays. ShapeError or BoundsError."""
        strategy = self.strategy
        assert isinstance(strategy, Whole)
        return strategy.family.variant_at(self._program.sizes([jax.numpy.shape(x) for x in leaves]))

    def place(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with every array where the function takes it; arrays that are padded (`padded=`) stay where
        they are. ShapeError for another structure than that of the specs; DeviceError if JAX has fewer devices than
        the mesh."""
        args, kwargs = self._program.bind(args, kwargs)
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self._program.in_tree:
            raise ShapeError(f"{self._program.name}(): arguments are {tree}; {self._program.in_tree} is accepted")
        wanted = self.in_shardings_of(self.variant_of(leaves))
        placed = [self._placed(x, s) for x, s in zip(leaves, wanted, strict=True)]
        return jax.tree_util.tree_unflatten(tree, placed)

    def _placed(self, x: Any, sharding: Any) -> Any:
        return jax.device_put(x, sharding)

    def _is_elsewhere(self, x: jax.Array, sharding: Any) -> bool:
        """Whether an array is not where the function takes it."""
        return not x.sharding.is_equivalent_to(sharding, x.ndim)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Tracer) for x in jax.tree_util.tree_leaves((args, kwargs))):
            return super().__call__(*args, **kwargs)
        args, kwargs = self.place(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    @accepts(donate=of_types("a list of names of arguments", list, tuple))
    def jit(self, donate: Sequence[str] = ()) -> Callable[..., Any]:
        """The function as one executable of JAX, with its arguments' and results' shardings.

        The arrays of the arguments `donate` are reused, so they have to be where the function takes them: OptionError
        otherwise, with both sides, and for a name that is no argument."""
        program, positions = self._program, self._positions("jit", donate)
        made = [self._jitted(i, positions) for i in range(len(self.variants))]
        wanted = [self.in_shardings_of(i) for i in range(len(self.variants))]

        def run(*args: Any) -> Any:
            leaves = jax.tree_util.tree_leaves(args)
            variant = self.variant_of(leaves)
            for x, s, name, argument in zip(leaves, wanted[variant], program.names, program.arguments, strict=True):
                if argument in donate and isinstance(x, jax.Array) and self._is_elsewhere(x, s):
                    raise OptionError(
                        f"{program.name}(): `{name}` is donated and is placed as {x.sharding}; the function takes it "
                        f"as {s}\n  accepted: place() brings arguments there"
                    )
            return made[variant](*self.place(*args)[0])

        return run

    def _jitted(self, variant: int, donated: tuple[int, ...]) -> Callable[..., Any]:
        """A variant as one executable of JAX. `donated`: the positions of the arguments whose arrays are reused."""
        outs = jax.tree_util.tree_unflatten(self._program.out_tree, self.out_shardings_of(variant))
        ins = jax.tree_util.tree_unflatten(self._program.in_tree, self.in_shardings_of(variant))[0]
        options = dict(self.variants[variant].compiler_options) or None
        return jax.jit(
            self.to_jax(), in_shardings=ins, out_shardings=outs, donate_argnums=donated, compiler_options=options
        )

    def _positions(self, asked: str, donate: Sequence[str]) -> tuple[int, ...]:
        """The positions of the arguments `donate`. OptionError for a name that is no argument."""
        known = list(dict.fromkeys(self._program.arguments))
        for name in donate:
            if name not in known:
                raise OptionError(
                    f"{asked}(donate=[{name!r}]): {self._program.name}() has the arguments {', '.join(known)}"
                )
        return tuple(i for i, name in enumerate(known) if name in donate)

    @accepts(
        donate=of_types("a list of names of arguments", list, tuple),
        variant=Kind(lambda x: isinstance(x, int) and not isinstance(x, bool), "the index of a variant"),
    )
    def compile_spread(self, device: str = "h100", donate: Sequence[str] = (), variant: int = 0) -> SpreadCompilation:
        """What XLA makes of a variant, at the sizes of its report, for as many described GPUs as the mesh has: its
        collectives, and the memory of each device, where the arrays of the arguments `donate` are reused. OptionError
        and DeviceError as those of `compile`; OptionError for a name that is no argument, and for another variant."""
        from relax_eg.backend.gpu.spread import compile_spread  # which programs for the CPU never need

        if not 0 <= variant < len(self.variants):
            raise OptionError(f"compile_spread(variant={variant}): {self._program.name}() has {len(self.variants)}")
        report = self.spreadings[variant]
        return compile_spread(
            self.to_jax(), self._program, self.mesh, report.input_placements, report.output_placements, device,
            report.at, self._positions("compile_spread", donate), self.variants[variant].compiler_options,
        )  # fmt: skip
