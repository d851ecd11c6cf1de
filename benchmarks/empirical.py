"""Time and memory of ``mode="empirical"`` against one forward pass of the same batch.

python benchmarks/empirical.py [batch] [length] [layers]
"""

import statistics
import sys
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from plan import GPT

import anyinit
import anyinit.flax
from anyinit._measure.empirical import compiled_pass
from anyinit._measure.find_places import find_places

_ROUNDS = 5


def needed(compiled: Any) -> float:
    """Megabytes of arguments, results and what is between, as the compiler plans them."""
    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return float(total - memory.alias_size_in_bytes) / 2**20


def seconds(function: Any, *arguments: Any) -> float:
    """How long a call takes until its results are there."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def main() -> None:
    """Print both ratios, measured in one alternating run."""
    batch, length, layers = (
        int(text) for text in [*sys.argv[1:], *("4", "256", "12")[len(sys.argv) - 1 :]]
    )
    model = GPT(layers=layers)
    tokens = jax.random.randint(jax.random.key(1), (batch, length), 0, model.vocab)
    kept: list[Any] = []
    original = anyinit.flax.measured_plan

    def watched(*arguments: Any) -> Any:
        kept[:] = arguments
        return original(*arguments)

    start = time.perf_counter()
    params = anyinit.flax.init(model, jax.random.key(0), tokens)
    analytic = time.perf_counter() - start
    passes = 0

    def counted(*arguments: Any) -> Any:
        program = compiled_pass(*arguments)

        def run(numbers: Any) -> Any:
            nonlocal passes
            passes += 1
            return program(numbers)

        return run

    with (
        mock.patch.object(anyinit.flax, "measured_plan", watched),
        mock.patch("anyinit._measure.empirical.compiled_pass", counted),
    ):
        start = time.perf_counter()
        params = anyinit.flax.init(model, jax.random.key(0), tokens, mode="empirical")
        empirical = time.perf_counter() - start
    analysis, leaves, arrays = kept
    places = find_places(analysis)
    scales = np.ones(len(places.shared), np.float32)
    start = time.perf_counter()
    forward = jax.jit(lambda p, t: model.apply(p, t)).lower(dict(params), tokens).compile()
    forward_compile = time.perf_counter() - start
    program = compiled_pass(analysis, places, leaves, arrays)
    start = time.perf_counter()
    one_pass = program.lower(scales).compile()
    pass_compile = time.perf_counter() - start
    given = (program.given, program.literals, scales)
    seconds(forward, dict(params), tokens)
    seconds(one_pass, *given)
    ratios, times = [], []
    for _ in range(_ROUNDS):
        times.append(seconds(forward, dict(params), tokens))
        ratios.append(seconds(one_pass, *given) / times[-1])
    logits = forward(dict(params), tokens)
    print(f"batch {batch} × {length}, {layers} layers; E[logits²] {jnp.mean(logits**2):.4f}")
    print(f"whole call: analytic {analytic:.2f} s, empirical {empirical:.2f} s")
    print(f"compiling: forward {forward_compile:.2f} s, measuring {pass_compile:.2f} s")
    middle = statistics.median(ratios)
    print(
        f"one measuring pass: {middle:.2f} × a forward pass ({min(ratios):.2f} to "
        f"{max(ratios):.2f}) of {statistics.median(times):.2f} s"
    )
    print(f"passes: {passes}, together {passes * middle:.2f} × a forward pass")
    memory = needed(forward), needed(one_pass)
    print(f"memory: {memory[1] / memory[0]:.2f} × ({memory[1]:.0f} MB against {memory[0]:.0f} MB)")


if __name__ == "__main__":
    main()
