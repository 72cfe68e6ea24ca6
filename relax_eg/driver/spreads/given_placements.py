"""What `spread` is asked to keep: placements of arguments and results, state, and sizes that are padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from relax_eg.argument_checks import short_repr
from relax_eg.driver.options import Options
from relax_eg.errors import OptionError
from relax_eg.frontends import Source
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.placements import DeviceMesh, MeshPlacement
from relax_eg.meshes.search import Wanted
from relax_eg.ops.placing import check_placement
from relax_eg.shapes import Scope

# A placement as users give it: text, or a `PartitionSpec`, or a `NamedSharding`.
GivenPlacement = Any


def wanted_of(
    traced: Source,
    scope: Scope,
    mesh: DeviceMesh,
    args: tuple[Any, ...],
    inputs: Mapping[str, GivenPlacement],
    outputs: GivenPlacement | Mapping[int, GivenPlacement] | None,
    state: Sequence[str] | Mapping[str, int],
    memory: float,
) -> Wanted:
    """What placements have to keep. OptionError for what does not fit the program or the mesh.

    - `scope`: what is known of the sizes of arrays.
    - `args`: the specs, of which arrays may have a sharding.
    - `inputs`, `outputs`, `state`: as of `spread`.
    - `memory`: bytes that a device may have in memory.
    """
    given = {**_of_arrays(traced, scope, args, mesh), **_given_inputs(traced, scope, mesh, inputs)}
    found = Wanted(given, _given_outputs(traced, scope, mesh, outputs), _state(traced, state), memory)
    for i, o in found.state:
        there, back = found.inputs.get(i), found.outputs.get(o)
        if there is not None and back is not None and there != back:
            raise OptionError(
                f"{traced.name}(): {traced.leaves[i].path} is state and is placed as {there}; result {o}, as which it "
                f"comes back, is placed as {back}\n  accepted: one placement for both, or one of them not given"
            )
    return found


def scope_of_padded(traced: Source, options: Options, padded: Sequence[str], mesh: DeviceMesh) -> Scope:
    """What is known of the sizes of arrays: those that are padded are multiples of the devices. OptionError for a name
    that is no size, and for a program that does not run at capacity with these numerics."""
    for v in padded:
        if v not in traced.size_variables:
            known = ", ".join(traced.size_variables) or "none"
            raise OptionError(f"{traced.name}(): padded has {short_repr(v)}; its sizes are {known}")
    if padded and options.is_exact:
        raise OptionError(
            f"{traced.name}(): padded={list(padded)} and numerics='exact': sums over padded axes are taken in another "
            "order\n  accepted: numerics='reassociate'"
        )
    if not padded:
        return options.scope
    found = Scope()  # a largest size need not be a multiple
    for v in options.scope.names:
        low, high = options.scope.bounds(v)
        found.bound(v, (low, None if v in padded else high))
    found.assume(*(str(r) for r in options.scope.relations if not r.variables & set(padded)))
    found.assume(*(f"{v} % {mesh.devices} == 0" for v in padded))
    return found


def _placement(mesh: DeviceMesh, given: GivenPlacement, what: str) -> MeshPlacement:
    """A placement as users give it. OptionError if it is none of this mesh."""
    if isinstance(given, MeshPlacement):
        return given
    if isinstance(given, str):
        return MeshPlacement.parse(given)
    spec = getattr(given, "spec", given)
    if not isinstance(spec, (tuple, PartitionSpec)):
        raise OptionError(
            f"{what}: {short_repr(given)}; a text such as 'S[0], R', a PartitionSpec or a NamedSharding is accepted"
        )
    other = getattr(given, "mesh", None)
    if other is not None and DeviceMesh.of(other) != mesh:
        raise OptionError(f"{what}: its sharding is over the mesh {DeviceMesh.of(other)}; the mesh here is {mesh}")
    return MeshPlacement.of_spec(mesh, spec, what)


def _checked(scope: Scope, mesh: DeviceMesh, placement: MeshPlacement, x: Any, what: str) -> MeshPlacement:
    """`placement`, which a tensor has to be able to have with equal pieces, for all sizes. OptionError."""
    assert isinstance(x, Tensor)
    check_placement(mesh, placement, x, what)
    for d, (size, pieces) in enumerate(zip(x.shape or (), placement.splits(x.ndim or 0, mesh), strict=True)):
        if pieces > 1 and scope.equal(size % pieces, 0) is not True:
            known = f"{size} is" if not size.variables else f"it is not proved that {size} is"
            raise OptionError(
                f"{what}: placement {placement} splits dimension {d} of {x.short} over {pieces} devices of the mesh "
                f"{mesh}; {known} {'not ' if not size.variables else ''}a multiple of {pieces}\n  accepted: a size "
                f"that is, by its value or by bounds='{size} % {pieces} == 0', or R"
            )
    return placement


def _given_inputs(traced: Source, scope: Scope, mesh: DeviceMesh, given: Mapping[str, Any]) -> dict[int, MeshPlacement]:
    found: dict[int, MeshPlacement] = {}
    leaves = traced.leaves
    for name, placement in given.items():
        places = [i for i, x in enumerate(leaves) if name in (x.argument, x.path, x.name)]
        if not places:
            known = ", ".join(dict.fromkeys(x.argument for x in leaves))
            raise OptionError(f"{traced.name}(): inputs has {short_repr(name)}; the arguments are {known}")
        what = f"{traced.name}(): inputs[{name!r}]"
        for i in places:
            one = _placement(mesh, placement, what)
            found[i] = _checked(scope, mesh, one, leaves[i].annotation, what)
    return found


def _of_arrays(traced: Source, scope: Scope, args: tuple[Any, ...], mesh: DeviceMesh) -> dict[int, MeshPlacement]:
    """The placements of the arrays among the specs that have a `NamedSharding`."""
    arrays = jax.tree_util.tree_leaves(args)
    if len(arrays) != len(traced.leaves):
        return {}
    found: dict[int, MeshPlacement] = {}
    for i, (x, leaf) in enumerate(zip(arrays, traced.leaves, strict=True)):
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding):
            what = f"{traced.name}(): {leaf.path}"
            found[i] = _checked(scope, mesh, _placement(mesh, sharding, what), leaf.annotation, what)
    return found


def _results(traced: Source) -> tuple[Any, ...]:
    annotation = traced.module.main.annotation
    return tuple(getattr(annotation, "fields", (annotation,)))


def _given_outputs(traced: Source, scope: Scope, mesh: DeviceMesh, given: Any) -> dict[int, MeshPlacement]:
    if given is None:
        return {}
    results = _results(traced)
    each = given if isinstance(given, Mapping) else dict.fromkeys(range(len(results)), given)
    found: dict[int, MeshPlacement] = {}
    for i, placement in each.items():
        if not isinstance(i, int) or not 0 <= i < len(results):
            raise OptionError(
                f"{traced.name}(): outputs has {short_repr(i)}; its results are numbered 0 to {len(results) - 1}"
            )
        what = f"{traced.name}(): outputs[{i}]"
        found[i] = _checked(scope, mesh, _placement(mesh, placement, what), results[i], what)
    return found


def _state(traced: Source, state: Sequence[str] | Mapping[str, int]) -> list[tuple[int, int]]:
    """Pairs (input, output) of arrays of the state. OptionError if an argument and its result differ."""
    wanted = dict(state) if isinstance(state, Mapping) else {name: i for i, name in enumerate(state)}
    results = _results(traced)
    tree = traced.out_tree
    is_tuple = tree.node_data() is not None and tree.node_data()[0] in (tuple, list)
    children = [c.num_leaves for c in tree.children()] if is_tuple else [tree.num_leaves]
    starts = [sum(children[:i]) for i in range(len(children) + 1)]
    found: list[tuple[int, int]] = []
    for name, position in wanted.items():
        mine = [i for i, x in enumerate(traced.leaves) if x.argument == name]
        if not mine:
            known = ", ".join(dict.fromkeys(x.argument for x in traced.leaves))
            raise OptionError(f"{traced.name}(): state has {short_repr(name)}; the arguments are {known}")
        if not isinstance(position, int) or not 0 <= position < len(children):
            raise OptionError(
                f"{traced.name}(): state[{name!r}] is result {short_repr(position)}; it returns {len(children)}"
            )
        theirs = list(range(starts[position], starts[position + 1]))
        differing = [
            (traced.leaves[i].path, traced.leaves[i].annotation, results[o])
            for i, o in zip(mine, theirs, strict=False)
            if traced.leaves[i].annotation != results[o]
        ]
        if len(mine) != len(theirs) or differing:
            text = (
                f"{differing[0][0]} is {differing[0][1].short} and comes back as {differing[0][2].short}"
                if differing
                else f"the argument has {len(mine)} arrays and the result {len(theirs)}"
            )
            raise OptionError(f"{traced.name}(): state[{name!r}] is result {position}, but {text}")
        found += list(zip(mine, theirs, strict=True))
    return found
