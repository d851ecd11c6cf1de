"""Plain PyTorch models: what people write without a library of architectures."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

VOCAB = 1_000
WIDTH = 128


class Seq2Seq(nn.Module):
    """`nn.Transformer` with one table for the source, the target and the output."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.body = nn.Transformer(d, 4, 2, 2, 4 * d, batch_first=True, norm_first=True)
        self.head = nn.Linear(d, VOCAB, bias=False)
        self.head.weight = self.emb.weight
        self.d = d

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        look_up = lambda idx: self.emb(idx) * math.sqrt(self.d)  # noqa: E731
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        h = self.body(look_up(source), look_up(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(h)


class Attention(nn.Module):
    """`nn.MultiheadAttention` with its fused in_proj, between norms."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, 4, batch_first=True)
        self.head = nn.Linear(d, 300)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return self.head(self.last(x + self.attention(h, h, h, need_weights=False)[0]))


class Recurrent(nn.Module):
    """A tied language model around a recurrent layer."""

    def __init__(self, kind: str, d: int = WIDTH, layers: int = 2) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.cells = getattr(nn, kind)(d, d, layers, batch_first=True)
        self.head = nn.Linear(d, VOCAB, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.emb(idx))[0])


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(h)))


class ResNet(nn.Module):
    """Convolutions, pooling and batch norm."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm, self.pool = nn.BatchNorm2d(channels), nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(*(ResidualBlock(channels) for _ in range(3)))
        self.head = nn.Linear(channels, 200)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.blocks(self.pool(F.relu(self.norm(self.stem(x)))))
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))


class UNet(nn.Module):
    """Down, up, and a connection across, in group norms."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.enter = self._block(3, channels)
        self.down = self._block(channels, 2 * channels)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.merge = self._block(2 * channels, channels)
        self.leave = nn.Conv2d(channels, 16, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.enter(x)
        low = self.up(self.down(F.max_pool2d(high, 2)))
        wide = F.interpolate(F.avg_pool2d(high, 2), scale_factor=2, mode="bilinear")
        return self.leave(self.merge(torch.cat([low, high + 0.1 * wide], 1)))


class ResidualMLP(nn.Module):
    """Twelve residual branches without any normalization."""

    def __init__(self, d: int = 256, layers: int = 12) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(d, d), nn.Linear(d, d)
        self.up = nn.ModuleList(nn.Linear(d, 2 * d) for _ in range(layers))
        self.down = nn.ParameterList(torch.randn(2 * d, d) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + F.gelu(up(x)) @ down
        return self.head(x)


class Branching(nn.Module):
    """Control flow that depends on data, and a number read out of a tensor."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(d, d), nn.Linear(d, d)
        self.head = nn.Linear(d, 300)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.first if x.mean() > -100 else self.other
        h = F.gelu(layer(x))
        for _ in range(int(x.abs().mean().ceil().item())):
            h = h / h.std()
        return self.head(h)


class Containers(nn.Module):
    """Modules in lists and dictionaries, and products written by hand."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(d, d), "b": nn.Linear(d, d)})
        self.weights = nn.ParameterDict({"w": nn.Parameter(torch.randn(d, d))})
        self.more = nn.ParameterList([torch.randn(d, d)])
        self.W = nn.Parameter(torch.randn(d, 300))
        self.plain = [nn.Linear(d, d)]  # unseen by named_parameters

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        h = torch.tanh(self.layers["a"](batch["x"]))
        h = torch.tanh(self.layers["b"](h))
        h = torch.relu(h @ self.weights["w"])
        h = torch.relu(h @ self.more[0])
        return {"logits": h @ self.W}


class Normed(nn.Module):
    """A parametrized layer: weight norm or spectral norm."""

    def __init__(self, kind: str, d: int = WIDTH) -> None:
        super().__init__()
        wrap = getattr(parametrizations, kind)
        self.first = wrap(nn.Linear(d, d, bias=False))
        self.head = nn.Linear(d, 300, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.first(x)))


class LoRA(nn.Module):
    """A frozen layer with a low-rank adapter whose last factor is zero."""

    def __init__(self, d: int = WIDTH, rank: int = 8) -> None:
        super().__init__()
        self.base = nn.Linear(d, d, bias=False)
        self.base.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, d))
        self.b = nn.Parameter(torch.zeros(d, rank))
        self.head = nn.Linear(d, 300, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.base(x) + 2.0 * (x @ self.a.T @ self.b.T)
        return self.head(F.gelu(h))


class Experts(nn.Module):
    """A mixture of experts through one grouped matrix product."""

    def __init__(self, d: int = WIDTH, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(d, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, d, 2 * d))
        self.down = nn.Parameter(torch.randn(experts, 2 * d, d))
        self.head = nn.Linear(d, 300, bias=False)
        self.norm, self.last = nn.LayerNorm(d), nn.LayerNorm(d)
        self.experts = experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        share, chosen = self.router(h).softmax(-1).max(-1)
        order = chosen.argsort()
        counts = torch.zeros(self.experts, dtype=torch.int32).scatter_add(
            0, chosen, torch.ones_like(chosen, dtype=torch.int32)
        )
        ends = counts.cumsum(0, dtype=torch.int32)
        mixed = F.gelu(torch._grouped_mm(h[order].bfloat16(), self.up.bfloat16(), offs=ends))
        mixed = torch._grouped_mm(mixed, self.down.bfloat16(), offs=ends).float()
        back = torch.empty_like(mixed)
        back[order] = mixed
        return self.head(self.last(x + back * share[:, None]))


class LookupTower(nn.Module):
    """`nn.EmbeddingBag` and a padded embedding, side by side."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCAB, d, mode="mean")
        self.emb = nn.Embedding(VOCAB, d, padding_idx=0)
        self.head = nn.Linear(2 * d, 300)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.bag(idx), self.emb(idx[:, 0])], -1)
        return self.head(F.relu(both))
