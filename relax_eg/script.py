"""The words of scripts beside those of the package itself, algebraic data types (`docs/language.md`) with their values
in Python, and Python functions that programs call by name.

A script is a function under `rx.function` or `rx.tensor_program`: `n = rx.script.sym_var()`.
"""

from relax_eg.frontends.script import new_ref, output, read_ref, shape, sym_var, write_ref
from relax_eg.ir import Never, Ref, TypeVar
from relax_eg.ir.data import List, Option, Tree, data_type, data_types, items_of, list_of
from relax_eg.ops.host_functions import register_function
from relax_eg.tir.script import local, workspace

__all__ = [
    "List",
    "Never",
    "Option",
    "Ref",
    "Tree",
    "TypeVar",
    "data_type",
    "data_types",
    "items_of",
    "list_of",
    "local",
    "new_ref",
    "output",
    "read_ref",
    "register_function",
    "shape",
    "sym_var",
    "workspace",
    "write_ref",
]
