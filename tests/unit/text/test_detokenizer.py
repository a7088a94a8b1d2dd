"""Detokenising: deltas concatenate to the whole text, and incomplete characters are never returned."""

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll_runtime.text.detokenizer import new_detokenizer
from plimsoll_runtime.text.tokenizer import Tokenizer

quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def deltas(tokenizer: Tokenizer, ids: list[int], *, at_start: bool = True, skip: bool = True) -> list[str]:
    detokenizer = new_detokenizer(tokenizer, skip_special_tokens=skip, at_start=at_start)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@quick
@given(data=st.data(), skip=st.booleans())
def test_deltas_concatenate_to_the_text_of_all_ids(any_tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, any_tokenizer.vocab_size + 2), max_size=40))
    if any_tokenizer.spelling is None:
        kept = [i for i in ids if not (skip and i in any_tokenizer.special_ids)]
        expected = any_tokenizer.decode_pieces(kept)
    else:
        spelled = b"".join(any_tokenizer.token_bytes(i) for i in ids if not (skip and i in any_tokenizer.special_ids))
        expected = spelled.decode("utf-8", "replace")
        leading = any_tokenizer.spelling.leading_spaces
        expected = expected[1:] if leading and expected.startswith(" ") else expected
    assert "".join(deltas(any_tokenizer, ids, skip=skip)) == expected
    assert any_tokenizer.decode(ids, skip_special_tokens=skip) == expected


@quick
@given(data=st.data(), skip=st.booleans())
def test_several_tokens_at_once_give_what_they_give_one_by_one(
    any_tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    texts = st.text(max_size=20).map(lambda text: any_tokenizer.encode(text, add_special_tokens=False))
    some = st.one_of(st.lists(st.integers(0, any_tokenizer.vocab_size + 2), max_size=40), texts)
    pieces = data.draw(st.lists(some, max_size=4))
    detokenizer = new_detokenizer(any_tokenizer, skip_special_tokens=skip)
    told = [*map(detokenizer.push_all, pieces), detokenizer.finish()]
    one_by_one = deltas(any_tokenizer, [i for piece in pieces for i in piece], at_start=False, skip=skip)
    assert "".join(told) == "".join(one_by_one)


@quick
@given(text=st.text(max_size=60), skip=st.booleans())
def test_decoding_equals_the_librarys_for_every_text(
    sentencepiece: Tokenizer,
    byte_level: Tokenizer,
    sentencepiece_backend: tokenizers.Tokenizer,
    byte_level_backend: tokenizers.Tokenizer,
    text: str,
    skip: bool,
) -> None:
    for ours, theirs in ((sentencepiece, sentencepiece_backend), (byte_level, byte_level_backend)):
        ids = theirs.encode(text).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@quick
@given(data=st.data())
def test_random_ids_of_a_byte_level_vocabulary_decode_as_in_the_library(
    byte_level: Tokenizer, byte_level_backend: tokenizers.Tokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size - 1), max_size=40))
    assert byte_level.decode(ids) == byte_level_backend.decode(ids)


@quick
@given(text=st.text(alphabet="😀東é a", max_size=30))
def test_a_split_character_is_held_until_it_is_complete(
    byte_level: Tokenizer, sentencepiece: Tokenizer, text: str
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        given_out = deltas(tokenizer, tokenizer.encode(text, add_special_tokens=False))
        assert not any("�" in delta for delta in given_out)
        assert given_out[-1] == ""


def test_a_character_that_never_completes_shows_at_the_end_only(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("x", add_special_tokens=False)
    partial = [byte_level.token_id(piece) for piece in ("ð", "Ł")]  # the first two bytes of an emoji
    assert all(token_id is not None for token_id in partial)
    assert deltas(byte_level, [*ids, *[i for i in partial if i is not None]]) == ["x", "", "", "�"]


def test_a_continuation_keeps_its_leading_space(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("The capital", add_special_tokens=False)
    assert "".join(deltas(sentencepiece, ids, at_start=True)) == "The capital"
    assert "".join(deltas(sentencepiece, ids, at_start=False)) == " The capital"


def test_only_the_first_space_of_a_text_is_dropped(sentencepiece: Tokenizer) -> None:
    space = sentencepiece.token_id("▁")
    assert space is not None
    assert sentencepiece.decode([space, space, space]) == "  "


def test_special_tokens_show_only_when_wanted(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<|im_start|>hello<|im_end|>")
    assert byte_level.decode(ids) == "hello"
    assert byte_level.decode(ids, skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"


def test_a_window_never_grows_with_the_text(word_piece: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    replacement = word_piece.token_id("##�")
    assert replacement is not None
    decoded: list[int] = []
    original = word_piece.decode_pieces

    def counting(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return original(ids)

    monkeypatch.setattr(word_piece, "decode_pieces", counting)
    deltas(word_piece, [1] + [replacement] * 200 + [1, 2, 3] * 50)
    assert max(decoded) <= 32


def test_a_token_of_a_window_costs_one_decoding(word_piece: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    deltas(word_piece, [1, 2, 3])  # from here on the tokens are known
    decoded: list[list[int]] = []
    original = word_piece.decode_pieces

    def listing(ids: Sequence[int]) -> str:
        decoded.append(list(ids))
        return original(ids)

    monkeypatch.setattr(word_piece, "decode_pieces", listing)
    deltas(word_piece, [1, 2, 3] * 50)
    assert len(decoded) == 150


def test_the_text_of_one_token(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    partial = byte_level.token_id("ð")
    assert partial is not None
    assert byte_level.token_text(partial) == "bytes:\\xf0"
    assert byte_level.token_bytes(10**6) == b""
    newline = sentencepiece.token_id("<0x0A>")
    assert newline is not None
    assert sentencepiece.token_text(newline) == "\n"
