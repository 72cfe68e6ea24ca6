"""Known identities of tensor programs, by family: `IDENTITIES` has them all.

They are written from general knowledge of what simplifiers of compilers and collections of matrix identities state.
Each is equal over the reals (integers: modulo 2 ** width), for all arguments that have its facts, up to rounding and
overflow. An index may be out of range; both sides then agree on what is read.
"""

from benchmarks.known_identities.arrays import INDICES, MOVEMENT, REDUCTIONS
from benchmarks.known_identities.elementwise import INTEGERS, POWERS, SELECTS
from benchmarks.known_identities.identity import SIZES, SMALL_SIZES, Identity
from benchmarks.known_identities.linear import PRODUCTS, SUMS, SYSTEMS

IDENTITIES = (*PRODUCTS, *SUMS, *REDUCTIONS, *POWERS, *SELECTS, *MOVEMENT, *INDICES, *SYSTEMS, *INTEGERS)
FAMILIES = tuple(dict.fromkeys(i.family for i in IDENTITIES))

__all__ = ["FAMILIES", "IDENTITIES", "SIZES", "SMALL_SIZES", "Identity"]
