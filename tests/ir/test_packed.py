"""Modules as plain data: unpacking gives the module back."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from module_strategies import modules

from relax_eg import ir
from relax_eg.errors import WellFormedError
from relax_eg.ir.expr import ConstantData
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.packed import pack, unpack


class Held:
    """Objects by number; constants of more than `largest` bytes by number too."""

    def __init__(self, largest: float = math.inf) -> None:
        self.largest = largest
        self.objects: list[Foreign] = []
        self.arrays: list[np.ndarray[Any, Any]] = []

    def name_of(self, foreign: Foreign) -> int:
        self.objects.append(foreign)
        return len(self.objects) - 1

    def foreign_of(self, name: int) -> Foreign:
        return self.objects[name]

    def array_name(self, data: ConstantData) -> str | None:
        if data.array.nbytes <= self.largest:
            return None
        self.arrays.append(data.array)
        return str(len(self.arrays) - 1)

    def array_of(self, name: str) -> np.ndarray[Any, Any]:
        return self.arrays[int(name)]


def through(module: ir.Module, held: Held | None = None) -> tuple[ir.Module, bytes]:
    held = held or Held()
    data, blob = pack((module,), held)
    (found,) = unpack(json.loads(json.dumps(data)), blob, held)
    return found, blob


def test_modules_share_what_they_hold() -> None:
    large = ir.const(np.arange(1000.0))
    first, second = (module_of(ir.node(op, (large,), (), large.annotation)) for op in ("exp", "log"))
    held = Held()
    data, blob = pack((first, second, first), held)
    assert unpack(json.loads(json.dumps(data)), blob, held) == (first, second, first)
    assert len(data["constants"]) == 1 and len(blob) == large.attr("data").array.nbytes


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(modules())
def test_any_module_comes_back(module: ir.Module) -> None:
    again, _ = through(module)
    assert again == module and str(again) == str(module)
    for f, g in zip(module, again, strict=True):
        inside = set(f.expressions()) | {b.var for block in f.blocks for b in block.bindings} | set(f.params)
        assert {e: origin for e, origin in f.origins.items() if e in inside}.items() <= g.origins.items()


def module_of(*values: ir.Expr) -> ir.Module:
    return ir.Module((ir.pure_function("main", (), values),))


NANS = [struct.pack("<I", bits) for bits in (0x7FC00000, 0x7FC00001, 0xFFC00000)]


def test_constants_keep_their_bits() -> None:
    arrays = [np.frombuffer(b, "float32") for b in NANS] + [np.array([0.0, -0.0]), np.zeros((2, 0)), np.zeros(())]
    module = module_of(*map(ir.const, arrays))
    again, _ = through(module)
    assert again == module
    found = [b.value.attr("data").array for b in again.main.blocks[0].bindings]
    assert [(x.shape, x.tobytes()) for x in found] == [(x.shape, x.tobytes()) for x in arrays]


def test_attributes_keep_their_types() -> None:
    values = (1, True, 1.0, 0.0, -0.0, float("inf"), "1", None, (1, (True,)), np.float32(1), np.int64(1), 1 + 0j, ())
    nodes = [ir.node("f", (), (("a", v),), ir.Tensor("")) for v in values]
    assert len(set(nodes)) == len(values)
    again, _ = through(module_of(*nodes))
    assert [b.value for b in again.main.blocks[0].bindings] == nodes


def test_what_is_at_hand_is_not_in_the_data() -> None:
    large, small, callback = np.arange(1000.0), np.arange(2.0), Foreign(object())
    step = ir.call_dps_library("f", [ir.const(large), ir.const(small)], ir.Tensor(""), [("callback", callback)])
    held = Held(100)
    again, blob = through(module_of(step, ir.const(large)), held)
    assert again == module_of(step, ir.const(large))
    assert blob == small.tobytes() and held.objects == [callback] and len(held.arrays) == 1


def test_a_long_chain_is_no_recursion() -> None:
    x = ir.var("x", ir.Tensor(""))
    e = x
    for _ in range(5_000):
        e = ir.node("exp", (e,), (), ir.Tensor(""))
    module = ir.Module((ir.pure_function("main", (x,), [e]),))
    assert through(module)[0] == module


def test_what_cannot_be_packed_or_unpacked() -> None:
    with pytest.raises(WellFormedError, match=r"an attribute of type builtins.object cannot be packed"):
        pack((module_of(ir.node("f", (), (("a", object()),), ir.Tensor(""))),), Held())
    data, blob = pack((module_of(ir.const(1.0)),), Held())
    with pytest.raises(ValueError, match="packed modules of version 9; this is version 4"):
        unpack({**data, "version": 9}, blob, Held())
    with pytest.raises(ValueError):
        unpack(data, b"", Held())
