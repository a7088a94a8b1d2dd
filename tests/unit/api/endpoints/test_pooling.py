"""Vectors, scores, ranks and labels over HTTP: formats, limits, and errors of models for other tasks."""

import asyncio
import base64
import json
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator

from plimsoll_runtime.api.openapi.document import document
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo

pytestmark = pytest.mark.asyncio(loop_scope="module")

RunServer = Callable[..., AbstractAsyncContextManager[Any]]

BOS = 256
EMBED = PoolingInfo(
    "embed", 4, dimensions=(2,), prompts={"query": "q:", "document": "d:", "plain": ""}, default_prompt="plain"
)
SCORE = PoolingInfo("score", 1, scale="sigmoid", by_tokens=True)
LABELS = PoolingInfo("classify", 3, labels=("bad", "good", "odd"), scale="softmax")
DOCUMENT = document()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(keep_server: Callable[..., Awaitable[Any]]) -> dict[str, Any]:
    """One server for each task."""
    found: dict[str, Any] = {info.task: await keep_server(pooling=info) for info in (EMBED, SCORE, LABELS)}
    return {**found, "generate": await keep_server()}


@pytest.fixture
def embed(servers: dict[str, Any]) -> Any:
    servers["embed"].engine.reset()
    return servers["embed"]


async def post(server: Any, path: str, **body: Any) -> tuple[int, Any]:
    """Return status and body, which must match the server's OpenAPI document."""
    async with server.http() as http:
        answer = await http.post(path, json={"model": "fake"} | body)
    if answer.status_code == 200:
        schema = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(answer.json())
    return answer.status_code, answer.json()


async def test_openais_client_reads_vectors(embed: Any) -> None:
    client = embed.openai()
    for given, ids in (
        ("Hi", [[BOS, *b"Hi"]]),
        (["a", "bc"], [[BOS, 97], [BOS, 98, 99]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ):
        embed.engine.asked.clear()
        answer = await client.embeddings.create(model="fake", input=given, user="me")
        assert sorted(list(r.prompt_token_ids) for r in embed.engine.asked) == sorted(ids)
        assert [(each.index, each.embedding) for each in answer.data] == list(enumerate(map(embed.engine.numbers, ids)))
        assert (answer.object, answer.model) == ("list", "fake")
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))


async def test_both_formats_have_the_same_numbers(embed: Any) -> None:
    _, plain = await post(embed, "/v1/embeddings", input="Hi", encoding_format="float")
    _, encoded = await post(embed, "/v1/embeddings", input="Hi", encoding_format="base64")
    decoded = np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4")
    assert decoded.tolist() == plain["data"][0]["embedding"]


async def test_vectors_are_cut_where_the_model_says_that_they_may_be(embed: Any) -> None:
    _, answer = await post(embed, "/v1/embeddings", input="Hi", dimensions=2)
    assert answer["data"][0]["embedding"] == embed.engine.numbers([BOS, *b"Hi"])[:2]
    status, refused = await post(embed, "/v1/embeddings", input="Hi", dimensions=3)
    assert (status, refused["error"]["param"]) == (400, "dimensions")
    assert "2 or 4 numbers, not 3" in refused["error"]["message"]


async def test_prompts_are_put_before_texts(embed: Any) -> None:
    await post(embed, "/v1/embeddings", input="Hi", prompt_name="query")
    assert list(embed.engine.asked[-1].prompt_token_ids) == [BOS, *b"q:Hi"]
    status, refused = await post(embed, "/v1/embeddings", input="Hi", prompt_name="other")
    assert (status, refused["error"]["param"]) == (400, "prompt_name")
    assert "it has document, plain, query" in refused["error"]["message"]


async def test_what_is_too_long_is_refused_or_cut(embed: Any) -> None:
    limit = embed.engine.info.max_model_len
    fits, long = [5] * limit, [5] * (limit + 1)
    assert (await post(embed, "/v1/embeddings", input=fits))[0] == 200
    status, refused = await post(embed, "/v1/embeddings", input=long)
    assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
    _, answer = await post(embed, "/v1/embeddings", input=long, truncate_prompt_tokens=-1)
    assert answer["usage"]["prompt_tokens"] == limit
    _, answer = await post(embed, "/v1/embeddings", input="x" * 100_000, truncate_prompt_tokens=10)
    assert answer["usage"]["prompt_tokens"] == 10
    for wrong in (0, limit + 1):
        _, refused = await post(embed, "/v1/embeddings", input="Hi", truncate_prompt_tokens=wrong)
        assert refused["error"]["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": ["a", 1]}, "input"),
        ("/v1/embeddings", {"input": [[]]}, "input"),
        ("/v1/embeddings", {"input": [[9999]]}, "input"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "stream": True}, "stream"),
        ("/v1/embeddings", {"input": "a", "deadline": -1}, "deadline"),
        ("/v1/embeddings", {"input": "a", "priority": 1}, "priority"),
        ("/v1/embeddings", {"input": "\ud800"}, None),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "instruction": "x"}, "instruction"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "x"}]}, "documents"),
    ],
)
async def test_bad_bodies_are_refused_by_the_fields_name(
    embed: Any, path: str, body: dict[str, Any], param: str | None
) -> None:
    async with embed.http() as http:
        answer = await http.post(
            path, content=json.dumps({"model": "fake", **body}), headers={"content-type": "application/json"}
        )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert embed.engine.asked == []


