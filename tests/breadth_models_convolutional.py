"""Convolutional networks: residual, U-shaped, patched, pooled, normalized over the batch."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from breadth_case import HEADS, OUT, D, images, network, sequences


def conv_over_time(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Conv(192, (5,))(x))
    h = nn.relu(nn.Conv(192, (3,), kernel_dilation=(4,))(h))
    return nn.Conv(OUT, (3,), strides=2)(h)


def grouped(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Conv(64, (3, 3))(x))
    h = nn.relu(nn.Conv(128, (3, 3), feature_group_count=8, strides=2)(h))
    h = nn.relu(nn.Conv(128, (3, 3), feature_group_count=128, kernel_dilation=2)(h))
    return nn.Conv(OUT, (1, 1))(h)


def transposed(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Conv(64, (4, 4), strides=(4, 4))(x))
    h = nn.relu(nn.ConvTranspose(64, (4, 4), strides=(2, 2))(h))
    h = nn.relu(nn.ConvTranspose(64, (3, 3), strides=(2, 2), padding="VALID")(h))
    return nn.ConvTranspose(OUT, (3, 3))(h)


def max_pooled(net: nn.Module, x: jax.Array) -> jax.Array:
    """Max-pools between convolutions, a flattened head."""
    for features in (64, 128):
        x = nn.relu(nn.Conv(features, (3, 3))(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
    x = nn.relu(nn.Dense(256)(x.reshape(x.shape[0], -1)))
    return nn.Dense(OUT, name="head")(x)


def deep_max_pooled(net: nn.Module, x: jax.Array) -> jax.Array:
    """The pool comes before the nonlinearity, five times."""
    for layer in range(5):
        x = nn.Conv(64, (3, 3), name=f"conv{layer}")(x)
        x = nn.relu(nn.max_pool(x, (2, 2), padding="SAME"))
    return nn.Dense(OUT, name="head")(x.reshape(x.shape[0], -1))


def average_pooled(net: nn.Module, x: jax.Array) -> jax.Array:
    x = nn.avg_pool(nn.relu(nn.Conv(64, (3, 3))(x)), (2, 2), strides=(2, 2))
    x = nn.relu(nn.Conv(128, (3, 3))(x)).mean(axis=(1, 2))
    return nn.Dense(OUT, name="head")(x)


def batch_normed(net: nn.Module, x: jax.Array, train: bool) -> jax.Array:
    for features in (64, 128):
        x = nn.Conv(features, (3, 3), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
    return nn.Dense(OUT, name="head")(x.mean(axis=(1, 2)))


def resnet(net: nn.Module, x: jax.Array, train: bool) -> jax.Array:
    """Batch-normalized residual blocks with projection shortcuts."""

    def norm(x: jax.Array, init: nn.initializers.Initializer = nn.initializers.ones) -> jax.Array:
        return nn.BatchNorm(use_running_average=not train, scale_init=init)(x)

    x = nn.relu(norm(nn.Conv(32, (3, 3), use_bias=False)(x)))
    for features, stride in ((32, 1), (64, 2), (128, 2)):
        h = nn.relu(norm(nn.Conv(features, (3, 3), strides=stride, use_bias=False)(x)))
        h = norm(nn.Conv(features, (3, 3), use_bias=False)(h))
        if x.shape != h.shape:
            x = norm(nn.Conv(features, (1, 1), strides=stride, use_bias=False)(x))
        x = nn.relu(x + h)
    return nn.Dense(OUT, name="head")(x.mean(axis=(1, 2)))


def resnet_before_activation(net: nn.Module, x: jax.Array) -> jax.Array:
    """Pre-activation blocks with group norms: the convolutions end the branches."""
    x = nn.Conv(64, (3, 3))(x)
    for features in (64, 128):
        h = nn.relu(nn.GroupNorm(8)(x))
        if features != x.shape[-1]:
            x = nn.Conv(features, (1, 1), name="shortcut")(h)
        h = nn.relu(nn.GroupNorm(8)(nn.Conv(features, (3, 3))(h)))
        x = x + nn.Conv(features, (3, 3), name=f"end{features}")(h)
    return nn.Dense(OUT, name="head")(nn.relu(nn.GroupNorm(8)(x)).mean(axis=(1, 2)))


def unnormalized_resnet(net: nn.Module, x: jax.Array) -> jax.Array:
    """No norm at all: the branches share the stream."""
    x = nn.Conv(64, (3, 3), name="stem")(x)
    for block in range(4):
        h = nn.relu(nn.Conv(64, (3, 3), name=f"first{block}")(nn.relu(x)))
        x = x + nn.Conv(64, (3, 3), name=f"second{block}")(h)
    return nn.Conv(OUT, (1, 1), name="head")(nn.relu(x))


def u_net(net: nn.Module, x: jax.Array) -> jax.Array:
    """Down, up, and concatenation with what was there on the way down."""
    first = nn.relu(nn.GroupNorm(8)(nn.Conv(32, (3, 3))(x)))
    second = nn.relu(nn.GroupNorm(8)(nn.Conv(64, (3, 3), strides=2)(first)))
    third = nn.relu(nn.GroupNorm(8)(nn.Conv(128, (3, 3), strides=2)(second)))
    up = jnp.concatenate([nn.ConvTranspose(64, (2, 2), strides=(2, 2))(third), second], -1)
    up = nn.relu(nn.Conv(64, (3, 3))(up))
    batch, height, width, channels = up.shape
    up = jax.image.resize(up, (batch, 2 * height, 2 * width, channels), "nearest")
    up = jnp.concatenate([up, first], -1)
    return nn.Conv(OUT, (1, 1), name="head")(nn.relu(nn.Conv(64, (3, 3))(up)))


def vit(net: nn.Module, x: jax.Array) -> jax.Array:
    """Patches by a strided convolution, a class token, learned positions."""
    x = nn.Conv(D, (4, 4), strides=(4, 4), name="patches")(x).reshape(x.shape[0], -1, D)
    token = net.param("class", nn.initializers.zeros, (1, 1, D))
    x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, D)), x], axis=1)
    x = x + net.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], D))
    for layer in range(2):
        attention = nn.MultiHeadDotProductAttention(HEADS, name=f"attention{layer}")
        x = x + attention(nn.LayerNorm()(x))
        h = nn.gelu(nn.Dense(4 * D, name=f"up{layer}")(nn.LayerNorm()(x)))
        x = x + nn.Dense(D, name=f"down{layer}")(h)
    return nn.Dense(OUT, name="head")(nn.LayerNorm()(x)[:, 0])


def convnext(net: nn.Module, x: jax.Array) -> jax.Array:
    """Depthwise convolution, inverted bottleneck, LayerScale."""
    x = nn.LayerNorm()(nn.Conv(96, (4, 4), strides=(4, 4), name="stem")(x))
    for block in range(2):
        h = nn.Conv(96, (7, 7), feature_group_count=96, name=f"depthwise{block}")(x)
        h = nn.gelu(nn.Dense(4 * 96, name=f"up{block}")(nn.LayerNorm()(h)))
        h = nn.Dense(96, name=f"down{block}")(h)
        x = x + h * net.param(f"scale{block}", nn.initializers.constant(1e-6), (96,))
    return nn.Dense(OUT, name="head")(nn.LayerNorm()(x.mean(axis=(1, 2))))


def squeeze_excitation(net: nn.Module, x: jax.Array) -> jax.Array:
    """A gate a channel, computed from the pooled image."""
    x = nn.relu(nn.Conv(64, (3, 3))(x))
    pooled = nn.relu(nn.Dense(32, name="squeeze")(x.mean(axis=(1, 2))))
    x = x * nn.sigmoid(nn.Dense(64, name="excite")(pooled))[:, None, None]
    return nn.Conv(OUT, (1, 1), name="head")(x)


def mixer(net: nn.Module, x: jax.Array) -> jax.Array:
    """MLPs over patches and over channels in turn."""
    for block in range(2):
        h = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
        h = nn.Dense(x.shape[1], name=f"b{block}")(nn.gelu(nn.Dense(64, name=f"a{block}")(h)))
        x = x + jnp.swapaxes(h, 1, 2)
        h = nn.gelu(nn.Dense(2 * D, name=f"up{block}")(nn.LayerNorm()(x)))
        x = x + nn.Dense(D, name=f"down{block}")(h)
    return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))


def spectral(net: nn.Module, x: jax.Array) -> jax.Array:
    """A Fourier transform over tokens instead of attention."""
    for block in range(2):
        x = nn.LayerNorm()(x + jnp.fft.fft2(x, axes=(1, 2), norm="ortho").real)
        h = nn.gelu(nn.Dense(2 * D, name=f"up{block}")(x))
        x = nn.LayerNorm()(x + nn.Dense(D, name=f"down{block}")(h))
    return nn.Dense(OUT, name="head")(x)


TRAINING = {"options": {"train": True}, "near": 2.5}
CASES = {
    "conv_over_time": network(conv_over_time, sequences, near=2.5),
    "grouped_and_depthwise": network(grouped, images, near=2.5),
    "transposed_convolution": network(transposed, images, near=2.5, slow=True),
    "max_pooled": network(max_pooled, images, near=2.5),
    "deep_max_pooled": network(deep_max_pooled, images, near=2.5),
    "average_pooled": network(average_pooled, images, near=2.5, slow=True),
    "batch_norm_in_training": network(batch_normed, images, **TRAINING, slow=True),
    "resnet": network(resnet, images, **TRAINING, scalable=False),
    "resnet_before_activation": network(resnet_before_activation, images, near=2.5, additions=1),
    "unnormalized_resnet": network(unnormalized_resnet, images, near=2.5, additions=4),
    "u_net": network(u_net, images, near=2.5),
    "vit": network(vit, images, near=2.5, additions=4),
    "convnext": network(convnext, images, near=2.5, additions=2, slow=True),
    "squeeze_excitation": network(squeeze_excitation, images, near=2.5, slow=True),
    "mixer": network(mixer, sequences, near=2.5, additions=4, slow=True),
    "spectral": network(spectral, sequences, near=2.5, additions=1, slow=True),
}
