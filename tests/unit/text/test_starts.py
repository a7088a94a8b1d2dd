"""The character of a text at which each of its tokens begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, processors

from plimsoll_runtime.text.tokenizer import Tokenizer

from .conftest import load

WORDS = ["hello", "world", " the", "  ", " ", "\n", "naïve", "東京", "😀", "<|im_start|>", "<s>", "</s>", "12", "."]
texts = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)
any_time = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="session")
def trimming(byte_level_backend: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer like GPT-2's: offsets exclude white space. It adds a token before and after each text."""
    backend = tokenizers.Tokenizer.from_str(byte_level_backend.to_str())
    around = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single=["<s>", "$A", "</s>"], special_tokens=around),
        ]
    )
    return load(backend, tmp_path_factory.mktemp("trimming"))


@any_time
@given(texts)
def test_starts_are_places_in_the_text(any_tokenizer: Tokenizer, text: str) -> None:
    starts = any_tokenizer.starts(text)
    assert len(starts) == len(any_tokenizer.encode(text))
    assert starts == sorted(starts)
    assert all(0 <= start <= len(text) for start in starts)


@any_time
@given(texts)
def test_the_text_at_a_start_is_the_token(byte_level: Tokenizer, trimming: Tokenizer, text: str) -> None:
    for tokenizer, added in ((byte_level, 0), (trimming, 1)):
        ids = tokenizer.encode(text)
        starts = tokenizer.starts(text)
        inner = slice(added, len(ids) - added)
        for token_id, start in zip(ids[inner], starts[inner], strict=True):
            piece = tokenizer.token_text(token_id)
            if not piece.startswith("bytes:"):
                assert text.startswith(piece, start), (piece, start)
        assert starts == sorted(starts)
        assert starts[:added] == [0] * added


def test_special_tokens_in_the_text_and_in_front_of_it(sentencepiece: Tokenizer) -> None:
    text = "<s>the<|im_end|>a"
    ids, starts = sentencepiece.encode(text), sentencepiece.starts(text)
    assert sentencepiece.decode(ids[:2], skip_special_tokens=False) == "<s><s>"
    assert starts[:2] == [0, 0]
    assert starts[2] == 3
    assert starts[ids.index(sentencepiece.token_id("<|im_end|>") or 0)] == len("<s>the")
    assert starts[-1] == len("<s>the<|im_end|>")


def test_parts_of_a_character_begin_where_it_does(byte_level: Tokenizer) -> None:
    starts = byte_level.starts("a😀b")
    assert (starts[0], starts[-1]) == (0, 2)
    assert set(starts[1:-1]) == {1}


def test_texts_that_a_normalizer_shortens(byte_level_backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    """The positions refer to the original text, which outputs repeat."""
    backend = tokenizers.Tokenizer.from_str(byte_level_backend.to_str())
    backend.normalizer = normalizers.NFC()
    tokenizer = load(backend, tmp_path)
    text = "cafe\N{COMBINING ACUTE ACCENT} the<|im_end|>"
    assert text.startswith("<|im_end|>", tokenizer.starts(text)[-1])
