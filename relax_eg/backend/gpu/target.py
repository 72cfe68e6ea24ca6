"""A GPU as JAX compiles for it: the plug-in with XLA's compiler for GPUs, and one device, described or present.

Only this module knows the plug-in, its environment variables and XLA's flags. The plug-in is loaded when a device is
first asked for. JAX's default device stays what it was.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from relax_eg.backend.gpu.devices import Gpu, find_gpu
from relax_eg.backend.gpu.hlo import Launch, launches
from relax_eg.backend.gpu.resources import KernelResources, graphs_of, resources_of
from relax_eg.backend.lowering.libraries import AbsentDevice, lowering_for
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.backend.pallas.tiles import BlockModel, BlockSizes
from relax_eg.dtypes import SHORT_NAMES
from relax_eg.errors import DeviceError, OptionError, RelaxEgError
from relax_eg.limits import FEW_KEPT, KEPT
from relax_eg.logs import raise_if_exhausted
from relax_eg.memo import Memo
from relax_eg.ops.library_needs import RoutinePlace
from relax_eg.ops.multiprocessors import Multiprocessors, multiprocessors_of
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Reduce, loop, loop_of

# --- tiles of XLA's own matmuls through Triton, for a device on which none can be timed ---

OPTION = "xla_gpu_override_gemm_autotuner"  # given: XLA's option, whose values are texts of its TritonGemmKey
_SIDES = (16, 32, 64, 128, 256)  # limit: sides of tiles that are tried
_DEPTHS = (32, 64, 128)  # limit: values of the summed axis in a step
_STAGES = (2, 3, 4)  # limit: stages of loads in shared memory
_WARPS = (4, 8)  # limit: warps of a tile
_AT_END = 1  # given: what follows a product is computed where its sum is, so an element takes one register
_DTYPES = {"bf16", "f16", "f32"}  # given: what Triton multiplies, by the short names that XLA has, too
_BATCH, _ROW, _COLUMN, _SUMMED = (loop(n) for n in "bijk")


def choices(launches: Sequence[Launch], device: Multiprocessors) -> Iterator[str]:
    """Yields values of `OPTION` for a program with these launches: the one with which its matmuls take fewest clocks
    together by the model of blocks (`backend.pallas.tiles`), then the best of those that take less shared memory, and
    so on. None where no kernel is a matmul of floats through Triton."""
    times = Counter[tuple[int, int, int, int, str]]()
    for k in launches:
        if (m := k.matmul) is not None and m.dtype in _DTYPES:
            times[m.batch, m.rows, m.columns, m.depth, SHORT_NAMES[m.dtype]] += k.times
    found: list[tuple[float, int, str]] = []
    for sizes in itertools.product(_SIDES, _SIDES, _DEPTHS, _STAGES, _WARPS) if times else ():
        needs = [(n, _need(*matmul, device, *sizes)) for matmul, n in times.items()]
        clocks, shared = sum(n * need[0] for n, need in needs), max(need[1] for _, need in needs)
        if clocks < math.inf:
            rows, columns, depth, stages, warps = sizes
            text = f"block_m: {rows} block_n: {columns} block_k: {depth} num_stages: {stages} num_warps: {warps}"
            found.append((clocks, shared, f"{text} num_ctas: 1"))
    least = math.inf
    for _, shared, text in sorted(found):
        if shared < least:
            least = shared
            yield text


@lru_cache(KEPT)
def _model(batch: int, rows: int, columns: int, depth: int, dtype: str, device: Multiprocessors) -> BlockModel:
    sizes = dict(zip("bijk", (batch, rows, columns, depth), strict=True))
    x, w = (Buffer(n, tuple(Dim.of(sizes[a]) for a in axes), dtype) for n, axes in (("X", "bik"), ("W", "bkj")))
    product = x[_BATCH, _ROW, _SUMMED] * w[_BATCH, _SUMMED, _COLUMN]
    total = Reduce("sum", ((_SUMMED, Dim.of(depth)),), product)
    names = [str(loop_of(n)) for n in (_BATCH, _ROW, _COLUMN, _SUMMED)]
    extents = dict(zip(names, sizes.values(), strict=True))
    return BlockModel(extents, names[:3], names[1:3], [], total, [], device, _AT_END)


@lru_cache(KEPT)
def _need(
    batch: int, rows: int, columns: int, depth: int, dtype: str, device: Multiprocessors,
    row: int, column: int, step: int, stages: int, warps: int,
) -> tuple[float, int]:  # fmt: skip
    """Clocks of a matmul with these tiles, and bytes of shared memory of a tile."""
    model = _model(batch, rows, columns, depth, dtype, device)
    blocks = dict(zip(model.sides, (row, column), strict=True))
    need = model.need(BlockSizes(blocks, depth=step, stages=stages, warps=warps))
    return need.clocks, need.shared_bytes


# --- the plug-in, and a device ---

EXTRA = "pip install 'relax-eg[cuda]'"
_PLUGINS = ("xla_cuda12", "xla_cuda13")
# JAX asks for a driver, cuDNN and other libraries before it loads the plug-in. Compiling needs none of them.
_SKIP_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
_DESCRIBED = {"xla_gpu_autotune_level": "0"}  # there is no device to time candidates on
_STATISTICS = {"xla_gpu_collect_cost_model_stats": "True"}
_NO_TABLE = "Cannot find key: sm_"  # given: XLA's error
_IN_MACHINE = 8  # given: devices of one machine, as links of profiles count them
_MOST_TILES = 3  # limit: choices of tiles that are compiled where XLA refuses one
_MOST_COMPILED = 512  # limit: executables that are kept for each device
_loading = threading.Lock()


class CompiledPart:
    """A program that XLA compiled.

    - `executable`: what `lowered.compile()` returned.
    - `seconds`: wall time of compiling it.
    - `ptx`: the texts of its kernels in PTX, if asked for.
    - `resources`: what its kernels take, if their PTX was asked for.
    - `graphs`: the kernels in each of its CUDA graphs.
    - `options`: the options of XLA's compiler that were chosen for it: those asked for, and tiles of its matmuls.
    - `default_tiles`: why its matmuls have XLA's default tiles although no device has timed them; "" if that is not so.
    """

    def __init__(
        self,
        executable: Any,
        seconds: float,
        ptx: tuple[str, ...],
        resources: tuple[KernelResources, ...],
        graphs: tuple[int, ...],
        options: Mapping[str, str],
    ) -> None:
        self.executable, self.seconds, self.ptx, self.resources = executable, seconds, ptx, resources
        self.graphs, self.options, self.default_tiles = graphs, options, ""


class GpuTarget:
    """A GPU to compile for.

    - `gpu`: the device.
    - `is_present`: whether it is the GPU that JAX runs on.
    - `why_no_estimates`: why XLA gives no estimates of times for it; "" where it does.
    - `chooses_tiles`: whether the tiles of XLA's matmuls are chosen where it is not here, which compiles twice.
    """

    def __init__(self, gpu: Gpu, sharding: Any, is_present: bool) -> None:
        self.gpu, self.is_present = gpu, is_present
        self.why_no_estimates, self.chooses_tiles = "", True
        self._sharding = sharding
        self._compiled = Memo[tuple[bytes, bool, bool], CompiledPart](_MOST_COMPILED)

    @property
    def device(self) -> Any:
        """The device, as JAX knows it."""
        (device,) = self._sharding.device_set
        return device

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU at hand."""
        return self.device.platform == "cpu"

    def place(self, spec: Any) -> Any:
        """A `jax.ShapeDtypeStruct` of an array on the device; other values unchanged."""
        if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
            return spec
        weak = bool(getattr(spec, "weak_type", False))
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=self._sharding, weak_type=weak)

    def lowering(self) -> AbstractContextManager[Any]:
        """A context in which programs are lowered for the device."""
        return nullcontext() if self.is_present else jax.sharding.use_abstract_mesh(self._sharding.mesh.abstract_mesh)

    def absent(self) -> AbsentDevice:
        """The device, for programs that are lowered where it is not."""
        return AbsentDevice(RoutinePlace("gpu", self.gpu.kind))

    @contextmanager
    def lowering_there(self, absent: AbsentDevice | None = None) -> Generator[None]:
        """A context in which programs are lowered for the device, with the routines that it has. `absent`: gets those
        that are missing."""
        described = nullcontext() if self.is_present else lowering_for(absent or self.absent())
        with self.lowering(), described:
            yield

    def lowered(self, fn: Callable[..., Any], specs: Sequence[Any]) -> Any:
        """What `compile` takes, for a JAX function of arrays with these specs."""
        with self.lowering():
            return jax.jit(fn).lower(*map(self.place, specs))

    def pallas(self, compiles: Callable[[Any], Any] | None = None) -> Pallas:
        """Chooses the kernels that are lowered through Pallas for the device. `compiles`: compiles what was lowered;
        None: without options."""
        alone = compiles or (lambda lowered: self.compile(lowered, {}, tiles=False))
        return Pallas(compiles=alone, device=self.gpu.multiprocessors, lowers=self.lowered)

    def compile(self, lowered: Any, options: Mapping[str, str], ptx: bool = False, tiles: bool = True) -> CompiledPart:
        """The executable of `lowered`, a result of `jax.jit(...).lower(...)`, with these options of XLA's.

        - `tiles`: whether, for a GPU that is not here, the tiles of XLA's matmuls are chosen, by a model of the device;
          not if the target does not choose them (`chooses_tiles`).

        Programs with the same text are compiled once. DeviceError where XLA refuses it.
        """
        content, tiles = repr((lowered.as_text(), sorted(options.items()))), tiles and self.chooses_tiles
        key = blake2b(content.encode(), digest_size=16).digest(), ptx, tiles
        made = self._with_tiles if tiles and not self.is_present and OPTION not in options else self._compile
        return self._compiled.get_or_make(key, lambda: made(lowered, options, ptx))

    def _with_tiles(self, lowered: Any, options: Mapping[str, str], ptx: bool) -> CompiledPart:
        """Compiles with XLA's default tiles, which tells what matmuls there are, and then with the tiles for these."""
        made, refused = self._compile(lowered, options, ptx), ""
        found = launches(made.executable.as_text() or "")
        for tiles in itertools.islice(choices(found, self.gpu.multiprocessors), _MOST_TILES):
            try:
                chosen = self._compile(lowered, {**options, OPTION: tiles}, ptx)
            except DeviceError as e:
                refused = f"with {tiles}: {e}"
                continue
            chosen.seconds += made.seconds
            return chosen
        made.default_tiles = refused and f"its matmuls have XLA's default tiles; {refused}"
        return made

    def _compile(self, lowered: Any, options: Mapping[str, str], ptx: bool) -> CompiledPart:
        with tempfile.TemporaryDirectory(prefix="relax_eg") as folder:
            chosen = {**({} if self.is_present else _DESCRIBED), **options}
            chosen |= {} if self.is_cpu else {"xla_dump_to": folder}
            started = time.perf_counter()
            try:
                made = self._with_estimates(lowered, chosen)
            except RelaxEgError:
                raise
            except Exception as e:
                raise_if_exhausted(e)
                raise DeviceError(f"XLA does not compile it for {self.gpu.name}: {_first_line(e)}") from e
            seconds = time.perf_counter() - started
            texts, launched = ([_read(folder, name) for name in ("*.ptx", "*thunk_sequence.txt")]) if ptx else ((), ())
            graphs = graphs_of("\n".join(_read(folder, "*thunk_sequence_after_thunk_passes.txt")))
        return CompiledPart(made, seconds, texts, resources_of("\n".join(launched), texts), graphs, dict(options))

    def _with_estimates(self, lowered: Any, options: Mapping[str, str]) -> Any:
        """Compiles with XLA's estimates, where it has its table of matmuls for the device."""
        if not self.why_no_estimates:
            try:
                return lowered.compile(compiler_options={**options, **_STATISTICS})
            except Exception as e:
                if _NO_TABLE not in str(e):
                    raise
                self.why_no_estimates = f"XLA has no table of matmuls for {self.gpu.name}"
        return lowered.compile(compiler_options=dict(options))