async def test_vectors_score_by_their_angle(embed: Any) -> None:
    status, answer = await post(embed, "/v1/score", text_1="ab", text_2=["ab", "c"])
    assert status == 200
    assert sorted(bytes(list(r.prompt_token_ids)[1:]) for r in embed.engine.asked) == [b"d:ab", b"d:c", b"q:ab"]
    query, same, other = (embed.engine.numbers([BOS, *text]) for text in (b"q:ab", b"d:ab", b"d:c"))

    def cosine(a: list[float], b: list[float]) -> float:
        return float(np.dot(a, b)) / math.hypot(*a) / math.hypot(*b)

    assert [each["score"] for each in answer["data"]] == pytest.approx([cosine(query, same), cosine(query, other)])
    assert answer["usage"] == {"prompt_tokens": 14, "total_tokens": 14}


async def test_pairs_are_ranked_by_the_probability_of_yes(servers: dict[str, Any]) -> None:
    server = servers["score"]
    server.engine.reset()
    status, answer = await post(
        server, "/v1/rerank", query="who", documents=["long" * 9, {"text": "short"}, "mid" * 3], top_n=2
    )
    assert status == 200
    # The score of a pair depends on its length: the fewer tokens, the better.
    assert [each["index"] for each in answer["results"]] == [1, 2]
    assert answer["results"][0]["document"] == {"text": "short"}
    shortest, *_ = sorted((list(r.prompt_token_ids) for r in server.engine.asked), key=len)
    against, speaks_for, *_ = server.engine.numbers(shortest)
    raw = speaks_for - against
    assert answer["results"][0]["relevance_score"] == pytest.approx(1 / (1 + math.exp(-raw)))
    _, bare = await post(
        server, "/v1/rerank", query="who", documents=["short"], use_activation=False, return_documents=False
    )
    assert bare["results"] == [{"index": 0, "relevance_score": raw}]


