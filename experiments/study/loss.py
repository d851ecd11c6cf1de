"""Cross-entropy whose logits never exist whole, neither forward nor backward."""

from __future__ import annotations

import jax
import jax.numpy as jnp

BLOCK_ON_CPU, BLOCK_ELSEWHERE = 2**23 + 2**18, 2**26
"""At most so many logits exist at once: on a CPU 35 MB in float32, near what its cache holds."""


def block_of_logits() -> int:
    """How many logits may exist at once where this runs."""
    return BLOCK_ON_CPU if jax.default_backend() == "cpu" else BLOCK_ELSEWHERE


def rows_per_block(rows: int, vocab: int) -> int:
    """The largest divisor of `rows` that makes no block too large (at least one row)."""
    most = max(1, block_of_logits() // vocab)
    return max(r for r in range(1, min(most, rows) + 1) if rows % r == 0)


def in_blocks(array: jax.Array, vocab: int) -> jax.Array:
    """Split the leading axis into blocks of rows."""
    rows = rows_per_block(len(array), vocab)
    return array.reshape(-1, rows, *array.shape[1:])


@jax.custom_vjp
def cross_entropy(hidden: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean of -log softmax(hidden · tableᵀ) at the targets, in nats.

    Arguments:
        hidden: [rows, d]; its dtype is the one in which matrices are multiplied.
        table: [V, d] in float32.
        targets: [rows] of token ids.
    """
    weights = table.astype(hidden.dtype)

    def block(rows: tuple[jax.Array, jax.Array]) -> jax.Array:
        return _softmax(_dot(rows[0], weights.T), rows[1])[0]

    vocab = len(table)
    blocks = in_blocks(hidden, vocab), in_blocks(targets, vocab)
    return jnp.mean(jax.lax.map(block, blocks))


def _forward(
    hidden: jax.Array, table: jax.Array, targets: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The loss, with both gradients formed while each block's logits are at hand.

    A row's softmax is left undivided by its sum: the division goes into the [rows, d] sides of
    both products, which saves a pass over the logits.
    """
    (rows, dtype), vocab = (len(hidden), hidden.dtype), len(table)
    weights = table.astype(dtype)

    def block(
        table_grad: jax.Array, rows_of: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        h, target = rows_of
        losses, powers, sums = _softmax(_dot(h, weights.T), target)
        error = powers.at[jnp.arange(len(target)), target].add(-sums).astype(dtype)
        share = 1 / (sums[:, None] * rows)
        hidden_grad = _dot(error, weights) * share
        table_grad += _dot(error.T, (h * share).astype(dtype))
        return table_grad, (losses, hidden_grad.astype(dtype))

    blocks = in_blocks(hidden, vocab), in_blocks(targets, vocab)
    start = jnp.zeros(table.shape, jnp.float32)
    table_grad, (losses, hidden_grad) = jax.lax.scan(block, start, blocks)
    return losses.mean(), (hidden_grad.reshape(hidden.shape), table_grad)


def _backward(
    gradients: tuple[jax.Array, jax.Array], scale: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    hidden_grad, table_grad = gradients
    return (hidden_grad * scale).astype(hidden_grad.dtype), table_grad * scale, None


cross_entropy.defvjp(_forward, _backward)


def _softmax(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Losses, and the softmax as powers of e (at most 1) with their sum in each row."""
    largest = logits.max(axis=-1)
    powers = jnp.exp(logits - largest[:, None])
    sums = powers.sum(axis=-1)
    at_target = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return largest + jnp.log(sums) - at_target, powers, sums


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)
