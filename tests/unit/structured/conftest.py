"""A tokenizer that can spell any text, and llguidance's version of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structured_support.models import END, byte_tokenizer

from plimsoll_runtime.engine.protocol.messages import Vocabulary
from plimsoll_runtime.structured.matcher import Grammars
from plimsoll_runtime.structured.vocabulary import vocabulary_of
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.text.tokenizer_settings import TokenizerSettings

PADDING = 24


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_tokenizer(), TokenizerSettings(tokens={"eos_token": END}))


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return vocabulary_of(tokenizer, tokenizer.vocab_size + PADDING, ends(tokenizer))


def ends(tokenizer: Tokenizer) -> Sequence[int]:
    assert tokenizer.eos_token_id is not None
    return [tokenizer.eos_token_id]


@pytest.fixture(scope="session")
def grammars(vocabulary: Vocabulary) -> Grammars:
    made = Grammars()
    made.use(vocabulary)
    return made
