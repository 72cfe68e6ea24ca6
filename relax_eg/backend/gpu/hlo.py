"""What XLA made of a program: the kernels in the text of its optimized HLO, with XLA's estimates of their times.

XLA's models disagree, so each kernel has the estimate of the model that suits it: `sol` for kernels with a matmul (from
XLA's table of measured matmuls), `indexing-cost-model` for other kernels through Triton, and for all others the model
without a name by which XLA chooses fusions. Library calls other than matmuls, and kernels through Pallas, have none.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relax_eg.traversal import grouped, reached

FUSION, TRITON, CUBLAS, CUDNN, PALLAS, LIBRARY, COPY = KINDS = (
    "fusion", "Triton", "cuBLAS", "cuDNN", "Pallas", "library", "copy",
)  # fmt: skip

# given: instructions for which nothing is launched
_FREE = frozenset(
    "parameter constant bitcast tuple get-tuple-element after-all opt-barrier partition-id replica-id copy-done "
    "async-done async-update all-reduce-done all-gather-done collective-permute-done".split()
)
_PARTIAL = ("slice", "dynamic-slice", "gather")  # given: instructions that read as many elements as they give
_PARAMETER = re.compile(r"parameter\((\d+)\)")
_CALLS = ("call", "async-start")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_TARGET = re.compile(r"custom_call_target=\"([^\"]*)\"")
_CALLED = re.compile(r"\b(?:calls|to_apply|called_computations)=\{?%?([\w.\-]+)")
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+))")
_TRIPS = re.compile(r"\"known_trip_count\":\{\"n\":\"(\d+)\"\}")
_COSTS = re.compile(r"\"reification_cost\":(\[[^\]]*\])")
_SOURCE = re.compile(r"op_name=\"([^\"]*)\"")
_LINE = re.compile(r"(?<=/)[\w\-.]+\.\w+:\d+(?=/)")  # the name of a scope of `backend.lowering.lower`
_AT = "#"  # before the number of a stack frame
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_FILE = re.compile(r"^(\d+) \"([^\"]*)\"$", re.MULTILINE)
_PLACE = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=\d+ line=(\d+)", re.MULTILINE)
_FRAMES = re.compile(r"^(\d+) \{file_location_id=(\d+)", re.MULTILINE)
_PACKAGE = os.path.join(Path(__file__).parents[2], "")
_MASK = re.compile(r"\"mask_type\":\s*\"(\w+)\"")
_NAME = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]\w*?)(\d*)(?:e\dm\d\w*)?\[([\d,]*)\]")
_IN_BYTES = {"pred": 8, "token": 0}  # given: bits of an element, where the name of the type does not say
_COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "ragged-all-to-all", "collective-permute")
_GROUP = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_PALLAS = ("__gpu$xla.gpu.triton", "triton_kernel_call")
_AXES = {what: re.compile(rf"\b{what}_dims=\{{([\d,]*)\}}") for what in (
    "lhs_batch", "lhs_contracting", "rhs_batch", "rhs_contracting")}  # fmt: skip
_TILES = re.compile(
    r"\"block_level_fusion_config\":\{\"num_warps\":\"(\d+)\",\"output_tiles\":\[\{\"sizes\":\[([^\]]*)\]"
)
_STAGES = re.compile(r"\"num_stages\":(\d+)")
_DEPTH = re.compile(r"backend_config=\{\"sizes\":\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class TritonMatmul:
    """A matmul of XLA's own, through Triton.

    - `batch`, `rows`, `columns`, `depth`: its sizes.
    - `dtype`: that of its wider operand, as XLA names it.
    - `tiles`: the tiles of its kernel: sides of a block of the result, values of the summed axis in a step, warps, and
      stages; "" where XLA does not say.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    dtype: str
    tiles: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of a compiled program.

    - `name`: its name in XLA's program.
    - `kind`: what made it: a fusion of XLA's, XLA's Triton, a routine of cuBLAS, cuDNN or another library, Pallas, or
      a copy.
    - `times`: launches in a call of the program.
    - `bytes`: bytes that one launch reads and writes: its operands and results, of which slices and gathers only what
      they take. What a routine uses as workspace is not counted.
    - `seconds`: XLA's estimate for one launch; None where it has none.
    - `model`: the model of XLA's that estimates it; "" for none.
    - `operators`: the operators of the JAX program that it was made for, as JAX names them.
    - `matmul`: the matmul that it computes through XLA's Triton; None for all others.
    - `line`: the source line that it was made for, as "model.py:31"; "" where XLA does not say.
    """

    name: str
    kind: str
    times: int
    seconds: float | None
    model: str
    operators: str
    bytes: int = 0
    matmul: TritonMatmul | None = None
    line: str = ""


@dataclass(frozen=True, slots=True)
class _Instruction:
    name: str
    opcode: str
    text: str

    @property
    def type(self) -> str:
        """The type of its result."""
        start = self.text.index(" = ") + 3
        return self.text[start : start + _after_type(self.text[start:])]

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        start = self.text.index(" = ") + 3
        rest = self.text[start + _after_type(self.text[start:]) :]
        return _NAME.findall(rest[: _closing(rest)])


def launches(text: str) -> list[Launch]:
    """The kernels that a call of the program launches, in order, from the text of its optimized HLO module.

    A loop's kernels count for each of its steps, once where XLA does not know their number. Of a choice, the branch
    with most kernels counts.
    """
    entry, computations = _computations(text)
    lines, found = _frame_lines(text), _launches(entry, computations, 1) if entry else ()
    return [replace(k, line=lines.get(k.line.removeprefix(_AT), "")) if k.line.startswith(_AT) else k for k in found]


def _line_of(at: _Instruction, inside: list[_Instruction]) -> str:
    """The source line of an instruction, or else of those of its fusion, the last one first; or `_AT` and the number of
    a stack frame."""
    for i in (at, *reversed(inside)):
        source, frame = _SOURCE.search(i.text), _FRAME.search(i.text)
        if source is not None and (lines := _LINE.findall(source[1])):
            return lines[-1]
        if frame is not None:
            return f"{_AT}{frame[1]}"
    return ""


def _frame_lines(text: str) -> dict[str, str]:
    """The source line of each stack frame that a module's text lists; none for lines of this package."""
    listed = text[text.find("\nFileNames\n") : text.find("\nFunctionNames\n")]
    files = dict(_FILE.findall(listed))
    places = {at: (files.get(file, _PACKAGE), line) for at, file, line in _PLACE.findall(text)}
    found = ((at, places.get(place, (_PACKAGE, ""))) for at, place in _FRAMES.findall(text))
    return {at: f"{os.path.basename(file)}:{line}" for at, (file, line) in found if not file.startswith(_PACKAGE)}


