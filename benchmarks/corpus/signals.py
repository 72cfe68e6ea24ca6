"""Signal processing."""

from __future__ import annotations

import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n")
def hann_window(x):
    """A signal under a Hann window."""
    n = x.shape[0]
    return x * (0.5 - 0.5 * jnp.cos(2 * jnp.pi * jnp.arange(n) / n))


@program("n", "m")
def toeplitz_filter(x, taps):
    """A causal filter as a Toeplitz matrix, taken from one index."""
    i = jnp.arange(x.shape[0])
    lag = i[:, None] - i[None, :]
    inside = (lag >= 0) & (lag < taps.shape[0])
    return jnp.where(inside, taps[jnp.clip(lag, 0, taps.shape[0] - 1)], 0.0) @ x


@program("n", "n")
def circulant_product(c, x):
    """A circulant matrix, by an index modulo its size, times a vector."""
    i = jnp.arange(x.shape[0])
    return c[(i[:, None] - i[None, :]) % x.shape[0]] @ x


@program("n")
def reversed_twice(x):
    """A zero-phase filter of no taps: forward, backward and back."""
    return jnp.flip(jnp.flip(x) * 0.5), x[::-1][::-1]


@program("n")
def energy_of_padded(x):
    """The total of a zero-padded signal, and the signal cut out again."""
    padded = jnp.pad(x, (8, 8))
    return jnp.sum(padded), padded[8 : 8 + x.shape[0]]


@program("64")
def overlapping_frames(x):
    """Frames of a signal, cut twice and joined again where they touch."""
    frame = x[8:40][4:20]
    return jnp.concatenate([x[:16], x[16:32]]), frame


@program("n", "n")
def mixed_down(x, carrier):
    """Power of a signal mixed with a carrier."""
    return jnp.sum((x * carrier) ** 2), jnp.sum(jnp.abs(x) * jnp.abs(x))


@program("n")
def odd_symmetry(x):
    """A soft clipper is odd: its response to the negated signal, negated."""
    return -jnp.tanh(-3.0 * x)


@program("c n", "c n")
def stereo_peak(left, right):
    """Peaks of two channels together, and of what they have in common."""
    return jnp.max(jnp.maximum(left, right), axis=1), jnp.max(jnp.concatenate([left, right], axis=1), axis=1)


@program("c n", "m n")
def stacked_levels(a, b):
    """Levels of all tracks of two recordings, and their totals along time."""
    return jnp.concatenate([a, b], axis=0).sum(axis=1), jnp.concatenate([a, a], axis=1).sum(axis=1)


@program("n", "", facts={"gain": "nonnegative"})
def peak_after_gain(x, gain):
    """The peak of an amplified signal, and its floor by a negated maximum."""
    return jnp.max(x * gain), -jnp.max(-x), -jnp.min(-x)


@program("256", "9")
def fir_filter(x, taps):
    """A filter by direct convolution."""
    return jnp.convolve(x, taps, mode="same")


@program("k n", "n")
def cosine_transform(basis, x):
    """A transform by its basis, and back by the transpose."""
    return (x @ basis.T) @ basis


@program("n", "n")
def cross_power(x, y):
    """Bits of energy: log of a product of magnitudes."""
    return jnp.log(1.0 + jnp.abs(x) * jnp.abs(y))


@program("b 512", "257", "257", numerics="approximate")
def two_bands(x, low, high):
    """A signal through two filters, each by its own transform, and mixed again."""
    spectrum = jnp.fft.rfft(x)
    return jnp.fft.irfft(spectrum * low) + jnp.fft.irfft(spectrum * high)


@program("b 512", "b 512", numerics="approximate")
def spectrum_of_a_mix(voice, music):
    """The power of two tracks together, from their spectra."""
    both = jnp.fft.rfft(voice) + jnp.fft.rfft(music)
    return jnp.real(both) ** 2 + jnp.imag(both) ** 2


@program("b 512", "b 512", numerics="approximate")
def filter_that_is_off(x, gain):
    """An equaliser with all bands open: the signal goes to frequencies and back, and is scaled."""
    return jnp.fft.irfft(jnp.fft.rfft(x)) * gain


@program("c n", "c n")
def louder_channel(left, right):
    """The peak of each pair of channels, and the quietest sample of both."""
    loud = jnp.maximum(jnp.max(left, axis=1), jnp.max(right, axis=1))
    return loud - jnp.minimum(jnp.min(left, axis=1), jnp.min(right, axis=1))


@program("b n", "n k")
def correlated_backwards(x, filters):
    """Responses of a bank of filters, all turned around as a convolution is written, without their sign."""
    return jnp.abs(x[:, ::-1] @ filters[::-1])
