"""Operators are asked about through their records, not by name: a name stands where the operator is declared, where a
frontend reads it, in rules, and in a few files that are listed here with the reason."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from relax_eg.dynamic.special import BEHAVIOURS
from relax_eg.ops.record import TABLE
from relax_eg.tir.functions import FUNCTIONS
from tests.sources import nodes

# What declares operators, reads them from other languages, and states equations between them.
FREE = ("ops/", "frontends/", "rules/book/")
MOST_FILES = 4  # in which an operator's name stands, beside those of `LISTED`, rules, tests and documents
# Scalar functions and reductions of tensor programs have names of their own, which operators share.
SCALARS = frozenset(FUNCTIONS) | {"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"}
# Words that mean something else there: modes, layouts, options, keywords.
OTHER_WORDS = {
    "after",
    "clip",
    "where",
    "split",
    "random_bits",
    "random_seed",
    "reduce_and",
    "reduce_or",
    "reduce_xor",
    "one_hot",
}
LISTED = {
    "rules/windows/forms.py": "what repeats elements",
    "backend/lowering/convolutions.py": "kernels of a record: conv",
    "backend/gpu/hlo.py": "operations of HLO",
    "driver/compiled_rules.py": "arguments of compiled rules",
    "driver/quantizing/layers.py": "kernels of a record whose weights have codes",
    "driver/units.py": "kernels of a record: conv",
    "dynamic/softmax.py": "idioms: programs of several operators",
    "egraph/dump.py": "makes a slice",
    "egraph/facts.py": "operators that most programs have",
    "extract/costs/operator_cost.py": "kernels of a record: matmul, linear, conv",
    "extract/profiles/devices.py": "rates measured by operator, as profiles on file have them",
    "extract/profiles/kinds.py": "kernels of a record: conv",
    "extract/fusions/gpu.py": "kernels of a record; what XLA fuses",
    "extract/fusions/gpu_further.py": "what XLA makes of an operator",
    "extract/fusions/gpu_operators.py": "kernels of a record; what XLA fuses",
    "extract/fusions/cpu.py": "kernels of a record; what XLA fuses",
    "extract/fusions/seconds.py": "kernels of a record; what XLA stores",
    "extract/fusions/operators.py": "kernels of a record; what XLA makes of an operator",
    "extract/least_memory.py": "what XLA may leave out",
    "extract/costs/implied_matmuls.py": "kernels of a record: matmul, linear; what repeats elements",
    "ir/devices.py": "a room below the table: what places a value on a mesh",
    "ir/expr.py": "Python's operators and methods",
    "ir/partition.py": "a room below the table: views that stay with their reader",
    "ir/python_syntax.py": "Python's operators and methods",
    "ir/values.py": "Python's operators",
    "ir/vm_builtins.py": "functions of Relax's virtual machine",
    "measure/figures.py": "programs whose times calibrate a profile",
    "measure/quick.py": "a program that is measured",
    "measure/fits.py": "rates measured by operator, as profiles on file have them",
    "meshes/emit.py": "transposes that a matmul by pieces makes itself",
    "memory/pinned.py": "kernels of a record: matmul, conv",
    "memory/steps.py": "a workspace is a value without content",
    "rules/rule.py": "what JAX traces of a filled tensor",
    "rules/checking/schema_trials.py": "programs that test schemas",
    "rules/checking/value_trials.py": "programs that test schemas",
    "rules/pieces/fission.py": "places and constants made where they are read",
    "rules/pieces/regions.py": "attributes that are shapes; places that a loop makes where they are read",
    "rules/pieces/online.py": "a theory: sums that follow a maximum, which may be not finite",
    "rules/checking/piece_trials.py": "programs that test schemas",
    "rules/windows/channels_last.py": "a theory: layouts of convolutions",
    "rules/format.py": "notation of operators in a rule's line",
    "discovery/laws.py": "notation of operators in the text of a rule",
    "discovery/typings.py": "what is about the last axes, and what joins and cuts",
    "discovery/grammar.py": "attributes of slices, which are chosen together",
    "driver/laws/grammars.py": "operators that terms may have besides those of a fragment",
    "driver/laws/tables.py": "operators that terms of elements have",
    "rules/signature.py": "notation of operators in a message",
    "rules/matrices/determinants.py": "a theory: determinants by LU factors",
    "rules/matrices/lifting.py": "a theory: solutions of systems",
    "rules/matrices/lowering.py": "writes solutions of systems",
    "rules/matrices/relations.py": "a theory: the laws of factorisations",
    "rules/sums_of_products/accesses.py": "writes a gather",
    "rules/sums_of_products/emit.py": "writes a scatter",
    "rules/sums_of_products/region.py": "what is the same number in every element; convolutions",
    "rules/verify_formal/accuracy.py": "kernels of a record: matmul",
    "rules/verify_formal/compose.py": "the place of the one in a one-hot row",
}


@cache
def named() -> dict[str, frozenset[str]]:
    """The operators whose names are texts of a file, or all words of a text, by file."""
    return {
        file: frozenset(
            word
            for n in of_file
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and TABLE.keys() >= {*n.value.split()}
            for word in n.value.split()
        )
        for file, of_file in nodes().items()
    }


def test_no_other_file_asks_for_an_operator_by_name() -> None:
    found: dict[str, list[str]] = {}
    for name, operators in named().items():
        words = operators - SCALARS - OTHER_WORDS
        if words and name not in LISTED and not name.startswith((*FREE, "tir/", "shapes/")):
            found[name] = sorted(words)
    assert not found, "ask the operator's record (relax_eg.ops.record.Operator) instead"


def test_every_listed_file_is_there() -> None:
    assert LISTED.keys() <= nodes().keys()


@pytest.mark.parametrize("name", ["ormqr", "cholesky_update", "tridiagonal_solve", "schur", "eig"])
def test_an_operator_touches_few_files(name: str) -> None:
    touched = [file for file, operators in named().items() if file not in LISTED and name in operators]
    assert 1 <= len(touched) <= MOST_FILES, touched


def test_every_way_to_run_at_capacity_is_used() -> None:
    assert {o.capacity for o in TABLE.values()} - {""} == BEHAVIOURS.keys()
