"""The study's text: documentation, folders, tokenizers, the hub, and what is refused."""

from __future__ import annotations

import builtins
import json
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))

from experiments import tied
from experiments.study import data, documentation, sources
from experiments.study.errors import StudyError
from experiments.study.tokenizing import by_own_vocabulary, split
from experiments.study.tokens import Tokens, numbered, write

VOCAB, WINDOW = 512, 16


def load(source: str | Path, cache: Path, **further: Any) -> Tokens:
    return data.load(str(source), WINDOW, cache, default_vocab=VOCAB, **further)


def words_tokenizer(*words: str) -> str:
    """A tokenizer.json whose ids are 3, 4, ... in the order of the words; 0 is unknown."""
    vocab = {"?": 0, **{word: 3 + place for place, word in enumerate(words)}}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    return json.dumps({"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}})


def folder(path: Path, train: str = "a b c " * 20, validation: str = "c b " * 20) -> Path:
    path.mkdir(exist_ok=True)
    (path / "train.txt").write_text(train, "utf-8")
    (path / "validation.txt.xz").write_bytes(lzma.compress(validation.encode()))
    return path


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return load("topics", tmp_path_factory.mktemp("data"))


def test_data_is_the_same_every_time(tokens: Tokens) -> None:
    again = by_own_vocabulary(*split(list(reversed(documentation.topics()))), VOCAB)
    assert again.fingerprint == tokens.fingerprint
    assert 0.01 < len(tokens.validation) / len(tokens.train) < 0.2
    assert tokens.train.max() < VOCAB


def test_a_damaged_cache_is_made_anew(tokens: Tokens, tmp_path: Path) -> None:
    load("topics", tmp_path)
    (kept,) = tmp_path.iterdir()
    file = kept / "train.npy"
    file.write_bytes(file.read_bytes()[:1000])
    assert load("topics", tmp_path).fingerprint == tokens.fingerprint
    assert load("topics", tmp_path).fingerprint == tokens.fingerprint


def test_a_folder_with_a_tokenizer_numbers_the_ids_that_occur(tmp_path: Path) -> None:
    text = folder(tmp_path / "text")
    (text / "tokenizer.json").write_text(words_tokenizer("c", "b", "unused", "a"), "utf-8")
    found = load(text, tmp_path)
    assert found.vocab == 3
    np.testing.assert_array_equal(found.train, [2, 1, 0] * 20)
    np.testing.assert_array_equal(found.validation, [0, 1] * 20)


def test_a_tokenizer_of_another_place_may_be_compressed(tmp_path: Path) -> None:
    file = tmp_path / "words.json.xz"
    file.write_bytes(lzma.compress(words_tokenizer("a", "b", "c").encode()))
    assert load(folder(tmp_path / "text"), tmp_path, tokenizer=file).vocab == 3


def test_a_folder_is_tokenized_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = folder(tmp_path / "text")
    (text / "tokenizer.json").write_text(words_tokenizer("a", "b", "c"), "utf-8")
    first = load(text, tmp_path)
    monkeypatch.setattr(data, "by_tokenizer", None)
    assert load(text, tmp_path).fingerprint == first.fingerprint
    monkeypatch.undo()
    folder(text, train="c a " * 30)  # other text, other tokens
    assert load(text, tmp_path).fingerprint != first.fingerprint


def test_a_folder_without_a_tokenizer_gets_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    topics = documentation.topics()
    text = folder(tmp_path / "text", "\n".join(topics[:-2]), "\n".join(topics[-2:]))
    assert load(text, tmp_path).vocab == VOCAB
    assert load(text, tmp_path, vocab=400).vocab == 400


def test_kept_tokens_are_a_folder_of_data(tokens: Tokens, tmp_path: Path) -> None:
    write(tmp_path / "kept", tokens)
    found = load(tmp_path / "kept", tmp_path)
    assert (found.vocab, found.fingerprint) == (VOCAB, tokens.fingerprint)


def test_arrays_of_ids_need_nothing_else(tmp_path: Path) -> None:
    for name in ("train", "validation"):
        np.save(tmp_path / f"{name}.npy", np.arange(40))
    assert load(tmp_path, tmp_path).vocab == 40
    with pytest.raises(StudyError, match="holds the id 39, but V = 30 allows 0 to 29"):
        load(tmp_path, tmp_path, vocab=30)
    np.save(tmp_path / "train.npy", np.ones(40))
    with pytest.raises(StudyError, match="must be one axis of whole numbers"):
        load(tmp_path, tmp_path)
    (tmp_path / "validation.npy").unlink()
    with pytest.raises(StudyError, match=r"needs train\.npy and validation\.npy"):
        load(tmp_path, tmp_path)


def test_numbered_ids_are_ranks() -> None:
    found = numbered(np.array([70, 5, 5]), np.array([9]))
    assert found.vocab == 3
    np.testing.assert_array_equal(found.train, [2, 0, 0])
    np.testing.assert_array_equal(found.validation, [1])


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="neither a folder nor the name of a text"):
        load("wikitext-3", tmp_path)


@pytest.mark.parametrize("missing", ["train", "validation"])
def test_a_folder_that_lacks_a_part(tmp_path: Path, missing: str) -> None:
    text = folder(tmp_path / "text")
    next(text.glob(f"{missing}.*")).unlink()
    with pytest.raises(StudyError, match=rf"has no {missing} text \(found: .+\): put"):
        load(text, tmp_path)


@pytest.mark.parametrize("content", [b"\xfd7zXZ\x00 cut", b"\xff\xfe"])
def test_text_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    text = folder(tmp_path / "text")
    (text / "train.txt").write_bytes(content)
    with pytest.raises(StudyError, match="must be UTF-8 text, plain or compressed by xz"):
        load(text, tmp_path)


def test_a_text_shorter_than_a_window(tmp_path: Path) -> None:
    text = folder(tmp_path / "text", validation="a b")
    (text / "tokenizer.json").write_text(words_tokenizer("a", "b", "c"), "utf-8")
    with pytest.raises(
        StudyError, match=r"validation text .* has 2 tokens, but one window needs 17"
    ):
        load(text, tmp_path)


def test_a_vocabulary_that_the_text_does_not_give() -> None:
    with pytest.raises(StudyError, match="a vocabulary of 257 tokens, but 300 were asked for"):
        by_own_vocabulary(["a"], ["b"], 300)


def test_a_tokenizer_whose_ids_exceed_the_vocabulary(tmp_path: Path) -> None:
    text = folder(tmp_path / "text")
    (text / "tokenizer.json").write_text(words_tokenizer("a", "b", "c"), "utf-8")
    with pytest.raises(StudyError, match="gives ids up to 5, but V = 4: give --vocab 6 or more"):
        load(text, tmp_path, vocab=4)
    assert load(text, tmp_path, vocab=6).train.max() == 5


def test_a_file_that_is_no_tokenizer(tmp_path: Path) -> None:
    text = folder(tmp_path / "text")
    (text / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(StudyError, match="is no tokenizer"):
        load(text, tmp_path)
    with pytest.raises(StudyError, match=r"cannot read .*none\.json"):
        load(text, tmp_path, tokenizer=tmp_path / "none.json")
    with pytest.raises(StudyError, match="goes with a folder of text, not with stdlib"):
        load("stdlib", tmp_path, tokenizer=tmp_path / "none.json")


def test_no_network_for_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline(**where: Any) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", type("Hub", (), {"hf_hub_download": offline})
    )
    monkeypatch.setitem(sys.modules, "pyarrow", type("Arrow", (), {}))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", type("Parquet", (), {}))
    arguments = ["--preset", "smoke", "--data", "wikitext-2", "--devices", "1"]
    assert tied.main([*arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: cannot fetch")
    assert "ConnectionError: no route to host" in error
    assert "--data stdlib" in error
    assert error.count("\n") == 1


def test_a_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *rest: Any, **further: Any) -> Any:
        if name.split(".")[0] in ("tokenizers", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return usual(name, *rest, **further)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StudyError, match="needs the tokenizers package"):
        load("topics", tmp_path)
    with pytest.raises(StudyError, match="needs the pyarrow"):
        load("wikitext-2", tmp_path)


def test_another_wikitext_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = "a b " * 20, "a b " * 20, words_tokenizer("a", "b").encode()
    monkeypatch.setattr(sources, "wikitext", lambda: served)
    with pytest.raises(StudyError, match="came out with V = 2, but the page's has 33,527"):
        load("wikitext-2", tmp_path)
