"""Text that every Python carries: its own documentation, as tokens."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import os
import platform
import random
import sysconfig
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from experiments.study.errors import StudyError

END_OF_TEXT = "<|endoftext|>"
VALIDATION_SHARE = 0.05
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests"}


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Training and validation text as token ids below `vocab`."""

    train: np.ndarray
    validation: np.ndarray
    vocab: int

    @property
    def fingerprint(self) -> str:
        """A short hash of every token, which tells one text from another."""
        digest = hashlib.sha256(self.train.tobytes())
        digest.update(self.validation.tobytes())
        return digest.hexdigest()[:16]


def load(source: str, vocab: int, window: int, cache: Path) -> Tokens:
    """Tokens of `source`, read from the folder `cache` when they are there already."""
    if source not in SOURCES:
        known = ", ".join(SOURCES)
        raise StudyError(f"no data is called {source!r}: choose among {known}")
    path = cache / f"{source}-python{platform.python_version()}-{vocab}.npz"
    tokens = _read(path, vocab)
    if tokens is None:
        tokens = tokenize(SOURCES[source](), vocab)
        _write(path, tokens)
    for name, part in (("training", tokens.train), ("validation", tokens.validation)):
        if len(part) <= window:
            raise StudyError(
                f"the {name} text of {source!r} has {len(part)} tokens, but one window needs "
                f"{window + 1}: use a longer text or a shorter window"
            )
    return tokens


def tokenize(texts: list[str], vocab: int, seed: int = 0) -> Tokens:
    """Shuffle and split distinct texts, and encode them by a byte-pair vocabulary of their own."""
    texts = sorted(set(texts))
    random.Random(seed).shuffle(texts)
    held_out = max(1, round(VALIDATION_SHARE * len(texts)))
    validation, train = texts[:held_out], texts[held_out:]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
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


def topics() -> list[str]:
    """The language reference that `help()` shows."""
    return list(importlib.import_module("pydoc_data.topics").topics.values())


def stdlib() -> list[str]:
    """Every documentation string of the running Python's library, read without importing it."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [p for p in root.rglob("*.py") if not NOT_LIBRARY & set(p.relative_to(root).parts)]
    docstrings = [text for file in files for text in _docstrings(file)]
    if not docstrings:
        raise StudyError(
            f"there are no Python sources under {root}: use --data topics, or a Python that "
            "comes with its library's sources"
        )
    return docstrings + topics()


SOURCES = {"stdlib": stdlib, "topics": topics}


def _docstrings(file: Path) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        with warnings.catch_warnings():  # old library code has invalid escapes
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # templates and deliberately broken files
        return
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


def _read(path: Path, vocab: int) -> Tokens | None:
    """The cached tokens, or None where there are none or the file is damaged."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return Tokens(arrays["train"], arrays["validation"], vocab)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _write(path: Path, tokens: Tokens) -> None:
    """Write beside the target first, so that a killed program leaves no half file."""
    partial = path.with_suffix(f".{os.getpid()}.partial.npz")
    np.savez(partial, train=tokens.train, validation=tokens.validation)
    partial.replace(path)
