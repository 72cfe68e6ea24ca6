"""What is chosen on described devices, without running it; and errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import relax_eg as rx
from relax_eg.driver.spreads import spreading
from relax_eg.errors import DeviceError, OptionError, RelaxEgError
from relax_eg.extract.profiles.links import link_for
from relax_eg.meshes import axis
from relax_eg.meshes.axis_program import AxisProgram
from relax_eg.meshes.choices import Demands

D, F = 1024, 4096
LAYER = {"wi": f"{D} {F}", "wo": f"{F} {D}"}


def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ w1) @ w2


def kinds(best: Any) -> list[str]:
    return [s.kind for s in best.spreading.sent]


def test_megatron_is_found_from_nothing() -> None:
    """Of a layer whose weights do not fit whole, columns of the first weight and rows of the second are split, and one
    sum is sent."""
    best = rx.spread(
        mlp, f"512 {D}", f"{D} {F}", f"{F} {D}", mesh={"model": 8}, target="h100", inputs={"x": "R"}, outputs="R",
        memory_limit="16 MB",
    )  # fmt: skip
    assert [str(p) for p in best.input_placements] == ["R", "S[1]", "S[0]"]
    assert kinds(best) == ["all-reduce"]
    assert best.spreading.memory < 16e6


def test_large_batches_are_split_and_nothing_is_sent() -> None:
    best = rx.spread(mlp, f"65536 {D}", f"{D} {F}", f"{F} {D}", mesh={"data": 8}, target="h100")
    assert [str(p) for p in best.input_placements] == ["S[0]", "R", "R"] and not best.spreading.sent


def train_step(ps: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
    def loss(ps: dict[str, jax.Array]) -> jax.Array:
        def body(c: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, None]:
            return c + jax.nn.relu(c @ p["wi"]) @ p["wo"], None

        return jnp.mean((jax.lax.scan(body, x, ps)[0] - y) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, ps, jax.grad(loss)(ps))


def test_state_that_does_not_fit_whole_is_split() -> None:
    """ZeRO-3: at rest each device has an eighth of the weights, and gathers them where it computes."""

    specs = {k: f"4 {v}" for k, v in LAYER.items()}
    best = rx.spread(
        train_step,
        specs,
        f"16384 {D}",
        f"16384 {D}",
        mesh={"x": 8},
        target="h100",
        state={"ps": 0},
        memory_limit="400 MB",
    )
    weights = best.spreading.arguments[:2]
    assert all(w.bytes == 4 * D * F * 4 / 8 for w in weights), weights
    assert best.input_placements[:2] == best.output_placements[:2]
    assert {"all-gather", "reduce-scatter"} <= set(kinds(best))


def test_new_state_is_gathered_at_once_where_there_is_room() -> None:
    """Beside the old state, whose place it takes then: XLA begins all gathers before one ends. Of two weights it
    gathers one after the other, which takes up to a quarter less than is predicted."""
    specs = {k: f"16 {v}" for k, v in LAYER.items()}
    best = rx.spread(
        train_step, specs, f"2048 {D}", f"2048 {D}", mesh={"x": 8}, target="h100", state={"ps": 0},
        inputs={"x": "S[0]", "y": "S[0]", "ps": "R"}, seconds=2,
    )  # fmt: skip
    state = 2 * 16 * D * F * 4
    assert best.spreading.memory > 2 * state
    compiled = best.compile_spread("h100", donate=("ps",)).memory
    assert 1.5 * state < 0.75 * best.spreading.memory < compiled < 1.1 * best.spreading.memory


def test_threads_keep_what_follows_from_the_inputs_where_the_gain_is_in_doubt() -> None:
    """Gradients are summed layer by layer, as XLA's own propagation has it, and those of a layer are sent as one."""
    best = rx.spread(
        train_step, {"wi": "4 256 1024", "wo": "4 1024 256"}, "512 256", "512 256", mesh={"x": 8}, target="cpu",
        state={"ps": 0}, inputs={"x": "S[0]", "y": "S[0]", "ps": "R"}, seconds=3,
    )  # fmt: skip
    sent = best.spreading.sent
    assert [(s.kind, s.before, s.after, s.times) for s in sent] == [("all-reduce", "P[sum]", "R", 4)] * 2
    link = link_for(rx.types.PROFILES["cpu"], 8, 8)
    both = link.seconds("all-reduce", 8, 2 * 256 * 1024 * 4)  # as one, with one latency
    assert sum(s.seconds for s in sent) == pytest.approx(4 * both)


