"""Where text comes from: a folder, or the wikitext-2 of the Hugging Face hub."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

from experiments.study.errors import StudyError

HUB_DATASET, HUB_TOKENIZER = "Salesforce/wikitext", "EleutherAI/pythia-70m"
SUFFIXES = (".txt", ".txt.xz", ".xz")


def folder_parts(folder: Path) -> tuple[bytes, bytes]:
    """The bytes of a folder's training and validation text, compressed or not."""
    if not folder.is_dir():
        raise StudyError(
            f"--data {folder} is neither a folder nor the name of a text: give stdlib, topics, "
            "wikitext-2, or a folder with train.txt and validation.txt"
        )
    return _part(folder, "train"), _part(folder, "validation")


def folder_tokenizer(folder: Path) -> Path | None:
    """The tokenizer that lies in the folder, if one does."""
    files = (folder / "tokenizer.json", folder / "tokenizer.json.xz")
    return next((file for file in files if file.is_file()), None)


def text_of(content: bytes, name: str) -> str:
    """Text from the bytes of a file."""
    try:
        if content.startswith(b"\xfd7zXZ"):
            content = lzma.decompress(content)
        return content.decode("utf-8")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise StudyError(
            f"{name} cannot be read ({error}): it must be UTF-8 text, plain or compressed by xz"
        ) from error


def contents(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise StudyError(f"cannot read {path} ({error.strerror}): check the path") from error


def wikitext() -> tuple[str, str, bytes]:
    """Training and validation text of the raw wikitext-2, and the Pythia tokenizer."""
    try:
        import huggingface_hub
        import pyarrow.parquet
    except ImportError as error:
        raise StudyError(
            f"wikitext-2 needs the {error.name} package, which is not installed: pip install "
            "huggingface_hub pyarrow, or use --data stdlib or a folder"
        ) from error

    def fetch(**where: Any) -> str:
        try:
            return huggingface_hub.hf_hub_download(**where)
        except Exception as error:  # network, proxy, hub and cache each raise their own kinds
            reason = str(error).strip().splitlines()
            raise StudyError(
                f"cannot fetch {where['filename']} of {where['repo_id']} from the Hugging Face hub "
                f"({type(error).__name__}: {reason[0] if reason else 'no reason given'}): check "
                "the network, or use --data stdlib or a folder"
            ) from error

    def text(part: str) -> str:
        name = f"wikitext-2-raw-v1/{part}-00000-of-00001.parquet"
        path = fetch(repo_id=HUB_DATASET, filename=name, repo_type="dataset")
        return "".join(pyarrow.parquet.read_table(path).column("text").to_pylist())

    tokenizer = fetch(repo_id=HUB_TOKENIZER, filename="tokenizer.json")
    return text("train"), text("validation"), Path(tokenizer).read_bytes()


def _part(folder: Path, name: str) -> bytes:
    for suffix in SUFFIXES:
        path = folder / f"{name}{suffix}"
        if path.is_file():
            return contents(path)
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise StudyError(
        f"{folder} has no {name} text (found: {found}): put {name}.txt or {name}.txt.xz there"
    )
