"""Operators that make tensors from scalars, sizes and positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from relax_eg.dtypes import NUMBERS, itemsize, kind, numpy_dtype
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.attribute_values import DTYPES, one_axis
from relax_eg.ops.lazy_jax import jnp, lax
from relax_eg.ops.record import Attribute, Operator, Site, register
from relax_eg.ops.sizes import need_axis, need_kind
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Index, TensorProgram, cast, compute, equal, program


def _dtype(site: Site, kinds: str) -> str:
    """Returns attribute `dtype`, which must be of one of `kinds` (letters of `dtypes.kind`)."""
    dtype = site["dtype"]
    if dtype not in NUMBERS or kind(dtype) not in kinds:
        accepted = ", ".join(d for d in NUMBERS if kind(d) in kinds)
        raise site.error(f"dtype {dtype!r}; accepted: {accepted}")
    return dtype


def _one_size(site: Site, name: str) -> Dim:
    sizes: tuple[Dim, ...] = site[name]
    if len(sizes) != 1:
        raise site.error(f"{name} is one size; got {len(sizes)}")
    return sizes[0]


def _full_deduce(site: Site) -> Annotation:
    need_kind(site, "biufckn")
    if site.shape() != ():
        raise site.error("the value, operand 0, must be a scalar; broadcast_to spreads tensors")
    return Tensor(site["shape"], site.dtype())


def _full_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    (value,) = buffers
    return program("full", buffers, compute("out", site["shape"], lambda *i: value[()]))


def _iota_deduce(site: Site) -> Annotation:
    need_axis(site, site["axis"], len(site["shape"]))
    return Tensor(site["shape"], _dtype(site, "iufc"))


def _iota_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    return program("iota", (), compute("out", site["shape"], lambda *i: Index(i[site["axis"]], site["dtype"])))


def _iota(*, shape: tuple[int, ...], axis: int, dtype: str) -> Any:
    return lax.broadcasted_iota(dtype, shape, axis)


def _one_hot_deduce(site: Site) -> Annotation:
    need_kind(site, "iu")
    return Tensor((*site.shape(), _one_size(site, "depth")), _dtype(site, "biufc"))


def _one_hot_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    (indices,) = buffers
    return program(
        "one_hot",
        buffers,
        compute(
            "out",
            (*indices.shape, *site["depth"]),
            lambda *i: cast(equal(cast(indices[i[:-1]], "int64"), Index(i[-1])), site["dtype"]),
        ),
    )


def _one_hot(indices: Any, *, depth: tuple[int], dtype: str) -> Any:
    if itemsize(indices.dtype.name) < 4:  # a narrow iota would wrap
        indices = lax.convert_element_type(indices, "int32")
    shape = (*indices.shape, *depth)
    spread = lax.broadcast_in_dim(indices, shape, tuple(range(indices.ndim)))
    return lax.convert_element_type(lax.eq(spread, lax.broadcasted_iota(indices.dtype, shape, indices.ndim)), dtype)


def _dim_value_deduce(site: Site) -> Annotation:
    _one_size(site, "dim")
    return Tensor((), _dtype(site, "iuf"))


def _dim_value_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    return program("dim_value", (), compute("out", (), lambda: Index(site["dim"][0], site["dtype"])))


def _dim_value(*, dim: tuple[int], dtype: str) -> Any:
    if isinstance(dim[0], int):
        return jnp.asarray(np.asarray(dim[0]).astype(numpy_dtype(dtype)))
    return jnp.asarray(dim[0]).astype(dtype)  # symbolic, while JAX exports


register(
    Operator(
        "full",
        ("value",),
        _full_deduce,
        "jax.lax.broadcast",
        _full_equations,
        (Attribute("shape", "dims"),),
        moves="repeat",
        doc="a scalar everywhere",
    )
)
register(
    Operator(
        "iota",
        (),
        _iota_deduce,
        _iota,
        _iota_equations,
        (Attribute("shape", "dims"), Attribute("axis", values=one_axis), Attribute("dtype", values=DTYPES)),
        moves="make",
        below=lambda site: site["shape"][site["axis"]],
        doc="the position along an axis of each element",
    )
)
register(
    Operator(
        "one_hot",
        ("indices",),
        _one_hot_deduce,
        _one_hot,
        _one_hot_equations,
        (Attribute("depth", "dims"), Attribute("dtype", values=DTYPES)),
        doc="a new last axis of the given size with a one at each index; none where the index is out of range",
    )
)
register(
    Operator(
        "dim_value",
        (),
        _dim_value_deduce,
        _dim_value,
        _dim_value_equations,
        (Attribute("dim", "dims"), Attribute("dtype", values=DTYPES)),
        moves="make",
        doc="a size as a scalar tensor",
    )
)
