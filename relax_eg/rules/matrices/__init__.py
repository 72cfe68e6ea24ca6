"""Linear algebra as sums of products in which factors cancel.

`lifting` writes solutions of systems as products with inverses, which are variables. `relations` reads such products
over index letters and removes the factors that cancel: a matrix and its inverse, orthogonal matrices, the factors of a
factorisation. `lowering` writes products with inverses as solutions again.
"""

from __future__ import annotations
