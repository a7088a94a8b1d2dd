"""Embeddings equal those of sentence-transformers in any batch, for decoders and encoders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_support.pooled import ALL, DECODERS, ENCODERS, LONGEST, Kind, add_modules, build, save, texts

from plimsoll_runtime import LLM
from plimsoll_runtime.errors import UsageError

sentence_transformers = pytest.importorskip("sentence_transformers")

TEXTS = texts(24, LONGEST - 20)
HIDDEN = 48
TOLERANCE = 1e-5
OPTIONS: dict[str, Any] = {"dtype": "float32", "threads": 1, "check_integrity_every": 1}

Saved = Callable[[Kind], Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Return the folder of a kind's model."""

    made: dict[str, Path] = {}

    def make(kind: Kind) -> Path:
        if str(kind) not in made:
            folder = made[str(kind)] = tmp_path_factory.mktemp("embeds")
            save(build(kind), folder)
            add_modules(folder, kind, HIDDEN)
        return made[str(kind)]

    return make


def reference(folder: Path) -> Any:
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})


def ours(folder: Path, **options: Any) -> LLM:
    cached = {"kv_memory": "1MiB"} if "kv_memory" not in options else {}
    return LLM(str(folder), **{**OPTIONS, **cached, **options})


@pytest.mark.matrix(3)
@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("kind", ALL, ids=str)
def test_vectors_equal_those_of_sentence_transformers(kind: Kind, backend: str, saved: Saved) -> None:
    folder = saved(kind)
    expected = reference(folder).encode(TEXTS, batch_size=8)
    with ours(folder, attention_backend=backend) as llm:
        assert llm.info.attention_backend == ("whole" if kind in ENCODERS and backend == "torch" else backend)
        assert (llm.info.pooling and llm.info.pooling.task) == "embed"
        assert np.abs(llm.embed(TEXTS) - expected).max() < TOLERANCE
        alone = np.concatenate([llm.embed(text) for text in TEXTS[:4]])
        assert np.abs(alone - expected[:4]).max() < TOLERANCE


@pytest.mark.matrix(2)
@pytest.mark.parametrize("kind", [ENCODERS[0], ENCODERS[4], *DECODERS], ids=str)
def test_small_steps_give_the_same(kind: Kind, saved: Saved) -> None:
    """Decoders compute a prompt in chunks; encoders compute it in one step."""
    folder = saved(kind)
    with ours(folder) as llm:
        expected = llm.embed(TEXTS)
    with ours(folder, max_batch_tokens=24, max_sequences=3, overlap=False) as llm:
        assert np.abs(llm.embed(TEXTS) - expected).max() < TOLERANCE
        assert llm.stats.running == llm.stats.waiting == llm.stats.blocks_used == 0


def test_a_prefix_is_found_where_the_last_state_alone_is_read(saved: Saved) -> None:
    text = " ".join("abcdefghijklmn" * 5)
    found = {}
    for kind in DECODERS[:2]:
        with ours(saved(kind)) as llm:
            first, again = llm.embed(text), llm.embed(text)
            assert np.abs(first - again).max() < TOLERANCE
            found[kind.pooling] = llm.stats.cache_hit_tokens
    assert found["lasttoken"] > 0
    assert found["mean"] == 0


def test_layers_behind_the_pooling_and_prompts(tmp_path: Path) -> None:
    """Uses EmbeddingGemma's layers."""
    kind = ENCODERS[-1]
    save(build(kind), tmp_path)
    layers = [(80, "torch.nn.modules.linear.Identity"), (HIDDEN, "torch.nn.modules.activation.Tanh")]
    add_modules(tmp_path, kind, HIDDEN, dense=layers)
    theirs = reference(tmp_path)
    with ours(tmp_path) as llm:
        assert np.abs(llm.embed(TEXTS, prompt_name="query") - theirs.encode_query(TEXTS)).max() < TOLERANCE
        assert np.abs(llm.embed(TEXTS, prompt_name="document") - theirs.encode_document(TEXTS)).max() < TOLERANCE
        similar = theirs.similarity(theirs.encode_query(TEXTS[:1]), theirs.encode_document(TEXTS[1:4]))[0]
        assert llm.score(TEXTS[0], TEXTS[1:4]) == pytest.approx(similar.tolist(), abs=TOLERANCE)
        with pytest.raises(UsageError, match="the model has no prompt 'other'; it has query, document"):
            llm.embed("a", prompt_name="other")


def test_vectors_that_are_not_normalised(tmp_path: Path) -> None:
    kind = DECODERS[0]
    save(build(kind), tmp_path)
    add_modules(tmp_path, kind, HIDDEN, dense=[(20, "torch.nn.modules.activation.Tanh")], normalise=False)
    expected = reference(tmp_path).encode(TEXTS)
    with ours(tmp_path) as llm:
        assert np.abs(llm.embed(TEXTS) - expected).max() < TOLERANCE
        assert np.linalg.norm(expected[0]) > 1.5


def test_vectors_cut_to_fewer_dimensions(tmp_path: Path) -> None:
    kind = ENCODERS[0]
    save(build(kind, matryoshka_dimensions=[16, 8]), tmp_path)
    add_modules(tmp_path, kind, HIDDEN)
    theirs = reference(tmp_path)
    theirs.truncate_dim = 16
    with ours(tmp_path) as llm:
        expected = theirs.encode(TEXTS, normalize_embeddings=True)
        assert np.abs(llm.embed(TEXTS, dimensions=16) - expected).max() < TOLERANCE
        with pytest.raises(UsageError, match="may have 8 or 16 or 48 numbers, not 9"):
            llm.embed("a", dimensions=9)


def test_what_is_too_long_is_cut_as_there(saved: Saved) -> None:
    long = " ".join(["a b c"] * LONGEST)
    for kind in (ENCODERS[0], DECODERS[0]):
        with ours(saved(kind)) as llm:
            with pytest.raises(UsageError, match=f"at most {LONGEST} are allowed"):
                llm.embed(long)
            expected = reference(saved(kind)).encode([long])
            assert np.abs(llm.embed(long, truncate=True) - expected).max() < TOLERANCE


@pytest.mark.parametrize("kind", [ENCODERS[0], DECODERS[0]], ids=str)
def test_bfloat16_is_near(kind: Kind, saved: Saved) -> None:
    expected = reference(saved(kind)).encode(TEXTS)
    with ours(saved(kind), dtype="bfloat16") as llm:
        assert (llm.embed(TEXTS) * expected).sum(axis=1).min() > 0.99


@pytest.mark.long
def test_a_model_in_a_process_of_its_own(saved: Saved) -> None:
    with ours(saved(ENCODERS[0])) as here, ours(saved(ENCODERS[0]), engine="child") as child:
        assert np.array_equal(here.embed(TEXTS), child.embed(TEXTS))


def test_a_decoder_that_generates_can_be_asked_for_vectors(tmp_path: Path) -> None:
    import torch

    model = build(DECODERS[0], "AutoModelForCausalLM")
    save(model, tmp_path)
    with ours(tmp_path, task="embed") as llm:
        found = llm.embed([[5, 6, 7]])
        with torch.no_grad():
            expected = model.model(torch.tensor([[5, 6, 7]])).last_hidden_state[0, -1]
        assert np.abs(found[0] - (expected / expected.norm()).numpy()).max() < TOLERANCE
        with pytest.raises(UsageError, match="the model serves the task embed; use embed"):
            llm.generate("a")
    with ours(tmp_path) as llm, pytest.raises(UsageError, match="task generate, and this call needs embed"):
        llm.embed("a")
