"""Functions spread over a mesh of devices: they run in JAX's SPMD, and XLA's partitioner inserts what they send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.core import Tracer

from relax_eg.argument_checks import accepts, of_types
from relax_eg.backend.optimized import Optimized
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

    The rest is that of `Optimized`.
    """

    mesh: DeviceMesh
    spreading: SpreadReport
    input_placements: tuple[MeshPlacement, ...]
    output_placements: tuple[MeshPlacement, ...]

    @staticmethod
    def of(
        best: Optimized,
        mesh: DeviceMesh,
        report: SpreadReport,
        inputs: Sequence[MeshPlacement],
        outputs: Sequence[MeshPlacement],
    ) -> Spread:
        """`best`, a function whose module annotates placements, with what they are."""
        made = Spread(best.solution, best.strategy, best.explain)
        made.mesh, made.spreading = mesh, report
        made.input_placements, made.output_placements = tuple(inputs), tuple(outputs)
        return made

    @property
    def _shardings(self) -> list[Any]:
        ranks = [p.annotation.ndim for p in self._program.params]  # type: ignore[union-attr]
        return [jax_sharding(self.mesh, p, r) for p, r in zip(self.input_placements, ranks, strict=True)]

    @property
    def in_shardings(self) -> Any:
        """The shardings of the positional arguments, in the structure of these: `jax.jit(f.to_jax(),
        in_shardings=f.in_shardings)`. DeviceError if JAX has fewer devices than the mesh."""
        return jax.tree_util.tree_unflatten(self._program.in_tree, self._shardings)[0]

    @property
    def out_shardings(self) -> Any:
        """The shardings of the results, in their structure. DeviceError if JAX has fewer devices than the mesh."""
        found = [
            jax_sharding(self.mesh, p, max((x + 1 for x in p.parts if isinstance(x, int)), default=0))
            for p in self.output_placements
        ]
        return jax.tree_util.tree_unflatten(self._program.out_tree, found)

    def place(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with every array where the function takes it. ShapeError for another structure than that of the
        specs; DeviceError if JAX has fewer devices than the mesh."""
        args, kwargs = self._program.bind(args, kwargs)
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self._program.in_tree:
            raise ShapeError(f"{self._program.name}(): arguments are {tree}; {self._program.in_tree} is accepted")
        placed = [jax.device_put(x, s) for x, s in zip(leaves, self._shardings, strict=True)]
        return jax.tree_util.tree_unflatten(tree, placed)

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
        program = self._program
        made = jax.jit(
            self.to_jax(), in_shardings=self.in_shardings, out_shardings=self.out_shardings,
            donate_argnums=self._positions("jit", donate),
        )  # fmt: skip
        wanted = self._shardings

        def run(*args: Any) -> Any:
            leaves = jax.tree_util.tree_leaves(args)
            for x, s, name, argument in zip(leaves, wanted, program.names, program.arguments, strict=True):
                if argument in donate and isinstance(x, jax.Array) and not x.sharding.is_equivalent_to(s, x.ndim):
                    raise OptionError(
                        f"{program.name}(): `{name}` is donated and is placed as {x.sharding}; the function takes it "
                        f"as {s}\n  accepted: place() brings arguments there"
                    )
            return made(*self.place(*args)[0])

        return run

    def _positions(self, asked: str, donate: Sequence[str]) -> tuple[int, ...]:
        """The positions of the arguments `donate`. OptionError for a name that is no argument."""
        known = list(dict.fromkeys(self._program.arguments))
        for name in donate:
            if name not in known:
                raise OptionError(
                    f"{asked}(donate=[{name!r}]): {self._program.name}() has the arguments {', '.join(known)}"
                )
        return tuple(i for i, name in enumerate(known) if name in donate)

    @accepts(donate=of_types("a list of names of arguments", list, tuple))
    def compile_spread(self, device: str = "h100", donate: Sequence[str] = ()) -> SpreadCompilation:
        """What XLA makes of it for as many described GPUs as the mesh has: its collectives, and the memory of each
        device, where the arrays of the arguments `donate` are reused. OptionError and DeviceError as those of
        `compile`; OptionError for a name that is no argument."""
        from relax_eg.backend.gpu.spread import compile_spread  # which programs for the CPU never need

        return compile_spread(
            self.to_jax(), self._program, self.mesh, self.input_placements, self.output_placements, device,
            dict(self.report.at), self._positions("compile_spread", donate),
        )  # fmt: skip
