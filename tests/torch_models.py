"""Tied language models in PyTorch, in the spellings in which people write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 1_000
LENGTH = 24

Scale = Callable[[nn.Module, torch.Tensor], torch.Tensor]

# name: (table std, lookup multiplier, logit multiplier, tied, untied head std)
SCHEMES: dict[str, Any] = {
    "A": (lambda d: 1.0, lambda d: 1.0, lambda d: 1.0, True, None),
    "B": (lambda d: 0.02, lambda d: 1.0, lambda d: 1.0, True, None),
    "C": (lambda d: d**-0.5, lambda d: d**0.5, lambda d: 1.0, True, None),
    "D": (lambda d: 1.0, lambda d: 1.0, lambda d: d**-0.5, True, None),
    "F": (lambda d: d**-0.5, lambda d: 1.0, lambda d: 1.0, True, None),
    "E": (lambda d: 1.0, lambda d: 1.0, lambda d: 1.0, False, lambda d: d**-0.5),
}
LAYERS = 2


class Block(nn.Module):
    """The page's transformer block."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.heads = max(d // 64, 2)
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.fc, self.out = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        qkv = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class LM(nn.Module):
    """The page's language model, in each of its schemes."""

    def __init__(self, d: int, scheme: str, vocab: int = VOCAB) -> None:
        super().__init__()
        table_std, lookup, logits, self.tied, head_std = SCHEMES[scheme]
        self.in_mult, self.out_mult = lookup(d), logits(d)
        self.E = nn.Parameter(torch.randn(vocab, d) * table_std(d))
        self.H = None if self.tied else nn.Parameter(torch.randn(vocab, d) * head_std(d))
        self.blocks = nn.ModuleList(Block(d) for _ in range(LAYERS))
        self.lnf = nn.LayerNorm(d)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = F.embedding(idx, self.E) * self.in_mult
        for block in self.blocks:
            x = block(x)
        return (self.lnf(x) @ (self.E if self.tied else self.H).t()) * self.out_mult


def keep(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """No factor."""
    return x


class Tied(nn.Module):
    """A tied model with a configurable forward pass: lookup, block, norm, readout, factor.

    Arguments:
        d: width.
        read: how the table is kept and read, a key of `READS`.
        lookup: what is done to the looked-up rows.
        before: what is done to what the readout reads.
        after: what is done to the logits.
        factor: the number kept as buffer `factor`, parameter `gain` and its logarithm.
    """

    def __init__(
        self,
        d: int,
        read: str = "linear",
        lookup: Scale = keep,
        before: Scale = keep,
        after: Scale = keep,
        factor: float = 1.0,
    ) -> None:
        super().__init__()
        self.d, self.number, self.read = d, factor, READS[read]
        self.lookup, self.before, self.after = lookup, before, after
        self.register_buffer("factor", torch.tensor(factor))
        self.gain = nn.Parameter(torch.tensor(factor))
        self.drop = nn.Dropout(0.1)
        self.block, self.norm = Block(d), nn.LayerNorm(d)
        if read in ("parameter", "mT"):
            self.table = nn.Parameter(torch.randn(VOCAB, d))
        else:
            self.emb = nn.Embedding(VOCAB, d)
            self.head = nn.Linear(d, VOCAB, bias=False)
            if read == "reversed":
                self.emb.weight = self.head.weight
            else:
                self.head.weight = self.emb.weight

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        table = self.table if hasattr(self, "table") else self.emb.weight
        x = F.embedding(idx, table) if hasattr(self, "table") else self.emb(idx)
        h = self.before(self, self.norm(self.block(self.lookup(self, x))))
        return self.after(self, self.read(self, h, table))


READS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "linear": lambda model, h, table: model.head(h),
    "reversed": lambda model, h, table: model.head(h),
    "functional": lambda model, h, table: F.linear(h, table),
    "keywords": lambda model, h, table: F.linear(input=h, weight=table, bias=None),
    "transposed": lambda model, h, table: h @ table.T,
    "t": lambda model, h, table: torch.matmul(h, table.t()),
    "mT": lambda model, h, table: h @ table.mT,
    "einsum": lambda model, h, table: torch.einsum("btd,vd->btv", h, table),
    "parameter": lambda model, h, table: h @ table.transpose(0, 1),
}

# A factor c on the logits, in every spelling; each is to count alike.
FACTORS: dict[str, Scale] = {
    "number": lambda model, x: x * model.number,
    "left": lambda model, x: model.number * x,
    "divided": lambda model, x: x / (1 / model.number),
    "buffer": lambda model, x: x * model.factor,
    "parameter": lambda model, x: model.gain * x,
    "keyword": lambda model, x: torch.mul(x, other=model.number),
    "in_place": lambda model, x: x.clone().mul_(model.number),
    "exponential": lambda model, x: x * model.gain.log().exp(),
    "dropout": lambda model, x: model.drop(x * model.number),
    "tensor": lambda model, x: x * torch.tensor(model.number),
}


def by_width(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The factor read off the input's own size."""
    return x * x.size(-1) ** -0.5


def in_place(model: Any, x: torch.Tensor) -> torch.Tensor:
    """OLMo's: the logits are scaled where they lie."""
    x.mul_(1 / math.sqrt(model.d))
    return x


def soft_cap(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Gemma 2's."""
    return 30.0 * torch.tanh(x / 30.0)


def times(number: Callable[[int], float]) -> Scale:
    """Multiplication by a number that depends on the width."""
    return lambda model, x: x * number(model.d)  # type: ignore[arg-type]
