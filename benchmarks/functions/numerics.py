"""jax.numpy.linalg, jax.lax.linalg, jax.numpy.fft and jax.scipy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.functions.named import Functions, named


def _definite(x: Any) -> Any:
    return x @ x.mT + jnp.eye(x.shape[-1])


LINEAR: Functions = (
    named(jnp.linalg, "cond det inv matrix_norm matrix_rank norm pinv qr slogdet svd svdvals vector_norm", "4 4")
    | {
        name: (lambda x, name=name: getattr(jnp.linalg, name)(_definite(x)), ("4 4",))
        for name in "cholesky eigh eigvalsh eig eigvals".split()
    }
    | {
        "solve": (jnp.linalg.solve, ("4 4", "4 2")),
        "lstsq": (lambda a, b: jnp.linalg.lstsq(a, b)[0], ("5 3", "5")),
        "matrix_power": (lambda a: jnp.linalg.matrix_power(a, 5), ("4 4",)),
        "multi_dot": (lambda a, b: jnp.linalg.multi_dot([a, b, a]), ("4 4", "4 4")),
        "scipy.cho_solve": (
            lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(_definite(a)), b), ("4 4", "4 2"),
        ),
        "scipy.expm": (jax.scipy.linalg.expm, ("4 4",)),
        "scipy.lu": (jax.scipy.linalg.lu, ("4 4",)),
        "scipy.solve_triangular": (jax.scipy.linalg.solve_triangular, ("4 4", "4 2")),
        "qr, complete": (lambda a: jnp.linalg.qr(a, mode="complete"), ("5 3",)),
        "qr, raw": (lambda a: jnp.linalg.qr(a, mode="raw"), ("5 3",)),
        "scipy.qr, pivoting": (lambda a: jax.scipy.linalg.qr(a, pivoting=True), ("5 3",)),
        "scipy.schur": (jax.scipy.linalg.schur, ("4 4",)),
        "scipy.hessenberg": (jax.scipy.linalg.hessenberg, ("4 4",)),
        "scipy.sqrtm": (jax.scipy.linalg.sqrtm, ("4 4",)),
        "scipy.rsf2csf": (lambda a: jax.scipy.linalg.rsf2csf(*jax.scipy.linalg.schur(a)), ("4 4",)),
        "scipy.polar": (jax.scipy.linalg.polar, ("4 4",)),
        "scipy.expm_frechet": (lambda a: jax.scipy.linalg.expm_frechet(a, a), ("4 4",)),
        "scipy.eigh_tridiagonal": (
            lambda a, b: jax.scipy.linalg.eigh_tridiagonal(a, b, eigvals_only=True), ("4", "3"),
        ),
        "scipy.toeplitz": (jax.scipy.linalg.toeplitz, ("4", "4")),
        "scipy.block_diag": (lambda a: jax.scipy.linalg.block_diag(a, a), ("4 4",)),
        "lax.tridiagonal": (lambda a: lax.linalg.tridiagonal(_definite(a)), ("4 4",)),
        "lax.tridiagonal_solve": (lax.linalg.tridiagonal_solve, ("n", "n", "n", "n 2")),
        "lax.lu_pivots_to_permutation": (lambda p: lax.linalg.lu_pivots_to_permutation(p, 5), ("4 @ int32",)),
        "lax.householder_product": (lax.linalg.householder_product, ("5 3", "3")),
        "lax.cholesky_update": (lax.linalg.cholesky_update, ("4 4", "4")),
        "lax.symmetric_product": (lax.linalg.symmetric_product, ("4 3", "4 4")),
        "lax.svd, by qr": (lambda a: lax.linalg.svd(a, algorithm=lax.linalg.SvdAlgorithm.QR), ("4 4",)),
        "lax.eigh, subset": (lambda a: lax.linalg.eigh(a, subset_by_index=(0, 2)), ("4 4",)),
        "fft": (jnp.fft.fft, ("n 8",)),
        "rfftn": (jnp.fft.rfftn, ("4 4 4",)),
        "hfft": (jnp.fft.hfft, ("5 @ complex64",)),
        "ihfft": (jnp.fft.ihfft, ("8",)),
        "scipy.dctn": (jax.scipy.fft.dctn, ("8 8",)),
        "scipy.idct": (jax.scipy.fft.idct, ("8",)),
        "scipy.convolve2d": (jax.scipy.signal.convolve2d, ("5 5", "3 3")),
        "scipy.fftconvolve": (jax.scipy.signal.fftconvolve, ("8", "3")),
        "scipy.stft": (lambda x: jax.scipy.signal.stft(x, nperseg=4), ("16",)),
        "scipy.welch": (lambda x: jax.scipy.signal.welch(x, nperseg=8), ("32",)),
        "fft2": (jnp.fft.fft2, ("n 4 8",)),
        "irfft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), ("n 8",)),
        "fftshift": (jnp.fft.fftshift, ("n 8",)),
    }
)  # fmt: skip

SPECIAL: Functions = named(
    jax.scipy.special,
    """digamma entr erf erfc erfcx erfinv expit expi exp1 fresnel gamma gammaln gammasgn i0 i0e i1 i1e log_ndtr
    log_softmax logit logsumexp ndtr ndtri sici softmax spence wofz""",
    "n 4",
) | {
    "beta": (jax.scipy.special.beta, ("n", "n")),
    "bessel_jn": (lambda z: jax.scipy.special.bessel_jn(z, v=3), ("4",)),
    "betaln": (jax.scipy.special.betaln, ("n", "n")),
    "expn": (lambda x: jax.scipy.special.expn(2, x), ("n",)),
    "gammaincc": (jax.scipy.special.gammaincc, ("n", "n")),
    "gammainc, gradient": (jax.grad(lambda a, x: jax.scipy.special.gammainc(a, x).sum(), (0, 1)), ("n", "n")),
    "hyp1f1": (jax.scipy.special.hyp1f1, ("n", "n", "n")),
    "kl_div": (jax.scipy.special.kl_div, ("n", "n")),
    "rel_entr": (jax.scipy.special.rel_entr, ("n", "n")),
    "xlog1py": (jax.scipy.special.xlog1py, ("n", "n")),
    "betainc": (lambda x: jax.scipy.special.betainc(x, x, x), ("n",)),
    "gammainc": (jax.scipy.special.gammainc, ("n", "n")),
    "polygamma": (lambda x: jax.scipy.special.polygamma(1, x), ("n",)),
    "xlogy": (jax.scipy.special.xlogy, ("n", "n")),
    "zeta": (jax.scipy.special.zeta, ("n", "n")),
    "map_coordinates": (lambda x, c: jax.scipy.ndimage.map_coordinates(x, [c, c], 1), ("4 4", "n")),
    "vq": (jax.scipy.cluster.vq.vq, ("n 2", "3 2")),
}

# Parameters of the distributions that need some.
_SHAPES = {
    "bernoulli": (0.3,), "beta": (2.0, 3.0), "binom": (10, 0.3), "chi2": (3.0,), "gamma": (2.0,), "gennorm": (2.0,),
    "geom": (0.3,), "lognorm": (1.0,), "nbinom": (5.0, 0.3), "pareto": (2.0,), "poisson": (2.0,), "t": (3.0,),
    "truncnorm": (-1.0, 1.0), "vonmises": (2.0,), "cauchy": (), "expon": (), "laplace": (), "logistic": (), "norm": (),
    "uniform": (),
}  # fmt: skip
_OF_INTEGERS = ("bernoulli", "binom", "geom", "nbinom", "poisson")


def _distributions() -> Functions:
    found: Functions = {}
    for name, given in _SHAPES.items():
        module: Any = getattr(jax.scipy.stats, name, None)
        for function in "logpdf pdf logpmf pmf cdf logcdf sf logsf ppf isf".split():
            if hasattr(module, function):
                of: Any = getattr(module, function)
                spec = "n @ int32" if name in _OF_INTEGERS and function != "ppf" else "n"
                found[f"{name}.{function}"] = (lambda x, of=of, given=given: of(x, *given), (spec,))
    return found


STATS: Functions = _distributions() | {
    "gaussian_kde": (lambda x, y: jax.scipy.stats.gaussian_kde(x)(y), ("2 8", "2 3")),
    "mode": (jax.scipy.stats.mode, ("6",)),
    "multivariate_normal.logpdf": (
        lambda x, m, c: jax.scipy.stats.multivariate_normal.logpdf(x, m, _definite(c)), ("n 3", "3", "3 3"),
    ),
    "rankdata": (jax.scipy.stats.rankdata, ("6",)),
    "sem": (jax.scipy.stats.sem, ("6",)),
}  # fmt: skip
