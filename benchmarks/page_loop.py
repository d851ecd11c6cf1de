"""The page's training loop in PyTorch, for `study_step.py`; needs nothing but torch."""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional

VOCAB, LAYERS, WINDOW, BATCH, STEPS, WARMUP = 33_527, 4, 128, 32, 800, 50


class Layer(nn.Module):
    """Causal attention, then a GELU layer, each behind a norm and added to the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 2)
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        sizes = {"qkv": (width, 3 * width), "mixed": (width, width)}
        sizes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        for name, (fan_in, fan_out) in sizes.items():
            dense = nn.Linear(fan_in, fan_out, bias=False)
            share = 1 / (2 * LAYERS) if name in ("mixed", "down") else 1.0
            nn.init.normal_(dense.weight, std=math.sqrt(share / fan_in))
            setattr(self, name, dense)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[windows, tokens, d] to the same."""
        windows, tokens, width = x.shape
        qkv = self.qkv(self.before_attention(x))
        parts = qkv.view(windows, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mixed(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Network(nn.Module):
    """Scheme C: a tied table at 1/√d whose lookup is multiplied by √d."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.multiplier = math.sqrt(width)
        self.table = nn.Parameter(torch.randn(VOCAB, width) / self.multiplier)
        self.layers = nn.ModuleList(Layer(width) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = functional.embedding(tokens, self.table) * self.multiplier
        for layer in self.layers:
            x = layer(x)
        logits = self.norm(x) @ self.table.t()
        return functional.cross_entropy(logits.float().reshape(-1, VOCAB), targets.reshape(-1))


def main() -> None:
    """Answer requests on standard input until it ends."""
    width, kind = int(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    network = Network(width)
    rest = [p for name, p in network.named_parameters() if name != "table"]
    groups = [{"params": rest}, {"params": [network.table]}]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    text = torch.randint(0, VOCAB, (300_000,))
    loss_of = network if kind == "eager" else torch.compile(network)
    taken = 0

    def step() -> None:
        nonlocal taken
        decay = 0.1 + 0.45 * (1 + math.cos(math.pi * taken / STEPS))
        for group in adamw.param_groups:
            group["lr"] = 1e-3 * min(1, (taken + 1) / WARMUP) * decay
        at = torch.randint(0, len(text) - WINDOW - 1, (BATCH, 1)) + torch.arange(WINDOW)
        half = kind.endswith("bf16")
        low = torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext()
        with low:
            loss = loss_of(text[at], text[at + 1])
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adamw.step()
        taken += 1
        loss.item()

    for _ in range(2):  # compile, and let the allocator settle
        step()
    print(json.dumps({}), flush=True)
    for request in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        for _ in range(int(request.split()[1])):
            step()
        seconds, used = time.perf_counter() - began, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        answer = {"seconds": seconds, "core_seconds": used, "peak_gb": peak}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
