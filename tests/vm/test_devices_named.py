"""Programs that name devices: read, printed, and placed with the fewest copies. `on_three_devices` runs some."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import DeviceError, ModuleTextError, SpecError, WellFormedError
from relax_eg.frontends.placing import ValueGraph, chosen_devices
from relax_eg.ir.expr import Expr, node, var
from relax_eg.rules.checking.check import without_checks

ROOT = Path(__file__).parents[2]
ONE = rx.Tensor((1,))


def copied(graph: ValueGraph, device: dict[Expr, str]) -> float:
    """The bytes that a placement copies: of each value once to each device."""
    copies = {(a, device[e]) for e, reads in graph.reads.items() for a in reads if device[a] != device[e]}
    copies |= {(e, d) for e, d in graph.needs if device[e] != d}
    return sum(graph.bytes[e] for e, _ in copies)


@pytest.mark.parametrize("seed", range(12))
def test_no_placement_copies_less(seed: int) -> None:
    draw = random.Random(seed)
    devices = ("cpu:0", "cpu:1", "gpu:0")[: 2 + seed % 2]
    graph = ValueGraph()
    values: list[Expr] = []
    for i in range(3):
        values.append(var(f"x{i}", ONE))
        graph.pinned[values[-1]] = draw.choice(devices)
    for i in range(6):
        reads = draw.sample(values, 2)
        values.append(node("add", reads, (("number", i),), ONE))
        graph.reads[values[-1]] = reads
    graph.bytes.update((e, float(draw.randint(1, 9))) for e in values)
    graph.needs += [(e, draw.choice(devices)) for e in values[-2:]]
    found = chosen_devices(graph)
    free = list(graph.reads)
    least = min(
        copied(graph, {**graph.pinned, **dict(zip(free, c, strict=True))})
        for c in itertools.product(devices, repeat=len(free))
    )
    assert copied(graph, {e: found[e] for e in values}) == least


def text(lines: str, head: str = "") -> str:
    return f"{head}\n@R.function\ndef main(x: R.Tensor((4,), 'float32')):\n    {lines}\n"


def test_what_is_said_is_kept() -> None:
    module = rx.parse(text('y: R.Tensor((4,), "float32", "cpu:1") = R.exp(x)\n    return R.to_vdevice(y, "cuda")'))
    assert 'R.to_vdevice(lv, "cpu:1")' in str(module) and 'R.to_vdevice(y, "gpu:0")' in str(module)
    assert rx.parse(str(module)) == module
    same = rx.parse(text('y = R.to_vdevice(R.exp(x), R.device("cuda", 1))\n    return y'))
    assert 'R.to_vdevice(lv, "gpu:1")' in str(same)


def test_a_device_is_a_mesh_without_axes() -> None:
    same = [
        rx.parse(text(f"y = {said}\n    return y"))
        for said in ('R.to_vdevice(x, "cpu:1")', 'R.annotate_sharding(x, mesh="llvm:1", placement="")')
    ]
    assert same[0] == same[1] and rx.parse(str(same[0])) == same[0]
    with pytest.raises(rx.errors.RelaxEgError, match="on one device a value is whole"):
        rx.parse(text('return R.annotate_sharding(x, mesh="cpu:1", placement="S[0]")'))


def test_the_default_device_alone_needs_no_steps() -> None:
    module = rx.parse(text('y = R.to_vdevice(R.exp(x), "llvm:0")\n    return R.hint_on_device(y + 1.0, R.cpu(0))'))
    with without_checks():
        best = rx.optimize(module)
    assert best.report.execution != "in steps" and "to_vdevice" not in str(best.module)
    np.testing.assert_allclose(best(np.zeros(4, np.float32)), np.full(4, 2, np.float32))


def test_a_device_that_is_not_here() -> None:
    with without_checks():
        best = rx.optimize(rx.parse(text('return R.to_vdevice(R.exp(x), "cpu:63")')))
    with pytest.raises(DeviceError, match=r"^the program is on cpu:63, and this process has cpu:0.*\n  accepted: dev"):
        best(np.zeros(4, np.float32))


CELLS = """
@R.function
def far(r: R.Ref(R.Tensor((4,), "float32"))) -> R.Tensor((4,), "float32"):
    R.func_attr({"vdevice": "cpu:1"})
    return R.read_ref(r)
"""


def test_a_cell_is_on_one_device() -> None:
    with pytest.raises(
        WellFormedError,
        match=r"^main\(\), binding `\w+`: `r` has a mutable cell on cpu:0, and far\(\) is on cpu:1\n  accepted: the",
    ):
        rx.optimize(rx.parse(text("r = R.new_ref(x)\n    return far(r)", CELLS)))
    with pytest.raises(ModuleTextError, match=r"a copy to cpu:1 of R\.Ref.*(.|\n)*expected: a tensor, or a tuple"):
        rx.parse(text('r = R.new_ref(x)\n    s = R.to_vdevice(r, "cpu:1")\n    return x'))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('return R.to_vdevice(x, "moon")', "'moon' names no device"),
        ("return R.to_vdevice(x)", "a value and a device are needed"),
        ('y: R.Tensor((4,), "float32", "moon:1") = x\n    return y', "'moon:1' names no device"),
    ],
)
def test_devices_that_are_refused(lines: str, said: str) -> None:
    with pytest.raises(ModuleTextError, match=said):
        rx.parse(text(lines))


def test_a_function_on_no_device() -> None:
    with pytest.raises(SpecError, match="3 names no device"):
        rx.optimize(rx.parse(text('R.func_attr({"vdevice": 3})\n    return x')))
