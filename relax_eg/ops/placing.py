"""The operator that states where a tensor is on a mesh of devices: Relax's `annotate_sharding`.

Its value is its operand. JAX gets it as `with_sharding_constraint`, so XLA's partitioner places the value there, and
inserts the collectives that bring it from where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from relax_eg.contexts import holding
from relax_eg.errors import DeviceError, OptionError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.devices import ANNOTATE_SHARDING
from relax_eg.ir.placements import DeviceMesh, MeshPlacement
from relax_eg.limits import FEW_KEPT
from relax_eg.ops.attribute_values import one_of, placements
from relax_eg.ops.record import Attribute, Operator, Site, first_operand, register

_devices: ContextVar[tuple[Any, ...] | None] = ContextVar("relax_eg_devices", default=None)


def on_devices(devices: Sequence[Any]) -> AbstractContextManager[None]:
    """A context in which meshes consist of these devices of JAX, in this order."""
    return holding(_devices, tuple(devices))


def jax_mesh(mesh: DeviceMesh) -> Any:
    """The mesh of JAX: those of `on_devices`, or the devices that JAX has from the mesh's first one on. DeviceError if
    these are too few."""
    import jax

    devices = _devices.get()
    if devices is None:
        platform, _, first = mesh.device.partition(":")
        try:
            devices = tuple(jax.devices(platform or None)[int(first or 0) :])
        except RuntimeError:  # no such platform
            devices = ()
    return _jax_mesh(mesh, devices)


@lru_cache(FEW_KEPT)
def _jax_mesh(mesh: DeviceMesh, devices: tuple[Any, ...]) -> Any:
    import numpy as np
    from jax.sharding import Mesh

    if len(devices) < mesh.devices:
        raise DeviceError(
            f"the mesh {mesh} has {mesh.devices} devices; JAX has {len(devices)} here\n  accepted: a mesh of at most "
            f"{len(devices)}; on a CPU, XLA_FLAGS=--xla_force_host_platform_device_count={mesh.devices} makes devices"
        )
    return Mesh(np.array(devices[: mesh.devices]).reshape(mesh.sizes), mesh.names)


def jax_sharding(mesh: DeviceMesh, placement: MeshPlacement, rank: int) -> Any:
    """The `NamedSharding` of a placement without partial sums of a tensor of this rank. DeviceError as `jax_mesh`."""
    from jax.sharding import NamedSharding, PartitionSpec

    names = [tuple(mesh.names[a] for a in placement.axes_of(d)) for d in range(rank)]
    spec = [n[0] if len(n) == 1 else n or None for n in names]
    while spec and spec[-1] is None:
        spec.pop()
    return NamedSharding(jax_mesh(mesh), PartitionSpec(*spec))


def placement_of(sharding: Any, rank: int) -> tuple[DeviceMesh, MeshPlacement] | None:
    """The mesh and the placement of a `NamedSharding` of a tensor of this rank. None for what these do not say: another
    sharding, another memory, devices or axes of a mesh in another order than JAX's."""
    import jax
    from jax.sharding import Mesh, NamedSharding

    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh) or sharding.mesh.empty:
        return None
    first = sharding.mesh.devices.flat[0]
    if sharding.memory_kind not in (None, first.default_memory().kind):
        return None
    number = jax.devices(first.platform).index(first)
    try:
        mesh = DeviceMesh(DeviceMesh.of(sharding.mesh).axes, f"{first.platform}:{number}" if number else "")
        placement = MeshPlacement.of_spec(mesh, sharding.spec, "sharding")
        known = jax_sharding(mesh, placement, rank)
    except (OptionError, DeviceError):
        return None
    return (mesh, placement) if known.is_equivalent_to(sharding, rank) else None


def check_placement(mesh: DeviceMesh, placement: MeshPlacement, x: Tensor, what: str) -> None:
    """OptionError unless a value of a program may have this placement: it has a part for each axis of the mesh, its
    dimensions exist and are not smaller than the axes that split them, and nothing is partial."""
    if not mesh.axes:
        copied = f"in a program's text R.to_vdevice(x, {str(mesh)!r}) copies to it"
        raise OptionError(f"{what}: {mesh} is one device\n  accepted: a mesh with axes, such as 'data=4'; {copied}")
    if len(placement.parts) != len(mesh.axes):
        raise OptionError(f"{what}: placement {placement} has {len(placement.parts)} parts; one for each of {mesh}")
    if placement.is_partial:
        raise OptionError(f"{what}: placement {placement} is partial; R or S[dimension] for each axis is accepted")
    shape = x.shape or ()
    wrong = [p for p in placement.parts if isinstance(p, int) and p >= len(shape)]
    if wrong:
        raise OptionError(f"{what}: placement {placement} splits dimension {wrong[0]} of {x.short}, which has rank "
                          f"{len(shape)}")  # fmt: skip
    for d, (size, pieces) in enumerate(zip(shape, placement.splits(len(shape), mesh), strict=True)):
        if pieces > 1 and not size.variables and int(size) < pieces:
            raise OptionError(
                f"{what}: placement {placement} splits dimension {d} of {x.short}, of size {size}, over {pieces} "
                f"devices of the mesh {mesh}\n  accepted: a dimension of at least {pieces}"
            )


def _deduce(site: Site) -> Annotation:
    x = Tensor(site.shape(0), site.dtype(0))
    try:
        mesh, placement = DeviceMesh.of(site["mesh"]), MeshPlacement.parse(site["placement"])
        check_placement(mesh, placement, x, "annotate_sharding")
    except OptionError as e:
        raise site.error(str(e)) from None
    return x


def _jax_annotate(x: Any, *, mesh: str, placement: str) -> Any:
    from jax import lax

    where = jax_sharding(DeviceMesh.of(mesh), MeshPlacement.parse(placement), x.ndim)
    return lax.with_sharding_constraint(x, where)


register(
    Operator(
        ANNOTATE_SHARDING, ("x",), _deduce, _jax_annotate, first_operand,
        (Attribute("mesh", values=one_of("x=1")), Attribute("placement", values=placements)), moves="view",
        doc="`x`, placed on a mesh of devices: \"S[0], R\" is split along dimension 0 over the mesh's first axis",
    )
)  # fmt: skip
