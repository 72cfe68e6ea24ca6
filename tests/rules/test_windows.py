"""Rules about windows are proved for any strides and dilation; blocks of sizes that go with another block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relax_eg.errors import RuleError
from relax_eg.ops import api as op
from relax_eg.rules import RuleSet, convolution
from relax_eg.rules.checking.check import check
from relax_eg.rules.checking.verification import verify_in
from relax_eg.rules.verify_formal.prove import prove_rule

made = RuleSet("made")
_POOL = {"strides": "reduce_window.strides"}


@made.rule("x: n k h w, f: o k 1 1", attrs={"strides": "conv.strides"}, check=False)
def strides_ignored(x: Any, f: Any, strides: Any) -> Any:
    rows = op.permute_dims(x, (0, 2, 3, 1)) @ op.squeeze(f, (2, 3)).T
    return op.conv(x, f, strides), op.permute_dims(rows, (0, 3, 1, 2))


@made.rule("x: n", attrs=_POOL, sizes="p", check=False)
def right_for_some_strides(x: Any, p: Any, strides: Any) -> Any:
    scale = 2.0 if strides == (7,) else 1.0
    return op.reduce_window(x, "sum", (p,), strides), op.reduce_window(x * scale, "sum", (p,), strides)


@made.rule("x: n", attrs=_POOL, sizes="p", check=False)
def only_at_stride_two(x: Any, p: Any, strides: Any) -> Any:
    if strides != (2,):
        return None
    return op.reduce_window(-x, "sum", (p,), strides), -op.reduce_window(x, "sum", (p,), strides)


@made.rule("x: n k h w, f: o k p q", sizes="a b", check=False)
def any_padding_is_zero(x: Any, f: Any, a: Any, b: Any) -> Any:
    wide = op.pad(x, [(0, 0), (0, 0), (a, a), (0, 0)], 1.0)
    return op.conv(wide, f, padding=[(b, b), (0, 0)]), op.conv(x, f, padding=[(a + b, a + b), (0, 0)])


def test_convolutions_are_proved_for_any_strides() -> None:
    for name in ("conv_left_factor", "batch_norm_scale_into_kernel", "scaled_before_pool"):
        proof = prove_rule(convolution[name])
        assert proof.status == "proved", str(proof)


def test_a_stride_that_the_function_asks_about_is_a_case() -> None:
    # Right at all strides but one, which no test meets.
    assert check(made["right_for_some_strides"]).status == "tested"
    assert prove_rule(made["right_for_some_strides"]).status == "unknown"
    assert prove_rule(made["only_at_stride_two"]).status == "proved"


def test_wrong_rules_about_windows_are_refuted() -> None:
    with pytest.raises(RuleError, match="the sides differ in shape"):
        check(made["strides_ignored"])
    assert check(made["any_padding_is_zero"]).status == "refuted"
    assert prove_rule(made["any_padding_is_zero"]).status == "unknown"


def test_sizes_go_with_a_block_that_there_is() -> None:
    with pytest.raises(RuleError, match=r"'\*i:c' names a block that the rule lacks; accepted: \*i:b"):

        @made.rule("x: *b", sizes="*i:c *j:b", check=False)
        def lost(x: Any, i: Any, j: Any) -> Any:
            return op.strided_slice(x, i, j), x


def test_several_processes_give_the_same_verdicts(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text(
        "import relax_eg as rx\n"
        'book = rx.RuleSet("mine")\n'
        '@book.rule(shapes="x: n")\n'
        "def right(x):\n    return rx.op.negative(rx.op.negative(x)), x\n"
        '@book.rule(shapes="x: n", check=False)\n'
        "def wrong(x):\n    return rx.op.negative(x), x * 1.0\n"
    )
    report = verify_in(2, path)
    assert [(v.rule.name, v.status) for v in report] == [("right", "proved"), ("wrong", "refuted")]
    assert "left   -x      right   x" in str(report)
