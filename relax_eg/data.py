"""Algebraic data types of scripts (`docs/language.md`): three types, definitions of others, and values in Python."""

from relax_eg.ir.data import List, Option, Tree, data_type, data_types, items_of, list_of

__all__ = ["List", "Option", "Tree", "data_type", "data_types", "items_of", "list_of"]
