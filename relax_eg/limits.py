"""How much of something is accepted from a text, a file or a caller, each with its unit and reason.

What takes a machine more than seconds, though it is short to write down, is refused, and the error says the limit.
"""

from __future__ import annotations

# --- data that was read ---

JSON_DEPTH = 100
"""Lists and objects inside one another. What is read is walked by functions that call themselves: ten frames a level
is the most that any of them takes, and Python has a thousand."""

JSON_DIGITS = 100
"""Digits of an integer. What has more is no size, count or price, and no float holds integers of 310."""

VERSION_DIGITS = 9
"""Digits of a version's number: files that ever were written have one."""

SIZE_DIGITS = 18
"""Digits of a size or a number of bytes in a command or in the environment; 64 bits hold all of these."""

# --- sizes ---

INTEGER_DIGITS = 4000
"""Digits of an integer in an expression of sizes; Python reads and prints no more than 4300."""

SIZE_BITS = 1 << 18
"""Bits of an integer in a size: products of two such are formed in a millisecond."""

PRINTED_BITS = 14_200
"""Bits of an integer in a size that is printed, 4,270 digits; Python prints no more than 4300."""

EXPRESSION_PARTS = 1000
"""Names, numbers and operations in one expression of sizes: a sum of 500 names. Adding one term looks at all others."""

SIZE_PARTS = 10_000
"""Names, numbers and operations that a size stands for, those that it shares counted as often as they stand there.
`n%a%b%c` is three of them for one `%` more: `x%m` is `x - m*(x//m)`. Looking for a proof takes 100 us for each."""

STATEMENT_CHARACTERS = 50_000
"""Characters of a statement about sizes, or of a guard: a thousand comparisons, of which each is looked at alone."""

POWER = 16
"""Exponent of a power of a size, which is multiplied out."""

PRODUCTS = 20_000
"""Products of two terms when sizes are multiplied: 0.1 s, as in `(a + b + ... + t)**4` of 20 names."""

EXTREMES = 32
"""Operands of a max or min that are compared pair by pair where cases are looked at; of more, none is dropped."""

TRACED_EXTREMES = 8
"""Operands of max and min in one size that JAX traces: deciding a max, JAX bounds each operand for each order of the
others, which takes twice as long for one more (0.2 s for 8, 3 s for 12, minutes for 16)."""

# --- values of programs ---

RANK = 64
"""Axes of an array: numpy's own limit."""

FIELDS = 1 << 16
"""Tensors in one tuple, those of tuples inside counted as often as they stand there: forty lines, of which each is a
tuple of the one before twice, stand for 10**12."""

NESTED = 100
"""Tuples and functions inside one another in an annotation, which functions that call themselves walk."""

PARTS = 1 << 16
"""Pieces that one operator splits an array into; each is a result."""

CALLS = 4_000
"""Calls that a module makes when each is followed into the function it calls: what a call costs is added up so. Twenty
functions, of which each calls the one before twice, make 10**6. Pricing them takes a millisecond each."""

CALL_DEPTH = 100
"""Functions that call one another in a row. Prices and lowering follow a call on Python's own stack, where 160 fit."""
