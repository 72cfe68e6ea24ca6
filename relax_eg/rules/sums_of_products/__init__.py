"""Sums of products in one normal form: what is the same mathematics has the same terms, however it is spelled.

A *region* is an expression over *leaves* whose index equations add and multiply elements of the leaves (`region`). The
normal form that the formal prover computes of a region is read as a sum of products over index letters (`letters`).
`plan` chooses which factors are taken out and in which order tensors are contracted, and `emit` writes a plan with the
operators that devices are fast at. Each proposal is proved equal to the region (`verify_formal.prove.why_not_equal`).

The way of SPORES (Wang et al., VLDB 2020), over index equations in place of relational algebra.
"""
