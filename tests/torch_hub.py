"""Small random Hugging Face models, built from configurations alone, and inputs for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import transformers

VOCAB = 512
WIDTH = 128
LENGTH = 32


@dataclasses.dataclass(frozen=True)
class Entry:
    """One model of the battery.

    Arguments:
        make: builds the model.
        inputs: keyword arguments of forward for a seed.
        low: least second moment of the logits.
        high: largest second moment of the logits.
        output: name of the output that is measured, or of a module whose output is.
        stream: names of the lists of pre-norm blocks along which a residual stream runs.
        stream: names of the lists of pre-norm blocks along which a residual stream runs.
    """

    make: Callable[[], torch.nn.Module]
    inputs: Callable[[int], dict[str, Any]]
    low: float = 0.8
    high: float = 1.25
    output: str = "logits"
    stream: tuple[str, ...] = ()


def _tokens(seed: int, low: int = 3, shape: tuple[int, int] = (8, LENGTH)) -> torch.Tensor:
    return torch.randint(low, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def ids(seed: int) -> dict[str, Any]:
    return {"input_ids": _tokens(seed)}


def pairs(seed: int) -> dict[str, Any]:
    return {"input_ids": _tokens(seed), "decoder_input_ids": _tokens(100 + seed)}


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def images(seed: int) -> dict[str, Any]:
    return {"pixel_values": normal(seed, 8, 3, 64, 64)}


_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
_GATED = _SMALL | {"num_key_value_heads": 2, "intermediate_size": 256, "pad_token_id": 0}
_LONG = {"max_position_embeddings": 128}


def _causal(name: str, **options: Any) -> Callable[[], torch.nn.Module]:
    return _model(f"{name}ForCausalLM", f"{name}Config", **options)


def _model(model: str, config: str, **options: Any) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        made = getattr(transformers, config)(**options)
        return getattr(transformers, model)(made).eval()

    return make


def _clip() -> torch.nn.Module:
    text = {**_SMALL, **_LONG, "intermediate_size": 256, "eos_token_id": 2}
    vision = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "image_size": 64,
        "patch_size": 16,
    }
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)
    return transformers.CLIPModel(config).eval()


BATTERY: dict[str, Entry] = {
    "gpt2": Entry(
        _model(
            "GPT2LMHeadModel",
            "GPT2Config",
            vocab_size=VOCAB,
            n_embd=WIDTH,
            n_layer=4,
            n_head=4,
            n_positions=128,
        ),
        ids,
        stream=("transformer.h",),
    ),
    "gpt_neox": Entry(
        _causal("GPTNeoX", **_SMALL, intermediate_size=256, **_LONG),
        ids,
        stream=("gpt_neox.layers",),
    ),
    "llama": Entry(_causal("Llama", **_GATED), ids, stream=("model.layers",)),
    "llama_tied": Entry(
        _causal("Llama", **_GATED, tie_word_embeddings=True), ids, stream=("model.layers",)
    ),
    "gemma": Entry(_causal("Gemma", **_GATED, head_dim=32), ids, stream=("model.layers",)),
    "gemma2": Entry(_causal("Gemma2", **_GATED, head_dim=32), ids),
    "gemma3": Entry(_model("Gemma3ForCausalLM", "Gemma3TextConfig", **_GATED, head_dim=32), ids),
    "qwen3": Entry(
        _causal("Qwen3", **_GATED, head_dim=32, tie_word_embeddings=True),
        ids,
        stream=("model.layers",),
    ),
    "phi3": Entry(_causal("Phi3", **_GATED), ids, stream=("model.layers",)),
    "granite": Entry(
        _causal(
            "Granite",
            **_GATED,
            embedding_multiplier=12.0,
            logits_scaling=8.0,
            residual_multiplier=0.22,
            attention_multiplier=0.0078,
            tie_word_embeddings=True,
        ),
        ids,
        stream=("model.layers",),
    ),
    "opt": Entry(
        _causal("OPT", **_SMALL, **_LONG, ffn_dim=256, word_embed_proj_dim=64),
        ids,
        stream=("model.decoder.layers",),
    ),
    "bloom": Entry(
        _causal("Bloom", vocab_size=VOCAB, hidden_size=WIDTH, n_layer=4, n_head=4),
        ids,
        stream=("transformer.h",),
    ),
    "t5": Entry(
        _model(
            "T5ForConditionalGeneration",
            "T5Config",
            vocab_size=VOCAB,
            d_model=WIDTH,
            d_kv=32,
            d_ff=256,
            num_layers=3,
            num_heads=4,
            decoder_start_token_id=0,
        ),
        pairs,
        stream=(
            "encoder.block",
            "decoder.block",
        ),
    ),
    "bart": Entry(
        _model(
            "BartForConditionalGeneration",
            "BartConfig",
            vocab_size=VOCAB,
            d_model=WIDTH,
            encoder_layers=3,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            **_LONG,
        ),
        pairs,
    ),
    "bert": Entry(
        _model("BertForMaskedLM", "BertConfig", **_SMALL, **_LONG, intermediate_size=256), ids
    ),
    "mixtral": Entry(
        _causal("Mixtral", **_GATED, num_local_experts=4, num_experts_per_tok=2),
        ids,
        stream=("model.layers",),
    ),
    "mamba": Entry(
        _causal("Mamba", vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=4, state_size=8),
        ids,
        stream=("backbone.layers",),
    ),
    "rwkv": Entry(
        _causal(
            "Rwkv", vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=4, context_length=64
        ),
        ids,
    ),
    "vit": Entry(
        _model(
            "ViTForImageClassification",
            "ViTConfig",
            hidden_size=WIDTH,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=256,
            image_size=64,
            patch_size=8,
            num_labels=200,
        ),
        images,
    ),
    "swin": Entry(
        _model(
            "SwinForImageClassification",
            "SwinConfig",
            image_size=64,
            patch_size=4,
            embed_dim=64,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
            num_labels=200,
        ),
        images,
        0.5,
        1.7,
    ),
    "convnext": Entry(
        _model(
            "ConvNextForImageClassification",
            "ConvNextConfig",
            hidden_sizes=[64, 96, 128, 160],
            depths=[2, 2, 2, 2],
            num_labels=200,
        ),
        images,
        0.5,
        1.7,
    ),
    "resnet": Entry(
        _model(
            "ResNetForImageClassification",
            "ResNetConfig",
            embedding_size=64,
            hidden_sizes=[64, 128, 192, 256],
            depths=[2, 2, 2, 2],
            num_labels=200,
        ),
        images,
        0.5,
        1.7,
    ),
    "wav2vec2": Entry(
        _model(
            "Wav2Vec2ForCTC",
            "Wav2Vec2Config",
            **_SMALL,
            intermediate_size=256,
            conv_dim=(64, 64, 64),
            conv_stride=(5, 4, 4),
            conv_kernel=(10, 8, 4),
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
        ),
        lambda seed: {"input_values": normal(seed, 4, 8000)},
    ),
    "whisper": Entry(
        _model(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            vocab_size=VOCAB,
            d_model=WIDTH,
            encoder_layers=3,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            max_source_positions=64,
            max_target_positions=128,
            num_mel_bins=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        ),
        lambda seed: {
            "input_features": normal(seed, 4, 32, 128),
            "decoder_input_ids": _tokens(100 + seed, shape=(4, LENGTH)),
        },
    ),
    "clip": Entry(
        _clip,
        lambda seed: {"input_ids": _tokens(seed), **images(seed)},
        output="text_projection",
    ),
}
