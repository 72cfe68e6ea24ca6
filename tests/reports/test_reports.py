"""What a cost report holds, and that it survives files, other releases and bad ones."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jsonschema
import pytest

import relax_eg as rx
from docs.report_schema import schema, text
from relax_eg.errors import OptionError
from relax_eg.extract.costs.detail import KernelPart
from relax_eg.extract.report import DeviceRow, OperatorRow, ProgramCost
from relax_eg.reports.roofline import kernel_roofline, roofline
from tests.reports.programs import attention, in_kernels, line

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def best() -> rx.types.Optimized:
    return attention(at=[{"s": 128}, {"s": 1}], weights=("wq", "wk", "wv", "wo"))


@pytest.fixture(scope="module")
def kernels() -> rx.types.CostReport:
    return in_kernels().report


def test_parts_add_up_to_the_totals(best: rx.types.Optimized, kernels: rx.types.CostReport) -> None:
    for report in (*best.report.at_each(), kernels):
        for cost in (report.before, report.after):
            now = [p for p in cost.parts if not p.ahead]
            assert sum(p.seconds for p in now) == pytest.approx(cost.seconds, rel=1e-6)
            assert sum(p.flops for p in now) == cost.flops
            assert sum(p.bytes for p in now) == cost.bytes
            assert sum(p.launches for p in now) == cost.launches


def test_every_part_stands_for_a_line_of_the_user(best: rx.types.Optimized, kernels: rx.types.CostReport) -> None:
    known = {line("q, k, v ="), line("softmax"), line("return")}
    for report in (best.report, kernels):
        for part in (*report.before.parts, *report.after.parts):
            assert part.lines and set(part.lines) <= known, part


def test_the_origins_of_a_chosen_program_are_in_its_text(best: rx.types.Optimized) -> None:
    module = best.module
    made = [o for f in module for o in f.origins.values() if o.rules]
    assert made and all(o.lines and o.where is not None for o in made)
    assert {str(x) for o in made for x in o.lines} <= {line("q, k, v ="), line("softmax"), line("return")}
    for f, g in zip(module, rx.parse(str(module)), strict=True):
        assert g.origins and g.origins.items() <= f.origins.items()


def test_the_users_lines_are_quoted(best: rx.types.Optimized) -> None:
    assert best.report.code[line("softmax")] == "scores = jax.nn.softmax(q @ k.T / 8.0, axis=-1)"
    (row,) = [r for r in rx.compare(best).rows if r.where == line("softmax")]
    assert row.code in str(rx.compare(best))


def test_a_value_that_a_rule_made_has_the_line_of_what_it_equals(kernels: rx.types.CostReport) -> None:
    (fused,) = [p for p in kernels.after.parts if "softmax" in p.operators and len(p.operators) > 1]
    assert "matmul" in fused.operators and line("softmax") in fused.lines
    rules = set(fused.rule.split(", "))
    assert rules & {"same_sum_of_products", "matmul_associates"} and "fuse_stages" in rules


def test_what_is_computed_from_weights_is_told_apart(best: rx.types.Optimized) -> None:
    ahead = [p for p in best.report.after.parts if p.ahead]
    assert ahead and all("s" not in p.result.split("dtype")[0].replace("Tensor", "") for p in ahead)
    assert not [p for p in best.report.before.parts if p.ahead]


def test_the_roofline_is_that_of_the_profile(best: rx.types.Optimized) -> None:
    roof, device = best.report.roofline, best.report.device
    assert roof is not None and device is not None
    profile = rx.types.PROFILES["cpu"]
    assert (device.bandwidth, device.rate("float32")) == (profile.bandwidth, profile.rate("float32"))
    after = best.report.after
    assert roof.intensity == after.flops / after.bytes and roof.ridge == 120e9 / 15e9
    assert roof.source == "memory"
    assert roof.least == pytest.approx(max(after.flops / 120e9, after.bytes / 15e9))
    assert roof.roof == after.flops / roof.least and roof.share == roof.least / after.seconds


def decoder(x: Any, w: Any) -> Any:
    """Halves, multiplied into wider sums, as accelerators do it."""
    return jax.nn.softmax(jnp.einsum("nk,km->nm", x, w, preferred_element_type=jnp.float32))


# Searches for kernels take seconds: one device of each kind.
@pytest.mark.parametrize(
    ("execution", "target"),
    [*(("whole", t) for t in sorted(rx.types.PROFILES)), ("kernels", "cpu"), ("kernels", "h100")],
)
def test_nothing_is_above_its_roof(target: str, execution: Any) -> None:
    more: dict[str, Any] = {"target": target, "execution": execution}
    half = rx.optimize(decoder, "n 4096 @ bfloat16", "4096 4096 @ bfloat16", at=[{"n": 2048}, {"n": 1}], **more).report
    found: set[str] = set()
    for report in (*attention(**more, at=[{"s": 128}, {"s": 4096}]).report.at_each(), *half.at_each()):
        assert report.device is not None
        for cost in (report.before, report.after):
            roofs = [
                roofline(cost, report.device),
                *(kernel_roofline(p, report.device) for p in cost.parts if not p.ahead),
            ]
            assert all(r.share <= 1 + 1e-6 and r.reached <= r.roof * (1 + 1e-6) for r in roofs)
            found |= {r.source for r in roofs}
    assert "memory" in found
    product = next(p for p in half.before.parts if p.what == "matmul")
    assert product.dtype == "bfloat16" and 'dtype="float32"' in product.result
    assert half.device is not None
    assert kernel_roofline(product, half.device).peak == rx.types.PROFILES[target].rate(
        "bfloat16"
    )  # not that of the sums


def test_where_bytes_come_from_by_hand() -> None:
    rates = {"float32": 50.0, "bfloat16": 100.0}
    device = DeviceRow("slow", "cpu", False, rates, 1.0, 10.0, 100.0, 64.0, 0.0, 0.0)

    def kernel(seconds: float, dtype: str = "float32") -> KernelPart:
        return KernelPart("matmul", "", "main", (), "", 1, 100, 1000, 1, seconds, dtype=dtype)

    parts = kernel(200.0), kernel(20.0), kernel(5.0, "bfloat16")
    each = [kernel_roofline(p, device) for p in parts]
    assert [r.source for r in each] == ["memory", "cache", "registers"]
    assert [r.bound for r in each] == ["memory", "cache", "arithmetic"]
    assert [r.least for r in each] == [100.0, 10.0, 1.0]
    assert [r.share for r in each] == [0.5, 0.5, 0.2]
    whole = roofline(ProgramCost((OperatorRow("matmul", 3, 300, 3000, 3, 225.0),), parts=parts), device)
    assert (whole.source, whole.bound, whole.moving, whole.least) == ("memory", "memory", 110.0, 110.0)
    assert whole.peak == 300 / (200 / 50 + 100 / 100) and whole.share == 110 / 225


def test_memory_of_a_chain_by_hand() -> None:
    # a @ b and (a @ b) @ c are stored, one after the other; while the second runs both are alive.
    report = rx.optimize(
        lambda a, b, c: (a @ b) @ c, "8 16", "16 32", "32 4", rules=rx.RuleSet("none"), target="cpu"
    ).report
    memory = report.before.memory
    assert memory is not None
    assert [m.bytes for m in memory.moments] == [8 * 32 * 4, 8 * 32 * 4 + 8 * 4 * 4]
    assert memory.peak == 8 * 32 * 4 + 8 * 4 * 4 and memory.peak_at.startswith("matmul")


def test_memory_in_kernels_is_that_of_the_plan() -> None:
    def layer(x: Any, w: Any, v: Any) -> Any:
        h = jnp.tanh(x @ w)
        return jnp.sum(h @ v, axis=1), x + h

    best = rx.optimize(layer, "n 64", "64 64", "64 64", at={"n": 32}, execution="kernels", target="cpu")
    memory = best.report.after.memory
    plan = rx.plan_memory(best, at={"n": 32}, results="planned", temporary="estimated")
    assert memory is not None
    assert [m.bytes for m in memory.moments] == plan.live.at({"n": 32}) and memory.peak == plan.bound_at({"n": 32})
    assert [t.bytes for t in memory.tensors] == [int(x.bytes.evaluate(plan.at)) for x in plan.peak]
    assert sum(t.bytes for t in memory.tensors) == memory.peak
    assert all(t.line for t in memory.tensors)


def test_memory_follows_calls_and_leaves_out_what_is_fused_and_prepared() -> None:
    # In each of four layers the matmul is stored, sin and cos are computed inside the kernel that reads them.
    def layers(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = jnp.cos(jnp.sin(x @ w))
        return x

    memory = rx.optimize(layers, "8 8", "8 8", weights=("w",), target="cpu").report.after.memory
    assert memory is not None
    one = 8 * 8 * 4
    assert memory.peak == 2 * one and memory.workspace == 0
    assert [t.bytes for t in memory.tensors] == [one, one]


def test_growth_has_every_round(best: rx.types.Optimized) -> None:
    rows = [r for r in best.report.growth if r.function == "attend"]
    assert [r.round for r in rows] == list(range(best.report.rounds + 1))
    assert rows[-1].nodes == best.report.nodes and sum(r.matches for r in rows) <= sum(best.report.matches.values())


def test_guards_that_nobody_could_decide_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relax_eg.egraph.saturate.prove", lambda *_: rx.types.Unknown("z3 gave up"))
    book = rx.RuleSet("mine")

    @book.rule("x: n, y: n", when="n >= 2", check=False)
    def added_the_other_way(x: Any, y: Any) -> Any:
        return x + y, y + x

    report = rx.optimize(lambda a, b: a + b, "n", "n", rules=book, target="cpu", at={"n": 8}).report
    assert report.unproved in (("n >= 2",), ("2 <= n",))
    assert not report.matches.get("added_the_other_way")
    assert f"a rule waits for what was not proved: {report.unproved[0]}" in str(report)


def test_one_report_for_each_binding(best: rx.types.Optimized) -> None:
    reports = best.report.at_each()
    assert [dict(r.at) for r in reports] == [{"s": 128}, {"s": 1}]
    assert reports[1].after.seconds < reports[0].after.seconds and reports[0].after == best.report.after


def test_a_report_survives_a_file(best: rx.types.Optimized, kernels: rx.types.CostReport, tmp_path: Path) -> None:
    for report in (best.report, kernels):
        report.to_json(tmp_path / "r.json")
        again = rx.types.CostReport.from_json(tmp_path / "r.json")
        assert again == report and again.more is None
        assert again.to_json() == report.to_json()


def test_reports_follow_their_schema(best: rx.types.Optimized, kernels: rx.types.CostReport) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    for report in (best.report, kernels):
        jsonschema.validate(json.loads(report.to_json()), schema())
    jsonschema.validate(json.loads((DATA / "report_0_1.json").read_text()), schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(kernels.to_json()), "nodes": "many"}, schema())


def test_the_schema_in_the_documents_is_current() -> None:
    shown = (ROOT / "docs" / "report.schema.json").read_text()
    assert shown == text(), "python -m docs.report_schema > docs/report.schema.json writes it anew"
    names = {f.name for f in fields(rx.types.CostReport)} - {"more"}
    assert names <= json.loads(shown)["properties"].keys()


def test_an_older_release_is_read_and_compared(best: rx.types.Optimized) -> None:
    old = rx.types.CostReport.from_json(DATA / "report_0_1.json")
    assert old.name == "attend" and old.before.parts == () and old.roofline is None
    assert "compared by operator" in str(rx.compare(old, best.report))
    assert "a report of release 0.1.0 has none" in str(rx.compare(old, best.report))


def test_unknown_fields_survive_a_round_trip(best: rx.types.Optimized) -> None:
    data = json.loads(best.report.to_json())
    data["energy"] = {"joules": 3.5}
    data["before"]["parts"][0]["tile"] = [16, 16]
    data["after"]["memory"]["moments"][-1]["bank"] = 2
    data["searched"][0]["certificates"] = ["a"]
    read = rx.types.CostReport.from_data(data)
    assert read == best.report
    assert json.loads(rx.types.CostReport.from_json(read.to_json()).to_json()) == data
    assert "fields that this release does not know" in str(rx.compare(read))
    assert json.loads(rx.compare(read).to_json())["reports"][0]["energy"] == {"joules": 3.5}
    # What was there twice stays where it was, also when something else of the report changes.
    assert json.loads(replace(read, cached=True).to_json())["energy"] == {"joules": 3.5}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t[: len(t) // 2], "is not whole JSON"),
        (lambda t: "", "is not whole JSON"),
        (lambda t: t.replace("relax_eg.report/1", "relax_eg.report/7"), "which a newer release of relax-eg wrote"),
        (lambda t: t.replace("relax_eg.report/1", "tvm.report/1"), "'relax_eg.report/1' is accepted"),
        (lambda t: "[1, 2]", "no report; what `report.to_json`"),
        (lambda t: json.dumps({k: v for k, v in json.loads(t).items() if k != "before"}), "report lacks `before`"),
        (lambda t: t.replace('"nodes": ', '"nodes": "x", "_": ', 1), "is 'x'; a whole number is accepted"),
    ],
)
def test_bad_files_are_told(best: rx.types.Optimized, tmp_path: Path, change: Any, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(change(best.report.to_json()))
    with pytest.raises(OptionError) as e:
        rx.types.CostReport.from_json(path)
    assert said in str(e.value) and str(path) in str(e.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.json cannot be read: No such file"):
        rx.types.CostReport.from_json(tmp_path / "none.json")