def test_algebra_is_chosen_with_the_placement() -> None:
    best = rx.optimize(
        lambda a, b, v: (a @ b) @ v, "4096 4096", "4096 4096", "4096", mesh={"x": 8}, target="h100",
        rules=rx.rules.algebra,
    )  # fmt: skip
    assert best.spreading.rules and best.spreading.total < best.spreading.one_device / 8
    assert str(best.module).count("annotate_sharding") > 3
    assert best.report.spread == best.spreading and "mesh x=8" in best.report.target
    again = rx.types.CostReport.from_json(best.report.to_json())
    assert again.spread is not None and again.spread.sent == best.spreading.sent


def test_the_report_tells_who_holds_what() -> None:
    best = rx.spread(
        mlp, f"64 {D}", f"{D} {F}", f"{F} {D}", mesh={"a": 2, "b": 4}, target="h100", inputs={"w1": "R, S[1]"}
    )
    text, page = str(best.spreading), best.spreading.to_html()
    assert "mesh a=2, b=4" in text and "R, S[1]" in text and "memory of a device" in text
    assert "<svg" in page and "who holds what" in page and "R, S[1]" in page
    with pytest.raises(DeviceError, match=r"the mesh a=2, b=4 has 8 devices; JAX has \d here"):
        _ = best.in_shardings


def test_meshes_compare() -> None:
    reports = [
        rx.optimize(mlp, f"8192 {D}", f"{D} {F}", f"{F} {D}", mesh=m, target="h100", rules=rx.RuleSet("none")).report
        for m in ({"x": 8}, {"x": 2, "y": 4})
    ]
    text = str(rx.compare(*reports))
    assert "mesh x=8" in text and "mesh x=2, y=4" in text


def test_a_cost_report_has_the_figures_of_each_device() -> None:
    batch = 65536
    given = f"{batch} {D}", f"{D} {F}", f"{F} {D}"
    r = rx.optimize(mlp, *given, mesh={"data": 8}, target="h100", rules=rx.RuleSet("none")).report
    after, before = ({row.op: row for row in cost.rows}["matmul"] for cost in (r.after, r.before))
    assert r.spread is not None and not r.spread.sent and after.count == before.count == 2
    assert 8 * after.flops == before.flops
    assert after.bytes == pytest.approx(4 * (2 * batch * D / 8 + 2 * D * F + 2 * batch * F / 8), rel=1e-3)
    assert r.after.seconds == pytest.approx(r.spread.total)
    assert "chosen: figures of each of 8 devices: computing " in str(r)


def effects(x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x[0])
    return x


