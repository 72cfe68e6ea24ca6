"""Convolutional networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.corpus.program import program

BN = {"mean": "16", "var": "16", "scale": "16", "bias": "16"}


def conv(x, w, stride=1, padding="SAME"):
    return lax.conv_general_dilated(x, w, (stride, stride), padding)


def conv_last(x, w, stride=1, padding="SAME"):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=layout)


@program({"w": "16 3 3 3", **BN}, "n 3 h w", weights=("p",))
def conv_batch_norm_relu(p, x):
    """Convolution, batch norm, ReLU: the block of every residual net."""
    y = conv(x, p["w"])
    scale = p["scale"] / jnp.sqrt(p["var"] + 1e-5)
    y = (y - p["mean"][:, None, None]) * scale[:, None, None] + p["bias"][:, None, None]
    return jax.nn.relu(y)


@program({"w": "3 3 3 16", **BN}, "n h w 3", weights=("p",))
def conv_batch_norm_channels_last(p, x):
    """The same with channels last, as JAX and TensorFlow keep images."""
    y = conv_last(x, p["w"], 2)
    return jax.nn.relu((y - p["mean"]) * (lax.rsqrt(p["var"] + 1e-5) * p["scale"]) + p["bias"])


@program({"w": "3 3 3 16", "scale": "16"}, "n h w 3", weights=("p",))
def scaled_conv_channels_last(p, x):
    """A convolution and a scale of its channels, channels last."""
    return conv_last(x, p["w"]) * p["scale"]


@program("n 16 h w", "16 16 3 3", "16 16 1 1")
def repvgg_block(x, w3, w1):
    """A RepVGG block: a branch of 3 x 3, a branch of 1 x 1 and the identity."""
    return jax.nn.relu(lax.conv_general_dilated(x, w3, (1, 1), ((1, 1), (1, 1))) + conv(x, w1, 1, "VALID") + x)


@program("n 16 h w", "8 16 1 1", "8 16 1 1", "8 16 3 3")
def inception_branches(x, w1, w2, w3):
    """Branches of an inception block, joined."""
    return jnp.concatenate([conv(x, w1), conv(x, w2), conv(x, w3)], axis=1)


@program("n 16 h w", "8 16 3 3", "8 16 3 3")
def gated_conv(x, w, g):
    """A gated convolution: two of one image, one through a sigmoid."""
    return conv(x, w) * jax.nn.sigmoid(conv(x, g))


@program("n 3 h w", "n 8 h w", "32 3 3 3", "32 8 3 3")
def conv_lstm_gates(x, hidden, wx, wh):
    """The gates of a convolutional LSTM."""
    return jax.nn.sigmoid(conv(x, wx) + conv(hidden, wh))


@program("n 16 h w", "16 16 3 3")
def scaled_residual(x, w):
    """Residual scaling as in EDSR: a tenth of the branch is added."""
    return x + conv(x, w) * 0.1


@program({"std": "3", "w": "16 3 3 3"}, "n 3 h w", weights=("p",))
def channel_standardization(p, x):
    """Channels of an image scaled ahead of the first convolution."""
    return conv(x * p["std"][:, None, None], p["w"])


@program("n h w 16", "1 1 16 32")
def pointwise_conv_channels_last(x, w):
    """A 1 x 1 convolution, channels last."""
    return conv_last(x, w)


@program("n 16 7 7", "64 16 7 7")
def fully_connected_as_conv(x, w):
    """The first dense layer of VGG as a convolution of the whole feature map."""
    return lax.conv(x, w, (1, 1), "VALID")[:, :, 0, 0]


@program("n 1 h w", bounds=("h >= 8", "w >= 8"))
def box_filter(x):
    """A box filter as a convolution by ones."""
    return lax.conv(x, jnp.ones((1, 1, 5, 5)), (1, 1), "VALID") / 25


@program("n 32 h w", "16 32 1 1", bounds=("h >= 4", "w >= 4"))
def densenet_transition(x, w):
    """The transition of DenseNet: a 1 x 1 convolution, then average pooling."""
    y = lax.conv(x, w, (1, 1), "VALID")
    return lax.reduce_window(y, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4


@program("n 16 7 7")
def global_average_pool(x):
    """Global average pooling by a window as large as the map."""
    return lax.reduce_window(x, 0.0, lax.add, (1, 1, 7, 7), (1, 1, 1, 1), "VALID") / 49


@program("n 3 h w", "16 3 3 3", bounds=("h >= 8", "w >= 8"))
def relu_then_max_pool(x, w):
    """The block of the first convolutional nets: convolution, ReLU, max pooling."""
    y = jax.nn.relu(conv(x, w))
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


@program("n 3 h w", bounds=("h >= 8", "w >= 8"))
def thumbnail(images):
    """Images scaled to [0, 1] and pooled to a quarter."""
    return lax.reduce_window(images * (1 / 255), 0.0, lax.add, (1, 1, 4, 4), (1, 1, 4, 4), "VALID") / 16


@program("n 8 h w", "8 8 3 3", "8 8 3 3")
def conv_net_gradient(x, w, v):
    """The gradient of a small convolutional net's weights."""

    def loss(w):
        return jnp.sum(conv(jax.nn.relu(conv(x, w)), v) ** 2)

    return jax.grad(loss)(w)


