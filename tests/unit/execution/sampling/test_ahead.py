"""Forced tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structured_support.models import byte_tokenizer

from plimsoll_kernels.sampling.masks import words_of
from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.execution.sampling.constraints import Guide, advance_forced_tokens, only_token
from plimsoll_runtime.structured.matcher import Grammars
from plimsoll_runtime.structured.vocabulary import vocabulary_of
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.text.tokenizer_settings import TokenizerSettings

FIXED = '"kind": true, "none": null'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return a tokenizer of bytes alone: a text has one tokenization."""
    return Tokenizer(byte_tokenizer(257), TokenizerSettings(tokens={"eos_token": "</s>"}))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    made = Grammars()
    made.use(vocabulary_of(tokenizer, tokenizer.vocab_size, [end_of(tokenizer)]))
    return made


def end_of(tokenizer: Tokenizer) -> int:
    found = tokenizer.token_id("</s>")
    assert found is not None
    return found


@given(tokens=st.sets(st.integers(0, 299), max_size=3))
def test_a_mask_with_one_token(tokens: set[int]) -> None:
    mask = np.zeros(10, dtype=np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    assert only_token(mask.view(np.int32)) == (next(iter(tokens)) if len(tokens) == 1 else None)


def guide(grammars: Grammars, pattern: str) -> Guide:
    constraint = Constraint.regex(pattern)
    grammars.prepare(constraint).result()
    return Guide(grammars.matcher(constraint), None, ())


def first_mask(guide: Guide, tokenizer: Tokenizer) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    mask = np.empty(words_of(tokenizer.vocab_size), dtype=np.int32)
    guide.fill(mask)
    return mask


@pytest.mark.parametrize("most", [1, 3, 100])
def test_a_fixed_text_is_found_up_to_a_choice(grammars: Grammars, tokenizer: Tokenizer, most: int) -> None:
    led = guide(grammars, FIXED + "[a-z]x")
    found = advance_forced_tokens(led, first_mask(led, tokenizer), grammars.ends(), most)
    assert tokenizer.decode(found) == FIXED[: len(tokenizer.decode(found))]
    assert len(found) <= most + 1
    assert (tokenizer.decode(found) == FIXED) == (most == 100)
    alone = guide(grammars, FIXED + "[a-z]x")
    for token in found:
        assert only_token(first_mask(alone, tokenizer)) == token, "by a step of its own it would be the same"
        alone.take(token)
    assert (first_mask(alone, tokenizer) == first_mask(led, tokenizer)).all()


def test_an_answer_that_is_fixed_ends(grammars: Grammars, tokenizer: Tokenizer) -> None:
    led = guide(grammars, FIXED)
    found = advance_forced_tokens(led, first_mask(led, tokenizer), grammars.ends(), 100)
    assert tokenizer.decode(found[:-1]) == FIXED
    assert found[-1] == end_of(tokenizer)


def test_a_choice_forces_nothing(grammars: Grammars, tokenizer: Tokenizer) -> None:
    led = guide(grammars, "[ab]")
    assert advance_forced_tokens(led, first_mask(led, tokenizer), grammars.ends(), 100) == []
