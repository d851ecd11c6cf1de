"""Mixtures of experts: stacked expert weights, dispatched by einsum, by index or by sorting."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from breadth_case import OUT, VOCAB, D, network, sequences, text

EXPERTS, CHOSEN = 4, 2


def weights(net: nn.Module, name: str) -> tuple[jax.Array, jax.Array]:
    init = nn.initializers.lecun_normal(batch_axis=0)
    up = net.param(f"up{name}", init, (EXPERTS, D, 2 * D))
    return up, net.param(f"down{name}", init, (EXPERTS, 2 * D, D))


def routed(net: nn.Module, h: jax.Array, name: str) -> jax.Array:
    """Top-k routing: the chosen experts' probabilities, renormalized, zero for the others."""
    probabilities = nn.softmax(nn.Dense(EXPERTS, use_bias=False, name=f"router{name}")(h))
    chosen, indices = jax.lax.top_k(probabilities, CHOSEN)
    chosen = chosen / chosen.sum(-1, keepdims=True)
    return jnp.einsum("...k,...ke->...e", chosen, nn.one_hot(indices, EXPERTS))


def dense_mixture(net: nn.Module, h: jax.Array, name: str) -> jax.Array:
    """Every expert computes every token; the gate picks."""
    up, down = weights(net, name)
    gate = routed(net, h, name)
    hidden = nn.gelu(jnp.einsum("btd,edf->btef", h, up))
    return jnp.einsum("btef,efd,bte->btd", hidden, down, gate)


def written_mixture(net: nn.Module, h: jax.Array, name: str) -> jax.Array:
    """As the dense mixture, with the gates written into zeros at the chosen places."""
    up, down = weights(net, name)
    scores = nn.Dense(EXPERTS, use_bias=False, name=f"router{name}")(h)
    chosen, indices = jax.lax.top_k(scores, CHOSEN)
    places = *jnp.indices(indices.shape)[:2], indices
    gate = jnp.zeros_like(scores).at[places].set(nn.softmax(chosen))
    hidden = nn.gelu(jnp.einsum("btd,edf->btef", h, up))
    return jnp.einsum("btef,efd,bte->btd", hidden, down, gate)


def capacity_mixture(net: nn.Module, h: jax.Array, name: str) -> jax.Array:
    """Mesh-TensorFlow's einsum dispatch: one-hot places within each expert's capacity."""
    up, down = weights(net, name)
    tokens = h.reshape(-1, D)
    capacity = CHOSEN * tokens.shape[0] // EXPERTS
    gate = routed(net, tokens, name)
    mask = (gate > 0).astype(jnp.int32)
    places = jnp.cumsum(mask, axis=0) * mask - 1
    dispatch = nn.one_hot(places, capacity)  # −1 gives a row of zeros
    combine = dispatch * gate[..., None]
    inside = jnp.einsum("tec,td->ecd", dispatch, tokens)
    hidden = nn.gelu(jnp.einsum("ecd,edf->ecf", inside, up))
    out = jnp.einsum("ecf,efd->ecd", hidden, down)
    return jnp.einsum("tec,ecd->td", combine, out).reshape(h.shape)


def soft_mixture(net: nn.Module, h: jax.Array, name: str) -> jax.Array:
    """All experts, averaged with the router's softmax."""
    up, down = weights(net, name)
    gate = nn.softmax(nn.Dense(EXPERTS, name=f"router{name}")(h))
    hidden = nn.gelu(jnp.einsum("btd,edf->btef", h, up))
    return jnp.einsum("bte,bted->btd", gate, jnp.einsum("btef,efd->bted", hidden, down))


def sigmoid_mixture(net: nn.Module, h: jax.Array, name: str) -> jax.Array:
    """Sigmoid scores, as in DeepSeek-V3 and Llama 4, and one expert that everyone shares."""
    up, down = weights(net, name)
    scores = nn.sigmoid(nn.Dense(EXPERTS, use_bias=False, name=f"router{name}")(h))
    best, indices = jax.lax.top_k(scores, 1)
    gate = nn.one_hot(indices[..., 0], EXPERTS) * best
    hidden = nn.silu(jnp.einsum("btd,edf->btef", h, up))
    mixed = jnp.einsum("bted,bte->btd", jnp.einsum("btef,efd->bted", hidden, down), gate)
    shared = nn.Dense(D, name=f"shared_down{name}")(
        nn.silu(nn.Dense(2 * D, name=f"shared_up{name}")(h))
    )
    return mixed + shared


