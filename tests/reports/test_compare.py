"""Reports side by side: what got better or worse, where, and which rule or choice did it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.cli import app
from relax_eg.driver.ablation import ablate
from relax_eg.errors import OptionError
from relax_eg.extract.report import MeasuredRow
from relax_eg.figures import time
from relax_eg.reports.align import Column
from relax_eg.reports.plots import curves_over_bindings
from relax_eg.reports.short import highlights
from tests.reports.programs import attention, in_kernels, line, unfused_in_kernels


@pytest.fixture(scope="module")
def chosen() -> rx.types.CostReport:
    return in_kernels().report


@pytest.fixture(scope="module")
def unfused() -> rx.types.CostReport:
    return unfused_in_kernels().report


def test_one_report_is_held_against_the_program_as_written(chosen: rx.types.CostReport) -> None:
    found = rx.compare(chosen)
    assert [c.label for c in found.columns] == ["as written", "chosen"] and found.by == "line"
    assert sum(r.seconds(0) for r in found.rows) == pytest.approx(chosen.before.seconds)
    assert sum(r.seconds(1) for r in found.rows) == pytest.approx(chosen.after.seconds)
    (first, *_) = found.changes(1)
    assert first.seconds(1) < first.seconds(0)
    text = str(found)
    assert f"{chosen.predicted_gain:.3g}x faster" in text


def test_the_rule_set_that_is_missing_is_the_cause(chosen: rx.types.CostReport, unfused: rx.types.CostReport) -> None:
    found = rx.compare(chosen, unfused, against="default")
    column = [c.label for c in found.columns].index("default - fusion")
    (row,) = [r for r in found.rows if r.where == line("softmax")]
    (why, *_) = [c for c in row.causes[column] if c.startswith("without ")]
    assert sum(r.delta(column) for r in found.rows) > 0
    assert "fuse_stages" in why and "inline_prologue" in why
    assert re.search(r"rules used less: .*fuse_stages x\d", " ".join(str(found).split()))


def test_a_program_that_the_first_calls_gave_up_is_called_so(chosen: rx.types.CostReport) -> None:
    def rows(is_faster: bool) -> tuple[MeasuredRow, ...]:
        ratio = (2.0, 1.9, 2.1) if is_faster else (0.8, 0.7, 0.9)
        return (
            MeasuredRow("as written", 0.0, 1e-3, 1.0, 1.0, 1.0, not is_faster, chosen.at),
            MeasuredRow("by price", 0.0, 1e-3 / ratio[0], *ratio, is_faster, chosen.at),
        )

    kept = rx.compare(replace(chosen, measured=rows(True)))
    given_up = rx.compare(replace(chosen, measured=rows(False)))
    assert "Runs" not in dict(highlights(kept)) and kept.columns[1].measured == pytest.approx(5e-4)
    topics = highlights(given_up)
    assert topics[0][0] == "Runs" and topics[0][1].startswith("The program as written: the first calls have timed both")
    assert given_up.columns[1].measured == pytest.approx(1.25e-3) and "1.25x slower, measured" in dict(topics)["Time"]


def test_a_program_that_was_kept_as_written_is_called_so() -> None:
    report = rx.optimize(lambda x: x + 1, "8", target="cpu").report
    assert report.kept_as_written
    assert dict(highlights(rx.compare(report)))["Runs"].startswith("The program as written: no other was predicted")
    # Two timings of one program differ by chance.
    timed = (
        MeasuredRow("as written", 0.0, 2e-3, 1.0, 1.0, 1.0, False, report.at),
        MeasuredRow("by price", 0.0, 1e-3, 2.0, 1.0, 3.0, True, report.at),
    )
    gained = dict(highlights(rx.compare(replace(report, measured=timed))))["Time"]
    assert gained.startswith("A call takes 2 ms measured") and gained.endswith("as written and chosen alike on cpu.")


def test_two_programs_in_short(chosen: rx.types.CostReport) -> None:
    told = dict(highlights(rx.compare(chosen)))
    assert list(told) == ["Time", "Changed", "Where time still goes"]
    before, after = chosen.before.seconds, chosen.after.seconds
    assert f"{before / after:.3g}x faster, predicted on cpu, at s=128" in told["Time"]
    rows = rx.compare(chosen).rows
    most = min(rows, key=lambda r: r.delta(1))
    rest = after - before - most.delta(1)
    assert told["Changed"].startswith(f"{time(-most.delta(1))} less predicted at {most.where} (")
    assert (f"; elsewhere {time(abs(rest))} {'less' if rest < 0 else 'more'}." in told["Changed"]) == (
        abs(rest) > 5e-3 * before
    )
    dearest = max(rows, key=lambda r: r.seconds(1))
    assert f"{100 * dearest.seconds(1) / after:.0f}% of the " in told["Where time still goes"]
    assert dearest.where in told["Where time still goes"] and "of what the device's " in told["Where time still goes"]
    timed = [MeasuredRow("as written", before, 3e-3, 1.0, 1.0, 1.0, at=chosen.at)]
    timed.append(MeasuredRow("by price", after, 2e-3, 1.5, 1.4, 1.6, True, at=chosen.at))
    measured = dict(highlights(rx.compare(replace(chosen, measured=tuple(timed)))))
    assert "2 ms (chosen) instead of 3 ms (as written): 1.5x faster, measured (predicted: " in measured["Time"]
    assert highlights(rx.compare(chosen, as_written=False)) == []


def test_what_did_not_pay_in_short(chosen: rx.types.CostReport) -> None:
    kept = replace(chosen, after=chosen.before)
    assert list(dict(highlights(rx.compare(kept)))) == ["Time", "Where time still goes"]
    assert "as written and chosen alike" in dict(highlights(rx.compare(kept)))["Time"]
    worse = replace(chosen, before=chosen.after, after=chosen.before)
    told = dict(highlights(rx.compare(worse)))
    assert "x slower, predicted" in told["Time"] and " more predicted at " in told["Changed"]


def test_several_programs_in_short(chosen: rx.types.CostReport, unfused: rx.types.CostReport) -> None:
    found = rx.compare(chosen, unfused, replace(chosen, rule_set="again"), labels=["all", "unfused", "again"])
    told = dict(highlights(found))
    slower = unfused.after.seconds / chosen.after.seconds
    assert f"unfused is {slower:.3g}x slower" in told["Times"] and told["Times"].endswith("; the same: again.")
    assert "on all" in told["Where time goes"] and "on again of the predicted time" in told["Where time goes"]


def test_a_kernel_of_several_lines_is_divided_among_them(chosen: rx.types.CostReport) -> None:
    part = next(p for p in chosen.after.parts if len(p.operators) > 1)
    lines = line("softmax"), line("return")
    whole = replace(chosen.after, parts=(replace(part, lines=lines),))
    found = rx.compare(replace(chosen, after=whole))
    before = {r.where: r.seconds(0) for r in found.rows}
    after = {r.where: r.seconds(1) for r in found.rows}
    assert after[lines[0]] + after[lines[1]] == pytest.approx(part.seconds)
    assert after[lines[0]] / after[lines[1]] == pytest.approx(before[lines[0]] / before[lines[1]])


def test_devices_and_sizes_are_named_as_causes() -> None:
    reports = [attention(target=t).report for t in ("a100", "h100")]
    found = rx.compare(*reports)
    assert [c.label for c in found.columns] == ["a100", "h100"]
    assert all("on h100" in r.causes[1] for r in found.changes(1))
    small = attention(target="a100", at={"s": 16}).report
    found = rx.compare(reports[0], small)
    assert [c.label for c in found.columns] == ["s=128", "s=16"]
    assert all("at other sizes" in r.causes[1] for r in found.changes(1))


def test_reports_of_different_programs_say_what_can_be_compared(chosen: rx.types.CostReport) -> None:
    def other(x: rx.Tensor, w: rx.Tensor) -> rx.Tensor:
        return (x @ w) @ w

    report = rx.optimize(other, "n 32", "32 32", at={"n": 8}, target="cpu").report
    found = rx.compare(chosen, report)
    assert "reports of different programs (attend and other)" in found.statements[0]
    assert any("no kernel is for the same source line in all of them: only totals" in s for s in found.statements)
    assert any("different ways to execute (kernels, whole)" in s for s in found.statements)
    assert str(found)


def test_cost_over_the_bindings_of_a_report() -> None:
    report = attention(at=[{"s": 128}, {"s": 16}, {"s": 1}]).report
    (curve,) = curves_over_bindings(rx.compare(report).columns)
    assert (curve.variable, dict(curve.at), curve.sizes) == ("s", {}, (1, 16, 128))
    assert [s.label for s in curve.series] == ["as written", "chosen"]
    by_size = {r.at["s"]: r for r in report.at_each()}
    assert curve.series[1].seconds == tuple(by_size[n].after.seconds for n in (1, 16, 128))
    swapped = [
        replace(r, others=tuple(replace(o, after=replace(o.after, rows=o.before.rows)) for o in r.others))
        for r in (report,)
    ]
    (curve,) = curves_over_bindings([Column("old", swapped[0]), Column("new", report)])
    assert all(x.after == "new" for x in curve.crossovers)
    assert curves_over_bindings(rx.compare(attention()).columns) == []


def test_another_release_is_a_cause_where_prices_differ(chosen: rx.types.CostReport) -> None:
    part, *rest = chosen.after.parts
    dearer = replace(chosen.after, parts=(replace(part, seconds=2 * part.seconds), *rest))
    later = replace(chosen, after=dearer, versions={**chosen.versions, "relax-eg": "9.0"})
    found = rx.compare(chosen, later, labels=["ours", "later"], against="ours")
    (row, *_) = found.changes([c.label for c in found.columns].index("later"))
    assert any("priced by release 9.0" in causes for causes in row.causes)


def test_json_of_a_comparison(chosen: rx.types.CostReport, unfused: rx.types.CostReport, tmp_path: Path) -> None:
    rx.compare(chosen, unfused).to_json(tmp_path / "c.json")
    data = json.loads((tmp_path / "c.json").read_text())
    assert data["schema"] == "relax_eg.comparison/1"
    assert [c["label"] for c in data["columns"]] == ["default", "default - fusion"]
    assert [rx.types.CostReport.from_data(r) for r in data["reports"]] == [chosen, unfused]
    assert [c["report"] for c in data["columns"]] == [0, 1]
    again = rx.compare(tmp_path / "c.json")
    assert again == rx.compare(chosen, unfused)
    assert str(rx.compare(rx.compare(chosen))) == str(rx.compare(chosen))
    more = rx.compare(tmp_path / "c.json", chosen)
    assert [c.label for c in more.columns] == ["default (1)", "default - fusion", "default (2)"]
    three = rx.compare(chosen, unfused, as_written=True)
    assert [c.label for c in three.columns] == ["as written", "default", "default - fusion"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"schema": "relax_eg.comparison/2"}, "c.json: a report of schema 'relax_eg.comparison/2', which a newer"),
        ({"columns": 3}, "c.json: a damaged comparison: columns is 3; a list is accepted"),
        ({"columns": [{"label": "a", "report": 2}]}, "columns name reports other than the 1 that there are"),
        ({"columns": [{"label": 3, "report": 0}]}, "a damaged comparison: columns[0].label is 3; "),
        ({"reports": [{}]}, "c.json: reports[0]: no report; what `report.to_json`"),
    ],
)
def test_damaged_comparisons(damage: dict[str, Any], said: str, chosen: rx.types.CostReport, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({**rx.compare(chosen).as_data(), **damage}))
    with pytest.raises(OptionError, match=re.escape(said)):
        rx.compare(tmp_path / "c.json")


def test_bad_input(chosen: rx.types.CostReport) -> None:
    with pytest.raises(OptionError, match="compare\\(\\) takes one report or more"):
        rx.compare()
    with pytest.raises(OptionError, match="argument 2 is a int; a CostReport, what optimize returned, or the path"):
        rx.compare(chosen, 3)
    with pytest.raises(OptionError, match="one for each of the 1 reports"):
        rx.compare(chosen, labels=["a", "b"])
    with pytest.raises(OptionError, match="against='b': one of 'as written', 'a' is accepted"):
        rx.compare(chosen, labels=["a"], against="b")


def test_on_the_command_line(chosen: rx.types.CostReport, unfused: rx.types.CostReport, tmp_path: Path) -> None:
    paths = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    for report, path in zip((chosen, unfused), paths, strict=True):
        report.to_json(path)
    run = CliRunner().invoke(app, ["compare", *paths, "--html", str(tmp_path / "c.html")])
    assert run.exit_code == 0, run.output
    assert "default - fusion" in run.output and "programs.py" in run.output
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
    Path(paths[1]).write_text(Path(paths[1]).read_text()[:500])
    run = CliRunner().invoke(app, ["compare", *paths])
    said = " ".join(run.output.split())
    assert run.exit_code == 1 and "is not whole JSON" in said and "b.json" in said


def test_ablation_by_the_clock() -> None:
    def twice(x: rx.Tensor, a: rx.Tensor, b: rx.Tensor) -> rx.Tensor:
        return (x @ a) @ b * 2.0

    given = {"at": {"n": 8}, "target": "cpu"}
    found = ablate(twice, "n 64", "64 64", "64 64", sets=["fusion"], timed=True, **given)
    columns = found.comparison.columns
    assert [c.label for c in columns] == ["all rules", "as written", "without fusion"]
    assert found.without == ("fusion",) and found.slower("fusion") > 1
    for c in columns:
        assert c.measured is not None and c.measured > 0
    with pytest.raises(OptionError, match=r"sets=\['magic'\]: one or more of fusion, library, workspace, algebra"):
        ablate(twice, "n 64", "64 64", "64 64", sets=["magic"], **given)


def test_ablation_says_what_each_set_is_worth(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def twice(x, a, b):\n    return (x @ a) @ b * 2.0\n")
    specs = [w for s in ("n 64", "64 64", "64 64") for w in ("--spec", s)]
    args = ["ablate", f"{tmp_path / 'model.py'}:twice", *specs, "--at", "n=8", "--target", "cpu"]
    json_path = tmp_path / "a.json"
    run = CliRunner().invoke(app, [*args, "--set", "fusion", "--set", "library", "--json", str(json_path)])
    assert run.exit_code == 0, run.output
    columns = {c["label"]: c["seconds"] for c in json.loads(json_path.read_text())["columns"]}
    assert next(iter(columns)) == "all rules"
    assert columns.keys() == {"all rules", "as written", "without fusion", "without library"}
    assert columns["all rules"] <= min(columns.values()) + 1e-12
    assert columns["without fusion"] > columns["all rules"]
    run = CliRunner().invoke(app, [*args, "--set", "magic"])
    said = " ".join(run.output.split())
    assert run.exit_code == 1 and "one or more of fusion, library, workspace, algebra, layout are accepted" in said
