"""Reductions by their laws: what comes out of a sum, product, maximum, minimum, `any` or `all` over any axes.

- `forms`: values as a scale times a core plus shifts, where scales and shifts are constant along axes.
- `reading`: the forms of expressions, through pointwise operators and reductions.
- `proofs`: the lemmas of which such a form is made, each proved.
"""
