"""Scores and labels equal those of sentence-transformers and Transformers, for models that read two texts as one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_support.pooled import DECODERS, ENCODERS, LONGEST, WORDS, Kind, build, save, texts
from model_support.tiny import edit_config

from plimsoll_runtime import LLM
from plimsoll_runtime.errors import UsageError

sentence_transformers = pytest.importorskip("sentence_transformers")

HEADED = "AutoModelForSequenceClassification"
QUERIES, DOCUMENTS = texts(10, 30, seed=1), texts(10, 100, seed=2)
TOLERANCE = 1e-5
OPTIONS: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory": "1MiB"}
MEAN = Kind(ENCODERS[4].config, {**ENCODERS[4].overrides, "classifier_pooling": "mean", "norm_bias": True})
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}no {% elif m.role == 'query' %}a {% elif m.role == 'document' %}"
    "b {% endif %}{{ m.content }} {% endfor %}yes"
)


def logits_of(model: Any, ids: list[int], types: list[int] | None = None) -> torch.Tensor:
    given = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([ids]), **given).logits[0]
    return found


@pytest.mark.matrix(4)
@pytest.mark.parametrize("kind", [ENCODERS[0], ENCODERS[2], ENCODERS[4], MEAN, ENCODERS[5], DECODERS[0]], ids=str)
def test_cross_encoders_score_as_in_sentence_transformers(kind: Kind, tmp_path: Path) -> None:
    save(build(kind, HEADED, num_labels=1), tmp_path)
    theirs = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu", model_kwargs={"dtype": "float32"})
    expected = theirs.predict(list(zip(QUERIES, DOCUMENTS, strict=True)), batch_size=4)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert (llm.info.pooling and llm.info.pooling.task) == "score"
        assert llm.score(QUERIES, DOCUMENTS) == pytest.approx(expected.tolist(), abs=TOLERANCE)
        assert llm.score(QUERIES[0], DOCUMENTS[:1]) == pytest.approx(expected[:1].tolist(), abs=TOLERANCE)


def test_an_activation_of_the_files_is_theirs(tmp_path: Path) -> None:
    save(build(ENCODERS[0], HEADED, num_labels=1), tmp_path)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        between = llm.score(QUERIES, DOCUMENTS)
    edit_config(tmp_path, sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    with LLM(str(tmp_path), **OPTIONS) as llm:
        raw = np.array(llm.score(QUERIES, DOCUMENTS))
    assert (1 / (1 + np.exp(-raw))).tolist() == pytest.approx(between, abs=TOLERANCE)


def test_a_second_text_is_cut_where_both_are_too_long(tmp_path: Path) -> None:
    save(build(ENCODERS[0], HEADED, num_labels=1, max_position_embeddings=LONGEST), tmp_path)
    long = " ".join(["a b c"] * LONGEST)
    kept = " ".join(long.split()[: LONGEST - 4])
    with LLM(str(tmp_path), **OPTIONS) as llm:
        with pytest.raises(UsageError, match=f"at most {LONGEST} are allowed"):
            llm.score("a", long)
        assert llm.score("a", long, truncate=True) == llm.score("a", kept)
        with pytest.raises(UsageError, match="tokens and cannot be truncated, but the limit is"):
            llm.score(long, "a", truncate=True)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("only_yes", [False, True])
def test_two_tokens_judge(tmp_path: Path, tied: bool, only_yes: bool) -> None:
    """Uses the modules that sentence-transformers writes, and a template with queries and documents."""
    model = build(DECODERS[0], "AutoModelForCausalLM", tie_word_embeddings=tied)
    save(model, tmp_path, settings={"chat_template": TEMPLATE})
    yes, no = WORDS.index("yes"), WORDS.index("no")
    kinds = {"": "base.modules.transformer.Transformer", "1_LogitScore": "cross_encoder.modules.logit_score.LogitScore"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_LogitScore").mkdir()
    said = {"true_token_id": yes, "false_token_id": None if only_yes else no}
    (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps(said))

    def expected(query: str, document: str, *before: str) -> float:
        words = [*before, "a", *query.split(), "b", *document.split(), "yes"]
        logits = logits_of(model, [WORDS.index(word) for word in words])[-1]
        return torch.sigmoid(logits[yes] - (0 if only_yes else logits[no])).item()

    with LLM(str(tmp_path), **OPTIONS) as llm:
        wanted = [expected(*pair) for pair in zip(QUERIES, DOCUMENTS, strict=True)]
        assert llm.score(QUERIES, DOCUMENTS) == pytest.approx(wanted, abs=TOLERANCE)
        told = llm.score(QUERIES[0], DOCUMENTS[0], instruction="c d")
        assert told == pytest.approx([expected(QUERIES[0], DOCUMENTS[0], "no", "c", "d")], abs=TOLERANCE)


def test_a_decoder_that_generates_can_be_asked_to_judge(tmp_path: Path) -> None:
    """Uses Qwen3-Reranker's format, if no template replaces it."""
    model = build(DECODERS[0], "AutoModelForCausalLM")
    save(model, tmp_path)
    with LLM(str(tmp_path), task="score", **OPTIONS) as llm:
        [found] = llm.score("a", "b")
        assert 0 < found < 1
        assert llm.info.pooling is not None
        assert llm.info.pooling.by_tokens


@pytest.mark.parametrize("kind", [ENCODERS[0], ENCODERS[4], DECODERS[0]], ids=str)
@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
def test_labels_score_as_in_transformers(kind: Kind, problem: str | None, tmp_path: Path) -> None:
    labels = {0: "bad", 1: "good", 2: "odd"}
    model = build(kind, HEADED, id2label=labels, problem_type=problem)
    save(model, tmp_path)
    activation = torch.sigmoid if problem else lambda logits: torch.softmax(logits, -1)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        for text, found in zip(DOCUMENTS, llm.classify(DOCUMENTS), strict=True):
            ids = [1, *(WORDS.index(word) for word in text.split()), 2]
            expected = activation(logits_of(model, ids))
            assert list(found.scores) == list(labels.values())
            assert list(found.scores.values()) == pytest.approx(expected.tolist(), abs=TOLERANCE)
            assert found.label == labels[int(expected.argmax())]
        with pytest.raises(UsageError, match="task classify, and this call needs embed"):
            llm.embed("a")


def test_pairs_of_texts_get_labels(tmp_path: Path) -> None:
    model = build(ENCODERS[0], HEADED, num_labels=3)
    save(model, tmp_path)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [found] = llm.classify([("a b", "c")])
    ids = [1, *(WORDS.index(word) for word in "ab"), 2, WORDS.index("c"), 2]
    expected = torch.softmax(logits_of(model, ids, [0, 0, 0, 0, 1, 1]), -1)
    assert list(found.scores.values()) == pytest.approx(expected.tolist(), abs=TOLERANCE)
