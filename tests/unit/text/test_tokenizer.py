"""Tokenizers from folders: the files next to tokenizer.json have the same effect as in Transformers."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from plimsoll_runtime.errors import ModelError, SourceError
from plimsoll_runtime.text import tokenizer_files
from plimsoll_runtime.text.tokenizer import TextError, Tokenizer, load_tokenizer
from plimsoll_runtime.text.tokenizer_files import cached_folder
from plimsoll_runtime.weights.files import ModelFiles

Build = Callable[..., ModelFiles]
TEXTS = ["The capital", " leading", "<|im_start|>user\nHi<|im_end|></s>", "", "<s>", "é😀 [PAD]x", "a <extra> b"]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"bos_token": "<s>", "eos_token": "</s>"},
        {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True},
        {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True},
        {"bos_token": "<s>", "add_bos_token": False},
        {"bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False}, "add_eos_token": False},
        {"eos_token": "T"},
        {"image_token": "T", "extra_special_tokens": ["h"]},
        {"additional_special_tokens": ["h", "T"]},
        {
            "added_tokens_decoder": {
                "9000": {"content": "<extra>", "special": True, "lstrip": True, "rstrip": False, "normalized": False}
            }
        },
        {
            "added_tokens_decoder": {
                "9000": {"content": "<extra>", "special": False, "lstrip": False, "rstrip": True, "normalized": False}
            }
        },
    ],
)
@pytest.mark.parametrize("kind", ["byte_level_backend", "sentencepiece_backend"])
def test_companion_files_mean_what_transformers_says(
    config: dict[str, Any], kind: str, model_files: Build, request: pytest.FixtureRequest
) -> None:
    files = model_files(
        request.getfixturevalue(kind), tokenizer_config=config | {"tokenizer_class": "PreTrainedTokenizerFast"}
    )
    ours = load_tokenizer(files)
    theirs = PreTrainedTokenizerFast.from_pretrained(files.root)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        for skip in (True, False):
            ids = theirs.encode(text)
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_special_tokens_have_names_and_ids(byte_level_backend: tokenizers.Tokenizer, model_files: Build) -> None:
    files = model_files(
        byte_level_backend,
        tokenizer_config={"bos_token": {"content": "<s>"}},
        special_tokens_map={"eos_token": "</s>", "bos_token": ""},
    )
    tokenizer = load_tokenizer(files)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert tokenizer.bos_token_id == byte_level_backend.token_to_id("<s>")
    assert tokenizer.eos_token_id == byte_level_backend.token_to_id("</s>")
    assert (
        load_tokenizer(model_files(byte_level_backend, tokenizer_config={}, special_tokens_map={})).bos_token_id is None
    )


def test_padding_and_truncation_in_the_file_are_ignored(
    byte_level_backend: tokenizers.Tokenizer, model_files: Build
) -> None:
    cut = tokenizers.Tokenizer.from_str(byte_level_backend.to_str())
    cut.enable_truncation(3)
    cut.enable_padding(length=10)
    tokenizer = load_tokenizer(model_files(cut))
    assert tokenizer.decode(tokenizer.encode("a longer text than that")) == "a longer text than that"


def test_no_token_stands_for_more_than_the_longest_piece(
    byte_level_backend: tokenizers.Tokenizer, model_files: Build
) -> None:
    tokenizer = load_tokenizer(model_files(byte_level_backend))
    text = "The capital of France is Paris<|im_start|>" * 50
    assert len(text) <= len(tokenizer.encode(text)) * tokenizer.longest_piece


def test_half_a_character_is_refused(byte_level_backend: tokenizers.Tokenizer, model_files: Build) -> None:
    with pytest.raises(TextError, match="unpaired surrogate"):
        load_tokenizer(model_files(byte_level_backend)).encode("a\ud800b")


def test_broken_files_are_named(byte_level_backend: tokenizers.Tokenizer, model_files: Build, tmp_path: Path) -> None:
    files = model_files(byte_level_backend, tokenizer_config=["a list"])
    with pytest.raises(ModelError, match=r"tokenizer_config\.json must hold a JSON object"):
        load_tokenizer(files)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(files)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(files)


def test_a_folder_without_any_vocabulary_says_what_to_do(model_files: Build) -> None:
    with pytest.raises(ModelError, match="copy the tokenizer's files next to the weights"):
        load_tokenizer(model_files())


def test_vocabulary_files_are_converted_once(
    byte_level_backend: tokenizers.Tokenizer, model_files: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    byte_level_backend.model.save(str(tmp_path))
    files = model_files(
        tokenizer_config={
            "tokenizer_class": "GPT2Tokenizer",
            "unk_token": "<s>",
            "bos_token": "<s>",
            "eos_token": "</s>",
        },
        config={"model_type": "gpt2"},
    )
    tokenizer = load_tokenizer(files)
    assert tokenizer.encode("The capital") == byte_level_backend.encode("The capital").ids
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", None)
    assert load_tokenizer(files).encode("The capital") == tokenizer.encode("The capital")


def test_a_sentencepiece_model_says_what_reading_it_needs(
    model_files: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer_files, "SENTENCEPIECE_NEEDS", ("no-such-package", "pytest"))
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelError, match=r"tokenizer\.model is a SentencePiece model.*pip install no-such-package$"):
        load_tokenizer(model_files())


def test_a_cache_is_built_once_and_read_only_ones_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "own"))
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("content")

    first = cached_folder("key", build)
    assert (first, len(built)) == (tmp_path / "own" / "tokenizers" / "key", 1)
    assert cached_folder("key", build) == first
    assert len(built) == 1
    assert [entry.name for entry in first.parent.iterdir()] == ["key"]
    image = tmp_path / "image"
    (image / "tokenizers" / "key").mkdir(parents=True)
    monkeypatch.setenv("PLIMSOLL_MODEL_PATH", f"{tmp_path / 'none'}{os.pathsep}{image}")
    assert cached_folder("key", build) == image / "tokenizers" / "key"


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))

    def build(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ModelError("broken")

    with pytest.raises(ModelError, match="broken"):
        cached_folder("key", build)
    assert list((tmp_path / "tokenizers").iterdir()) == []


def test_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))

    def build(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SourceError, match=r"No space left on device.*free some space or set PLIMSOLL_CACHE"):
        cached_folder("key", build)
    assert list((tmp_path / "tokenizers").iterdir()) == []


def test_two_that_build_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    together = threading.Barrier(2, timeout=10)
    found: list[Path] = []

    def build(folder: Path) -> None:
        (folder / "file").write_text("content")
        together.wait()

    threads = [threading.Thread(target=lambda: found.append(cached_folder("key", build))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "tokenizers" / "key"] * 2
    assert (found[0] / "file").read_text() == "content"
    assert [entry.name for entry in (tmp_path / "tokenizers").iterdir()] == ["key"]


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "file"))
    with pytest.raises(SourceError, match="set PLIMSOLL_CACHE"):
        cached_folder("key", lambda folder: None)


def test_whether_a_text_holds_a_special_token(byte_level: Tokenizer) -> None:
    for text in ("<|im_end|>", "a<s>", "\n<</s>", "<|im_start|><|im_end|>"):
        assert byte_level.holds_special(text)
        assert byte_level.holds_special(text)  # as it is kept
    for text in ("", "a", "<", "<|im_en", "im_end|>", "<|im_end>|"):
        assert not byte_level.holds_special(text)
    assert not byte_level.holds_special("<" * 10_000_000 + "<s>")
    for number in range(3000):
        assert byte_level.holds_special(f"{number}<s>")
        assert not byte_level.holds_special(f"{number}<s")
