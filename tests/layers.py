"""Small networks, one for each kind of layer or nonlinearity, as functions of a module."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

OUT = 256


def dense(net: nn.Module, x: jax.Array) -> jax.Array:
    return nn.Dense(OUT)(nn.relu(nn.Dense(384)(x)))


def dense_general(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.gelu(nn.DenseGeneral((8, 48))(x))
    return nn.DenseGeneral(OUT, axis=(-2, -1))(h)


def dense_general_batched(net: nn.Module, x: jax.Array) -> jax.Array:
    h = x.reshape(x.shape[0], 4, -1).transpose(1, 0, 2)
    h = nn.relu(nn.DenseGeneral(128, axis=-1, batch_dims=0)(h))
    return nn.Dense(OUT)(h)


def dense_on_the_first_axis(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.DenseGeneral(96, axis=1)(x.reshape(-1, 64, 4)))
    return nn.DenseGeneral(OUT, axis=(1, 2))(h)


def conv(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Conv(64, (3, 3), padding="VALID")(x))
    return nn.Conv(OUT, (3, 3), padding="VALID")(h)


def conv_grouped(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Conv(64, (3, 3), padding="VALID", feature_group_count=4)(x))
    return nn.Conv(OUT, (1, 1), feature_group_count=2)(h)


def conv_depthwise(net: nn.Module, x: jax.Array) -> jax.Array:
    channels = x.shape[-1]
    h = nn.relu(nn.Conv(8 * channels, (5, 5), padding="VALID", feature_group_count=channels)(x))
    return nn.Conv(OUT, (1, 1))(h)


def conv_dilated(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Conv(64, (3, 3), padding="VALID", kernel_dilation=(2, 2))(x))
    return nn.Conv(OUT, (2, 2), strides=(2, 2), padding="VALID")(h)


def conv_strided(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Conv(128, (4, 4), strides=(4, 4))(x))
    return nn.Dense(OUT)(h.reshape(h.shape[0], -1))


def conv_over_time(net: nn.Module, x: jax.Array) -> jax.Array:
    h = x.reshape(x.shape[0], -1, x.shape[-1])
    h = nn.relu(nn.Conv(128, (7,), padding="CIRCULAR")(h))
    return nn.Conv(OUT, (3,), padding="VALID")(h)


def group_norm(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.Conv(64, (3, 3), padding="VALID")(5 * x)
    return nn.Conv(OUT, (1, 1))(nn.GroupNorm(num_groups=8)(h))


def layer_norm(net: nn.Module, x: jax.Array) -> jax.Array:
    return nn.Dense(OUT)(nn.LayerNorm()(nn.relu(nn.Dense(256)(nn.LayerNorm()(7 * x + 3)))))


def layer_norm_without_scale(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.LayerNorm(use_scale=False, use_bias=False)(x)
    return nn.Dense(OUT)(nn.relu(nn.Dense(256)(nn.relu(h))))


def rms_norm(net: nn.Module, x: jax.Array) -> jax.Array:
    return nn.Dense(OUT)(nn.RMSNorm()(nn.relu(nn.Dense(256)(nn.RMSNorm()(0.01 * x)))))


def norms_by_hand(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.Dense(256)(x)
    h = h * jax.lax.rsqrt(jnp.mean(jnp.square(h), -1, keepdims=True) + 1e-6)
    h = nn.Dense(256)(h)
    h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)
    h = nn.Dense(256)(h)
    h = math.sqrt(256) * h / jnp.linalg.norm(h, axis=-1, keepdims=True)
    return nn.Dense(OUT)(jax.nn.standardize(nn.Dense(256)(h)))


def small_gain(net: nn.Module, x: jax.Array) -> jax.Array:
    return nn.Dense(OUT)(nn.LayerNorm(scale_init=nn.initializers.constant(0.1))(x))


def gain_around_one(net: nn.Module, x: jax.Array) -> jax.Array:
    scale = net.param("scale", nn.initializers.zeros, (x.shape[-1],))
    return nn.Dense(OUT)(nn.RMSNorm(use_scale=False)(x) * (1 + scale))


def dropout(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.Dropout(0.2, deterministic=False)(nn.relu(nn.Dense(512)(x)))
    return nn.Dense(OUT)(nn.Dropout(0.5, deterministic=False)(nn.relu(nn.Dense(512)(h))))


def swiglu(net: nn.Module, x: jax.Array) -> jax.Array:
    return nn.Dense(OUT)(nn.silu(nn.Dense(512)(x)) * nn.Dense(512)(x))


def geglu_fused(net: nn.Module, x: jax.Array) -> jax.Array:
    gate, up = jnp.split(nn.Dense(1024)(x), 2, axis=-1)
    return nn.Dense(OUT)(nn.gelu(gate) * up)


def glu(net: nn.Module, x: jax.Array) -> jax.Array:
    return nn.Dense(OUT)(nn.glu(nn.Dense(1024)(x)))


def bilinear_gate(net: nn.Module, x: jax.Array) -> jax.Array:
    return nn.Dense(OUT)(nn.Dense(512)(x) * nn.Dense(512)(x))


def dense_after_dense(net: nn.Module, x: jax.Array) -> jax.Array:
    return nn.Dense(OUT)(nn.Dense(64)(nn.Dense(512)(x)))


def concatenated(net: nn.Module, x: jax.Array) -> jax.Array:
    left, right = nn.relu(nn.Dense(128)(x)), jnp.tanh(nn.Dense(384)(x))
    return nn.Dense(OUT)(jnp.concatenate([left, 3 * right, x], -1))


def added(net: nn.Module, x: jax.Array) -> jax.Array:
    both = net_sow(net, nn.Dense(256, name="half0")(x) + nn.Dense(256, name="half1")(x[:, ::-1]))
    return nn.Dense(OUT)(nn.relu(both))


def subtracted(net: nn.Module, x: jax.Array) -> jax.Array:
    both = net_sow(net, nn.Dense(256, name="half0")(x) - nn.Dense(256, name="half1")(jnp.cos(x)))
    return nn.Dense(OUT)(nn.relu(both))


def net_sow(net: nn.Module, x: jax.Array) -> jax.Array:
    net.sow("intermediates", "site", x)
    return x


def factor_before_the_nonlinearity(net: nn.Module, x: jax.Array) -> jax.Array:
    third = net_sow(net, nn.Dense(256, name="thrice")(x) * 3)
    return nn.Dense(OUT)(jnp.tanh(third))


def factor_on_the_input(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Dense(256)(x / 10))
    return nn.Dense(OUT)(h * 0.01)


def odd_axes(net: nn.Module, x: jax.Array) -> jax.Array:
    init = nn.initializers.normal(0.02)
    d = x.shape[-1]
    heads = jnp.einsum("bd,dhk->bhk", x, net.param("dhk", init, (d, 8, 32)))
    net_sow(net, heads)
    heads = jnp.einsum("bhk,hjk->bhj", nn.relu(heads), net.param("hjk", init, (8, 24, 32)))
    net_sow(net, heads)
    heads = jnp.einsum("bhj,jm->mbh", nn.relu(heads), net.param("jm", init, (24, 40)))
    net_sow(net, heads)
    return jnp.einsum("mbh,ohm->bo", nn.relu(heads), net.param("ohm", init, (OUT, 8, 40)))


def products_of_every_spelling(net: nn.Module, x: jax.Array) -> jax.Array:
    init = nn.initializers.normal(0.02)
    x = nn.relu(net_sow(net, jnp.matmul(x, net.param("a", init, (x.shape[-1], 192)))))
    x = nn.relu(net_sow(net, jnp.tensordot(x, net.param("b", init, (160, 192)), [[1], [1]])))
    c = net.param("c", init, (160, 128))
    x = nn.relu(net_sow(net, jnp.sum(x[:, :, None] * c, axis=1)))
    x = nn.relu(net_sow(net, jnp.inner(x, net.param("d", init, (96, 128)))))
    x = nn.relu(net_sow(net, (net.param("e", init, (112, 96)) @ x.T).T))
    x = nn.relu(net_sow(net, jax.vmap(jnp.dot, (0, None))(x, net.param("f", init, (112, 128)))))
    return jax.lax.dot_general(x, net.param("g", init, (128, OUT)), (((1,), (0,)), ((), ())))


class SetUp(nn.Module):
    """Layers made in `setup`, in a list, a dict and by themselves."""

    def setup(self) -> None:
        self.first = nn.Dense(256)
        self.hidden = [nn.Dense(256) for _ in range(3)]
        self.ends = {"norm": nn.LayerNorm(), "head": nn.Dense(OUT)}

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(self.first(x))
        for layer in self.hidden:
            x = nn.relu(layer(x))
        return self.ends["head"](self.ends["norm"](x))


class Inner(nn.Module):
    """A module within a module."""

    depth: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.tanh(nn.Dense(256)(x))
        return Inner(self.depth - 1)(x) if self.depth else nn.Dense(OUT)(x)


def nested(net: nn.Module, x: jax.Array) -> jax.Array:
    return Inner(3)(SetUp()(x))


def sequential(net: nn.Module, x: jax.Array) -> jax.Array:
    return nn.Sequential([nn.Dense(256), nn.relu, nn.Dense(256), jnp.sin, nn.Dense(OUT)])(x)


def einsum_layer(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.Einsum((x.shape[-1], 8, 32), "bd,dhk->bhk")(x)
    return nn.Einsum((8, 32, OUT), "bhk,hko->bo")(nn.relu(h))


VECTORS = {
    f.__name__: f
    for f in (
        dense,
        dense_general,
        dense_general_batched,
        dense_on_the_first_axis,
        layer_norm,
        layer_norm_without_scale,
        rms_norm,
        norms_by_hand,
        small_gain,
        gain_around_one,
        dropout,
        swiglu,
        geglu_fused,
        glu,
        bilinear_gate,
        dense_after_dense,
        concatenated,
        added,
        subtracted,
        factor_before_the_nonlinearity,
        factor_on_the_input,
        odd_axes,
        products_of_every_spelling,
        nested,
        sequential,
        einsum_layer,
    )
}
IMAGES = {
    f.__name__: f
    for f in (
        conv,
        conv_grouped,
        conv_depthwise,
        conv_dilated,
        conv_strided,
        conv_over_time,
        group_norm,
    )
}


def gelu_by_hand(z: jax.Array) -> jax.Array:
    return 0.5 * z * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def gelu_by_erf(z: jax.Array) -> jax.Array:
    return z * 0.5 * (1 + jax.scipy.special.erf(z / np.sqrt(2)))


def double_where(z: jax.Array) -> jax.Array:
    positive = z > 0
    return jnp.where(positive, jnp.log1p(jnp.where(positive, z, 1.0)), 0.1 * z)


@jax.custom_jvp
def straight_through(z: jax.Array) -> jax.Array:
    return jnp.sign(z)


straight_through.defjvp(lambda primals, tangents: (straight_through(*primals), tangents[0]))


def max_out(z: jax.Array) -> jax.Array:
    return jnp.max(z.reshape(*z.shape[:-1], -1, 4), axis=-1)


def polynomial(z: jax.Array) -> jax.Array:
    return z**3 / 6 - z / 2


NONLINEARITIES: dict[str, Any] = {
    "relu": nn.relu,
    "maximum": lambda z: jnp.maximum(z, 0),
    "where": lambda z: jnp.where(z > 0, z, 0.0),
    "times_positive": lambda z: z * (z > 0).astype(z.dtype),
    "leaky": nn.leaky_relu,
    "leaky_where": lambda z: jnp.where(z > 0, z, 0.2 * z),
    "gelu_exact": lambda z: jax.nn.gelu(z, approximate=False),
    "gelu_approximate": jax.nn.gelu,
    "gelu_by_hand": gelu_by_hand,
    "gelu_by_erf": gelu_by_erf,
    "quick_gelu": lambda z: z * jax.nn.sigmoid(1.7 * z),
    "silu": nn.silu,
    "mish": lambda z: z * jnp.tanh(jax.nn.softplus(z)),
    "squared_relu": lambda z: jnp.square(nn.relu(z)),
    "relu_cubed": lambda z: nn.relu(z) ** 3,
    "signed_square": lambda z: z * jnp.abs(z),
    "tanh": jnp.tanh,
    "sigmoid": nn.sigmoid,
    "softplus": nn.softplus,
    "softsign": lambda z: z / (1 + jnp.abs(z)),
    "elu": nn.elu,
    "selu": nn.selu,
    "celu": nn.celu,
    "log_sigmoid": nn.log_sigmoid,
    "hard_swish": nn.hard_swish,
    "hard_tanh": nn.hard_tanh,
    "clip": lambda z: jnp.clip(z, -0.5, 2),
    "sine": jnp.sin,
    "snake": lambda z: z + jnp.sin(3 * z) ** 2 / 3,
    "gaussian": lambda z: jnp.exp(-(z**2)),
    "abs": jnp.abs,
    "root": lambda z: jnp.sign(z) * jnp.sqrt(jnp.abs(z)),
    "polynomial": polynomial,
    "double_where": double_where,
    "straight_through": straight_through,
    "concatenated_relu": lambda z: jnp.concatenate([nn.relu(z), nn.relu(-z)], -1),
    "max_out": max_out,
    "sum_of_two": lambda z: nn.relu(z) + jnp.tanh(z),
    "jitted": jax.jit(lambda z: z * jnp.exp(-jnp.abs(z))),
}
