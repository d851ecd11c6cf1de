"""A training step of the study against the page's PyTorch loop, in one alternating run.

python benchmarks/study_step.py --torch-python OTHER/bin/python

Each trainer lives in a process of its own and waits until it is its turn; a round gives every one
of them a few steps. Ratios are medians over rounds, so that a load that comes and goes hits all;
the time that the cores spent is given too, since on a busy machine it is what differs least.
PyTorch's process never gives memory back to the system: the page's loop would otherwise unmap
and map its whole logits in every step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_ARENA_MAX": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # idle threads must not take the others' cores
}
LIMITS = {128: (1.1, 0.45), 512: (2.3, 0.65)}  # GB of memory, share of the matmul rate


class Trainer:
    """A process that takes steps when told to."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | environment,
        )  # fmt: skip
        self.ready = self._answer()

    def ask(self, request: str) -> dict:
        """Send a request and wait for its answer."""
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Let the process end."""
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[1]} ended early: see its error above")
        return json.loads(line)


def compare(width: int, steps: int, rounds: int, pythons: dict[str, str], kinds: list[str]) -> None:
    """Print what one width gives."""
    trainers = {"jax": Trainer([pythons["jax"], str(HERE / "study_loop.py"), str(width)], {})}
    for kind in kinds:
        command = [pythons["torch"], str(HERE / "page_loop.py"), str(width), kind]
        trainers[kind] = Trainer(command, KEEP_MEMORY)
    found = {name: [] for name in trainers}
    cores = {name: [] for name in trainers}
    rates, answers = [], {}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            answers[name] = trainer.ask(f"steps {steps}")
            found[name].append(answers[name]["seconds"] / steps)
            cores[name].append(answers[name]["core_seconds"] / steps)
        rates.append(trainers["jax"].ask("matmul")["flops"])
    compiling = trainers["jax"].ask("compile")["seconds"]
    for trainer in trainers.values():
        trainer.close()
    best, flops = min(found["jax"]), trainers["jax"].ready["flops"]
    memory, share = LIMITS.get(width, (float("inf"), 0.0))
    print(
        f"d = {width}, {rounds} rounds of {steps} steps, load {os.getloadavg()[0]:.1f} at the end"
    )
    for name, seconds in found.items():
        ours = [b / a for a, b in zip(found["jax"], seconds, strict=True)]
        print(
            f"  {name:13} best {min(seconds):6.3f} s, {statistics.median(ours):.2f} × ours "
            f"({min(ours):.2f} to {max(ours):.2f}); of the cores {min(cores[name]):6.3f} s, "
            f"{min(cores[name]) / min(cores['jax']):.2f} × ours; "
            f"peak {answers[name]['peak_gb']:.2f} GB"
        )
    print(
        f"  jax: {flops / best / max(rates):.0%} of the best 2048³ matmul "
        f"({max(rates) / 1e9:.0f} GFLOP/s; wanted {share:.0%}), "
        f"memory {answers['jax']['peak_gb']:.2f} GB (at most {memory}), two compilations "
        f"{sum(compiling):.1f} s ({', '.join(f'{s:.1f}' for s in compiling)}; at most 10)",
        flush=True,
    )


def main() -> None:
    """Compare at each width."""
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("--widths", nargs="+", type=int, default=[128, 512])
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--steps", type=int, default=2)
    parse.add_argument("--torch-python", default=sys.executable, help="Python that has torch")
    parse.add_argument("--kinds", nargs="*", default=["eager", "compiled"],
                       help="PyTorch's: eager, compiled, compiled-bf16")  # fmt: skip
    given = parse.parse_args()
    pythons = {"jax": sys.executable, "torch": given.torch_python}
    for width in given.widths:
        compare(width, given.steps, given.rounds, pythons, given.kinds)


if __name__ == "__main__":
    main()
