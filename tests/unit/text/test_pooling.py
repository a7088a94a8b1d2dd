"""Texts for pooling models."""

from pathlib import Path
from typing import Any

import pytest
from model_support.pooled import WORDS, save_tokenizer

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text.pooling import DOCUMENTS, PooledText, PooledTexts
from plimsoll_runtime.text.special_tokens import score_tokens
from plimsoll_runtime.text.tokenizer import TextError, Tokenizer, load_tokenizer
from plimsoll_runtime.weights.files import PARTS, ModelFiles

SHOWN = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
ROLES = "{% for m in messages %}{% if m.role in ('query', 'document') %}a {% endif %}{{ m.content }} {% endfor %}b"


def files(folder: Path, **config: Any) -> ModelFiles:
    return ModelFiles("m", folder, "safetensors", {"vocab_size": len(WORDS), **config}, ())


def tokenizer_of(folder: Path, **settings: Any) -> Tokenizer:
    save_tokenizer(folder, settings)
    return load_tokenizer(files(folder))


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def test_texts_stand_behind_prompts(tmp_path: Path) -> None:
    info = PoolingInfo("embed", 4, prompts={"query": "a b ", "passage": "c "}, default_prompt="passage")
    texts = PooledTexts(tokenizer_of(tmp_path), info)
    assert texts.single("d") == PooledText(ids("[CLS] c d [SEP]"))
    assert texts.single("d", "query") == PooledText(ids("[CLS] a b d [SEP]"))
    assert (texts.role(("query",)), texts.role(DOCUMENTS), texts.role(("x",))) == ("query", "passage", None)


def test_what_is_cut_leaves_what_stands_around_it(tmp_path: Path) -> None:
    texts = PooledTexts(tokenizer_of(tmp_path), PoolingInfo("embed", 4))
    assert texts.single("a b c d", most=4) == PooledText(ids("[CLS] a b [SEP]"))
    assert texts.single("a b", most=4) == PooledText(ids("[CLS] a b [SEP]"))
    assert texts.pair("a b", "", most=7) == PooledText(ids("[CLS] a b [SEP] [SEP]"), 4)
    assert texts.pair("a b", "c d e f", most=7) == PooledText(ids("[CLS] a b [SEP] c d [SEP]"), 4)
    with pytest.raises(TextError, match="the first text have 5 tokens and cannot be truncated, but the limit is 5"):
        texts.pair("a b", "c", most=5)


def test_texts_are_written_small_where_the_model_wants_it(tmp_path: Path) -> None:
    texts = PooledTexts(tokenizer_of(tmp_path), PoolingInfo("embed", 4, lower_case=True))
    assert texts.single("A b") == PooledText(ids("[CLS] a b [SEP]"))


def test_pairs_are_shown_by_a_template_that_knows_them(tmp_path: Path) -> None:
    texts = PooledTexts(tokenizer_of(tmp_path, chat_template=ROLES), PoolingInfo("score", 1))
    assert texts.takes_instruction
    assert texts.pair("c", "d") == PooledText(ids("a c a d b"))
    assert texts.pair("c", "d", "e f") == PooledText(ids("e f a c a d b"))
    with pytest.raises(TextError, match="has 5 tokens in the model's template, which cannot be truncated to 4"):
        texts.pair("c", "d", most=4)


def test_other_templates_are_for_chats(tmp_path: Path) -> None:
    texts = PooledTexts(tokenizer_of(tmp_path, chat_template=SHOWN), PoolingInfo("score", 1))
    assert not texts.takes_instruction
    assert texts.pair("c", "d") == PooledText(ids("[CLS] c [SEP] d [SEP]"), 3)


def test_halves_of_surrogates_are_refused(tmp_path: Path) -> None:
    texts = PooledTexts(tokenizer_of(tmp_path), PoolingInfo("embed", 4))
    with pytest.raises(TextError, match="unpaired surrogate"):
        texts.single("\ud800")


def test_tokens_that_judge(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, {})
    assert score_tokens(files(tmp_path)) == ids("no yes")
    assert score_tokens(files(tmp_path, classifier_from_token=["a", "b"])) == ids("a b")
    for true, false, found in ((5, 4, [4, 5]), (5, None, [5])):
        module = {"kind": "LogitScore", "path": "1", "config": {"true_token_id": true, "false_token_id": false}}
        assert score_tokens(files(tmp_path, **{PARTS: {"modules": [module]}})) == found


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"classifier_from_token": ["maybe"]}, "lacks 'maybe'"),
        ({"classifier_from_token": ["a", "b", "c"]}, "must be a list of one or two tokens"),
        ({PARTS: {"modules": [{"kind": "LogitScore", "path": "1", "config": {}}]}}, "are not valid token ids"),
        (
            {PARTS: {"modules": [{"kind": "LogitScore", "path": "1", "config": {"true_token_id": 99}}]}},
            "are not valid token ids",
        ),
    ],
)
def test_tokens_that_are_not_there_are_named(tmp_path: Path, said: dict[str, Any], reason: str) -> None:
    save_tokenizer(tmp_path, {})
    with pytest.raises(ModelError, match=reason):
        score_tokens(files(tmp_path, **said))
