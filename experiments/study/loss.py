"""Cross-entropy whose logits never exist whole, neither forward nor backward."""

from __future__ import annotations

import jax
import jax.numpy as jnp

BLOCK = 2**22
"""At most so many logits exist at once."""


def rows_per_block(rows: int, vocab: int) -> int:
    """The largest divisor of `rows` with at most `BLOCK` logits (at least one row)."""
    return max(r for r in range(1, rows + 1) if rows % r == 0 and (r == 1 or r * vocab <= BLOCK))


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
    table = table.astype(hidden.dtype)

    def block(rows: tuple[jax.Array, jax.Array]) -> jax.Array:
        return _losses(_dot(rows[0], table.T), rows[1])[0]

    vocab = len(table)
    blocks = in_blocks(hidden, vocab), in_blocks(targets, vocab)
    return jnp.mean(jax.lax.map(block, blocks))


def _forward(
    hidden: jax.Array, table: jax.Array, targets: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The loss, with both gradients formed while each block's logits are at hand."""
    rows, (vocab, width), dtype = len(hidden), table.shape, hidden.dtype
    weights = table.astype(dtype)

    def block(
        table_grad: jax.Array, rows_of: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        h, target = rows_of
        logits = _dot(h, weights.T)
        losses, log_sum = _losses(logits, target)
        hit = jnp.arange(vocab) == target[:, None]
        error = ((jnp.exp(logits - log_sum[:, None]) - hit) / rows).astype(dtype)
        return table_grad + _dot(error.T, h), (losses, _dot(error, weights).astype(dtype))

    blocks = in_blocks(hidden, vocab), in_blocks(targets, vocab)
    start = jnp.zeros((vocab, width), jnp.float32)
    table_grad, (losses, hidden_grad) = jax.lax.scan(block, start, blocks)
    return losses.mean(), (hidden_grad.reshape(hidden.shape), table_grad)


def _backward(
    gradients: tuple[jax.Array, jax.Array], scale: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    hidden_grad, table_grad = gradients
    return (hidden_grad * scale).astype(hidden_grad.dtype), table_grad * scale, None


cross_entropy.defvjp(_forward, _backward)


def _losses(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    return log_sum - jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0], log_sum


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)
