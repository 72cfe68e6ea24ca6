"""Device profiles: the parameters of a device that the cost model reads. Their JSON is plain data with a version.

Convolutions are priced as shares of the matmul rate, because such shares differ least between machines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_eg.argument_checks import PATH, accepts, short_repr
from relax_eg.errors import OptionError
from relax_eg.extract.costs.numbers import Number, choose, maximum, minimum
from relax_eg.extract.profiles.kinds import CALL, KernelKind
from relax_eg.extract.profiles.machine import Machine
from relax_eg.ops.libraries import PLATFORMS
from relax_eg.plain_data import compiler_options, read_json, write_file

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

PROFILE_VERSION = 12  # given: version of the format
_OLDEST = 12  # given: oldest version accepted; all fields that later versions added have defaults
PAGE = 4096  # given: bytes; addresses that differ by a multiple of a page share a set of a first-level cache
IN_CALLER = 8  # given: kernels in a row that XLA for CPUs runs in the thread of the call (jax 0.10.2)
_STREAMING = 4  # chosen: power of (cache over bytes) with which hits fall when an array outgrows the cache


@dataclass(frozen=True, slots=True)
class Mode:
    """Another way in which XLA may compile for a device.

    - `name`: its name in reports.
    - `options`: options of XLA's compiler.
    - `changes`: fields of the device's profile that have other values in this mode.
    """

    name: str
    options: Mapping[str, str]
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])


AS_USUAL = Mode("", {})


@dataclass(frozen=True, slots=True)
class Profile:
    """The measured or assumed rates and limits of a device.

    - `matmul_rate`: peak flop/s of matmul by dtype; "float32" is the fallback.
    - `vector_rate`: flop/s of fused elementwise code.
    - `scalar_rate`: flop/s, by name, of operators whose loops do not vectorise.
    - `name`: its name.
    - `bandwidth`, `cache_bandwidth`: bytes/s of memory, and of the cache while the working set is below `cache_bytes`.
    - `launch`: seconds per kernel inside one executable.
    - `loop_launch`: the same in a loop from the second step on, if that is less: kernels are warm.
    - `library_launch`: seconds that a kernel of a library takes besides, on CPUs: a matmul of several rows and columns,
      or a reduction by YNN.
    - `tiny_launch`: seconds that a matmul takes besides these if none of its sizes is more than 7.
    - `vector_launch`: seconds that a matrix times a vector takes besides `launch`, which is XLA's own loop on CPUs.
    - `dispatch`: seconds per call of an executable.
    - `fork`: extra seconds of a call that has a kernel of `fork_flops` or more, which wakes other cores.
    - `handoff`: extra seconds of a call that launches more than `IN_CALLER` kernels one after the other, which XLA for
      CPUs hands to another thread.
    - `join`: seconds that a matmul of several rows takes besides its work if it has `join_flops` or more: several cores
      wait for each other. One matmul is therefore faster than several with the same rows.
    - `step`: seconds of a loop's step, or of a choice between branches, besides the work inside.
    - `fresh_bytes`: bytes of a result from which on its memory goes back to the system after the call and is allocated
      again, page by page, at the next call.
    - `fresh_rate`: bytes/s of allocating these pages, before anything is written.
    - `matmul_half`: sizes (m, n, k) at which a matmul reaches half its peak. With `tiles` only the third counts: the
      depth that a block takes to begin.
    - `cores`: cores that compute blocks of a matmul; on a GPU its multiprocessors.
    - `tiles`: (rows, columns) of the blocks of a result that the device's library computes, each block on one core.
    - `own_rows`: least side of a block if XLA generates the matmul.
    - `linear_penalty`: (rows up to, factor) pairs, from two rows on: how many times longer a matmul takes if its weight
      is stored output axis first.
    - `page_penalty`: (rows up to, factor) pairs, from two rows on: how many times longer a matmul takes if a row of its
      weight, stored in order, is a multiple of `PAGE` bytes.
    - `gemv_bytes`, `gemv_gain`: with one row and a weight of at least `gemv_bytes`, a matmul takes `gemv_gain` times
      as long if the weight is stored in order.
    - `sums_as_matmuls`: whether XLA computes the sum of a product of two broadcast operands as a matmul.
    - `conv_factor`: how many times longer a convolution takes than the matmul of its windows.
    - `window_row`: seconds in which an ungrouped convolution gathers one row of one window.
    - `tap_rate`: flop/s of a kernel that adds neighbours of each element and reads all operands along the last axis, as
      a sum over taps with channels last; 0 if it is that of elementwise operators.
    - `group_share`: share of the matmul rate that a grouped convolution reaches at most.
    - `group_half`: output channels and window elements per group at which it reaches half of that.
    - `factor_share`: share of the matmul rate that a factorisation of a large matrix reaches (cholesky, lu, qr, eigh,
      svd; flops as their records count them).
    - `factor_half`: side at which a factorisation reaches half of that.
    - `solve_share`, `solve_half`: the same for triangular systems, by side and number of right-hand sides.
    - `transpose_rate`: elements/s of a transpose that moves the last axis and is read inside another kernel; 0 if it
      costs as much as any elementwise operator.
    - `modes`: other ways to compile, which `measure=k` tries.
    - `library_speed`: by name of a library routine, the measured speed of its arithmetic over the predicted speed of
      its pattern as one kernel.
    - `fused_share`: share of the matmul rate that code of XLA reaches if other operators are fused with the matmul, and
      that a matmul through Pallas reaches if it decodes an operand. With 0 XLA stores the values of these operators.
      The share counts only where kernels are executables.
    - `pallas_share`: share of the rate of its two matmuls that attention through Pallas reaches.
    - `graph_kernels`: kernels in a row from which on a GPU launches them as one graph; infinite: it launches each.
    - `graph_launch`, `graph_kernel`: seconds to launch a graph, and per kernel in it in place of `launch`.
    - `links`: (devices, bytes/s, seconds) rows, nearest first: how many neighbouring devices a link joins, what one of
      them sends over it while it receives as much, and how long one step of a collective takes besides
      (`extract.profiles.links`).
    - `memory`: bytes of the memory of one device.
    - `host_rate`: bytes/s that are copied to the memory of the host while as many are copied from it; 0 if values
      cannot be kept there.
    - `platform`: "cpu", "gpu" or "tpu".
    - `pallas`: whether kernels that XLA serves badly go through Pallas on GPUs (`docs/kernels.md`).
    - `calibrated`: whether the parameters were measured on a machine.
    - `corrections`: what timed programs taught (`extract.profiles.learned`): by feature of a kind of kernel, the factor
      on predicted seconds.
    - `doubts`: by kind of kernel, the standard deviation of the logarithm of true over predicted seconds; "kinds" of
      all others; "programs" of the ratio of two programs of the same kinds.
    - `machine`: the machine that was measured; None if it is unknown.
    - `measured`: the machine and the date of the measurement.
    - `notes`: a comment.
    """

    name: str
    matmul_rate: Mapping[str, float]
    vector_rate: float
    bandwidth: float
    cache_bandwidth: float
    cache_bytes: float
    launch: float
    dispatch: float
    fork: float = 0.0
    fork_flops: float = float("inf")
    handoff: float = 0.0
    join: float = 0.0
    join_flops: float = float("inf")
    step: float = 0.0
    fresh_bytes: float = float("inf")
    fresh_rate: float = float("inf")
    matmul_half: tuple[float, float, float] = (4.0, 8.0, 16.0)
    cores: float = 1.0
    tiles: tuple[tuple[float, float], ...] = ()
    own_rows: float = 16.0
    linear_penalty: tuple[tuple[float, float], ...] = ()
    page_penalty: tuple[tuple[float, float], ...] = ()
    gemv_bytes: float = float("inf")
    gemv_gain: float = 1.0
    sums_as_matmuls: bool = False
    conv_factor: float = 1.0
    window_row: float = 0.0
    tap_rate: float = 0.0
    group_share: float = 1.0
    group_half: tuple[float, float] = (8.0, 16.0)
    factor_share: float = 0.5
    factor_half: float = 1024.0
    solve_share: float = 0.4
    solve_half: tuple[float, float] = (16.0, 96.0)
    transpose_rate: float = 0.0
    scalar_rate: Mapping[str, float] = field(default_factory=dict[str, float])
    modes: tuple[Mode, ...] = ()
    library_speed: Mapping[str, float] = field(default_factory=dict[str, float])
    fused_share: float = 0.0
    pallas_share: float = 1.0
    graph_kernels: float = float("inf")
    graph_launch: float = 0.0
    graph_kernel: float = 0.0
    links: tuple[tuple[float, float, float], ...] = ()
    memory: float = float("inf")
    host_rate: float = 0.0
    platform: str = "cpu"
    pallas: bool = False
    calibrated: bool = False
    corrections: Mapping[str, float] = field(default_factory=dict[str, float])
    doubts: Mapping[str, float] = field(default_factory=dict[str, float])
    loop_launch: float = float("inf")
    library_launch: float = 0.0
    tiny_launch: float = 0.0
    vector_launch: float = 0.0
    machine: Machine | None = field(default=None, compare=False)
    measured: str = field(default="", compare=False)
    notes: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """The name of the device in a report."""
        return f"{self.name}, calibrated" if self.calibrated else self.name

    @property
    def has_known_fusions(self) -> bool:
        """Whether it is known which operators XLA's compiler for the device fuses (`extract.fusions`)."""
        return self.platform in ("cpu", "gpu")

    def in_mode(self, mode: Mode) -> Profile:
        """The profile of the device for programs that XLA compiles in this mode."""
        return replace(self, **mode.changes, modes=()) if mode.name else self

    @property
    def in_one_kernel(self) -> Profile:
        """The device inside one kernel of XLA's for CPUs: nothing is launched, and no library is called."""
        free = dict.fromkeys(("launch", "loop_launch", "tiny_launch", "vector_launch"), 0.0)
        return replace(self, **free, library_launch=math.inf, fork_flops=math.inf)

    @property
    def is_in_one_kernel(self) -> bool:
        return self.library_launch == math.inf

    def rate(self, dtype: str) -> float:
        return self.matmul_rate.get(dtype, self.matmul_rate["float32"])

    def call(self, seconds: Number, wakes: Number, in_a_row: Number = 0) -> Number:
        """Seconds of a call of one executable: its kernels' `seconds`, and those of `around`.

        - `wakes`, `in_a_row`: as in `around`.
        """
        around = self.around(wakes, in_a_row)
        if self.graph_kernels < float("inf"):
            saved = in_a_row * (self.launch - self.graph_kernel) - self.graph_launch
            seconds = seconds - choose(in_a_row >= self.graph_kernels, maximum(saved, 0.0), 0.0)
        if self.corrections:
            around = KernelKind(CALL).factor(self.corrections) * around
        return seconds + around

    def around(self, wakes: Number, in_a_row: Number) -> Number:
        """Seconds of a call of one executable besides its kernels: dispatch, and waking other threads.

        - `wakes`: whether a kernel is shared by several cores.
        - `in_a_row`: the kernels that it launches one after the other, without those in loops and choices.
        """
        return self.dispatch + maximum(self.fork * wakes, choose(in_a_row > IN_CALLER, self.handoff, 0.0))

    def run(self, seconds: Number, kernels: Number) -> Number:
        """Seconds of a program of `kernels` executables that take `seconds` in all.

        On a CPU `seconds` includes the dispatches. Other devices compute while the host dispatches, so the longer of
        the two counts."""
        return seconds if self.platform == "cpu" else maximum(seconds, self.dispatch * kernels)

    def linear_factor(self, rows: Number) -> Number:
        """How many times longer a matmul of `rows` rows takes if its weight is stored output axis first."""
        return choose(rows <= 1, 1.0, _factor_at(self.linear_penalty, rows))

    def in_order_factor(self, rows: Number, row_bytes: Number, weight_bytes: Number) -> Number:
        """How many times longer a matmul of `rows` rows takes with a weight stored in order, whose rows have
        `row_bytes`."""
        # With one row, each output sums products of elements that are far from each other.
        alone = choose(weight_bytes >= self.gemv_bytes, self.gemv_gain, 1.0)
        return choose(rows <= 1, alone, choose(row_bytes % PAGE == 0, _factor_at(self.page_penalty, rows), 1.0))

    def joining(self, rows: Number, flops: Number) -> Number:
        """Seconds that a matmul of `rows` rows takes besides its work: `join` or 0."""
        return choose((rows > 1) & (flops >= self.join_flops), self.join, 0.0)

    def move(self, n_bytes: Number) -> Number:
        """Seconds to move `n_bytes` once: from the cache as far as they fit, and the rest from memory."""
        hit = minimum(1.0, (self.cache_bytes / maximum(n_bytes, 1.0)) ** _STREAMING)
        return n_bytes * (hit / self.cache_bandwidth + (1.0 - hit) / self.bandwidth)

    def fresh(self, n_bytes: Number) -> Number:
        """Seconds to get memory for an array of `n_bytes`; 0 below `fresh_bytes`."""
        return choose(n_bytes >= self.fresh_bytes, n_bytes / self.fresh_rate, 0.0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table

        yield f"[bold]{self.name}[/bold]   {self.measured or 'not calibrated'}"
        table = Table(box=None, show_header=False, pad_edge=False)
        gflops = ", ".join(f"{dtype} {rate / 1e9:.4g}" for dtype, rate in self.matmul_rate.items())
        half = " x ".join(f"{h:g}" for h in self.matmul_half)
        gigabytes = (
            f"{self.bandwidth / 1e9:.3g}, {self.cache_bandwidth / 1e9:.3g} up to {self.cache_bytes / 2**20:.3g} MiB"
        )
        layouts, pages = (
            ", ".join(f"{f:g} to {rows:g} rows" for rows, f in table) or "none"
            for table in (self.linear_penalty, self.page_penalty)
        )
        slow = ", ".join(f"{op} {rate / 1e9:.3g}" for op, rate in self.scalar_rate.items())
        for what, value in (
            ("matmul, Gflop/s", gflops),
            ("half of it at (m, n, k)", half),
            ("elementwise, Gflop/s", f"{self.vector_rate / 1e9:.4g}"),
            ("memory, GB/s", gigabytes),
            ("fresh memory, GB/s", f"{self.fresh_rate / 1e9:.3g}, from {self.fresh_bytes / 2**20:.4g} MiB on"),
            (
                "launch, dispatch, loop step, us",
                ", ".join(f"{1e6 * s:.3g}" for s in (self.launch, self.dispatch, self.step)),
            ),
            (
                "waking other cores, us",
                f"{1e6 * self.fork:.3g}, from {self.fork_flops:.4g} flops on; {1e6 * self.handoff:.3g} from "
                f"{IN_CALLER + 1} kernels on",
            ),
            (
                "a matmul besides its work, us",
                f"{1e6 * self.join:.3g}, from {self.join_flops:.4g} flops on",
            ),
            ("weight stored out x in, times", layouts),
            ("weight with rows of whole pages, times", pages),
            ("convolution over matmul, times", f"{self.conv_factor:.3g}; in groups {1 / self.group_share:.3g}"),
            ("a row of a convolution's window, ns", f"{1e9 * self.window_row:.3g}"),
            ("sums over taps, channels last, Gflop/s", f"{(self.tap_rate or self.vector_rate) / 1e9:.4g}"),
            (
                "linear algebra over matmul, times",
                f"factors {1 / self.factor_share:.3g}, half of it at {self.factor_half:g}; triangular systems "
                f"{1 / self.solve_share:.3g}, half of it at {' x '.join(f'{h:g}' for h in self.solve_half)}",
            ),
            ("loops that do not vectorise, Gop/s", slow),
        ):
            table.add_row(what, value)
        yield table

    def as_data(self) -> dict[str, Any]:
        """The plain data that `to_json` writes."""
        return {"relax_eg profile": PROFILE_VERSION, **asdict(self)}

    def to_json(self, path: str | Path | None = None) -> str:
        """The profile as JSON text, also written to `path` if one is given."""
        text = json.dumps(self.as_data(), indent=2) + "\n"
        if path is not None:
            write_file(path, text, OptionError, "the profile")
        return text

    @staticmethod
    @accepts(source=PATH)
    def from_json(source: str | Path) -> Profile:
        """The profile in a JSON file, or in a text that begins with `{`. OptionError says what is wrong with the
        data."""
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        where = "profile" if is_text else f"profile {source}"
        try:
            data = read_json(str(source) if is_text else Path(source).read_bytes())
        except (OSError, ValueError) as e:
            raise OptionError(f"{where} cannot be read: {e}") from None
        return Profile.from_data(data, where)

    @staticmethod
    def from_data(data: Any, where: str = "profile") -> Profile:
        """The profile whose `as_data` is `data`. OptionError says what is wrong; `where` is the name of the source in
        messages."""
        if not isinstance(data, Mapping) or "relax_eg profile" not in data:
            raise OptionError(f"{where} is no device profile: `relax-eg calibrate` writes one")
        found: dict[str, Any] = {str(k): v for k, v in data.items()}  # type: ignore[reportUnknownArgumentType]
        version = found.pop("relax_eg profile")
        if isinstance(version, bool) or version not in range(_OLDEST, PROFILE_VERSION + 1):
            raise OptionError(
                f"{where} is of version {version!r:.80}; {_OLDEST} to {PROFILE_VERSION} are accepted: run `relax-eg "
                "calibrate` again"
            )
        return _from_data(where, found)


def _factor_at(table: Sequence[tuple[float, float]], rows: Number) -> Number:
    """The factor at `rows` of a table of (rows up to, factor) pairs; 1 beyond it."""
    factor: Number = 1.0
    for limit, here in reversed(table):
        factor = choose(rows <= limit, here, factor)
    return factor


# given: numbers in each row of the fields that are tables.
_ROWS: Mapping[str, int] = {"tiles": 2, "linear_penalty": 2, "page_penalty": 2, "links": 3}
# given: numbers in the fields that are lists
_COLUMNS: Mapping[str, int] = {"matmul_half": 3, "group_half": 2, "solve_half": 2}
_RATES = ("matmul_rate", "scalar_rate", "library_speed", "corrections", "doubts")
_TEXTS = ("name", "notes", "measured", "platform")
_FLAGS = ("calibrated", "pallas", "sums_as_matmuls")
# Prices are divided by these fields.
_POSITIVE = (
    "vector_rate", "bandwidth", "cache_bandwidth", "cache_bytes", "fresh_rate", "gemv_gain", "cores", "own_rows",
    "conv_factor", "group_share", "factor_share", "solve_share", "pallas_share", "memory", *_RATES,
)  # fmt: skip
# These fields may be infinite: sizes from which on something happens, and rates of what costs nothing.
_ENDLESS = (
    *("graph_kernels", "loop_launch", "fork_flops", "join_flops", "fresh_bytes", "fresh_rate", "gemv_bytes", "links"),
    "memory",
)
_LARGEST = 1e30  # limit: flop/s, bytes, seconds: a float holds the square of a product of two


def _from_data(where: str, data: dict[str, Any]) -> Profile:
    known = {f.name: f for f in fields(Profile)}
    for name in data:
        if name not in known:
            raise OptionError(f"{where} has a field `{name:.80}`; known are {', '.join(known)}")
    for name, f in known.items():
        if name not in data and f.default is MISSING and f.default_factory is MISSING:
            raise OptionError(f"{where} lacks the field `{name}`")
    values = {k: _field(where, k, v) for k, v in data.items() if k not in ("modes", "machine")}
    if data.get("machine") is not None:
        values["machine"] = Machine.from_data(data["machine"], where)
    modes = data.get("modes", [])
    if not isinstance(modes, (list, tuple)):
        raise OptionError(f"{where}: modes = {modes!r:.80}; a list is accepted")
    values["modes"] = tuple(_mode(where, m) for m in modes)  # type: ignore[reportUnknownArgumentType]
    if "float32" not in values["matmul_rate"]:
        raise OptionError(f"{where}: matmul_rate lacks float32, which stands for all dtypes it does not name")
    return Profile(**values)


def _mode(where: str, data: Any) -> Mode:
    accepted = '{"name": "...", "options": {"an XLA option": "its value"}, "changes": {fields of the profile}}'
    fits = isinstance(data, Mapping) and set(data) == {"name", "options", "changes"}  # type: ignore[reportUnknownArgumentType]
    if not fits or not (isinstance(data["name"], str) and data["name"] and isinstance(data["changes"], Mapping)):
        raise OptionError(f"{where}: modes has {short_repr(data)}; {accepted} is accepted")
    known = {f.name for f in fields(Profile)} - {"modes", "machine", *_FLAGS, *_TEXTS} | {"platform", "sums_as_matmuls"}
    for name in data["changes"]:
        if name not in known:
            raise OptionError(f"{where}: mode `{data['name']}` changes `{name}`; known are {', '.join(sorted(known))}")
    inside = f"{where}: mode `{data['name']}`"
    changes = {k: _field(inside, k, v) for k, v in data["changes"].items()}
    try:
        return Mode(data["name"], compiler_options(data["options"]), changes)
    except OptionError as error:
        raise OptionError(f"{inside}: {error}") from None


def _field(where: str, name: str, value: Any) -> Any:
    """A field's value, of the kind that it has in `Profile`. OptionError."""
    if name in _TEXTS or name in _FLAGS:
        if not isinstance(value, str if name in _TEXTS else bool):
            raise OptionError(
                f"{where}: {name} = {short_repr(value)}; {'text' if name in _TEXTS else 'a flag'} is accepted"
            )
        if name == "platform" and value not in PLATFORMS:
            raise OptionError(f"{where}: platform = {short_repr(value)}; one of {', '.join(PLATFORMS)} is accepted")
        return value
    form = ""
    if name in _RATES:
        form, fits = ", by name", isinstance(value, Mapping) and all(_is_number(name, x) for x in value.values())  # type: ignore[reportUnknownArgumentType]
    elif name in _ROWS:
        form = f", in lists of {_ROWS[name]}"
        fits = isinstance(value, (list, tuple)) and all(_are_numbers(name, x, _ROWS[name]) for x in value)  # type: ignore[reportUnknownArgumentType]
    elif name in _COLUMNS:
        form, fits = f", in a list of {_COLUMNS[name]}", _are_numbers(name, value, _COLUMNS[name])
    else:
        fits = _is_number(name, value)
    if not fits:
        least, most = "> 0" if name in _POSITIVE else ">= 0", " or infinite" if name in _ENDLESS else ""
        raise OptionError(
            f"{where}: {name} = {short_repr(value)}; numbers {least} are accepted, up to {_LARGEST:g}{most}{form}"
        )
    return _frozen(value)


def _are_numbers(name: str, value: Any, count: int) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == count and all(_is_number(name, x) for x in value)  # type: ignore[reportUnknownArgumentType]


def _is_number(name: str, x: Any) -> bool:
    if not isinstance(x, (int, float)) or isinstance(x, bool) or math.isnan(x):
        return False
    return (x > 0 if name in _POSITIVE else x >= 0) and (x <= _LARGEST or (name in _ENDLESS and x == math.inf))


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(v) for v in value)  # type: ignore[reportUnknownVariableType]
    return value
