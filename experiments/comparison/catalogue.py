"""The ten tasks: a model, where its batches come from, and its loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from experiments.comparison import examples
from experiments.comparison.examples import Draw
from experiments.comparison.networks import LSTM, MLP, ResNet, StateSpace, UNet
from experiments.comparison.transformers import GPT, ViT
from experiments.study.tokens import Tokens


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How large the tasks are.

    Arguments:
        width: of every model.
        scale: depth of every model, as a share of the usual one below.
        batch: examples in a step; an MLP's step has four times as many.
        window: tokens of an example.
        vocab: number of tokens V.
    """

    width: int
    scale: float
    batch: int
    window: int
    vocab: int

    def layers(self, usual: int) -> int:
        """A depth in proportion, at least 1."""
        return max(1, round(self.scale * usual))


@dataclasses.dataclass(frozen=True)
class Task:
    """A model and what it learns.

    Arguments:
        title: its name in the table.
        learns: what it learns, in words.
        model: the module.
        train: makes a training batch from a key.
        held_out: makes a batch that is not trained on.
        loss: mean loss of outputs against targets.
    """

    title: str
    learns: str
    model: nn.Module
    train: Draw
    held_out: Draw
    loss: Callable[[jax.Array, jax.Array], jax.Array]


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross-entropy of the classes, in nats."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))


def pixel_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross-entropy of the pixels, in nats."""
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, targets))


def tasks(sizes: Sizes, tokens: Tokens) -> dict[str, Task]:
    """All tasks by name, in the order of the table."""
    vocab, width, layers = tokens.vocab, sizes.width, sizes.layers

    def language(title: str, model: nn.Module) -> Task:
        train, held_out = (
            examples.windows(jnp.asarray(text), sizes.window, sizes.batch)
            for text in (tokens.train, tokens.validation)
        )
        return Task(title, "the next token", model, train, held_out, cross_entropy)

    def gpt(title: str, tied: bool, post_norm: bool) -> Task:
        return language(title, GPT(vocab, width, layers(4), tied, post_norm))

    shapes, masks = examples.shapes(sizes.batch), examples.masks(sizes.batch)
    taught = examples.taught(4 * sizes.batch)
    kinds = len(examples.SHAPES)
    mlp = MLP(examples.TEACHER_CLASSES, width, layers(16))
    resnet, vit = ResNet(kinds, width, layers(6)), ViT(kinds, width, layers(4))
    which = "which shape is in a noisy image"
    return {
        "mlp": Task(
            "deep MLP, no norm", "a random network's classes", mlp, taught, taught, cross_entropy
        ),
        "resnet": Task("ResNet, no norm", which, resnet, shapes, shapes, cross_entropy),
        "gpt-pre-tied": gpt("GPT, pre-LN, tied", tied=True, post_norm=False),
        "gpt-pre-untied": gpt("GPT, pre-LN, untied", tied=False, post_norm=False),
        "gpt-post-tied": gpt("GPT, post-LN, tied", tied=True, post_norm=True),
        "gpt-post-untied": gpt("GPT, post-LN, untied", tied=False, post_norm=True),
        "lstm": language("LSTM", LSTM(vocab, width, layers(2))),
        "vit": Task("ViT", which, vit, shapes, shapes, cross_entropy),
        "unet": Task(
            "U-Net, no norm",
            "which pixels a shape covers",
            UNet(width, layers(2)),
            masks,
            masks,
            pixel_cross_entropy,
        ),
        "state-space": language("state-space", StateSpace(vocab, width, layers(2))),
    }
