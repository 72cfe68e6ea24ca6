"""Reads module text with the operator table: missing annotations are deduced, and attributes completed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relax_eg.argument_checks import TEXT, accepts
from relax_eg.ir import (
    CONTROL,
    Annotation,
    Function,
    Module,
    attributes_of_control,
    check,
    deduce_control,
    parse_module,
)
from relax_eg.ir.parser import Script, parse_scripts
from relax_eg.ops.data_dependent import ROUTINES, deduce_routine
from relax_eg.ops.record import attributes_of, deduce, get
from relax_eg.ops.shorthand import expand_short_forms
from relax_eg.ops.upstream import OWN_FUNCTIONS, UPSTREAM

_ROUTINES = {r.name: r.library_name for r in ROUTINES.values()}

FUNCTIONS = {**OWN_FUNCTIONS, **UPSTREAM}


@accepts(text=TEXT)
def parse(text: str) -> Module:
    """Returns the module that Relax text describes; the inverse of `str(module)`.

    Annotations may be left out where the operators determine them. Raises ModuleTextError, with the line, for text that
    cannot be read, for operands that an operator does not accept, and for a declared annotation that does not follow.
    Raises WellFormedError for a module that breaks a rule of the IR.
    """
    module = parse_module(text, _deduce, _ROUTINES, FUNCTIONS)
    check(module)
    return module


def read_scripts(scripts: Sequence[Script]) -> tuple[Function, ...]:
    """Returns the functions that scripts describe, which may call one another, and the functions for their `if`s.
    Raises what `parse` does, apart from WellFormedError: whoever builds the module checks it."""
    return parse_scripts(scripts, _deduce, _ROUTINES, FUNCTIONS)


def _deduce(name: str, operands: tuple[Annotation, ...], given: Mapping[str, Any]) -> tuple[dict[str, Any], Annotation]:
    if name in ROUTINES:
        return deduce_routine(name, operands, given)
    if name in CONTROL:
        attrs = attributes_of_control(name, given)
        return attrs, deduce_control(name, operands, attrs)
    attrs = attributes_of(get(name), expand_short_forms(name, operands, given))
    return attrs, deduce(name, operands, attrs)
