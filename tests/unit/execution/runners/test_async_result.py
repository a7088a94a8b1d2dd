"""Steps whose tokens stay on the device give the same outputs, and the host reads nothing before it is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_support.late import Copies
from model_support.tiny import make_model, save_model

from plimsoll_runtime import LLM, SamplingParams


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = make_model("LlamaConfig", {})
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    save_model(model, folder)
    return folder


@pytest.fixture
def copies_and_graphs(monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Late copies, with graphs for all steps that may have some."""
    made = Copies()
    made.install(monkeypatch, graphs=True)
    return made


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Late copies of engines that are built from here on."""
    made = Copies()
    made.install(monkeypatch)
    return made


def load(folder: Path, **options: Any) -> LLM:
    return LLM(
        str(folder), **{"dtype": "float32", "threads": 1, "kv_memory": "4MiB", "check_integrity_every": 1, **options}
    )


def params(**wishes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, **wishes})


WISHES = [
    params(),
    params(temperature=1.0, seed=3),
    params(temperature=0.9, seed=4, top_p=0.8, repetition_penalty=1.5, frequency_penalty=0.5),
    params(presence_penalty=1.5, logprobs=0),
    params(logprobs=3, logit_bias={5: 4.0}),
    params(prompt_logprobs=2),
    params(min_tokens=6, ignore_eos=False, stop_token_ids=tuple(range(0, 20, 2))),
    params(max_tokens=1),
    params(max_tokens=30),
]
PROMPTS = [[8 + (i + j) % 12 for j in range(30 - 2 * i)] for i in range(len(WISHES))]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"overlap": False}, {"max_batch_tokens": 16}, {"kv_memory": "64KiB", "block_size": 8}]
)
def test_the_same_answers(folder: Path, options: dict[str, Any], graphs: bool, request: pytest.FixtureRequest) -> None:
    """Also in chunks, without overlap, with preempted sequences, and with graphs that sample simple rows."""
    prompts, wishes = [*PROMPTS, [1, 7]], [*WISHES, params()]
    expected = [result.outputs[0] for result in load(folder, overlap=False).generate(prompts, wishes)]
    copies: Copies = request.getfixturevalue("copies_and_graphs" if graphs else "copies")
    backend = {"attention_backend": "torch"} if graphs else {}
    late = load(folder, **{"max_sequences": 6, **backend, **options})
    found = [result.outputs[0] for result in late.generate(prompts, wishes)]
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert [each.finish_reason for each in found] == [each.finish_reason for each in expected]
    assert found[-1].finish_reason == "error"
    assert "logits are not finite" in str(found[-1].error)
    assert "wait" in copies.log
    assert ("choose" in copies.log) == graphs
    assert (late.stats.preemptions > 0) == ("kv_memory" in options)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.logprobs is None) == (theirs.logprobs is None)
        for one, other in zip(mine.logprobs or (), theirs.logprobs or (), strict=True):
            assert (one.token_id, one.rank) == (other.token_id, other.rank)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_a_pass_is_begun_before_what_was_chosen_is_waited_for(folder: Path, copies: Copies) -> None:
    llm = load(folder, overlap=True)
    copies.log.clear()
    llm.generate([[1, 2, 3]], params(max_tokens=5))
    assert copies.log == ["forward", "copy", *["forward", "wait", "copy"] * 4, "wait"]


def test_a_step_is_two_graphs_and_a_copy(folder: Path, copies_and_graphs: Copies) -> None:
    """For rows that only have parameters: the host waits for tokens after it has launched the next sampling."""
    llm, log = load(folder, overlap=True, attention_backend="torch"), copies_and_graphs.log
    log.clear()
    wishes = [params(max_tokens=5), params(max_tokens=5, temperature=1.0, seed=3, top_p=0.9)]
    llm.generate([[1, 2, 3], [4, 5, 6]], wishes)
    assert log == ["forward", "choose", "copy", *["forward", "choose", "wait", "copy"] * 4, "wait"]


def test_what_is_told_of_a_prompt_is_waited_for_as_late(folder: Path, copies: Copies) -> None:
    """In chunks, of which the first samples nothing, and together with a decode."""
    prompts, wishes = [[1, 2, 3], PROMPTS[0]], [params(max_tokens=4), params(max_tokens=2, prompt_logprobs=1)]
    llm = load(folder, overlap=True, max_batch_tokens=20, max_sequences=2)
    copies.log.clear()
    found = llm.generate(prompts, wishes)[1]
    steps = copies.log.count("forward")
    assert copies.log == ["forward", "copy", *["forward", "wait", "copy"] * (steps - 1), "wait"]
    assert len(found.prompt_logprobs or ()) == len(PROMPTS[0]) - 1
    expected = load(folder, overlap=False).generate([PROMPTS[0]], params(max_tokens=2, prompt_logprobs=1))[0]
    pairs = zip(found.prompt_logprobs or (), expected.prompt_logprobs or (), strict=True)
    assert all((a.token_id, a.rank) == (b.token_id, b.rank) for a, b in pairs)
