"""Step time, utilisation and peak memory of the study's trainer on this machine's device.

python benchmarks/accelerator.py --data TOKENS
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from benchmarks.study_loop import flops_of_step, matmul_rate
from experiments.study import data, devices, step
from experiments.study.capacity import runs_at_once
from experiments.study.presets import PRESETS, Preset
from experiments.study.protocol import scheme
from experiments.study.runs import Run
from experiments.study.shapes import shape_of
from experiments.study.tokens import Tokens
from experiments.study.train import starting_state, steps_at_once

CALLS = 4


def measure(
    preset: Preset, tokens: Tokens, width: int, name: str, at_once: int
) -> tuple[str, float]:
    """A line on one executable (compile time, step time, memory), and its FLOP/s."""
    protocol, row = preset.protocol, scheme(name)
    mesh = devices.mesh_of(1, protocol.batch)
    setting = step.Setting(shape_of(protocol, row, width), protocol, mesh, at_once)
    text = devices.replicate(tokens.train, mesh)
    count = steps_at_once(protocol)
    compiled = step.steps(setting, count, len(text))
    state, numbers = starting_state(setting, [Run(row, width, 1e-3, 0)] * at_once)
    seconds = []
    for _ in range(CALLS):
        began = time.perf_counter()
        state, curves = compiled.call(state, numbers, text, np.int32(0))
        np.asarray(curves[0])
        seconds.append((time.perf_counter() - began) / (count * at_once))
    rate = flops_of_step(protocol, width) / min(seconds)
    temporary = compiled.call.memory_analysis().temp_size_in_bytes / 1e9
    return (
        f"d = {width:4}  {'tied' if row.tied else 'untied':6}  {at_once} at once  "
        f"{1e3 * min(seconds):8.2f} ms a step and run  {rate / 1e12:7.2f} TFLOP/s  "
        f"compiled in {compiled.seconds:4.1f} s  temporaries {temporary:.2f} GB",
        rate,
    )


def main() -> None:
    """Print a line a width, tie and number of runs side by side."""
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("--preset", choices=PRESETS, default="full")
    parse.add_argument("--data", required=True)
    parse.add_argument("--compilation-cache", type=Path)
    given = parse.parse_args()
    if given.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(given.compilation_cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    preset = PRESETS[given.preset]
    protocol = preset.protocol
    kept = Path(given.data).parent
    tokens = data.load(given.data, protocol.window, kept, default_vocab=protocol.vocab)
    preset = preset.changed(vocab=tokens.vocab)
    device = jax.local_devices()[0]
    cpu = device.platform == "cpu"
    best = matmul_rate(1024, "float32") if cpu else matmul_rate(8192, "bfloat16", 20)
    print(f"{device.device_kind}, jax {jax.__version__}, V = {tokens.vocab:,}")
    print(f"matmul, {'float32 1024³' if cpu else 'bfloat16 8192³'}: {best / 1e12:.2f} TFLOP/s")
    fitting = runs_at_once(preset.protocol, max(preset.widths))
    for width, name in itertools.product(preset.widths, ("C", "E")):
        for at_once in sorted({1, fitting if not cpu else 2}):
            line, rate = measure(preset, tokens, width, name, at_once)
            print(f"{line}  utilisation {rate / best:.0%}", flush=True)
    stats = device.memory_stats() or {}
    peak = stats.get("peak_bytes_in_use")
    print("peak memory of the device: " + (f"{peak / 1e9:.2f} GB" if peak else "not reported"))


if __name__ == "__main__":
    main()
