"""Image pre-processing."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n 32 32 3", "3", "3", numerics="approximate")
def normalized_images(images, mean, std):
    """Images scaled to [0, 1], then normalised by channel."""
    return (images / 255.0 - mean) / std


@program("n h w 3", "n @ bool")
def random_flip(images, flip):
    """Images flipped where asked."""
    flipped = images[:, :, ::-1]
    return jnp.where(flip[:, None, None, None], flipped, images), flipped[:, :, ::-1]


@program("h w", "h w")
def stack_and_split(red, green):
    """Planes stacked for a filter and taken apart again."""
    both = jnp.concatenate([red, green], axis=0)
    top, bottom = jnp.split(both, 2, axis=0)
    return top * 0.5, bottom


@program("h w 3", "h w 1")
def alpha_channel(image, alpha):
    """An image with its alpha channel, of which both are read again."""
    rgba = jnp.concatenate([image, alpha], axis=-1)
    return rgba[..., :3] * rgba[..., 3:]


@program("n 32 32 3")
def gray_and_crop(images):
    """A crop of a gray image."""
    gray = images @ jnp.array([0.299, 0.587, 0.114])
    return gray[:, 4:28, 4:28]


@program("n h w", "n h w")
def cropped_blend(a, b):
    """A crop of a blend of two images, and of a negative."""
    return (a * 0.5 + b * 0.5)[:, 1:-1, 1:-1], (-a)[:, 1:-1, 1:-1]


@program("n h w 3")
def channels_first(images):
    """Images to channels first and back, around a non-linearity."""
    x = images.transpose(0, 3, 1, 2)
    return jnp.tanh(-x).transpose(0, 2, 3, 1)


@program("n h w 3")
def transposed_crop(images):
    """A crop of images with channels first, whose negatives are taken."""
    x = images.transpose(0, 3, 1, 2)
    return x[:, :, 1:-1, 1:-1], x[:1]


@program("n h w 3", "n h w 3", "")
def transposed_blend(a, b, s):
    """Two images blended with channels first."""
    a, b = (x.transpose(0, 3, 1, 2) for x in (a, b))
    return (a * s + b).transpose(0, 2, 3, 1), -a


@program("n h w", "n h w")
def flattened_blend(a, b):
    """Two images added when flattened, and a flattened negative."""
    n = a.shape[0]
    return (a.reshape(n, -1) + b.reshape(n, -1)).sum(axis=1), -a.reshape(n, -1)


@program("64")
def patch_grid(x):
    """A row of pixels cut into patches, joined, and cut again."""
    return x.reshape(8, 8).reshape(64), x.reshape(8, 8).reshape(64).reshape(16, 4)


@program("b h w c")
def patches_merged(x):
    """Patches joined with channels, then with rows, and taken apart again."""
    b, h, w, c = x.shape
    y = x.reshape(b, h, w * c)
    return y.reshape(b * h, w * c), y.reshape(b, h, w, c)


@program("h w")
def nearest_upsampling(image):
    """An image enlarged by repeating pixels, and its brightest pixel."""
    large = jnp.repeat(jnp.repeat(image, 2, axis=0), 2, axis=1)
    return large, large.max()


@program("h w", "n")
def tiled_background(image, batch):
    """A background for every image of a batch, its total and its maximum over the batch."""
    tiled = jnp.broadcast_to(image, (batch.shape[0], *image.shape))
    return tiled.sum(axis=0), tiled.max(axis=0), tiled[1:]


@program("n h w 1")
def single_channel_sum(x):
    """The sum over the one channel of gray images."""
    return x.sum(axis=-1), x.max(axis=-1)


@program("h w")
def resized(image):
    """An image resized by linear interpolation."""
    return jax.image.resize(image, (16, 16), "linear")


@program("n h w")
def expanded_and_squeezed(x):
    """A channel axis added for a layer that was left out."""
    return jnp.squeeze(x[..., None], axis=-1) + 0.0


@program("h w", "h w")
def brightness(image, other):
    """Brightness limits: an image against itself and against a negative."""
    return jnp.maximum(image, image), jnp.minimum(other, other), jnp.maximum(-image, -other)
