"""How facts propagate through operators. `rules/propagation.py` describes the language. Every line is tested where it
is used: it must hold on random values that have the premises, and fail without any one of them.

Floats round, overflow and underflow: exp(-200) is 0 in float32, and so is the product of two small numbers. A line that
holds in spite of that has no mark; a line that holds over the reals only is marked `~`.
"""

from __future__ import annotations

from collections.abc import Iterator

from relax_eg.rules.propagation import FactRule, read

# Elementwise operators at any dtype. Operands broadcast as in numpy.
_POINTWISE = (
    "negative abs sign floor ceil exp exp2 expm1 log log1p sqrt rsqrt cbrt square reciprocal sin cos tan tanh sinh "
    "cosh asin acos atan asinh acosh atanh sigmoid erf erfc relu silu gelu gelu_tanh add subtract multiply divide "
    "power maximum minimum remainder round integer_pow astype where clip equal not_equal less less_equal greater "
    "greater_equal logical_not logical_and logical_or isfinite isnan"
).split()

_ANY = """
# --- what only moves elements ---
permute_dims(x): keeps positive nonnegative nonzero finite integral constant
reshape(x): keeps positive nonnegative nonzero finite integral constant
expand_dims(x): keeps positive nonnegative nonzero finite integral constant
squeeze(x): keeps positive nonnegative nonzero finite integral constant
broadcast_to(x): keeps positive nonnegative nonzero finite integral constant sorted
full(x): keeps positive nonnegative nonzero finite integral
full(x): constant
strided_slice(x): keeps positive nonnegative nonzero finite integral constant sorted
flip(x): keeps positive nonnegative nonzero finite integral constant
dynamic_slice(x, starts...): keeps positive nonnegative nonzero finite integral constant of x
take[inside](x, i): keeps positive nonnegative nonzero finite integral constant of x
concat(xs...): keeps positive nonnegative nonzero finite integral
pad(x, v): keeps positive nonnegative nonzero finite integral
sort(x): keeps positive nonnegative nonzero finite integral constant
tuple_get_item(split(x)): keeps positive nonnegative nonzero finite integral constant
tuple_get_item[0](top_k(x)): keeps positive nonnegative nonzero finite integral constant
tuple_get_item[0](sort(x, y)): keeps positive nonnegative nonzero finite integral constant of x
tuple_get_item[1](sort(x, y)): keeps positive nonnegative nonzero finite integral constant of y
where(c, x, y): keeps positive nonnegative nonzero finite integral of x, y
maximum(x, y): keeps nonzero finite integral
minimum(x, y): keeps positive nonnegative nonzero finite integral
maximum(x, y): nonnegative if nonnegative(x)
maximum(x, y): nonnegative if nonnegative(y)
maximum(x, y): positive if positive(x)
maximum(x, y): positive if positive(y)
clip(lo, x, hi): keeps finite integral nonzero
clip(lo, x, hi): keeps positive nonnegative of lo, hi
max(x): positive if positive(x), is_nonempty(x)
max(x): nonnegative if nonnegative(x), is_nonempty(x)
max(x): finite if finite(x), is_nonempty(x)
max(x): keeps nonzero integral constant
min(x): finite if finite(x), is_nonempty(x)
min(x): keeps positive nonnegative nonzero integral constant
cummax(x): keeps positive nonnegative nonzero finite integral
cummin(x): keeps positive nonnegative nonzero finite integral
negative(x): keeps nonzero finite integral
abs(x): keeps nonzero finite integral
sign(x): keeps positive nonnegative nonzero finite
sign(x): integral
relu(x): keeps positive finite integral
relu(x): nonnegative

# --- constants, and matrices that stay what they are element by element ---
pointwise(xs...): keeps constant symmetric
sum(x): keeps constant
mean(x): keeps constant
prod(x): keeps constant
add(x, c): symmetric if symmetric(x), constant(c)
add(c, x): symmetric if symmetric(x), constant(c)
multiply(x, c): symmetric if symmetric(x), constant(c)
multiply(c, x): symmetric if symmetric(x), constant(c)
divide(x, c): symmetric if symmetric(x), constant(c)
maximum(x, c): symmetric if symmetric(x), constant(c)
add(x, permute_dims[swaps](x)): symmetric
add(permute_dims[swaps](x), x): symmetric
multiply(x, permute_dims[swaps](x)): symmetric
multiply(permute_dims[swaps](x), x): symmetric
permute_dims[swaps](x): keeps symmetric diagonal
permute_dims[swaps](x): lower_triangular if upper_triangular(x)
permute_dims[swaps](x): upper_triangular if lower_triangular(x)
permute_dims[keeps_matrix](x): keeps symmetric lower_triangular upper_triangular diagonal
permute_dims[keeps_last](x): keeps sorted one_hot
negative(x): keeps lower_triangular upper_triangular diagonal
abs(x): keeps lower_triangular upper_triangular diagonal
sign(x): keeps lower_triangular upper_triangular diagonal
relu(x): keeps lower_triangular upper_triangular diagonal
add(x, y): keeps lower_triangular upper_triangular diagonal
subtract(x, y): keeps lower_triangular upper_triangular diagonal
maximum(x, y): keeps lower_triangular upper_triangular diagonal
minimum(x, y): keeps lower_triangular upper_triangular diagonal
multiply(x, y): lower_triangular if lower_triangular(x), finite(y)
multiply(x, y): lower_triangular if lower_triangular(y), finite(x)
multiply(x, y): upper_triangular if upper_triangular(x), finite(y)
multiply(x, y): upper_triangular if upper_triangular(y), finite(x)
where(c, x, y): keeps lower_triangular upper_triangular diagonal of x, y
tril(x): keeps nonnegative finite integral lower_triangular upper_triangular diagonal
triu(x): keeps nonnegative finite integral lower_triangular upper_triangular diagonal
tril[at_or_below](x): lower_triangular
triu[at_or_above](x): upper_triangular
tril[main](x): diagonal if upper_triangular(x)
triu[main](x): diagonal if lower_triangular(x)

# --- masks of triangles and of the diagonal, as jax.numpy builds them ---
equal(iota[rows](), iota[columns]()): identity_mask
equal(iota[columns](), iota[rows]()): identity_mask
equal(add(iota[rows](), z), iota[columns]()): identity_mask if z == 0
greater_equal(iota[rows](), iota[columns]()): only_lower all_below
greater_equal(add(iota[rows](), z), iota[columns]()): only_lower all_below if z == 0
greater_equal(add(iota[rows](), z), iota[columns]()): only_lower all_below if z == -1
greater(iota[rows](), iota[columns]()): only_lower all_below
where(m, x, y): lower_triangular if only_lower(m), y == 0
where(m, x, y): upper_triangular if all_below(m), x == 0
where(m, x, y): diagonal if only_diagonal(m), y == 0
astype(m): diagonal one_hot if identity_mask(m)
astype[to_float](m): positive_definite orthogonal if identity_mask(m)
astype(x): one_hot if one_hot(x)

# --- order ---
sort[last](x): sorted
cummax[last, forward](x): sorted
iota[along_last](): sorted nonnegative
iota(): nonnegative finite integral

# --- positions; jax.numpy.arange begins and steps so ---
add(z, x): nonnegative if nonnegative(x), z == 0
multiply(z, x): nonnegative if nonnegative(x), z == 1
argmax(x): nonnegative
argmin(x): nonnegative
tuple_get_item[1](top_k(x)): nonnegative
tuple_get_item[1](lu(x)): nonnegative
tuple_get_item[2](lu(x)): nonnegative

# --- more of order ---
floor(x): keeps sorted
ceil(x): keeps sorted
relu(x): keeps sorted
sign(x): keeps sorted
"""