@dataclass(frozen=True, slots=True)
class CustomCall:
    """A call of a routine in a compiled program.

    - `target`: XLA's name of the routine.
    - `operands`: the types of its operands, without layouts.
    - `mask`: the kind of mask that attention has; "" if it says none.
    """

    target: str
    operands: tuple[str, ...]
    mask: str


def custom_calls(text: str) -> list[CustomCall]:
    """The calls of routines in the text of an optimized HLO module."""
    found: list[CustomCall] = []
    for inside in _computations(text)[1].values():
        given = {i.name: i for i in inside}
        for at in inside:
            target = _TARGET.search(at.text) if at.opcode == "custom-call" else None
            if target is not None:
                types = tuple(given[name].type.split("{")[0].strip() for name in at.operands if name in given)
                mask = _MASK.search(at.text)
                found.append(CustomCall(target[1], types, mask[1] if mask else ""))
    return found


@dataclass(frozen=True, slots=True)
class HloCollective:
    """A collective of a compiled program.

    - `kind`: "all-reduce", "reduce-scatter", "all-gather", "all-to-all" or "collective-permute".
    - `bytes`: bytes of its results on each device.
    - `times`: runs in a call of the program.
    - `group`: devices that take part together; 0 if the text does not say.
    - `beside`: kernels that are launched between its start and its end, so that they run while it sends.
    """

    kind: str
    bytes: int
    times: int
    group: int
    beside: int = 0


