"""Uses of the operators over windows, at computed positions, and of the library routines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from ops_use import ANY, N, Use


def _conv(x: str, w: str, **attrs: Any) -> Use:
    rank = len(x.split()) - 2
    default = {
        "strides": (1,) * rank, "low": (0,) * rank, "high": (0,) * rank, "dilation": (1,) * rank,
        "input_dilation": (1,) * rank,
    }  # fmt: skip
    return Use((x, w), default | attrs, {"n": (0, 3), "h": (3, 7), "c": (0, 3), "o": (0, 3)}, -2, 2)


def _window(x: str, window: tuple[Any, ...], kind: str, **attrs: Any) -> Use:
    rank = len(window)
    default = {
        "kind": kind, "window": window, "strides": (1,) * rank, "low": (0,) * rank, "high": (0,) * rank,
        "dilation": (1,) * rank, "input_dilation": (1,) * rank,
    }  # fmt: skip
    return Use((x,), default | attrs, {"n": (0, 3), "h": (3, 7)}, -2, 2)


def definite(arrays: list[Any]) -> list[Any]:
    a = arrays[0]
    eye = 2 * np.eye(a.shape[-1], dtype=a.dtype)
    return [(a @ a.conj().swapaxes(-1, -2) + eye).astype(a.dtype), *arrays[1:]]


def factored_matrix(arrays: list[Any]) -> list[Any]:
    """A matrix and its Cholesky factor."""
    (a,) = definite(arrays[2:])
    return [np.linalg.cholesky(a), arrays[1], a]


def unfactored_matrix(arrays: list[Any]) -> list[Any]:
    """A symmetric matrix that has no Cholesky factor, and is easily inverted."""
    (a,) = dominant(arrays[2:])
    signs = np.where(np.arange(len(a)) == 0, -1, 1)
    a = (signs[:, None] * signs * (a + a.T) / 2 - 7 * np.diag(signs < 0)).astype(a.dtype)
    return [np.tril(np.full_like(a, np.nan)), arrays[1], a]


def dominant(arrays: list[Any]) -> list[Any]:
    """A matrix whose triangles are easily inverted."""
    a = arrays[0]
    return [(a / 4 + 3 * np.eye(a.shape[-1])).astype(a.dtype), *arrays[1:]]


def separated(arrays: list[Any]) -> list[Any]:
    """A matrix whose eigenvalues are far apart."""
    a = arrays[0]
    return [(a / 4 + 3 * np.diag(np.arange(a.shape[-1]))).astype(a.dtype)]


def _rotation(arrays: list[Any]) -> list[Any]:
    return [np.array([[0, -1], [1, 0]], arrays[0].dtype)]


def diagonals(arrays: list[Any]) -> list[Any]:
    lower, diagonal, upper, b = arrays
    return [lower / 4, (4 + diagonal / 4).astype(diagonal.dtype), upper / 4, b]


def factored(arrays: list[Any]) -> list[Any]:
    a, w = definite(arrays)
    return [np.linalg.cholesky(a).T.astype(a.dtype) if a.size else a, w]


def _phases(vectors: Any) -> Any:
    """The phase of the largest component of each column."""
    if not vectors.size:
        return np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]))
    at = np.abs(vectors).argmax(-2)[..., None, :]
    largest = np.take_along_axis(vectors, at, -2)
    return largest / np.abs(largest)


def _turned(vectors: Any) -> Any:
    """Eigenvectors, which are right in any phase, with the largest component of each real and positive."""
    return np.asarray(vectors) / _phases(np.asarray(vectors))


def eigenvectors_first(results: list[Any]) -> list[Any]:
    return [_turned(results[0]), *results[1:]]


def eigenvectors_last(results: list[Any]) -> list[Any]:
    return [results[0], *map(_turned, results[1:])]


def singular_vectors(results: list[Any]) -> list[Any]:
    """Those that belong to a singular value, turned together; those of no value are any that complete them."""
    if len(results) == 1:
        return results
    s, u, vt = map(np.asarray, results)
    k = s.shape[-1]
    phases = _phases(u[..., :k])
    return [s, u[..., :k] / phases, vt[..., :k, :] * phases.swapaxes(-1, -2)]


def magnitudes(results: list[Any]) -> list[Any]:
    """Schur vectors are right in any phase."""
    return [np.abs(np.asarray(r)) for r in results]


def whole_orders(arrays: list[Any]) -> list[Any]:
    """The first operand, the order of a derivative, as integers."""
    return [np.round(arrays[0].astype(np.float32)).astype(arrays[0].dtype), *arrays[1:]]


# XLA's own series stop earlier than scipy's: in float64 at about 1e-9.
SERIES = 100.0


def library_uses() -> dict[str, list[Use]]:
    uses: dict[str, list[Use]] = {}
    uses["conv"] = [
        _conv("n c h 6", "o c 3 2", low=(1, 0), high=(1, 1)),
        _conv("n 4 h", "6 2 3", strides=(2,), low=(1,), high=(2,), groups=2),
        _conv("2 c h 5", "3 c 2 2", dilation=(2, 1), input_dilation=(1, 3), low=(0, -1), high=(1, 2)),
        _conv("2 3", "4 3", precision="highest"),
        _conv("1 2 h 4 3", "2 1 1 3 1", groups=2, low=("h", 0, 1), high=(0, 0, 0), strides=(3, 1, 2)),
        _conv("2 3 4", "2 3 7"),
        Use(("2 3 4 @bfloat16", "2 3 2 @bfloat16"), _conv("2 3 4", "2 3 2").attrs | {"out_dtype": "float32"}),
    ]
    uses["reduce_window"] = [
        _window("n h 4", (1, 2, 2), "max", strides=(1, 2, 2), high=(0, 1, 0)),
        _window("n h", (1, 3), "sum", strides=(1, 2), low=(0, 1), high=(0, 1)),
        _window("h 5", (2, 2), "min", dilation=(2, 1), low=(-1, 1)),
        _window("h 3", ("h", 1), "sum"),
        _window("n 3", (1, 2), "prod", input_dilation=(1, 2)),
        _window("3", (5,), "max"),
        *(replace(_window("n 4 @int16", (1, 2), kind, low=(0, 1)), low=-99, high=99) for kind in ("or", "and", "xor")),
        _window("n 4 @bool", (1, 2), "xor"),
        _window("5 @uint8", (2,), "and", high=(1,)),
    ]
    plain = ("kind", "window", "strides", "low", "high")
    uses["window_scatter"] = [
        Use((source, use.operands[0]), {k: use.attrs[k] for k in plain}, use.sizes)
        for source, use in [
            ("n h//2 2", _window("n 2*(h//2) 4", (1, 2, 2), "max", strides=(1, 2, 2))),
            ("n h", _window("n h", (1, 3), "min", low=(0, 1), high=(0, 1))),
        ]
    ]
    uses["window_gather"] = [
        Use((use.operands[0], use.operands[0]), {k: use.attrs[k] for k in plain}, use.sizes)
        for use in [
            _window("n h 4", (1, 2, 2), "max", strides=(1, 2, 2)),
            _window("n h", (1, 3), "min", low=(0, 1), high=(0, 1)),
        ]
    ]
    at = {"n": (4, 6), "m": (3, 5)}
    uses["dynamic_slice"] = [
        Use(("n m", "@int32", "@int32"), {"sizes": (2, 3)}, at, -4, 8),
        Use(("n", "@uint8"), {"sizes": ("n - 1",)}, at, 0, 8), Use(("",), {"sizes": ()}),
        Use(("n 3", "@int32", "@int32"), {"sizes": ("n", 0)}, at),
    ]  # fmt: skip
    uses["dynamic_update_slice"] = [
        Use(("n m", "2 3", "@int32", "@int32"), {}, at, -4, 8), Use(("n", "n", "@int32"), {}, at, -4, 8),
        Use(("n 3", "2 0", "@int32", "@int32"), {}, at), Use(("", ""),),
    ]  # fmt: skip
    batched = {"operand_batching_dims": (0,), "start_indices_batching_dims": (0,)}
    uses["gather"] = [
        Use((x, i), {"slice_sizes": sizes, "mode": mode} | numbers, at, -2, 7)
        for x, i, sizes, mode, numbers in [
            ("n m 2", "3 2 @int32", (1, 2, 2), "fill",
             {"offset_dims": (0, 2), "collapsed_slice_dims": (0,), "start_index_map": (0, 1)}),
            ("n m", "n 3 1 @int32", (1, 1), "clip",
             {"collapsed_slice_dims": (1,), "start_index_map": (1,)} | batched),
            ("n m", "2 @int32", (2, "m - 1"), "clip", {"offset_dims": (0, 1), "start_index_map": (1, 0)}),
            ("n m", "4 2 @int32", (1, 1), "fill",
             {"collapsed_slice_dims": (0, 1), "start_index_map": (0, 1), "fill_value": 1}),
            ("n 2", "0 1 @int32", (1, 2), "promise",
             {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,)}),
        ]
    ]  # fmt: skip
    rows = {"update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,)}
    points = {"inserted_window_dims": (0, 1), "scatter_dims_to_operand_dims": (1, 0)}
    block = {"update_window_dims": (0, 1), "scatter_dims_to_operand_dims": (0, 1)}
    rest = {
        "inserted_window_dims": (1,), "scatter_dims_to_operand_dims": (1,), "operand_batching_dims": (0,),
        "scatter_indices_batching_dims": (0,),
    }  # fmt: skip
    uses["scatter"] = [
        Use((x, i, u), {"kind": kind, "mode": mode} | numbers, at, -2, 7)
        for x, i, u, kind, mode, numbers in [
            ("n m", "3 1 @int32", "3 m", "add", "fill", rows), ("n m", "3 1 @int32", "3 2", "set", "fill", rows),
            ("n m", "4 2 @int32", "4", "max", "clip", points), ("n m", "4 2 @int32", "4", "min", "fill", points),
            ("n m", "2 @int32", "2 m-1", "multiply", "clip", block),
            ("n m", "n 2 1 @int32", "n 2", "add", "fill", rest), ("n m", "0 1 @int32", "0 m", "set", "promise", rows),
        ]
    ]  # fmt: skip
    sizes = {"n": (0, 5), "m": (1, 5)}
    uses["sort"] = [
        Use(("n m",), {"axis": 0}, sizes), Use(("n m", "n m @int32"), {"axis": 1, "stable": True}, sizes),
        Use(("n @int32", "n @bool", "n @float16"), {"axis": 0, "num_keys": 2}, sizes, -1, 1),
        Use(("n m",), {"axis": 1, "stable": False}, sizes), Use(("n @complex64",), {"axis": 0}, sizes, special=True),
    ]  # fmt: skip
    uses["top_k"] = [
        Use(("n m",), {"k": (1,), "axis": 1}, sizes), Use(("n m @int32",), {"k": ("m",), "axis": 1}, sizes, -1, 1),
        Use(("3 m",), {"k": (2,), "axis": 0}, sizes), Use(("n 3",), {"k": (0,), "axis": 1}, sizes),
    ]  # fmt: skip
    uses["approx_top_k"] = [
        Use(("n m",), {"k": (1,), "axis": 1}, sizes), Use(("3 m",), {"k": (2,), "axis": 0, "largest": False}, sizes),
        Use(("n 4",), {"k": (4,), "axis": 1, "recall": 0.5}, sizes),
    ]  # fmt: skip
    square = {"n": (0, 4), "b": (0, 3)}
    uses["cholesky"] = [
        Use(("n n",), {}, square, prepare=definite), Use(("b 3 3",), {}, square, prepare=definite),
        Use(("n n @complex64",), {}, square, prepare=definite),
    ]  # fmt: skip
    uses["triangular_solve"] = [
        Use((a, b), dict.fromkeys(on.split(), True), square, prepare=dominant)
        for a, b, on in [
            ("n n", "n 2", "left_side lower"), ("n n", "3 n", ""), ("b 3 3", "b 3 2", "left_side transpose_a"),
            ("n n", "2 n", "lower transpose_a unit_diagonal"),
            ("n n @complex64", "n 1 @complex64", "left_side transpose_a conjugate_a"),
        ]
    ]  # fmt: skip
    uses["definite_solve"] = [
        Use((a, b, a), {}, square, prepare=prepare)
        for a, b, prepare in [
            ("n n", "n 2", factored_matrix), ("3 3", "3 2", factored_matrix), ("n n", "n 1", unfactored_matrix),
        ]
    ]  # fmt: skip
    uses["lu"] = [Use((a,), {}, square) for a in ("n n", "b 4 2", "n 3", "n n @complex64")]
    uses["qr"] = [
        Use((a,), {"full_matrices": full, "pivoting": pivoting}, square)
        for a, full, pivoting in [
            ("n n", False, False), ("b 4 2", False, False), ("4 2", True, False), ("2 n", False, False),
            ("3 3 @complex64", False, False), ("n n", False, True), ("b 4 2", True, True), ("2 n", True, True),
        ]
    ]  # fmt: skip
    uses["eigh"] = [
        Use((a,), {"lower": lower}, square, prepare=definite, settle=eigenvectors_first)
        for a, lower in [("n n", True), ("b 3 3", True), ("n n", False)]
    ]
    uses["svd"] = [
        Use((a,), {"full_matrices": full, "compute_uv": uv}, square, settle=singular_vectors)
        for a, full, uv in [("n n", False, True), ("b 4 2", False, True), ("n n", True, False), ("2 4", True, True)]
    ] + [Use(("3 2",), {"algorithm": "qr"}, square, settle=singular_vectors)]
    some = {"n": (1, 4), "b": (0, 3)}
    uses["eig"] = [
        Use((a,), {"left": left, "right": right}, square, prepare=separated, settle=eigenvectors_last, looser=20)
        for a, left, right in [("n n", False, True), ("b 3 3", True, True), ("n n", False, False), ("3 3", True, False)]
    ] + [
        Use(("4 4 @complex64",), {}, prepare=separated, settle=eigenvectors_last, looser=20),
        Use(("2 2",), {}, prepare=_rotation, settle=eigenvectors_last),
    ]
    uses["schur"] = [
        Use((a,), {"vectors": vectors}, square, prepare=separated, settle=magnitudes, looser=20)
        for a, vectors in [("n n", True), ("b 3 3", False), ("3 3 @complex64", True)]
    ]
    uses["hessenberg"] = [Use((a,), {}, some, looser=20) for a in ("n n", "b 3 3", "3 3 @complex64")]
    uses["tridiagonal"] = [
        Use((a,), {"lower": lower}, some, prepare=definite, looser=20)
        for a, lower in [("n n", True), ("b 3 3", False), ("3 3 @complex64", True)]
    ]
    uses["geqrf"] = [Use((a,), {}, square, looser=20) for a in ("n n", "b 4 2", "2 n", "3 3 @complex64")]
    uses["householder_product"] = [
        Use(pair, {}, square)
        for pair in [("n n", "n"), ("b 4 2", "b 2"), ("4 3", "2"), ("3 3 @complex64", "2 @complex64")]
    ]
    uses["ormqr"] = [
        Use(specs, {"left": left, "transpose": transpose}, square, looser=20)
        for specs, left, transpose in [
            (("n n", "n", "n 2"), True, False),
            (("b 4 2", "b 2", "b 4 3"), True, True),
            (("4 3", "2", "n 4"), False, False),
            (("3 3 @complex64", "2 @complex64", "2 3 @complex64"), False, True),
        ]
    ]
    uses["tridiagonal_solve"] = [
        Use(specs, {}, square, prepare=diagonals)
        for specs in [("n", "n", "n", "n 2"), ("b 3", "b 3", "b 3", "b 3 n"), ("4", "4", "4", "4 1")]
    ]
    uses["cholesky_update"] = [Use(("n n", "n"), {}, square, prepare=factored), Use(("3 3", "3"), prepare=factored)]
    uses["lu_pivots_to_permutation"] = [
        Use((a,), {"size": (size,)}, some, 2, 3)
        for a, size in [("n @int32", "n+4"), ("b 2 @int32", 4), ("0 @int32", 3)]
    ]
    uses["fft"] = [
        Use((x,), {"kind": kind, "lengths": lengths}, square)
        for x, kind, lengths in [
            ("b n+1", "rfft", ("n+1",)),
            ("n+1 4 @complex64", "fft", ("n+1", 4)),
            ("b 6 @complex64", "ifft", (6,)),
            ("b 4 @complex64", "irfft", (6,)),
        ]
    ]
    uses["complex"] = [Use(("n 3", "n 3"), {}, ANY), Use(("n 1", ""), {}, ANY)]
    for name in ("real", "imag", "conj"):
        uses[name] = [Use(("n 3 @complex64",), {}, ANY), Use(("@complex64",))]
    for name in ("population_count", "count_leading_zeros"):
        uses[name] = [Use(("n 3",), {}, ANY, -100, 100), Use(("@uint32",), {}, {}, 0, 9)]
    uses["right_shift_logical"] = [Use(("n 3", "3"), {}, ANY, 0, 40), Use(("n 3", ""), {}, ANY, -5, 9)]
    for name in ("lgamma", "digamma", "bessel_i0e", "bessel_i1e"):
        uses[name] = [Use(("n 3",), {}, ANY, 0.3, 4), Use(("",), {}, {}, 0.3, 4)]
    for name in ("igamma", "igammac", "igamma_grad_a"):
        uses[name] = [Use(("n 3", "n 1"), {}, ANY, 0.3, 4, looser=SERIES)]
    uses["zeta"] = [Use(("n 3", "n 3"), {}, ANY, 1.5, 4, looser=SERIES), Use(("", "n"), {}, ANY, 1.5, 4, looser=SERIES)]
    uses["polygamma"] = [Use(("n 3", "n 3"), {}, ANY, 1, 3, prepare=whole_orders, looser=SERIES)]
    uses["betainc"] = [Use(("n 3", "n 1", ""), {}, ANY, 0.2, 0.8, looser=SERIES)]
    uses["nextafter"] = [Use(("n 3", "n 3"), {}, ANY), Use(("n 1", "m"), {}, ANY), Use(("9", "9"), special=True)]
    for name in ("less_total", "less_equal_total", "equal_total"):
        uses[name] = [Use(("n 3", "n 3"), {}, ANY), Use(("12", "12"), special=True), Use(("n 1", ""), {}, ANY)]
    uses["reduce_precision"] = [
        Use(("n 3",), {"exponent_bits": e, "mantissa_bits": m}, ANY)
        for e, m in [(8, 7), (8, 23), (11, 52), (4, 3), (5, 10), (1, 0)]
    ] + [Use(("40",), {"exponent_bits": 5, "mantissa_bits": 2}, {}, -1e5, 1e5)]
    uses["bitcast"] = [
        Use((x,), {"dtype": dtype}, ANY)
        for x, dtype in [
            ("n 2 @float32", "int32"),
            ("n 2 @int32", "float32"),
            ("n 2 @uint16", "uint32"),
            ("@float32", "uint8"),
            ("n @bfloat16", "int16"),
        ]
    ]
    key = "key<fry>"
    uses["random_seed"] = [
        Use(("n 3",), {"impl": impl}, ANY, -100, 100) for impl in ("threefry2x32", "rbg", "unsafe_rbg")
    ] + [Use(("@uint32",)), Use(("4",), special=True)]
    uses["random_wrap"] = [
        Use((x,), {"impl": impl}, ANY, 0, 1e6)
        for x, impl in [("n 2 @uint32", "threefry2x32"), ("m n 4 @uint32", "rbg"), ("4 @uint32", "unsafe_rbg")]
    ]
    uses["random_unwrap"] = [Use((x,), {}, ANY) for x in (f"n 3 @{key}", f"@{key}", "n @key<rbg>", "2 @key<urbg>")]
    uses["random_fold_in"] = [
        Use(pair, {}, ANY, 0, 1e4)
        for pair in [
            (f"@{key}", "@uint32"), (f"n @{key}", "n @uint32"), (f"@{key}", "n 3 @uint32"), (f"n 1 @{key}", "m @int32"),
            ("n @key<rbg>", "n @uint32"), ("@key<urbg>", "@uint32"), ("2 @key<urbg>", "2 @uint32"),
        ]
    ]  # fmt: skip
    uses["random_split"] = [
        Use((x,), {"shape": shape}, N)
        for x, shape in [
            (f"@{key}", ("n",)), (f"n @{key}", (2, "m")), (f"@{key}", ()), ("n @key<rbg>", (3,)),
            ("@key<urbg>", ("n",)), ("2 @key<urbg>", (2, 2)),
        ]
    ]  # fmt: skip
    uses["random_bits"] = [
        Use((x,), {"shape": shape, "bit_width": width}, ANY)
        for x, shape, width in [
            (f"@{key}", ("n", 3), 32), (f"n @{key}", ("m",), 8), (f"@{key}", (), 16), (f"2 n @{key}", (5,), 64),
            ("@key<rbg>", ("n", 3), 32), ("2 @key<rbg>", ("m",), 8), ("@key<urbg>", (7,), 16), ("@key<rbg>", (5,), 64),
        ]
    ]  # fmt: skip
    uses["random_gamma"] = [
        Use((x, a), {"log_space": log}, N, 0.2, 5, looser=20)
        for x, a, log in [(f"@{key}", "n 2", True), (f"n @{key}", "n m", False), ("@key<rbg>", "", True)]
    ]
    uses["threefry2x32"] = [
        Use(tuple(f"{x} @uint32" for x in xs), {}, ANY, 0, 1e6)
        for xs in [("n 3",) * 4, ("", "", "n", "n"), ("n 1", "n 1", "m", "m")]
    ]
    uses["rng_bit_generator"] = [
        Use((x,), {"shape": shape, "dtype": dtype, "algorithm": which}, ANY, 0, 1e6)
        for x, shape, dtype, which in [
            ("4 @uint32", ("n", 3), "uint32", "default"), ("4 @uint32", (5,), "uint8", "philox"),
            ("2 @uint64", ("n", 2), "uint64", "philox"), ("4 @uint32", (), "uint16", "default"),
            ("4 @uint32", ("n",), "uint32", "three_fry"),
        ]
    ]  # fmt: skip
    return uses
