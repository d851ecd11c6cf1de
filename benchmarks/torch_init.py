"""What planning and initialising a PyTorch model costs, against building it.

Prints the ratios for a 12-layer, 768-wide GPT (124 million parameters): time of a first and of a
later call over the time of construction, and peak memory over that of construction. Each memory
figure is taken in a process of its own.

    python benchmarks/torch_init.py
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.before(x)).chunk(3, -1)
        query, key, value = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mixed(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    def __init__(self, vocab: int = 50_257, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def peak_memory() -> float:
    """Peak resident memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(task: str, width: int) -> dict[str, float]:
    """Run one task in this process.

    Arguments:
        task: ``"build"``, ``"init"`` or ``"meta"`` (planning a Llama of 8 billion parameters).
        width: width of the GPT.
    """
    import anyinit.torch

    torch.set_num_threads(1)
    tokens = torch.zeros(2, 64, dtype=torch.int64)
    before = peak_memory()
    if task == "meta":
        start = time.perf_counter()
        anyinit.torch.plan(llama(), tokens.to("meta"))
        return {"first": time.perf_counter() - start, "peak": peak_memory(), "before": before}
    start = time.perf_counter()
    model = GPT(width=width)
    build = time.perf_counter() - start
    times = []
    for _ in range(3 if task == "init" else 0):
        start = time.perf_counter()
        anyinit.torch.init_(model, tokens)
        times.append(time.perf_counter() - start)
    figures = {"build": build, "peak": peak_memory(), "before": before}
    if times:
        figures |= {"first": times[0], "later": min(times[1:])}
    return figures


def llama() -> nn.Module:
    """A Llama of the shapes of the 8-billion one, without data."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def run(task: str, width: int = 768) -> dict[str, float]:
    """Run one task in a process of its own."""
    command = [sys.executable, __file__, "--task", task, "--width", str(width)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", help="run one task here and print its figures as JSON")
    parser.add_argument("--width", type=int, default=768)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(measure(options.task, options.width)))
        return
    build, init = run("build"), run("init")
    narrow = run("init", 192)
    print(f"construction        {init['build']:.2f} s, peak {build['peak']:.2f} GB")
    print(f"init_, first call   {init['first']:.2f} s = {init['first'] / init['build']:.2f}×")
    print(f"init_, later calls  {init['later']:.2f} s = {init['later'] / init['build']:.2f}×")
    print(f"peak with init_     {init['peak']:.2f} GB = {init['peak'] / build['peak']:.2f}×")
    print(f"at width 192        {narrow['first']:.2f} s first, {narrow['later']:.2f} s later")
    meta = run("meta")
    print(f"Llama 8B on meta    {meta['first']:.2f} s, {meta['peak'] - meta['before']:.2f} GB more")


if __name__ == "__main__":
    main()
