"""Time and memory of a plan from shapes alone, against tracing the same function.

python benchmarks/plan.py
"""

import resource
import statistics
import time

import flax.linen as nn
import jax
import jax.numpy as jnp

import anyinit


class Block(nn.Module):
    """A pre-LN transformer block with causal attention."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Add attention and a perceptron to the stream."""
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        attention = nn.MultiHeadDotProductAttention(self.heads)
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        hidden = nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1])(hidden)


class GPT(nn.Module):
    """A GPT of 124 million parameters with a tied table."""

    vocab: int = 50_257
    d: int = 768
    layers: int = 12
    heads: int = 12

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of the next token."""
        table = nn.Embed(self.vocab, self.d)
        x = table(tokens)
        for _ in range(self.layers):
            x = Block(self.heads)(x)
        return table.attend(nn.LayerNorm()(x))


def peak_megabytes() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print cold time, added memory, and the warm ratio to ``jax.make_jaxpr``."""
    model = GPT()
    tokens = jax.ShapeDtypeStruct((2, 64), jnp.int32)
    before = peak_megabytes()
    start = time.perf_counter()
    anyinit.flax.plan(model, tokens)
    print(f"cold: {time.perf_counter() - start:.2f} s, {peak_megabytes() - before:.0f} MB more")
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
    ratios = []
    for _ in range(7):
        start = time.perf_counter()
        jax.make_jaxpr(lambda v, t: model.apply(v, t))(variables, tokens)
        traced = time.perf_counter()
        anyinit.flax.plan(model, tokens)
        ratios.append((time.perf_counter() - traced) / (traced - start))
    low, high = min(ratios), max(ratios)
    print(f"warm: {statistics.median(ratios):.2f} × make_jaxpr ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
