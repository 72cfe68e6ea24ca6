"""Limits on input from a text, a file or a caller, each with its unit and reason.

Input that is short to write down but takes a machine more than seconds is refused, and the error states the limit.
"""

from __future__ import annotations

# --- data that was read ---

# limit: nesting depth of lists and objects. Recursive functions walk the data: each takes at most ten frames a level,
# and Python allows a thousand.
JSON_DEPTH = 100

# limit: digits of an integer. No size, count or price has more, and no float holds integers of 310 digits.
JSON_DIGITS = 100

# limit: digits of a version number; all files written so far have one digit.
VERSION_DIGITS = 9

# limit: digits of a size or a number of bytes in a command or in the environment; 64 bits hold every such number.
SIZE_DIGITS = 18

# --- sizes ---

# limit: digits of an integer in a size expression; Python reads and prints at most 4300.
INTEGER_DIGITS = 4000

# limit: bits of an integer in a size; the product of two such integers takes a millisecond.
SIZE_BITS = 1 << 18

# limit: bits of an integer in a size that is printed, 4,270 digits; Python prints at most 4300.
PRINTED_BITS = 14_200

# limit: names, numbers and operations in one size expression: a sum of 500 names. Adding one term looks at all others.
EXPRESSION_PARTS = 1000

# limit: names, numbers and operations in an expanded size; shared parts count once per use. Each `%` in `n%a%b%c` about
# doubles the count, because `x%m` is `x - m*(x//m)`. The search for a proof takes 100 us for each.
SIZE_PARTS = 10_000

# limit: characters of a statement about sizes or of a guard: a thousand comparisons, each of which is checked alone.
STATEMENT_CHARACTERS = 50_000

# limit: exponent of a power of a size; powers are multiplied out.
POWER = 16

# limit: products of two terms when sizes are multiplied: 0.1 s, as for `(a + b + ... + t)**4` of 20 names.
PRODUCTS = 20_000

# limit: operands of a max or min that are compared pair by pair in a case analysis; if there are more, none is dropped.
EXTREMES = 32

# limit: operands of max and min in one size that JAX traces. To decide a max, JAX bounds each operand for each order of
# the others; one more operand doubles the time (0.2 s for 8, 3 s for 12, minutes for 16).
TRACED_EXTREMES = 8

# --- integers ---

# given: the largest int64; no axis is longer, and no position is larger.
LARGEST_INT64 = 2**63 - 1

# given: the largest int32; XLA stores positions and numbers of elements as int32 if they fit.
LARGEST_INT32 = 2**31 - 1

# --- values of programs ---

# limit: axes of an array; numpy's own limit.
RANK = 64

# limit: elements of an array; numpy counts the elements over all axes whose size is not 0, in a signed 64-bit integer.
ELEMENTS = 2**62

# limit: tensors in one tuple, including nested tuples; a shared tuple counts once per use. Forty lines, each a tuple of
# twice the line before, stand for 10**12 tensors.
FIELDS = 1 << 16

# limit: nesting depth of tuples and functions in an annotation, which recursive functions walk.
NESTED = 100

# limit: pieces into which one operator splits an array; each piece is a result.
PARTS = 1 << 16

# limit: calls of a module when each is followed into its callee, as pricing does. Twenty functions, each of which calls
# the one before twice, make 10**6 calls. Pricing a call takes a millisecond.
CALLS = 4_000

# limit: length of a chain of calls. Pricing and lowering follow calls on Python's own stack, which holds 160.
CALL_DEPTH = 100

# limit: calls of functions that wait for the result of another at run time; each takes about a kilobyte.
FRAMES = 1 << 20

# --- what is kept ---

# limit: answers kept for a function with few different arguments: dtypes, packages, types.
FEW_KEPT = 1 << 8

# limit: answers kept about operators, shapes and rules; a compiler run asks for a few thousand.
KEPT = 1 << 12

# limit: answers kept about single expressions and terms; each is small.
MANY_KEPT = 1 << 15
