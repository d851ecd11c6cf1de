"""From text to token ids: by a tokenizer from a file, or by a byte-pair vocabulary of its own."""

from __future__ import annotations

import lzma
import random
from typing import TYPE_CHECKING

import numpy as np

from experiments.study.errors import StudyError
from experiments.study.tokens import Tokens, numbered

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
VALIDATION_SHARE = 0.05


def split(texts: list[str], seed: int = 0) -> tuple[list[str], list[str]]:
    """Distinct texts, shuffled: those to train on, and those held out."""
    texts = sorted(set(texts))
    random.Random(seed).shuffle(texts)
    held_out = max(1, round(VALIDATION_SHARE * len(texts)))
    return texts[held_out:], texts[:held_out]


def by_own_vocabulary(train: list[str], validation: list[str], vocab: int) -> Tokens:
    """Encode texts by a byte-pair vocabulary of `vocab` tokens, trained on the first of them."""
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(train, trainer)
    found = tokenizer.get_vocab_size()
    if found != vocab:
        raise StudyError(
            f"the text gives a vocabulary of {found} tokens, but {vocab} were asked for: "
            "use a longer text, or a vocabulary between 257 and what the text gives"
        )
    end = tokenizer.token_to_id(END_OF_TEXT)

    def encode(part: list[str]) -> np.ndarray:
        encodings = tokenizer.encode_batch(part)
        return np.array([i for e in encodings for i in (*e.ids, end)], dtype=np.int32)

    return Tokens(encode(train), encode(validation), vocab)


def by_tokenizer(
    train: str, validation: str, serialized: bytes, name: str, vocab: int | None = None
) -> Tokens:
    """Encode two texts by a tokenizer in Hugging Face's JSON, which may be compressed by xz.

    Without `vocab`, the ids that occur are numbered anew; with it they stay as they are.
    """
    tokenizer = _deserialized(serialized, name)
    ids = [
        np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)
        for text in (train, validation)
    ]
    if vocab is None:
        return numbered(*ids)
    largest = max((int(part.max()) for part in ids if len(part)), default=0)
    if largest >= vocab:
        raise StudyError(
            f"the tokenizer {name} gives ids up to {largest}, but V = {vocab}: give --vocab "
            f"{largest + 1} or more, or leave it out to number the ids that occur"
        )
    return Tokens(ids[0], ids[1], vocab)


def _deserialized(serialized: bytes, name: str) -> Tokenizer:
    try:
        if serialized.startswith(b"\xfd7zXZ"):
            serialized = lzma.decompress(serialized)
        return _library().Tokenizer.from_str(serialized.decode("utf-8"))
    except StudyError:
        raise
    except Exception as error:  # the library raises plain exceptions
        raise StudyError(
            f"{name} is no tokenizer ({error}): give a tokenizer.json of Hugging Face's tokenizers"
        ) from error


def _library():
    try:
        import tokenizers
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise StudyError(
            "text needs the tokenizers package, which is not installed: pip install tokenizers, "
            "or give --data a folder with train.npy and validation.npy"
        ) from error
    return tokenizers