@pytest.mark.parametrize(
    ("fn", "specs", "options", "text"),
    [
        (mlp, ("6 8", "8 8", "8 8"), {"inputs": {"x": "S[0]"}}, "of size 6, over 8 devices of the mesh x=8"),
        (mlp, ("12 8", "8 8", "8 8"), {"inputs": {"x": "S[0]"}}, "12 is not a multiple of 8"),
        (mlp, ("b 8", "8 8", "8 8"), {"inputs": {"x": "S[0]"}}, "it is not proved that b is a multiple of 8"),
        (mlp, ("8 8", "8 8", "8 8"), {"inputs": {"z": "R"}}, "inputs has 'z'; the arguments are x, w1, w2"),
        (mlp, ("8 8", "8 8", "8 8"), {"inputs": {"x": "S[0], R"}}, "has 2 parts; one for each of x=8"),
        (mlp, ("8 8", "8 8", "8 8"), {"inputs": {"x": PartitionSpec("q")}}, "names the axis 'q'; the mesh has x"),
        (mlp, ("8 8", "8 8", "8 8"), {"inputs": {"x": 3}}, "a PartitionSpec or a NamedSharding is accepted"),
        (mlp, ("8 8", "8 8", "8 8"), {"outputs": {1: "R"}}, "its results are numbered 0 to 0"),
        (mlp, ("8 8", "8 8", "8 8"), {"outputs": "P[sum]"}, "is partial; R or S"),
        (mlp, ("8 8", "8 8", "8 8"), {"state": ("q",)}, "state has 'q'; the arguments are x, w1, w2"),
        (mlp, ("8 8", "8 16", "16 4"), {"state": ("x",)}, "comes back as"),
        (mlp, ("b 8", "8 8", "8 8"), {"padded": ["c"]}, "padded has 'c'; its sizes are b"),
        (mlp, ("b 8", "8 8", "8 8"), {"padded": "b"}, "padded='b': ('b',), names of sizes, is accepted"),
        (mlp, ("b 8", "8 8", "8 8"), {"padded": ["b"], "numerics": "exact"}, "accepted: numerics='reassociate'"),
        (lambda x: jnp.fft.fft(x), ("b",), {"padded": ["b"]}, "accepted: sizes that are not padded"),
        (
            mlp,
            ("8 8", "8 8", "8 8"),
            {"state": ("x",), "inputs": {"x": "S[0]"}, "outputs": "R"},
            "x is state and is placed as S[0]; result 0, as which it comes back, is placed as R",
        ),
        (effects, ("8",), {}, "has effects, whose order across devices is not known"),
        (mlp, ("8 8", "8 8", "8 8"), {"memory_limit": 10}, "the least found on the mesh x=8 is"),
    ],
)
def test_errors_name_both_sides(fn: Any, specs: tuple[str, ...], options: dict[str, Any], text: str) -> None:
    with pytest.raises(RelaxEgError) as caught:
        rx.spread(fn, *specs, mesh={"x": 8}, target="h100", **options)
    assert text in str(caught.value)


def test_weights_are_placed_alike_for_all_batches() -> None:
    """Where placements of their own differ, those are taken that slow the batches down least."""

    def spread(at: Any) -> Any:
        return rx.spread(
            mlp, "b 8192", "8192 28672", "28672 8192", mesh={"x": 8}, at=at, target="h100", bounds=["b % 8 == 0"],
            seconds=10.0,
        ).spreadings  # fmt: skip

    at = [{"b": 8}, {"b": 65536}]
    alone = [spread(b)[0] for b in at]
    assert alone[0].input_placements[1:] != alone[1].input_placements[1:], "the test needs placements that differ"
    both = spread(at)
    assert both[0].input_placements[1:] == both[1].input_placements[1:]
    assert all(b.total >= a.total * 0.999 for a, b in zip(alone, both, strict=True))
    assert both[0].total == pytest.approx(alone[0].total) or both[1].total == pytest.approx(alone[1].total)


def test_descent_is_close_where_the_clock_leaves_no_more() -> None:
    def layers(ps: Any, x: Any) -> Any:
        for p in ps:
            x = x + jax.nn.relu(x @ p["up"]) @ p["down"]
        return x

    given: Any = {"mesh": {"x": 8}, "target": "h100", "inputs": {"x": "R"}, "outputs": "R", "memory_limit": "200 MB"}
    specs = [{"up": f"{D} {F}", "down": f"{F} {D}"}] * 16, f"2048 {D}"
    with rx.debug.options(cache=False):
        whole = rx.spread(layers, *specs, **given).spreading
        at_once = rx.spread(layers, *specs, seconds=1.0, **given).spreading
    assert at_once.total <= whole.total * 1.02 and 0 < whole.bound <= whole.total
    assert at_once.memory <= 200e6


def test_on_several_axes_nothing_from_the_textbook_is_better() -> None:
    """A training step that does not fit as data parallel over two axes, beside textbook placements of its inputs."""

    specs = {k: f"4 {v}" for k, v in LAYER.items()}, f"64 64 {D}", f"64 64 {D}"
    textbook = {
        "data": {"x": "S[0], S[0]", "y": "S[0], S[0]", "ps": "R, R"},
        "zero-3": {"x": "S[0], S[0]", "y": "S[0], S[0]"},
        "tensor": {"x": "S[0], R", "y": "S[0], R", "ps['wi']": "R, S[2]", "ps['wo']": "R, S[1]"},
        "sequence": {"x": "S[0], S[1]", "y": "S[0], S[1]"},
    }
    found: dict[str, float] = {}
    for name, inputs in {"found": {}, **textbook}.items():
        try:
            best = rx.spread(
                train_step, *specs, mesh={"a": 2, "b": 4}, target="h100", state={"ps": 0}, memory_limit="200 MB",
                seconds=6.0, inputs=inputs, pipeline=False,
            )  # fmt: skip
        except RelaxEgError:
            continue
        assert best.spreading.memory <= 200e6
        found[name] = best.spreading.total
    assert "data" not in found and len(found) > 2
    assert found["found"] <= min(found.values()) * 1.005, found  # given: the gap at which an integer program ends