def _read(folder: str, names: str) -> tuple[str, ...]:
    """The texts of the files of these names in a folder."""
    return tuple(p.read_text(errors="replace") for p in sorted(Path(folder).glob(names)))


def _first_line(e: Exception) -> str:
    lines = str(e).strip().splitlines()
    return f"{type(e).__name__}: {lines[0][:300]}" if lines else type(e).__name__


def target_for(device: str | Path | None, also: tuple[str, ...] = ()) -> GpuTarget:
    """The GPU of this name or file; None: the GPU that JAX runs on. `also` is that of `find_gpu`.

    OptionError for a device that is not known, without the plug-in, with one of another version than jaxlib's, and for
    None where JAX does not run on a GPU.
    """
    if device is None:
        if jax.default_backend() != "gpu":
            raise OptionError(
                f"compile(): JAX runs on {jax.default_backend()} here; the name of a GPU, device='h100', is accepted"
            )
        return _present(jax.devices()[0])
    gpu = find_gpu(device, also)
    with _loading:
        return _described(gpu)


def cpu_target() -> GpuTarget:
    """The CPU at hand, for which programs are compiled like for a GPU."""
    return _present(jax.devices("cpu")[0])


def _present(device: Any) -> GpuTarget:
    statistics = device.memory_stats() or {}
    kind = device.device_kind
    gpu = Gpu(kind, kind, int(statistics.get("bytes_limit", 0)), "", multiprocessors_of(kind))
    made = GpuTarget(gpu, SingleDeviceSharding(device), True)
    if device.platform == "cpu":
        made.why_no_estimates = "XLA estimates no times of a CPU"
    return made