def collectives(text: str) -> list[HloCollective]:
    """The collectives of a call, from the text of an optimized HLO module. A loop's count for each of its steps, once
    where XLA does not know their number. What runs in parts, as a start and its end, counts once."""
    entry, computations = _computations(text)
    return list(_collectives(entry, computations, 1)) if entry else []


def _collectives(name: str, computations: Mapping[str, list[_Instruction]], times: int) -> Iterator[HloCollective]:
    inside = computations.get(name, [])
    for place, at in enumerate(inside):
        kind = at.opcode.removesuffix("-start")
        if at.opcode == "while":
            trips, body = _TRIPS.search(at.text), _BODY.search(at.text)
            if body is not None:
                yield from _collectives(body[1], computations, times * (int(trips[1]) if trips else 1))
        elif at.opcode == "conditional":
            for found in _BRANCHES.findall(at.text):
                for n in (n.strip(" %") for part in found for n in part.split(",")):
                    yield from _collectives(n, computations, times)
        elif kind in _COLLECTIVES:
            size = _bytes(at.type)
            if at.opcode.endswith("-start") and kind != "all-reduce":  # its type has the operands too
                operands = sum(_bytes(i.type) for i in computations[name] if i.name in set(at.operands))
                size -= operands
            yield HloCollective(kind, size, times, _group(at.text), _beside(at, inside[place + 1 :]))
        elif at.opcode in _CALLS and (called := _CALLED.search(at.text)) is not None:
            yield from _collectives(called[1], computations, times)


def _beside(start: _Instruction, later: Sequence[_Instruction]) -> int:
    """The number of kernels of what comes `later` that are launched before the end of what `start` begins."""
    ends = [i for i, at in enumerate(later) if at.opcode.endswith("-done") and start.name in at.operands]
    between = later[: ends[0]] if ends and start.opcode.endswith("-start") else []
    return sum(at.opcode not in _FREE and not at.opcode.endswith(("-start", "-done")) for at in between)


def _group(text: str) -> int:
    """The devices of the first group of a collective."""
    listed, counted = _GROUP.search(text), _IOTA.search(text)
    if listed is not None:
        return listed[1].count(",") + 1
    return int(counted[1]) if counted is not None else 0


def multiplies(text: str) -> bool:
    """Whether a program has matmuls outside of routines of cuDNN."""
    instructions = [i for inside in _computations(text)[1].values() for i in inside]
    return any(i.opcode == "dot" or (i.opcode == "custom-call" and "cublas" in i.text) for i in instructions)


def unknown_loops(text: str) -> int:
    """The number of loops whose steps XLA does not know ahead of a call."""
    return sum(" while(" in line and not _TRIPS.search(line) for line in text.splitlines())


def _computations(text: str) -> tuple[str, dict[str, list[_Instruction]]]:
    """The name of the entry, and the instructions of each computation."""
    found: dict[str, list[_Instruction]] = {}
    entry = name = ""
    for line in text.splitlines():
        if (head := _COMPUTATION.match(line)) is not None:
            name = head[2]
            found[name] = []
            entry = name if head[1] else entry
        elif name and (start := _INSTRUCTION.match(line)) is not None:
            rest = line[start.end() :]
            opcode = _OPCODE.match(rest, _after_type(rest))
            if opcode is not None:
                found[name].append(_Instruction(start[1], opcode[1], line))
        elif line.startswith("}"):
            name = ""
    return entry, found


def _after_type(text: str) -> int:
    """The place behind the type with which the text of an instruction begins."""
    if not text.startswith("("):
        return text.find(" ")
    return _closing(text)


