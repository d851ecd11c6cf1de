"""The tokens of a study: found by the name of a text or by a folder, and made only once."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from pathlib import Path

from experiments.study import documentation, sources, tokens
from experiments.study.errors import StudyError
from experiments.study.tokenizing import by_own_vocabulary, by_tokenizer, split
from experiments.study.tokens import Tokens

DOCUMENTATION = {"stdlib": documentation.stdlib, "topics": documentation.topics}
WIKITEXT, WIKITEXT_VOCAB = "wikitext-2", 33_527


def load(
    source: str,
    window: int,
    cache: Path,
    *,
    default_vocab: int,
    vocab: int | None = None,
    tokenizer: Path | None = None,
) -> Tokens:
    """Tokens of a text, read from the folder `cache` when they are there already.

    Arguments:
        source: `stdlib`, `topics`, `wikitext-2`, or a folder.
        window: tokens in a training example; each part must have more.
        cache: where tokens are kept.
        default_vocab: size of a vocabulary that is trained on the text, unless `vocab` is given.
        vocab: number of tokens V; without it, what the text gives.
        tokenizer: file of the tokenizer for a folder without one.
    """
    if tokenizer is not None and (source in DOCUMENTATION or source == WIKITEXT):
        raise StudyError(f"--tokenizer goes with a folder of text, not with {source}: leave it out")
    if source in DOCUMENTATION:
        found = _documentation(source, vocab or default_vocab, cache)
    elif source == WIKITEXT:
        found = _kept(cache, WIKITEXT, _wikitext)
    else:
        found = _folder(Path(source), default_vocab, vocab, tokenizer, cache)
    return tokens.checked(found, window, source)


def _documentation(source: str, vocab: int, cache: Path) -> Tokens:
    key = f"{source}-python{platform.python_version()}-{vocab}"
    return _kept(cache, key, lambda: by_own_vocabulary(*split(DOCUMENTATION[source]()), vocab))


def _wikitext() -> Tokens:
    train, validation, tokenizer = sources.wikitext()
    found = by_tokenizer(train, validation, tokenizer, sources.HUB_TOKENIZER)
    if found.vocab != WIKITEXT_VOCAB:
        raise StudyError(
            f"wikitext-2 came out with V = {found.vocab:,}, but the page's has {WIKITEXT_VOCAB:,}: "
            "what the hub serves has changed; use --data with a folder of the right text"
        )
    return found


def _folder(
    folder: Path, default_vocab: int, vocab: int | None, tokenizer: Path | None, cache: Path
) -> Tokens:
    if tokens.is_kept(folder):
        found = tokens.read(folder)
        return found if vocab is None else Tokens(found.train, found.validation, vocab)
    parts = sources.folder_parts(folder)
    file = tokenizer or sources.folder_tokenizer(folder)
    serialized = b"" if file is None else sources.contents(file)
    size = vocab if file else vocab or default_vocab

    def make() -> Tokens:
        names = ("train", "validation")
        texts = [sources.text_of(p, f"{folder / n}") for p, n in zip(parts, names, strict=True)]
        if file is None:
            return by_own_vocabulary([texts[0]], [texts[1]], size or default_vocab)
        return by_tokenizer(texts[0], texts[1], serialized, str(file), size)

    digest = hashlib.sha256(repr(size).encode())
    for content in (*parts, serialized):
        digest.update(hashlib.sha256(content).digest())
    return _kept(cache, f"{folder.resolve().name}-{digest.hexdigest()[:12]}", make)


def _kept(cache: Path, key: str, make: Callable[[], Tokens]) -> Tokens:
    """The tokens kept under `key`; made and kept where there are none, or a damaged file."""
    folder = cache / f"tokens-{key}"
    if tokens.is_kept(folder):
        try:
            return tokens.read(folder)
        except StudyError:
            pass
    made = make()
    tokens.write(folder, made)
    return made
