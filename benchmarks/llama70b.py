"""Time and memory of a plan, from shapes, for a model of the shape of Llama 70B.

python benchmarks/llama70b.py            # both below, each in a process of its own
python benchmarks/llama70b.py scanned    # layers stacked by nn.scan
python benchmarks/llama70b.py unrolled   # eighty modules
"""

import argparse
import resource
import subprocess
import sys
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import anyinit

VOCABULARY, D, LAYERS, HEADS, KEY_HEADS, HIDDEN = 128_256, 8_192, 80, 64, 8, 28_672
HEAD = D // HEADS


def rotary(x: jax.Array) -> jax.Array:
    """Rotate pairs of features by an angle that grows with the position."""
    half = x.shape[-1] // 2
    frequency = 500_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequency
    left, right = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


class Block(nn.Module):
    """Grouped-query attention and SwiGLU, each behind an RMSNorm."""

    @nn.compact
    def __call__(self, x: jax.Array, _: Any = None) -> tuple[jax.Array, None]:
        """Add both branches to the stream."""
        h = nn.RMSNorm(name="attention_norm")(x)
        q = rotary(nn.DenseGeneral((HEADS, HEAD), use_bias=False, name="q")(h))
        k = rotary(nn.DenseGeneral((KEY_HEADS, HEAD), use_bias=False, name="k")(h))
        v = nn.DenseGeneral((KEY_HEADS, HEAD), use_bias=False, name="v")(h)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + nn.DenseGeneral(D, axis=(-2, -1), use_bias=False, name="o")(mixed)
        h = nn.RMSNorm(name="mlp_norm")(x)
        gate = nn.Dense(HIDDEN, use_bias=False, name="gate")(h)
        up = nn.Dense(HIDDEN, use_bias=False, name="up")(h)
        return x + nn.Dense(D, use_bias=False, name="down")(nn.silu(gate) * up), None


class Llama(nn.Module):
    """The language model, its layers scanned or unrolled."""

    scanned: bool

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of the next token."""
        x = nn.Embed(VOCABULARY, D, name="tokens")(tokens)
        if self.scanned:
            blocks = nn.scan(
                Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS
            )
            x, _ = blocks(name="blocks")(x, None)
        else:
            for layer in range(LAYERS):
                x, _ = Block(name=f"block{layer}")(x)
        return nn.Dense(VOCABULARY, use_bias=False, name="head")(nn.RMSNorm(name="norm")(x))


def peak_megabytes() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str, profile: bool) -> None:
    """Print the time and the added memory of one plan, and the time of the trace alone."""
    model = Llama(scanned=kind == "scanned")
    tokens = jax.ShapeDtypeStruct((1, 2_048), jnp.int32)
    jax.eval_shape(lambda: jnp.zeros(()))
    before = peak_megabytes()
    start = time.perf_counter()
    if profile:
        import cProfile
        import pstats

        with cProfile.Profile() as profiler:
            plan = anyinit.flax.plan(model, tokens)
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(45)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    else:
        plan = anyinit.flax.plan(model, tokens)
    seconds = time.perf_counter() - start
    memory = peak_megabytes() - before
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
    start = time.perf_counter()
    jax.make_jaxpr(lambda v, t: model.apply(v, t))(variables, tokens)
    traced = time.perf_counter() - start
    size = sum(leaf.size for leaf in jax.tree.leaves(variables))
    print(
        f"{kind}: {size / 1e9:.1f} billion parameters, {len(plan.weights)} rows, "
        f"{len(plan.findings)} findings; plan {seconds:.1f} s (cold), {memory:.0f} MB above the "
        f"imports; make_jaxpr alone {traced:.1f} s"
    )


def main() -> None:
    """Measure the kinds asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=("scanned", "unrolled"))
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    arguments = parser.parse_args()
    if arguments.kind is None:
        for kind in ("scanned", "unrolled"):
            subprocess.run([sys.executable, __file__, kind], check=True)
    else:
        measure(arguments.kind, arguments.profile)


if __name__ == "__main__":
    main()