def gathered_mixture(net: nn.Module, h: jax.Array, name: str) -> jax.Array:
    """Each token takes its expert's matrices by index (top-1, Switch)."""
    up, down = weights(net, name)
    probabilities = nn.softmax(nn.Dense(EXPERTS, use_bias=False, name=f"router{name}")(h))
    index = jnp.argmax(probabilities, axis=-1)
    best = jnp.take_along_axis(probabilities, index[..., None], -1)
    hidden = nn.relu(jnp.einsum("btd,btdf->btf", h, up[index]))
    return best * jnp.einsum("btf,btfd->btd", hidden, down[index])


def ragged_mixture(net: nn.Module, h: jax.Array, name: str) -> jax.Array:
    """Tokens sorted by expert, then one grouped matmul."""
    up, down = weights(net, name)
    tokens = h.reshape(-1, D)
    probabilities = nn.softmax(nn.Dense(EXPERTS, use_bias=False, name=f"router{name}")(tokens))
    index = jnp.argmax(probabilities, axis=-1)
    order = jnp.argsort(index)
    sizes = jnp.bincount(index, length=EXPERTS)
    hidden = nn.gelu(jax.lax.ragged_dot(tokens[order], up, sizes))
    out = jax.lax.ragged_dot(hidden, down, sizes)[jnp.argsort(order)]
    best = jnp.max(probabilities, axis=-1, keepdims=True)
    return (out * best).reshape(h.shape)


def language_model(mixture, layers: int = 2):
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        x = nn.Embed(VOCAB, D, name="emb")(idx)
        mask = nn.make_causal_mask(idx, dtype=bool)
        for layer in range(layers):
            attention = nn.MultiHeadDotProductAttention(4, name=f"attention{layer}")
            x = x + attention(nn.LayerNorm()(x), mask=mask)
            x = x + mixture(net, nn.LayerNorm()(x), f"{layer}")
        return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))

    return body


def stack_of_mixtures(mixture, layers: int = 2):
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        for layer in range(layers):
            x = x + mixture(net, nn.LayerNorm()(x), f"{layer}")
        return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))

    return body


def product_of_experts(net: nn.Module, x: jax.Array) -> jax.Array:
    """Gates of several tasks over shared experts (MMoE), one head a task."""
    experts = jnp.stack([nn.relu(nn.Dense(D, name=f"expert{i}")(x)) for i in range(EXPERTS)], -2)
    heads = []
    for task in range(2):
        gate = nn.softmax(nn.Dense(EXPERTS, name=f"gate{task}")(x))
        mixed = jnp.einsum("bte,bted->btd", gate, experts)
        heads.append(nn.Dense(OUT, name=f"head{task}")(mixed))
    return jnp.concatenate(heads, axis=-1)


CASES = {
    "dense_mixture": network(language_model(dense_mixture), text, additions=4),
    "written_mixture": network(stack_of_mixtures(written_mixture), sequences, additions=2),
    "capacity_mixture": network(
        stack_of_mixtures(capacity_mixture), sequences, additions=2, slow=True
    ),
    "soft_mixture": network(stack_of_mixtures(soft_mixture), sequences, additions=2, slow=True),
    "sigmoid_mixture": network(stack_of_mixtures(sigmoid_mixture), sequences, additions=2),
    "gathered_mixture": network(
        stack_of_mixtures(gathered_mixture), sequences, additions=2, slow=True
    ),
    "ragged_mixture": network(stack_of_mixtures(ragged_mixture), sequences, additions=2, slow=True),
    "gates_of_several_tasks": network(product_of_experts, sequences, outputs=(0.4, 1.25)),
}