# For floats only: integers wrap, so arithmetic does not keep their signs.
_FLOATS = """
# --- signs ---
add(x, y): keeps nonnegative
add(x, y): positive if positive(x), nonnegative(y)
add(x, y): positive if nonnegative(x), positive(y)
multiply(x, y): keeps nonnegative
~ multiply(x, y): keeps positive nonzero
multiply(x, x): nonnegative
~ multiply(x, x): positive if nonzero(x)
square(x): nonnegative
~ square(x): positive if nonzero(x)
divide(x, y): nonnegative if nonnegative(x), positive(y)
~ divide(x, y): positive if positive(x), positive(y)
~ divide(x, y): nonzero if nonzero(x)
reciprocal(x): nonnegative if positive(x)
~ reciprocal(x): positive if positive(x)
~ reciprocal(x): nonzero
integer_pow[even](x): nonnegative
integer_pow[natural](x): keeps nonnegative
integer_pow(x): nonnegative if positive(x)
~ integer_pow[even](x): positive if nonzero(x)
~ integer_pow(x): keeps positive nonzero
power(x, y): nonnegative if positive(x)
~ power(x, y): positive if positive(x)
abs(x): nonnegative
abs(x): positive if nonzero(x)
exp(x): nonnegative
~ exp(x): positive
exp2(x): nonnegative
~ exp2(x): positive
cosh(x): positive
sigmoid(x): nonnegative
~ sigmoid(x): positive
erfc(x): nonnegative
~ erfc(x): positive
softmax(x): nonnegative
~ softmax(x): positive
sqrt(x): nonnegative
sqrt(x): keeps positive nonzero
rsqrt(x): nonnegative if positive(x)
~ rsqrt(x): keeps positive
expm1(x): keeps nonnegative
~ expm1(x): keeps positive nonzero
log1p(x): keeps nonnegative
~ log1p(x): keeps positive nonzero
cbrt(x): keeps nonnegative
~ cbrt(x): keeps positive nonzero
tanh(x): keeps nonnegative
~ tanh(x): keeps positive nonzero
sinh(x): keeps nonnegative
~ sinh(x): keeps positive nonzero
asinh(x): keeps nonnegative
~ asinh(x): keeps positive nonzero
atan(x): keeps nonnegative
~ atan(x): keeps positive nonzero
erf(x): keeps nonnegative
~ erf(x): keeps positive nonzero
silu(x): keeps nonnegative
~ silu(x): keeps positive nonzero
gelu(x): keeps nonnegative
~ gelu(x): keeps positive
gelu_tanh(x): keeps nonnegative
~ gelu_tanh(x): keeps positive
floor(x): keeps nonnegative
ceil(x): keeps positive nonnegative
round(x): keeps nonnegative
sum(x): keeps nonnegative
sum(x): positive if positive(x), is_nonempty(x)
mean(x): keeps nonnegative
~ mean(x): keeps positive
prod(x): keeps nonnegative
~ prod(x): keeps positive nonzero
cumsum(x): keeps positive nonnegative
cumprod(x): keeps nonnegative
~ cumprod(x): keeps positive nonzero
matmul(x, y): keeps nonnegative
~ matmul(x, y): positive if positive(x), positive(y), is_nonempty(x)
linear(x, y): keeps nonnegative
~ linear(x, y): positive if positive(x), positive(y), is_nonempty(x)
conv(x, w): keeps nonnegative
take(x, i): keeps positive nonnegative nonzero integral of x
astype[to_float](x): keeps nonnegative integral
~ astype[to_float](x): keeps positive nonzero
astype[to_float](x): nonnegative integral finite if is_bool(x)
astype[to_wide](x): finite if is_integer(x)
~ astype[to_wide](x): keeps finite

# --- whole numbers ---
floor(x): integral
ceil(x): integral
round(x): integral
add(x, y): keeps integral
subtract(x, y): keeps integral
multiply(x, y): keeps integral
square(x): keeps integral
integer_pow[natural](x): keeps integral
sum(x): keeps integral
prod(x): keeps integral
cumsum(x): keeps integral
cumprod(x): keeps integral
matmul(x, y): keeps integral
linear(x, y): keeps integral

# --- numbers that stay finite: nothing that grows like exp, and no quotient by 0 ---
sin(x): keeps finite
cos(x): keeps finite
tanh(x): keeps finite
atan(x): keeps finite
asinh(x): keeps finite
erf(x): keeps finite
erfc(x): keeps finite
sigmoid(x): keeps finite
softmax(x): keeps finite
cbrt(x): keeps finite
floor(x): keeps finite
ceil(x): keeps finite
round(x): keeps finite
sqrt(x): finite if finite(x), nonnegative(x)
log(x): finite if finite(x), positive(x)
log1p(x): finite if finite(x), nonnegative(x)
~ add(x, y): keeps finite
~ subtract(x, y): keeps finite
~ multiply(x, y): keeps finite
~ square(x): keeps finite
~ integer_pow[natural](x): keeps finite
~ divide(x, y): finite if finite(x), finite(y), nonzero(y)
~ reciprocal(x): finite if finite(x), nonzero(x)
~ rsqrt(x): finite if finite(x), positive(x)
~ sum(x): keeps finite
~ cumsum(x): keeps finite
~ mean(x): finite if finite(x), is_nonempty(x)
~ matmul(x, y): keeps finite
~ linear(x, y): keeps finite
silu(x): keeps finite
gelu(x): keeps finite
~ gelu_tanh(x): keeps finite

# --- matrices ---
matmul(permute_dims[swaps](x), x): symmetric
matmul(x, permute_dims[swaps](x)): symmetric
linear(x, x): symmetric
~ matmul(permute_dims[swaps](x), x): positive_semidefinite
~ matmul(x, permute_dims[swaps](x)): positive_semidefinite
~ linear(x, x): positive_semidefinite
~ matmul(permute_dims[swaps](x), matmul(s, x)): keeps symmetric positive_semidefinite of s
~ matmul(matmul(permute_dims[swaps](x), s), x): keeps symmetric positive_semidefinite of s
~ matmul(x, matmul(s, permute_dims[swaps](x))): keeps symmetric positive_semidefinite of s
~ matmul(matmul(x, s), permute_dims[swaps](x)): keeps symmetric positive_semidefinite of s
~ matmul(x, x): keeps symmetric
~ matmul(x, x): positive_semidefinite if symmetric(x)
~ matmul(x, y): keeps lower_triangular upper_triangular orthogonal invertible
~ add(x, y): keeps positive_semidefinite
~ add(x, y): positive_definite if positive_definite(x), positive_semidefinite(y)
~ add(x, y): positive_definite if positive_semidefinite(x), positive_definite(y)
~ multiply(x, c): positive_semidefinite if positive_semidefinite(x), constant(c), nonnegative(c)
~ multiply(c, x): positive_semidefinite if positive_semidefinite(x), constant(c), nonnegative(c)
~ multiply(x, c): invertible if invertible(x), constant(c), nonzero(c)
~ multiply(c, x): invertible if invertible(x), constant(c), nonzero(c)
~ divide(x, c): positive_semidefinite if positive_semidefinite(x), constant(c), positive(c)
~ divide(x, c): invertible if invertible(x), constant(c), nonzero(c)
~ multiply(x, y): lower_triangular if lower_triangular(x)
~ multiply(x, y): lower_triangular if lower_triangular(y)
~ multiply(x, y): upper_triangular if upper_triangular(x)
~ multiply(x, y): upper_triangular if upper_triangular(y)
~ multiply(x, y): keeps positive_semidefinite positive_definite
~ divide(x, y): lower_triangular if lower_triangular(x), nonzero(y)
~ divide(x, y): upper_triangular if upper_triangular(x), nonzero(y)
sqrt(x): keeps lower_triangular upper_triangular diagonal
square(x): keeps lower_triangular upper_triangular diagonal
tanh(x): keeps lower_triangular upper_triangular diagonal
permute_dims[swaps](x): keeps positive_semidefinite positive_definite orthogonal invertible
permute_dims[keeps_matrix](x): keeps positive_semidefinite positive_definite orthogonal invertible
negative(x): keeps orthogonal invertible
~ where(m, x, y): positive_semidefinite if only_diagonal(m), nonnegative(x), y == 0
~ where(m, x, y): invertible if identity_mask(m), nonzero(x), y == 0
~ cholesky(x): lower_triangular invertible if positive_definite(x)
~ tuple_get_item[0](qr(x)): orthogonal
~ tuple_get_item[1](qr(x)): upper_triangular
~ tuple_get_item[1](qr(x)): invertible if invertible(x)
~ tuple_get_item[0](eigh(x)): orthogonal
~ tuple_get_item[1](eigh(x)): sorted
~ tuple_get_item[1](eigh(x)): positive if positive_definite(x)
~ tuple_get_item[1](svd(x)): orthogonal
~ tuple_get_item[2](svd(x)): orthogonal
~ tuple_get_item[0](svd(x)): nonnegative
~ tuple_get_item[0](svd(x)): positive if invertible(x)

# --- order ---
cumsum[last, forward](x): sorted if nonnegative(x)
round(x): keeps sorted
~ add(x, c): sorted if sorted(x), constant(c)
~ add(c, x): sorted if sorted(x), constant(c)
~ subtract(x, c): sorted if sorted(x), constant(c)
~ multiply(x, c): sorted if sorted(x), constant(c), nonnegative(c)
~ multiply(c, x): sorted if sorted(x), constant(c), nonnegative(c)
~ divide(x, c): sorted if sorted(x), constant(c), positive(c)
~ exp(x): keeps sorted
~ sqrt(x): sorted if sorted(x), nonnegative(x)
~ log(x): sorted if sorted(x), positive(x)
~ tanh(x): keeps sorted
~ sigmoid(x): keeps sorted
~ astype[to_float](x): keeps sorted
~ maximum(x, c): sorted if sorted(x), constant(c)
~ minimum(x, c): sorted if sorted(x), constant(c)
"""


def derivations() -> Iterator[FactRule]:
    """The lines of the table."""
    yield from read(_ANY, False, _POINTWISE)
    yield from read(_FLOATS, True)
