"""keras_hub's backbones from small configurations, with random weights and their logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras_hub import models

VOCAB, LENGTH, D, DEPTH = 500, 16, 64, 3


def tokens(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, (16, LENGTH)).astype("int32")


def ones() -> np.ndarray:
    return np.ones((16, LENGTH), "int32")


def decoded(seed: int) -> dict[str, np.ndarray]:
    return {"token_ids": tokens(seed), "padding_mask": ones()}


def gpt2() -> Any:
    backbone = models.GPT2Backbone(VOCAB, DEPTH, 4, D, 4 * D, max_sequence_length=LENGTH)
    return models.GPT2CausalLM(backbone)


def gemma(**options: Any) -> Any:
    return models.GemmaCausalLM(models.GemmaBackbone(VOCAB, DEPTH, 4, 1, D, 4 * D, 16, **options))


def gemma2() -> Any:
    return gemma(
        use_post_ffw_norm=True,
        use_post_attention_norm=True,
        attention_logit_soft_cap=50.0,
        final_logit_soft_cap=30.0,
        use_sliding_window_attention=True,
        sliding_window_size=8,
    )


def bert() -> Any:
    backbone = models.BertBackbone(VOCAB, DEPTH, 4, D, 4 * D, max_sequence_length=LENGTH)
    return models.BertMaskedLM(backbone)


def masked(seed: int) -> dict[str, np.ndarray]:
    positions = np.tile(np.arange(4, dtype="int32"), (16, 1))
    return {**decoded(seed), "segment_ids": 0 * ones(), "mask_positions": positions}


def t5(factor: float, redrawn: bool = True) -> Any:
    """With the logits of the decoder, times a factor as in T5 itself.

    keras_hub draws the table around a mean of 1, which no scale can make up for.
    """
    backbone = models.T5Backbone(VOCAB, DEPTH, 4, D, 4 * D, dropout=0.0, use_gated_activation=False)
    if redrawn:
        backbone.token_embedding.embeddings.assign(keras.random.normal((VOCAB, D), seed=1))
    h = backbone.output["decoder_sequence_output"]
    logits = backbone.token_embedding(keras.layers.Rescaling(factor)(h), reverse=True)
    return keras.Model(backbone.input, logits)


def translated(seed: int) -> dict[str, np.ndarray]:
    return {
        "encoder_token_ids": tokens(seed),
        "encoder_padding_mask": ones(),
        "decoder_token_ids": tokens(seed + 100),
        "decoder_padding_mask": ones(),
    }


# name: the model, its input, the tokens that it reads, c
HUB: dict[str, tuple[Callable[[], Any], Callable[[int], Any], str, float]] = {
    "gpt2": (gpt2, decoded, "token_ids", 1.0),
    "gemma": (gemma, decoded, "token_ids", 1.0),
    "gemma2": (gemma2, decoded, "token_ids", 1.0),
    "bert": (bert, masked, "", 1.0),
    "t5": (lambda: t5(D**-0.5), translated, "decoder_token_ids", D**-0.5),
}
