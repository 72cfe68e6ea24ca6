"""What quantizing a program did: errors, bytes and predicted seconds, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from relax_eg.figures import binding_text, si, time
from relax_eg.reports.terminal import plain_table, rendered_text

_WIDTH = 120  # chosen: columns of a report as text


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """A layer of a program that was, or could have been, quantized.

    - `name`: the path of its weight.
    - `operator`: the operator that reads the weight.
    - `weight`: its shape and dtype.
    - `before`, `after`: bytes of the weight, and of its codes with scales.
    - `error`: the norm of the difference of its results on the calibration data over their norm, its input as in the
      float program.
    - `kept`: why it is kept in float; empty if it is quantized.
    """

    name: str
    operator: str
    weight: str
    before: int
    after: int
    error: float
    kept: str = ""


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """What `rx.quantize` did.

    - `name`: the name of the program.
    - `scheme`: the scheme, in words.
    - `layers`: its layers, in order.
    - `error`: the norm of the difference of all results of the program on the calibration data over their norm.
    - `before`, `after`: bytes of all arrays of weights, those of layers and others.
    - `seconds_before`, `seconds_after`: predicted seconds of a call of the programs as written, with what follows from
      weights alone computed ahead; after: with products of floats or of bytes, whichever is less.
    - `target`: the device of the prediction.
    - `at`: the sizes of the prediction.
    """

    name: str
    scheme: str
    layers: tuple[QuantizedLayer, ...]
    error: float
    before: int
    after: int
    seconds_before: float
    seconds_after: float
    target: str
    at: Mapping[str, int]

    @property
    def quantized(self) -> tuple[QuantizedLayer, ...]:
        """The layers that are quantized."""
        return tuple(x for x in self.layers if not x.kept)

    @property
    def layer_bytes(self) -> tuple[int, int]:
        """Bytes of the weights of the quantized layers, before and after. A weight that two layers read counts once."""
        found = {(x.name, x.weight): (x.before, x.after) for x in self.quantized}
        return sum(b for b, _ in found.values()), sum(a for _, a in found.values())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{self.name}   {self.scheme}", style="bold")
        table = plain_table(["layer"], ["operator", "weight", "bytes", "codes", "ratio", "error"])
        for x in self.layers:
            after = ("float", "") if x.kept else (si(x.after), f"{x.before / x.after:.2f}")
            table.add_row(x.name, x.operator, x.weight, si(x.before), *after, f"{x.error:.2g}")
        yield table
        before, after = self.layer_bytes
        if after:
            yield Text(f"bytes of quantized weights: {si(before)} -> {si(after)}, {before / after:.2f} times less")
        yield Text(
            f"bytes of all weights: {si(self.before)} -> {si(self.after)}, {self.before / self.after:.2f} times less"
        )
        yield Text(f"relative error of the results on the calibration data: {self.error:.3g}")
        at = f", at {binding_text(self.at)}" if self.at else ""
        yield Text(
            f"predicted of a call: {time(self.seconds_before)} -> {time(self.seconds_after)} ({self.target}{at})"
        )
        for x in self.layers:
            if x.kept:
                yield Text(f"{x.name} is kept in float: {x.kept}")

    def __str__(self) -> str:
        return rendered_text(self, width=_WIDTH)
