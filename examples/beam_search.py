"""A GRU encoder-decoder that translates with beam search, as one program of the language.

    python -m examples.beam_search

The sentence is read by a loop, because `encode` ends in a call of itself. `search` recurs too, and the sentences that
it has written so far grow by a token at each step: each step runs at a capacity, so few executables serve all lengths.
The program is saved and run by a process of its own. The weights are random: what it writes means nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import relax_eg as rx

BEAMS = 4
WORDS = 32  # the size of the vocabulary
WIDTH = 16
END = 0  # the word that ends a sentence
NOTHING = np.float32(-1e9)  # the score of what cannot follow
WEIGHTS = {"table": (WORDS, WIDTH), "w": (WIDTH, 3 * WIDTH), "u": (WIDTH, 3 * WIDTH), "out": (WIDTH, WORDS)}


@rx.function
def cell(x: rx.Tensor("b 16"), h: rx.Tensor("b 16"), w: rx.Tensor("16 48"), u: rx.Tensor("16 48")):
    """A GRU."""
    a = x @ w
    c = h @ u
    r = rx.op.sigmoid(a[:, :16] + c[:, :16])
    z = rx.op.sigmoid(a[:, 16:32] + c[:, 16:32])
    n = rx.op.tanh(a[:, 32:] + r * c[:, 32:])
    return (1.0 - z) * n + z * h


@rx.function
def encode(
    words: rx.Tensor("s", "int32"),
    place: rx.Tensor((), "int32"),
    h: rx.Tensor("1 16"),
    table: rx.Tensor("32 16"),
    w: rx.Tensor("16 48"),
    u: rx.Tensor("16 48"),
) -> rx.Tensor("1 16"):
    if place == words.shape[0]:
        return h
    x = rx.op.take(table, rx.op.reshape(rx.op.take(words, place, 0), (1,)), 0)
    return encode(words, place + 1, cell(x, h, w, u), table, w, u)


@rx.function
def search(
    written: rx.Tensor("4 t", "int32"),
    scores: rx.Tensor("4"),
    h: rx.Tensor("4 16"),
    left: rx.Tensor((), "int32"),
    table: rx.Tensor("32 16"),
    w: rx.Tensor("16 48"),
    u: rx.Tensor("16 48"),
    out: rx.Tensor("16 32"),
) -> rx.Tuple(rx.Tensor(ndim=2, dtype="int32"), rx.Tensor("4")):
    last = written[:, -1]
    ended = (last == END) & (written.shape[1] > 1)
    if (left == 0) | rx.op.all(ended):
        return written, scores
    state = cell(rx.op.take(table, last, 0), h, w, u)
    only_end = rx.op.where(rx.op.arange(WORDS) == END, 0.0, NOTHING)
    following = rx.op.where(ended.reshape(4, 1), only_end.reshape(1, 32), rx.op.log_softmax(state @ out))
    best = rx.op.top_k((scores.reshape(4, 1) + following).reshape(128), 4)
    beam = best[1] // WORDS
    more = rx.op.concat((rx.op.take(written, beam, 0), (best[1] % WORDS).reshape(4, 1)), axis=1)
    return search(more, best[0], rx.op.take(state, beam, 0), left - 1, table, w, u, out)


@rx.function
def translate(
    words: rx.Tensor("s", "int32"),
    most: rx.Tensor((), "int32"),
    table: rx.Tensor("32 16"),
    w: rx.Tensor("16 48"),
    u: rx.Tensor("16 48"),
    out: rx.Tensor("16 32"),
):
    h = encode(words, 0, rx.op.zeros((1, 16)), table, w, u)
    first = rx.op.where(rx.op.arange(BEAMS) == 0, 0.0, NOTHING)
    begin = rx.op.full((4, 1), END, "int32")
    return search(begin, first, rx.op.broadcast_to(h, (4, 16)), most, table, w, u, out)


def weights(seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Returns random weights."""
    random = np.random.default_rng(seed)
    return [random.normal(size=s).astype(np.float32) for s in WEIGHTS.values()]


def main() -> None:
    best = rx.optimize(translate, dynamic="capacity")
    path = Path(tempfile.mkdtemp()) / "translate.rxe"
    best.save(path)
    for words in ([5, 7, 9], [3, 1, 4, 1, 5, 9, 2, 6]):
        written, scores = best(np.array(words, np.int32), np.int32(20), *weights())
        print(f"{words}: {scores[0]:.3f} {np.asarray(written)[0, 1:].tolist()}")
    print(best.statistics())
    again = subprocess.run(
        [sys.executable, "-c", _AGAIN, str(path)], capture_output=True, text=True, check=True
    ).stdout  # a process without this file
    print(f"from the file, in another process: {again}", end="")


_AGAIN = """
import sys, numpy as np, relax_eg as rx
random = np.random.default_rng(0)
weights = [random.normal(size=s).astype(np.float32) for s in ((32, 16), (16, 48), (16, 48), (16, 32))]
written, scores = rx.load(sys.argv[1])(np.array([5, 7, 9], np.int32), np.int32(20), *weights)
print(f"{scores[0]:.3f} {np.asarray(written)[0, 1:].tolist()}")
"""

if __name__ == "__main__":
    main()