@pytest.mark.parametrize("options", [{}, {"pipeline": {"x": 8}}], ids=["placements", "stages"])
def test_a_spread_is_found_in_the_cache(options: dict[str, Any], tmp_path: Any, monkeypatch: Any) -> None:
    def layers(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0]

    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))

    def spread(**more: Any) -> Any:
        with rx.debug.options(cache=True):
            return rx.spread(layers, "64 64", "8 64 64", mesh={"x": 4}, target="h100", **options, **more)

    first, again, other = spread(), spread(), spread(inputs={"x": "S[0]"})
    assert not first.report.cached and again.report.cached and not other.report.cached
    assert again.module == first.module and again.spreading.sent == first.spreading.sent
    assert again.input_placements == first.input_placements and again.output_placements == first.output_placements
    assert again.spreading.pipeline == first.spreading.pipeline and bool(again.spreading.pipeline) == bool(options)
    assert str(other.input_placements[0]) == "S[0]"


def test_a_device_alone_is_no_mesh_to_spread_over() -> None:
    with pytest.raises(OptionError, match="mesh='gpu:1' is one device"):
        rx.spread(mlp, "8 8", "8 8", "8 8", mesh="gpu:1", target="h100")
    best = rx.spread(mlp, "8 8", "8 8", "8 8", mesh="cpu:63, x=2", target="h100")
    assert best.spreading.mesh == "cpu:63, x=2" and "<svg" in best.spreading.to_html()
    with pytest.raises(DeviceError, match="the mesh cpu:63, x=2 has 2 devices; JAX has 0 here"):
        _ = best.in_shardings


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="mesh= and measure=2: one of them is accepted"):
        rx.optimize(mlp, "8 8", "8 8", "8 8", mesh={"x": 2}, measure=2)


def test_algebra_and_placements_are_chosen_together_where_rules_are_given() -> None:
    specs, mesh = ("4096 4096", "4096 4096", "4096"), {"x": 8}
    given: Any = {"mesh": mesh, "target": "h100", "inputs": {"v": "R"}, "outputs": "R"}
    apart = rx.spread(lambda a, b, v: (a @ b) @ v, *specs, **given)
    together = rx.spread(lambda a, b, v: (a @ b) @ v, *specs, rules=rx.rules.default, **given)
    assert not apart.report.rules and together.report.rules
    assert together.spreading.total < apart.spreading.total


def test_what_has_no_equations_is_whole_and_said_so() -> None:
    best = rx.spread(lambda x: jnp.linalg.cholesky(x) * 2, "64 64", mesh={"x": 8}, target="h100")
    assert "computed whole on every device: 1 x" in str(best.spreading)


def test_a_choice_whose_result_the_other_axes_split_by_now_is_a_start_too(monkeypatch: Any) -> None:
    """Two of the axes cannot split a dimension of size 2; the one that did is chosen anew, from what it was."""
    seen: list[Any] = []
    whole = spreading.spread_over

    def noting(*args: Any) -> Any:
        seen.append(args)
        return whole(*args)

    monkeypatch.setattr(spreading, "spread_over", noting)
    with rx.debug.options(cache=False):
        rx.spread(lambda x: jnp.tanh(x), "2 8", mesh={"a": 2, "b": 2}, target="h100")
    program, _, profile, binding, scope = seen[0][:5]
    links = [link_for(profile, 2)] * 2
    alone = axis.AxisSearch(program, 0, [2], links[:1], profile, binding, scope, [None])
    start = alone.run(AxisProgram(alone, Demands(outputs={0: 0})), 5.0)
    again = axis.AxisSearch(program, 1, [2, 2], links, profile, binding, scope, [start, None])
    found = again.run(AxisProgram(again, Demands()), 5.0, start)
    assert start is not None and start.outputs == [0] and found is not None and found.outputs != [0]
