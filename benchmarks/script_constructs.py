"""Constructs of Relax's script language, each as lines that make a tensor `{y}` of a tensor `{x}`.

Both are `R.Tensor(("n", 8), "float32")`. A construct may need definitions beside the function that uses it. The texts
are our own (`script_constructs.txt`); the constructs are those of the language's public documentation and tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TEXT = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True)
class Construct:
    """A construct of the language.

    - `group`: the part of the language.
    - `name`: what it is, in one line.
    - `lines`: statements that bind `{y}` to a tensor of `{x}`'s shape and dtype; `{p}` begins further names.
    - `definitions`: functions and tensor programs of the module that it needs.
    - `dataflow`: whether it may stand in a dataflow block.
    """

    group: str
    name: str
    lines: str
    definitions: str
    dataflow: bool


def read_constructs(text: str) -> tuple[Construct, ...]:
    """Returns the constructs of a text in the format of `script_constructs.txt`."""
    found: list[Construct] = []
    for part in ("\n" + text).split("\n== ")[1:]:
        head, _, body = part.partition("\n")
        group, name, *steps = head.split(" | ")
        lines, _, definitions = body.partition("\n--\n")
        found.append(Construct(group, name, lines.strip("\n"), definitions.strip("\n"), not steps))
    return tuple(found)


CONSTRUCTS = read_constructs(TEXT.read_text())
