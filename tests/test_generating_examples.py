"""The examples of generating models, small: the programs that are chosen give what JAX gives, at all lengths."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import relax_eg as rx
from examples.decoder import Decoder
from examples.layers import generate
from examples.llava import Llava, Tower, picture
from examples.whisper import PLACE, RATE, Whisper, log_mel, mel_filters, speech

WHISPER = Whisper(mels=8, width=16, heads=2, layers=1, places=64, context=32, vocabulary=40)
LLAVA = Llava(Tower(28, 14, 1, 16, 32, 2), Decoder(1, 16, 32, 4, 2, 4, 40))
CAPACITY: dict[str, Any] = {
    "weights": ("params",),
    "measure": "off",
    "dynamic": rx.Dynamic(mode="capacity", capacities="bound", padded=True),
}
IN_PLACE: dict[str, Any] = {
    **CAPACITY, "dynamic": rx.Dynamic(mode="capacity", capacities="bound", padded=True, donated=["caches"])
}  # fmt: skip


def test_speech_has_energy_where_voices_have_it() -> None:
    """A tone is in the band of its frequency; speech is louder below 4 kHz than above."""
    tone = np.sin(2 * np.pi * 1000.0 * np.arange(RATE) / RATE).astype(np.float32)
    filters = mel_filters(80)
    assert filters.shape == (80, 201) and (filters.max(1) > 0).all()
    loud = np.asarray(log_mel(tone, 80))
    assert loud.shape == (80, 100)
    at = np.argmax(filters[:, 25])  # 1 kHz: 40 Hz between the frequencies of a frame of 400 samples
    assert (np.argmax(loud[:, 2:-2], 0) == at).all()
    sound = speech(2.0)
    assert len(sound) == 2 * RATE and np.abs(sound).max() == pytest.approx(1.0)
    power = np.abs(np.fft.rfft(sound)) ** 2
    assert power[: 2 * 4000].sum() > 5 * power[2 * 4000 :].sum()


def test_whisper_hears_and_writes_at_every_length() -> None:
    params, sound = WHISPER.params(), (1, WHISPER.places)
    hear = rx.optimize(WHISPER.encode, params, f"{PLACE}*p", at={"p": 32}, bounds={"p": sound}, **CAPACITY)
    read = rx.optimize(
        WHISPER.prefill,
        params,
        "1 s @ int32",
        WHISPER.caches("p"),
        at={"s": 3, "p": 32},
        bounds={"s": (1, 8), "p": sound},
        **CAPACITY,
    )
    more = rx.optimize(
        WHISPER.step, params, "1 @ int32", WHISPER.caches("t"), WHISPER.caches("p"),
        at={"t": 8, "p": 32}, bounds={"t": (1, WHISPER.context), "p": sound}, **IN_PLACE,
    )  # fmt: skip
    first, later, whole = read.prepare(params), more.prepare(params), jax.jit(WHISPER.prefill)
    prompt = np.array([[3, 1, 2]], np.int32)
    for seconds in (0.9, 0.3):
        audio = speech(seconds)
        heard = hear.prepare(params)(audio)
        wanted = jax.jit(WHISPER.encode)(params, audio)
        for x, y in zip(jax.tree.leaves(heard), jax.tree.leaves(wanted), strict=True):
            assert_allclose(x, y, rtol=1e-4, atol=1e-4)
        tokens, logits = generate(
            functools.partial(first, prompt, heard), lambda t, c, heard=heard: later(t, c, heard), 9
        )
        # All positions at once, without a cache.
        again = whole(params, np.concatenate([prompt, tokens], axis=1), wanted)[0]
        assert_allclose(logits, again[:, 2:-1], rtol=1e-3, atol=1e-3)
    assert more.statistics().compilations == 1 and not more.statistics().exact


def test_llava_sees_and_answers_for_any_number_of_pictures() -> None:
    params, d = LLAVA.params(), LLAVA.decoder
    see = rx.optimize(LLAVA.see, params, "i 3 28 28", at={"i": 1}, bounds={"i": (1, 2)}, **CAPACITY)
    words, seen = (1, 8), (1, 2 * LLAVA.tower.patches)
    read = rx.optimize(
        LLAVA.prefill, params, "f @ int32", f"v {d.width}", "g @ int32",
        at={"f": 3, "v": 4, "g": 4}, bounds={"f": words, "v": seen, "g": words}, **CAPACITY,
    )  # fmt: skip
    more = rx.optimize(
        LLAVA.step, params, "1 @ int32", d.caches("t", 1), at={"t": 16}, bounds={"t": (1, 40)}, **IN_PLACE
    )
    ready, later = read.prepare(params), more.prepare(params)
    plain, step = jax.jit(LLAVA.prefill), jax.jit(LLAVA.step_at)
    before, after = np.array([5, 6, 7], np.int32), np.array([1, 2, 3, 4], np.int32)
    for pictures in (1, 2):
        shown = np.stack([picture(28, i) for i in range(pictures)])
        features = see.prepare(params)(shown)
        assert features.shape == (pictures * LLAVA.tower.patches, d.width)
        assert_allclose(features, jax.jit(LLAVA.see)(params, shown), rtol=1e-4, atol=1e-4)
        filled = 7 + features.shape[0]
        scores, caches = plain(params, before, np.asarray(features), after)
        position = iter(range(filled, 40))
        room = [tuple(np.pad(x, ((0, 0), (0, 0), (0, 40 - filled), (0, 0))) for x in c) for c in caches]
        wanted, _ = generate(
            lambda scores=scores, room=room: (scores[:, None], room),
            lambda t, c, position=position: step(params, t, np.int32(next(position)), c), 6,
        )  # fmt: skip
        scores, caches = ready(before, features, after)
        found, _ = generate(lambda scores=scores, caches=caches: (scores[:, None], caches), later, 6)
        assert_array_equal(found, wanted)
    assert more.statistics().compilations == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whisper", "llava"])
def test_they_print(name: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At their own sizes, for a few tokens."""
    example = importlib.import_module(f"examples.{name}")
    monkeypatch.setattr(example, "OUT", tmp_path)
    example.main(tokens=4, recompiled=2)
    shown = capsys.readouterr().out
    assert "all tokens are equal" in shown and "relax_eg" in shown
    assert {p.name for p in tmp_path.iterdir()} >= {"prefill.svg", "step.svg"}
