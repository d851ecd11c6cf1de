"""Text as token ids, and the folder that keeps them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

from experiments.study.errors import StudyError

TRAIN, VALIDATION, ABOUT = "train.npy", "validation.npy", "tokens.json"


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Training and validation text as token ids below `vocab`."""

    train: np.ndarray
    validation: np.ndarray
    vocab: int

    @property
    def fingerprint(self) -> str:
        """A short hash of every token, which tells one text from another."""
        digest = hashlib.sha256(np.ascontiguousarray(self.train).tobytes())
        digest.update(np.ascontiguousarray(self.validation).tobytes())
        return digest.hexdigest()[:16]


def numbered(train: np.ndarray, validation: np.ndarray) -> Tokens:
    """Tokens whose ids are the ranks of those that occur, so that no id is idle."""
    used, ranks = np.unique(np.concatenate([train, validation]), return_inverse=True)
    ranks = ranks.astype(np.int32)
    return Tokens(ranks[: len(train)], ranks[len(train) :], len(used))


def checked(tokens: Tokens, window: int, source: str) -> Tokens:
    """The tokens themselves, when there are enough of them and all ids are below `vocab`."""
    for name, part in (("training", tokens.train), ("validation", tokens.validation)):
        if len(part) <= window:
            raise StudyError(
                f"the {name} text of {source!r} has {len(part)} tokens, but one window needs "
                f"{window + 1}: use a longer text or a shorter window"
            )
        if part.min() < 0 or part.max() >= tokens.vocab:
            worst = part.min() if part.min() < 0 else part.max()
            raise StudyError(
                f"the {name} text of {source!r} holds the id {worst}, but V = {tokens.vocab} "
                f"allows 0 to {tokens.vocab - 1}: give a larger --vocab, or leave it out"
            )
    return tokens


def is_kept(folder: Path) -> bool:
    """Whether a folder holds tokens."""
    return (folder / TRAIN).is_file()


def read(folder: Path) -> Tokens:
    """The tokens that `write` left in a folder, or two arrays of ids that someone put there."""
    try:
        train, validation = (
            np.load(folder / name, allow_pickle=False) for name in (TRAIN, VALIDATION)
        )
        about = folder / ABOUT
        vocab = json.loads(about.read_text("utf-8"))["vocab"] if about.exists() else None
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise StudyError(
            f"cannot read the tokens in {folder} ({error}): it needs {TRAIN} and {VALIDATION}, "
            "each one array of token ids"
        ) from error
    for name, part in ((TRAIN, train), (VALIDATION, validation)):
        if part.ndim != 1 or part.dtype.kind not in "iu":
            raise StudyError(
                f"{folder / name} is an array of {part.ndim} axes of {part.dtype}: it must be one "
                "axis of whole numbers, the token ids"
            )
    if vocab is None:
        vocab = 1 + max((int(part.max()) for part in (train, validation) if len(part)), default=0)
    return Tokens(train.astype(np.int32), validation.astype(np.int32), vocab)


def write(folder: Path, tokens: Tokens) -> None:
    """Write beside the target first, so that a killed program leaves no half of it."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    np.save(partial / TRAIN, tokens.train)
    np.save(partial / VALIDATION, tokens.validation)
    (partial / ABOUT).write_text(json.dumps({"vocab": tokens.vocab}), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)
