"""The study's trainer, for `study_step.py`: answers requests on standard input, a line each."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from experiments.study import devices, step
from experiments.study.presets import PRESETS
from experiments.study.protocol import Protocol, scheme
from experiments.study.runs import Run
from experiments.study.shapes import shape_of
from experiments.study.train import starting_state

PROTOCOL = PRESETS["full"].protocol
MATMUL = 2048


def flops_of_step(protocol: Protocol, width: int) -> float:
    """Of the products of a step, forward and backward; attention unmasked, lookups free."""
    of_token = 12 * protocol.layers * width**2 + protocol.vocab * width
    of_token += 2 * protocol.layers * protocol.window * width
    return 6.0 * protocol.batch * protocol.window * of_token


def random_text(vocab: int, length: int = 300_000) -> np.ndarray:
    """Token ids that stand in for a text."""
    return np.random.default_rng(0).integers(0, vocab, length, dtype=np.int32)


def matmul_rate(size: int = MATMUL, dtype: str = "float32", times: int = 5) -> float:
    """The best rate of a square product, FLOP/s."""
    a = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        product(a).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


def peak_gb() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    """Answer until the input ends."""
    width, count = int(sys.argv[1]), 1
    mesh = devices.mesh_of(1, PROTOCOL.batch)
    run = Run(scheme("C"), width, 1e-3, 0)
    setting = step.Setting(shape_of(PROTOCOL, run.scheme, width), PROTOCOL, mesh)
    text = devices.replicate(random_text(PROTOCOL.vocab), mesh)
    compiled = step.steps(setting, count, len(text))
    state, numbers = starting_state(setting, [run])
    state, _ = jax.block_until_ready(compiled.call(state, numbers, text, np.int32(0)))
    print(json.dumps({"flops": flops_of_step(PROTOCOL, width)}), flush=True)
    for number, request in enumerate(sys.stdin):
        if request.startswith("steps"):
            began, used = time.perf_counter(), time.process_time()
            for _ in range(int(request.split()[1])):
                state, curves = compiled.call(state, numbers, text, np.int32(number))
            jax.block_until_ready((state, curves))
            seconds, used = time.perf_counter() - began, time.process_time() - used
            answer = {"seconds": seconds, "core_seconds": used, "peak_gb": peak_gb()}
        elif request.startswith("matmul"):
            answer = {"flops": matmul_rate()}
        else:
            untied = step.Setting(shape_of(PROTOCOL, scheme("E"), width), PROTOCOL, mesh)
            other = step.steps(untied, count, len(text))
            answer = {"seconds": [compiled.seconds, other.seconds]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