async def test_ranks_hold_where_all_scores_are_near_one(servers: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(servers["score"].engine, "numbers", lambda ids: [0.0, 1000.0 - len(ids)])
    _, answer = await post(servers["score"], "/v1/rerank", query="who", documents=["abc", "a", "ab"])
    assert [(each["index"], each["relevance_score"]) for each in answer["results"]] == [(1, 1.0), (2, 1.0), (0, 1.0)]


async def test_an_instruction_is_put_where_the_model_was_told_to_look(servers: dict[str, Any], tokenizer: Any) -> None:
    server = servers["score"]
    server.engine.reset()
    assert (await post(server, "/v1/score", text_1="a", text_2="b", instruction="By taste"))[0] == 200
    text = tokenizer.decode(server.engine.asked[0].prompt_token_ids)
    assert "<Instruct>: By taste\n<Query>: a\n<Document>: b<|im_end|>" in text


async def test_coheres_path_answers_the_same(servers: dict[str, Any]) -> None:
    status, answer = await post(servers["score"], "/v2/rerank", query="a", documents=["b", "c"], return_documents=False)
    assert status == 200
    assert {each["index"] for each in answer["results"]} == {0, 1}


async def test_texts_and_pairs_get_labels(servers: dict[str, Any]) -> None:
    status, answer = await post(servers["classify"], "/v1/classify", input=["ab", ["a", "b"]])
    assert status == 200
    first, second = answer["data"]
    assert (first["index"], first["label"], first["num_classes"]) == (0, "good", 3)
    assert sum(first["probs"]) == pytest.approx(1.0)
    assert second["index"] == 1
    _, raw = await post(servers["classify"], "/v1/classify", input="ab", use_activation=False)
    assert raw["data"][0]["probs"] == servers["classify"].engine.numbers([BOS, *b"ab"])[:3]


@pytest.mark.parametrize(
    ("task", "path", "body", "named"),
    [
        ("generate", "/v1/embeddings", {"input": "a"}, "/v1/chat/completions, /v1/completions"),
        ("generate", "/v1/rerank", {"query": "a", "documents": ["b"]}, "/v1/completions"),
        ("embed", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "/v1/embeddings"),
        ("embed", "/v1/completions", {"prompt": "a"}, "/v1/embeddings"),
        ("embed", "/v1/classify", {"input": "a"}, "/v1/embeddings"),
        ("classify", "/v1/score", {"text_1": "a", "text_2": "b"}, "/v1/classify"),
        ("score", "/v1/embeddings", {"input": "a"}, "/v1/score, /v1/rerank"),
    ],
)
async def test_a_model_names_what_it_is_served_for(
    servers: dict[str, Any], task: str, path: str, body: dict[str, Any], named: str
) -> None:
    streams: list[dict[str, Any]] = [{}, {"stream": True}] if "completions" in path else [{}]
    for stream in streams:
        status, refused = await post(servers[task], path, **body, **stream)
        assert (status, refused["error"]["param"], refused["error"]["code"]) == (400, "model", "unsupported_task")
        assert f"serves the task '{task}'" in refused["error"]["message"]
        assert named in refused["error"]["message"]


@pytest.mark.parametrize("task", ["generate", "embed", "classify", "score"])
async def test_models_say_what_they_are_for(servers: dict[str, Any], task: str) -> None:
    async with servers[task].http() as http:
        card = (await http.get("/v1/models/fake")).json()
    assert card["task"] == task
    assert card["endpoints"]


async def test_a_client_that_leaves_aborts_all_its_texts(embed: Any) -> None:
    embed.engine.pause()
    asking = asyncio.create_task(post(embed, "/v1/embeddings", input=["a", "b", "c"]))
    await embed.engine.until(lambda: len(embed.engine.running) == 3)
    asking.cancel()
    await embed.engine.until(lambda: not embed.engine.running)
    assert len(embed.engine.aborted) == 3
    embed.engine.resume()
    assert (await post(embed, "/v1/embeddings", input="a"))[0] == 200


async def test_the_first_text_that_fails_calls_off_the_others(embed: Any) -> None:
    embed.engine.error = "the model computed a vector with numbers that are not finite"
    status, failed = await post(embed, "/v1/embeddings", input=["a", "b"])
    assert (status, failed["error"]["code"]) == (500, "engine_error")
    assert embed.engine.running == set()


async def test_texts_that_wait_are_bounded(run_server: RunServer) -> None:
    async with run_server(pooling=EMBED, max_waiting=3) as server:
        server.engine.pause()
        waiting = asyncio.create_task(post(server, "/v1/embeddings", input=["a", "b"]))
        await server.engine.until(lambda: len(server.engine.running) == 2)
        status, refused = await post(server, "/v1/embeddings", input=["a", "b"])
        assert (status, refused["error"]["code"]) == (503, "overloaded")
        assert (await post(server, "/v1/embeddings", input=["a"] * 4))[0] == 400
        server.engine.resume()
        assert (await waiting)[0] == 200
        assert (await post(server, "/v1/embeddings", input=["a", "b"]))[0] == 200


async def test_a_dead_engine_is_told(run_server: RunServer) -> None:
    async with run_server(pooling=EMBED) as server:
        server.engine.pause()
        asking = asyncio.create_task(server.openai().embeddings.create(model="fake", input="a"))
        await server.engine.until(lambda: bool(server.engine.running))
        server.engine.die()
        with pytest.raises(openai.InternalServerError, match="the engine died"):
            await asking


STRANGE: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    2**64,
    "",
    "\x00",
    "x" * 9000,
    [],
    [[]],
    [None],
    [1, "a"],
    {},
    {"text": 1},
]
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/embeddings": ("embed", {"input": ["a", [1, 2]], "dimensions": 2, "encoding_format": "base64", "user": "u"}),
    "/v1/score": ("score", {"text_1": "a", "text_2": ["b"], "instruction": "i", "use_activation": True}),
    "/v1/rerank": ("embed", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True}),
    "/v1/classify": ("classify", {"input": ["a", ["b", "c"]], "truncate_prompt_tokens": -1, "deadline": 5.0}),
}


@pytest.mark.matrix(2)
@pytest.mark.parametrize("path", WHOLE)
async def test_strange_values_are_answered_or_refused(servers: dict[str, Any], path: str) -> None:
    task, body = WHOLE[path]
    server = servers[task]
    server.engine.reset()
    async with server.http() as http:
        for field in (*body, "priority", "stream", "model"):
            for value in STRANGE:
                answer = await http.post(path, json={"model": "fake"} | body | {field: value})
                assert answer.status_code in (200, 400, 404), (field, value)
                if answer.status_code != 200:
                    assert answer.json()["error"]["message"]
        assert (await http.post(path, json={"model": "fake"} | body)).status_code == 200