@program("n 8 h w", "8 2", "2 8")
def squeeze_and_excitation(x, w1, w2):
    """Squeeze and excitation: channels weighted by what the image as a whole says."""
    s = jnp.mean(x, axis=(2, 3))
    gates = jax.nn.sigmoid(jax.nn.relu(s @ w1) @ w2)
    return x * gates[:, :, None, None]


@program("n 16 h w", "n 16 h w", "24 16 3 3")
def two_exposures(x, y, w):
    """The features of two exposures of a scene, added."""
    return jax.nn.relu(conv(x, w) + conv(y, w))


@program("n 16 h w", "24 16 3 3", "24 16 3 3")
def slow_and_fast_weights(x, slow, fast):
    """A layer with slow weights and fast ones, which change from sample to sample (Ba et al., 2016)."""
    return jax.nn.relu(conv(x, slow) + conv(x, fast))


@program("n 3 h w", "16 3 3 3")
def saliency(x, w):
    """A map of how strongly all filters together respond."""
    return jax.nn.sigmoid(jnp.sum(conv(x, w), axis=1))


@program("n 16 h w", "24 16 3 3")
def padded_as_exported(x, w):
    """A convolution whose padding is an operator of its own, as PyTorch exports it."""
    return jax.nn.relu(lax.conv(jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), w, (1, 1), "VALID"))


@program("n 16 32 32")
def global_max_pool(x):
    """Global max pooling by a window as large as the map."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 32, 32), (1, 1, 1, 1), "VALID")[:, :, 0, 0]


@program("n 16 h w", "n 16 h w", "24 16 3 3", "24 16 3 3")
def two_streams(rgb, flow, v, w):
    """The two streams of a network for actions: pictures and their motion, each with filters of its own."""
    return jax.nn.relu(jnp.concatenate([conv(rgb, v), conv(flow, w)], axis=1))


@program("n 32 h w", "32 1 3 3", "64 32 1 1")
def mobile_net_block(x, w, v):
    """The block of a MobileNet: each channel by itself, then all channels of each place."""
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=32)
    return jax.nn.relu(conv(jax.nn.relu(y), v))


@program("1 3 320 320", "16 3 3 3")
def first_layer_of_a_detector(image, w):
    """The first layer of a detector: a large picture of three channels, halved."""
    return jax.nn.relu6(lax.conv_general_dilated(image, w, (2, 2), ((1, 1), (1, 1))))


@program("n 64 1 w", "64 64 3 3")
def line_of_text(x, w):
    """The last layers of a reader of text, where a line has become one row of features."""
    return jax.nn.relu(conv(x, w))


@program("n 24 80 80", "1 24 2 2")
def mask_at_twice_the_size(x, w):
    """The last layer of a segmentation: a mask of twice the size."""
    wide = lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1)), lhs_dilation=(2, 2))
    return jax.nn.sigmoid(wide)


@program("n 80 t", "128 80 1")
def frames_projected(x, w):
    """The projection of the frames of a spectrogram, as a convolution by one frame."""
    return jax.nn.gelu(lax.conv(x, w, (1,), "VALID"))


@program("1 16 40 40", "64 16 1 1", "64 1 3 3", "16 64 1 1", "64")
def inverted_residual(x, wide, each, narrow, shift):
    """The block of MobileNetV3: more channels, each by itself, fewer channels, with hard swishes between."""
    y = jax.nn.hard_swish(conv(x, wide) + shift[:, None, None])
    y = jax.nn.hard_swish(lax.conv_general_dilated(y, each, (1, 1), "SAME", feature_group_count=64))
    return x + conv(y, narrow)


@program("n 3 64 64", "96 3 16 16")
def patches_embedded(images, w):
    """The first layer of a vision transformer: each patch of an image as a vector."""
    y = lax.conv(images, w, (16, 16), "VALID")
    return y.reshape(y.shape[0], 96, 16).transpose(0, 2, 1)