def _closing(text: str) -> int:
    """The place behind the parenthesis that closes the first one."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == ")" and not depth:
            return i + 1
    return len(text)


def _bytes(type_text: str) -> int:
    """Bytes of the arrays in a type."""
    found = 0
    for letters, bits, sizes in _ARRAY.findall(type_text):
        each = _IN_BYTES.get(letters, int(bits or 0))
        found += -(-each * math.prod(int(n) for n in sizes.split(",") if n) // 8)
    return found


def _moved(at: _Instruction, inside: list[_Instruction], around: list[_Instruction]) -> int:
    """Bytes that a launch reads and writes. `inside`: the instructions of its fusion. `around`: those beside it."""
    given = {i.name: i for i in around}
    operands = [_bytes(given[name].type) if name in given else 0 for name in at.operands]
    if at.opcode == "custom-call" and ("cublas" in at.text or "cudnn" in at.text):
        first = _ARRAY.search(at.type)  # a workspace may follow
        return sum(operands) + (_bytes(first[0]) if first else 0)
    written = _bytes(at.type)
    named = {i.name: i for i in inside}
    users = grouped((name, i) for i in inside for name in i.operands)
    for i in inside:
        place = _PARAMETER.search(i.text) if i.opcode == "parameter" else None
        if place is None:
            continue
        reads = [u for name in _views(i.name, users) for u in users.get(name, ()) if u.opcode != "bitcast"]
        at_first = all(u.operands[0] in _views(i.name, users) for u in reads)
        if reads and at_first and all(u.opcode in _PARTIAL for u in reads):
            operands[int(place[1])] = min(operands[int(place[1])], sum(_bytes(u.type) for u in reads))
        if len(reads) == 1 and at_first and reads[0].opcode == "dynamic-update-slice":  # written in place
            update = _bytes(named[reads[0].operands[1]].type)
            operands[int(place[1])] = 0
            written += update - _bytes(reads[0].type)
    return sum(operands) + max(written, 0)


def _views(name: str, users: Mapping[str, list[_Instruction]]) -> list[str]:
    """The instruction of this name and all bitcasts of it."""
    found = [name]
    for at in found:
        found += [u.name for u in users.get(at, ()) if u.opcode == "bitcast"]
    return found


def _launches(name: str, computations: Mapping[str, list[_Instruction]], times: int) -> Iterator[Launch]:
    for at in computations.get(name, ()):
        if at.opcode in _FREE:
            continue
        if at.opcode == "while":
            trips = _TRIPS.search(at.text)
            body = _BODY.search(at.text)
            if body is not None:
                yield from _launches(body[1], computations, times * (int(trips[1]) if trips else 1))
        elif at.opcode == "conditional":
            names = [n.strip(" %") for found in _BRANCHES.findall(at.text) for part in found for n in part.split(",")]
            branches = [list(_launches(n, computations, times)) for n in names if n]
            yield from max(branches, key=lambda found: sum(k.times for k in found), default=[])
        elif at.opcode in _CALLS and (called := _CALLED.search(at.text)) is not None:
            yield from _launches(called[1], computations, times)
        else:
            yield _launch(at, name, computations, times)


def _launch(at: _Instruction, name: str, computations: Mapping[str, list[_Instruction]], times: int) -> Launch:
    """The kernel of an instruction of the computation `name`."""
    called = _CALLED.search(at.text)
    inside = computations.get(called[1], []) if called and at.opcode == "fusion" else []
    kind = _kind(at, inside)
    within = [i for n in _within(called[1], computations) for i in computations.get(n, [])] if inside and called else []
    has_matmul = kind == CUBLAS or any(i.opcode in ("dot", "scaled-dot", "ragged-dot") for i in within)
    wanted = "sol" if has_matmul else "indexing-cost-model" if kind == TRITON else ""
    cost = _costs(at.text).get(wanted) if kind in (FUSION, TRITON, CUBLAS, COPY) else None
    source = _SOURCE.search(at.text)
    model = "" if cost is None else wanted or "fusion model"
    moved = _moved(at, inside, computations[name])
    matmul = _matmul(at, computations) if kind == TRITON and has_matmul else None
    line = _line_of(at, within or inside)
    return Launch(at.name, kind, times, cost, model, source[1] if source else "", moved, matmul, line)


def _matmul(at: _Instruction, computations: Mapping[str, list[_Instruction]]) -> TritonMatmul | None:
    """The matmul of a fusion."""
    called = _CALLED.search(at.text)
    for inside in (computations.get(name, []) for name in _within(called[1] if called else "", computations)):
        given = {i.name: i for i in inside}
        for dot in (i for i in inside if i.opcode == "dot"):
            arrays = [_ARRAY.search(given[name].type) for name in dot.operands[:2] if name in given]
            axes = {what: _numbers(found[1] if (found := p.search(dot.text)) else "") for what, p in _AXES.items()}
            if len(arrays) < 2 or arrays[0] is None or arrays[1] is None:
                return None
            left, right = (_numbers(found[3]) for found in arrays if found)
            summed = {"lhs": axes["lhs_contracting"], "rhs": axes["rhs_contracting"]}
            batch, depth = (math.prod(left[n] for n in over) for over in (axes["lhs_batch"], summed["lhs"]))
            rows = math.prod(left) // max(1, batch * depth)
            columns = math.prod(right) // max(1, batch * depth)
            widest = max((found for found in arrays if found), key=lambda found: int(found[2] or 0))
            return TritonMatmul(batch, rows, columns, depth, widest[1] + widest[2], _tiles(at, dot))
    return None


def _tiles(at: _Instruction, dot: _Instruction) -> str:
    found, stages, deep = _TILES.search(at.text), _STAGES.search(at.text), _DEPTH.search(dot.text)
    if found is None or stages is None:
        return ""
    sides = [n for n in _numbers(found[2]) if n > 1] + _numbers(deep[1] if deep else "")
    return f"{'x'.join(map(str, sides))}, {found[1]} warps, {stages[1]} stages"


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def _within(name: str, computations: Mapping[str, list[_Instruction]]) -> Iterator[str]:
    """The name of a computation, and those of the fusions inside it."""

    def below(at: str) -> list[str]:
        return [c[1] for i in computations.get(at, []) if (c := _CALLED.search(i.text)) is not None]

    yield from reached((name,), below)


def _kind(at: _Instruction, inside: list[_Instruction]) -> str:
    if at.opcode in ("copy", "copy-start"):
        return COPY
    if at.opcode == "custom-call":
        target = _TARGET.search(at.text)
        name = target[1] if target else ""
        if name in _PALLAS:
            return PALLAS
        if "cublas" in name:
            return CUBLAS
        return CUDNN if "cudnn" in name else LIBRARY
    if at.opcode != "fusion":
        return LIBRARY  # fft, sort and the like
    if '"__triton' in at.text:
        return TRITON
    if "__cudnn$fusion" in at.text:
        return CUDNN
    heavy = [i for i in inside if i.opcode not in _FREE]
    return COPY if heavy and all(i.opcode == "copy" for i in heavy) else FUSION


def _costs(text: str) -> dict[str, float]:
    """XLA's estimates for an instruction, in seconds, by model."""
    found = _COSTS.search(text)
    if found is None:
        return {}
    try:
        return {c["name"]: 1e-6 * float(c["exec_time_us"]) for c in json.loads(found[1])}
    except (ValueError, KeyError, TypeError):
        return {}


def merged(found: list[Launch]) -> list[Launch]:
    """Kernels of one name as one, launched so many times."""
    by_name: dict[tuple[str, str], Launch] = {}
    for k in found:
        key = k.name, k.kind
        by_name[key] = replace(k, times=k.times + by_name[key].times) if key in by_name else k
    return list(by_name.values())
