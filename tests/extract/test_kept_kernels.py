"""Whether the few states of a kernel that are kept suffice: against a search that keeps many more of them."""

from __future__ import annotations

from typing import Any

import pytest

import relax_eg as rx
from benchmarks.llama_layer import Layer, Widths
from examples import minilm
from relax_eg.extract.kernels import selection, states
from relax_eg.extract.selection.solve import SolverEffort

LAYER = Layer(Widths(256, 4, 2, 512))


def chosen(half: str, target: str) -> tuple[int, float]:
    """Bytes and seconds of the kernels of one half of a layer."""
    options: Any = {"execution": "kernels", "target": target, "at": {"b": 1, "s": 256}}
    report = rx.optimize(getattr(LAYER, half), *LAYER.specs(half), rules=rx.rules.fusion, **options).report
    return report.after.bytes, report.selected[0].cost


@pytest.mark.parametrize("target", ["cpu", "h100"])
@pytest.mark.parametrize("half", ["attention_half", "mlp_half"])
def test_few_states_are_about_as_good_as_many(half: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, seconds = chosen(half, target)
    monkeypatch.setattr(selection, "_EFFORT", SolverEffort(seconds=60.0, nodes=200, gap=1e-6, candidates=20000))
    for kept, partial in ((8, 32), (12, 48)):
        monkeypatch.setattr(states, "KEPT", kept)
        monkeypatch.setattr(states, "_PARTIAL", partial)
        most_moved, most_seconds = chosen(half, target)
        assert moved <= 1.1 * most_moved
        assert seconds <= 1.02 * most_seconds


@pytest.mark.parametrize("half", ["attention_half", "mlp_half"])
def test_the_integer_program_closes_its_gap(half: str) -> None:
    """With algebra and libraries, on a GPU's data sheet."""
    options: Any = {"execution": "kernels", "target": "h100", "at": {"b": 1, "s": 256}}
    (row,) = rx.optimize(getattr(LAYER, half), *LAYER.specs(half), **options).report.selected
    assert row.how == "proved optimal"


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 17), (8, 64)])
def test_a_real_model_is_never_worse_with_more_rules(sizes: tuple[int, int]) -> None:
    """Dispatch decides here, so every kernel less counts, and calls of libraries keep kernels apart."""
    params, _ = minilm.load()
    at: Any = {"at": dict(zip("bs", sizes, strict=True)), "target": "a100"}
    found = rx.debug.ablate(minilm.encode, params, "b s @ int32", "b s @ int32", sets=["library", "algebra"], **at)
    assert found.slower("library") >= 1 - 1e-3 and found.slower("algebra") >= 1 - 1e-3