def plugin_version() -> dict[str, str]:
    """Version of the plug-in with which JAX compiles for GPUs, by the name of its package; empty without one."""
    for name in _PLUGINS:
        package = f"jax-{name.removeprefix('xla_')}-pjrt"
        with suppress(PackageNotFoundError):
            return {package: version(package)}
    return {}


def described_devices(device: str | Path, count: int) -> list[Any]:
    """That many described devices of one kind, which need not be here, eight to a machine. OptionError as
    `target_for`."""
    gpu = find_gpu(device)
    shape = f"1x1x{count}" if count <= _IN_MACHINE else f"1x{-(-count // _IN_MACHINE)}x{_IN_MACHINE}"
    with _loading:
        return list(_topology(gpu, shape).devices)[:count]


@lru_cache(FEW_KEPT)
def _described(gpu: Gpu) -> GpuTarget:
    from jax.experimental import topologies

    mesh = topologies.make_mesh(_topology(gpu, "1x1x1"), (1,), ("device",))
    return GpuTarget(gpu, NamedSharding(mesh, PartitionSpec()), False)


@lru_cache(FEW_KEPT)
def _topology(gpu: Gpu, shape: str) -> Any:
    """The description of devices. `shape`: slices, machines in each, and devices in each of these."""
    plugin = _plugin()
    from jax.experimental import topologies

    def described() -> Any:
        return topologies.get_topology_desc(platform="cuda", target_config=gpu.config, topology=shape)

    with _without_check():
        jax.devices()  # JAX looks for plug-ins at its first look for devices
        try:
            try:
                found = described()
            except NotImplementedError:  # that look was earlier, and the plug-in was refused
                plugin.initialize()
                found = described()
        except Exception as e:
            raise OptionError(f"device={gpu.name}: XLA reads no device from its description: {_first_line(e)}") from e
    return found


def _plugin() -> Any:
    """JAX's plug-in for NVIDIA's GPUs. OptionError where it is missing or is of another version than jaxlib."""
    for name in _PLUGINS:
        module = f"jax_plugins.{name}"
        if importlib.util.find_spec("jax_plugins") is None or importlib.util.find_spec(module) is None:
            continue
        package = f"jax-{name.removeprefix('xla_')}-plugin"
        for part in (package, package.replace("plugin", "pjrt")):
            _check_version(part)
        return importlib.import_module(module)
    raise OptionError(f"the packages with which XLA compiles for GPUs are not installed; accepted: {EXTRA}")


def _check_version(package: str) -> None:
    wanted = version("jaxlib")
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "none"
    if found != wanted:
        raise OptionError(
            f"{package} is of version {found} and jaxlib of {wanted}; accepted: pip install {package}=={wanted}"
        )


@contextmanager
def _without_check() -> Generator[None]:
    before = os.environ.get(_SKIP_CHECK)
    os.environ[_SKIP_CHECK] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SKIP_CHECK]
        else:
            os.environ[_SKIP_CHECK] = before
