"""A server whose model is divided among ranks answers as one with a single rank does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from groups_support.answers import Choices, assert_same, completed
from server_support.process import Served, serving
from structured_support.models import spelling_model

PROMPTS: list[str | list[int]] = ["the answer is", [9, 2, 6] * 20, [5, 3] * 40, [7]]
"""The longest needs several chunks."""
OPTIONS = ("--dtype", "float32", "--max-batch-tokens", "32", "--check-integrity-every", "1", "--check-collectives")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return spelling_model(folder, num_attention_heads=6, num_key_value_heads=3, head_dim=16)


@pytest.fixture(scope="module")
def alone(group: Served, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with one rank, whose cache is as empty as the group's."""
    assert group
    with serving(model, tmp_path_factory.mktemp("log") / "alone", *OPTIONS) as server:
        yield server


TENSOR, PIPELINE = ("--tensor-parallel", "2"), ("--pipeline-parallel", "2")


@pytest.fixture(
    scope="module",
    params=[
        (*TENSOR, "--group-backend", "local"),
        (*TENSOR, "--group-backend", "gloo"),
        (*PIPELINE, "--group-backend", "local"),
        pytest.param((*PIPELINE, "--group-backend", "gloo"), marks=pytest.mark.long),
        pytest.param(("--pipeline-parallel", "3"), marks=pytest.mark.long),
        (*TENSOR, *PIPELINE, "--group-backend", "local"),
        pytest.param((*TENSOR, *PIPELINE, "--group-backend", "gloo"), marks=pytest.mark.long),
    ],
    ids=lambda options: "-".join(options).replace("--", ""),
)
def group(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(model, tmp_path_factory.mktemp("log") / "group", *OPTIONS, *request.param) as server:
        yield server


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_answers_are_those_of_one_rank(alone: Served, group: Served, prompt: str | list[int]) -> None:
    for options in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 5, "n": 3}):
        assert_same(completed(alone, prompt, **options), completed(group, prompt, **options))


def test_many_answers_at_once_are_those_of_one_rank(alone: Served, group: Served) -> None:
    """More requests than steps under way; each has a seed of its own."""
    prompts = [[number + 1, 3, 5] * (number + 1) for number in range(12)]

    def of(server: Served) -> list[Choices]:
        def one(number: int) -> Choices:
            return completed(server, prompts[number], temperature=0.9, seed=number, presence_penalty=0.5)

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(one, range(len(prompts))))

    for ours, theirs in zip(of(alone), of(group), strict=True):
        assert_same([(text, values, 0) for text, values, _ in ours], [(text, values, 0) for text, values, _ in theirs])


def test_chats_and_streams_are_those_of_one_rank(alone: Served, group: Served) -> None:
    def chat(server: Served, *, stream: bool) -> list[str]:
        body: dict[str, Any] = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "the answer is"}],
            **{"max_tokens": 12, "n": 2, "seed": 7, "temperature": 0.8, "ignore_eos": True, "stream": stream},
        }
        texts = ["", ""]
        if not stream:
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            for choice in answer.json()["choices"]:
                texts[choice["index"]] = choice["message"]["content"]
            return texts
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        texts[choice["index"]] += choice["delta"].get("content") or ""
        return texts

    expected = chat(alone, stream=False)
    assert all(expected)
    assert [chat(group, stream=stream) for stream in (False, True)] == [expected] * 2


def test_a_prefix_is_found_in_the_cache(alone: Served, group: Served) -> None:
    prompt = [3, 8] * 25
    for expected in (0, 48):
        answers = [completed(server, prompt, temperature=0.0) for server in (alone, group)]
        assert_same(*answers)
        assert answers[0][0][2] == expected


def test_a_grammar_is_followed(alone: Served, group: Served) -> None:
    options = {
        "temperature": 0.7,
        "seed": 3,
        "extra_body": {"structured_outputs": {"regex": "(yes|no)( maybe)*"}},
        "max_tokens": 8,
    }
    texts = [completed(server, "it is", **options)[0][0] for server in (alone, group)]
    assert texts[0] == texts[1]
    assert texts[0].strip().startswith(("yes", "no"))


def test_a_stream_that_is_cancelled_disturbs_nobody(group: Served) -> None:
    body = {"model": "tiny", "prompt": [4, 2], "max_tokens": 400, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{group.url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_lines())
    assert completed(group, [4, 2], temperature=0.0)


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (("--tensor-parallel", "7"), "has 6 query heads, at least one for each rank is needed; use at most 6", 2),
        (("--pipeline-parallel", "4"), "has 3 layers, of which each stage needs one; use at most 3", 2),
        (("--pipeline-parallel", "2", "--overlap"), "omit --overlap and --no-overlap", 2),
        (("--pipeline-parallel", "2", "--kv-disk", "/tmp/never"), "does not support --kv-disk", 2),
        (("--tensor-parallel", "2", "--kv-disk", "/tmp/never"), "does not support --kv-disk", 2),
        (("--tensor-parallel", "2", "--kv-host-memory", "1GiB"), "does not support --kv-host-memory", 2),
        (("--tensor-parallel", "2", "--group-backend", "nccl", "--device", "cpu"), "needs a GPU for each rank", 2),
    ],
)
def test_bad_options_end_the_start(
    model: Path, tmp_path: Path, options: tuple[str, ...], message: str, code: int
) -> None:
    with serving(model, tmp_path / "log", *options) as server:
        assert server.end() == code
        assert message in "".join(server.lines)


@pytest.mark.parametrize(
    ("variables", "options", "message", "code"),
    [
        ({"GLOO_SOCKET_IFNAME": "no-such-0"}, ("--group-backend", "gloo"), "the interfaces with an address are", 2),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, (), "CUDA_VISIBLE_DEVICES=0,0 names the GPU 0 twice", 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, ("--group-backend", "nccl", "--device", "cuda"), "torch finds none", 8),
    ],
    ids=["interface", "one-gpu-twice", "no-gpu"],
)
def test_an_environment_in_which_ranks_cannot_run_ends_the_start(
    model: Path,
    tmp_path: Path,
    variables: dict[str, str],
    options: tuple[str, ...],
    message: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with serving(model, tmp_path / "log", "--tensor-parallel", "2", *options) as server:
        assert server.end() == code
        assert message in "".join(server.lines)
