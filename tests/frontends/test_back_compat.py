"""Modules that JAX keeps of its earlier versions, with inputs and outputs, through `rx.from_stablehlo`.

The modules are of CPUs, GPUs and TPUs; all that is read is computed on the CPU.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.export import _export
from jax._src.internal_test_util import export_back_compat_test_data
from sampling import sampled

import relax_eg as rx
from relax_eg.backend.lowering.lower import run_function
from relax_eg.errors import StableHloError, TraceError
from relax_eg.frontends.stablehlo.lapack import routine
from tests.frontends.test_stablehlo import agrees, exported, floats, libraries

# The results that are compared where other vectors are as right: values, and forms of matrices.
COMPARED = {"cpu_eig_": [0], "eigh": [1], "schur": [0], "svd": [1]}
# What is computed otherwise on the CPU: rows counted beyond the last one, and differences in no fixed order.
OTHERWISE = ("cuda_lu_pivots", "rocm_lu_pivots", "tpu_stablehlo_dynamic_reduce_window.data_variadic")
# What is not read, and what the error names.
REFUSED = {
    "annotate_data_placement": "stablehlo.custom_call @annotate_device_placement", "mosaic_gpu": "@mosaic_gpu_v2",
    "mosaic_": "@tpu_custom_call", "triton_": r"@__gpu\$xla.gpu.triton",
    "rocm_eigh_hipsolver_syev.data_2024": "stablehlo.custom_call @hipsolver_syev[jd] ",  # of an older interface
    "shardy_sharding": "sdy.manual_computation", "tpu_Eigh": "@Eigh", "tpu_Lu": "@LuDecomposition", "tpu_Qr": "@Qr",
    "tpu_Sharding": "stablehlo.collective_permute",
}  # fmt: skip


def modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """The modules by name: their file, their date, what they are of."""

    def inside(name: str, found: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        if isinstance(found, dict) and "testdata_version" in found:
            yield name, found
        elif isinstance(found, dict):
            for key, value in found.items():
                yield from inside(f"{name}.{key}", value)

    package = export_back_compat_test_data
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not info.ispkg:
            for key, value in vars(importlib.import_module(info.name)).items():
                if key.startswith("data"):
                    yield from inside(f"{info.name.rpartition('.')[2]}.{key}", value)


def said_in(table: Mapping[str, Any], name: str) -> Any:
    return next((said for part, said in table.items() if part in name), None)


MODULES = dict(modules())
READ = [n for n in MODULES if said_in(REFUSED, n) is None and "dynamic_approx_top_k" not in n]
ALWAYS = [n for n in READ if "top_k" in n or "threefry" in n or (n.endswith((".f32", ".c64")) and "tridiagonal" in n)]


@pytest.mark.parametrize("name", sampled(READ, 8, ALWAYS))
def test_modules_of_earlier_versions(name: str) -> None:
    data = MODULES[name]
    module = rx.from_stablehlo(data["mlir_module_serialized"])
    text = rx.from_stablehlo(data["mlir_module_text"])
    assert [p.annotation for p in text.main.params] == [p.annotation for p in module.main.params]
    with jax.enable_x64(True):
        found = jax.jit(lambda *xs: run_function(module, module.main, xs))(*data["inputs"])
    outputs = jax.tree.leaves(found)
    for i, (x, wanted) in enumerate(zip(outputs, data["expected_outputs"], strict=True)):
        assert (x.dtype, x.shape) == (wanted.dtype, np.shape(wanted))
        if not any(part in name for part in OTHERWISE) and i in (said_in(COMPARED, name) or [i]):
            close = 1e-12 if x.dtype in (np.float64, np.complex128) else 1e-5
            scale = float(np.max(np.abs(wanted), initial=0))
            np.testing.assert_allclose(x, wanted, rtol=close, atol=close * scale)


@pytest.mark.parametrize("name", [n for n in MODULES if said_in(REFUSED, n)])
def test_what_is_not_read_is_named(name: str) -> None:
    for form in ("mlir_module_serialized", "mlir_module_text"):
        with pytest.raises(StableHloError, match=f"not supported: .*{said_in(REFUSED, name)}.*\n  accepted: "):
            rx.from_stablehlo(MODULES[name][form])


def test_every_module_is_read_or_named() -> None:
    assert len(MODULES) > 90 and len(READ) > 70
    (other,) = set(MODULES) - set(READ) - {n for n in MODULES if said_in(REFUSED, n)}
    with pytest.raises(TraceError, match="inconclusive"):  # a text does not say that there are more than 4
        rx.from_stablehlo(MODULES[other]["mlir_module_text"])


def test_routines_that_jax_keeps_are_read() -> None:
    for target in (*_export._CPU_FFI_KERNELS, *_export._GPU_FFI_KERNELS):
        assert routine(target, {}), target
        assert not routine(target, "bytes of an older interface")


def of_the_greatest(x):
    values, places = lax.approx_max_k(x, x.shape[0] - 4)
    return values, places, *lax.top_k(x, x.shape[0] - 2)


def test_so_many_of_the_greatest_as_sizes_say() -> None:
    module = rx.from_stablehlo(exported(of_the_greatest, "b + 5"))
    agrees(module, of_the_greatest, floats(24))


def other_products(a, b):
    upper, order = jax.scipy.linalg.qr(b, mode="r", pivoting=True)
    product = lax.linalg.ormqr(a, jnp.diagonal(a), b, left=True, transpose=True)
    return upper, order, product, lax.linalg.ormqr(a, jnp.diagonal(a), b.T, left=False)


@pytest.mark.parametrize("kind", [np.float32, np.complex64])
def test_products_of_reflectors_and_pivots(kind: Any) -> None:
    args = [floats(*shape).astype(kind) for shape in ((4, 4), (4, 3))]
    if kind is np.complex64:
        args = [x + 1j * floats(*x.shape) for x in args]
    module = rx.from_stablehlo(jax.jit(other_products).lower(*args))
    agrees(module, other_products, *args)
    assert set(libraries(module)) <= {"jax.geqp3"}
