"""`plimsoll serve` in a process of its own, with the real engine and a tiny random model."""

import asyncio
import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import agents
import jsonschema
import numpy as np
import openai
import pytest
from model_support.pooled import ENCODERS, add_modules, build, save, texts
from pydantic import BaseModel, ConfigDict
from server_support.process import Served, serving

from plimsoll_runtime import LLM

BROKEN = 263
"""A token whose embedding is not a number: a sequence with it has no finite logits."""

MANY = 8
"""Outputs of one request, so many that the engine stays busy long after their first tokens."""


@pytest.fixture
def serve(tiny_model: Path, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with ExitStack() as running:
        yield lambda *options, model=tiny_model: running.enter_context(
            serving(model, tmp_path / "termination-log", *options)
        )


def ask(served: Served, tokens: int, answers: int = 1) -> Any:
    return served.client.completions.create(
        model="tiny",
        prompt="Hello",
        n=answers,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True, "skip_special_tokens": False},
    )


@pytest.mark.long
def test_vectors_come_from_the_same_server(serve: Callable[..., Served], tmp_path: Path) -> None:
    """With OpenAI's own client, which requests base64; requests to generate get an error with the right endpoints."""
    save(build(ENCODERS[0]), tmp_path)
    add_modules(tmp_path, ENCODERS[0], 48)
    asked = texts(40, 100)
    with LLM(str(tmp_path), dtype="float32", threads=1) as llm:
        expected = llm.embed(asked)
    served = serve("--dtype", "float32", model=tmp_path)
    answer = served.client.embeddings.create(model="tiny", input=asked)
    assert np.abs(np.array([each.embedding for each in answer.data]) - expected).max() < 1e-6
    with pytest.raises(openai.BadRequestError, match=r"serves the task 'embed'.*/v1/embeddings"):
        served.client.completions.create(model="tiny", prompt="a")
    served.process.terminate()
    assert served.end() == 0


def test_a_drain_ends_with_every_answer_whole(serve: Callable[..., Served]) -> None:
    served = serve()
    scored = served.client.completions.create(model="tiny", prompt="Hi", max_tokens=0, echo=True, logprobs=0)
    assert scored.choices[0].logprobs is not None
    assert scored.choices[0].logprobs.tokens == ["<s>", "H", "i"]
    engine = served.engine()
    with ask(served, 1900, MANY) as left:
        next(iter(left))
        engine.suspend()
    served.until_it_says("disconnect")
    engine.resume()
    gauges: set[str] = set()
    while 'plimsoll_sequences_running{model="tiny",namespace=""} 0.0' not in gauges:
        gauges = served.metrics()
        assert f'plimsoll_generated_tokens_total{{model="tiny",namespace=""}} {1900.0 * MANY}' not in gauges
    expected = text_of(ask(served, 400))
    engine.suspend()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: text_of(ask(served, 400)))
        while 'plimsoll_answers_waiting{model="tiny",namespace=""} 1.0' not in served.metrics():
            assert not answer.done()
        served.process.send_signal(signal.SIGTERM)
        served.until_it_says("draining: 1 requests in flight")
        engine.resume()
        assert answer.result() == expected
    assert served.end() == 0
    assert not served.termination_log.exists()


def text_of(stream: Any) -> str:
    return "".join(chunk.choices[0].text for chunk in stream)


@pytest.mark.long
def test_a_killed_engine_ends_the_server_and_every_answer(serve: Callable[..., Served]) -> None:
    served = serve()
    engine = served.engine()
    answer = iter(ask(served, 1900, MANY))
    next(answer)
    engine.kill()
    with pytest.raises(openai.APIError, match="the engine died: the engine process was killed by signal 9"):
        list(answer)
    assert served.end() == 6
    assert served.termination_log.read_text().startswith("engine-died: the engine process was killed by signal 9")
    assert served.lines[-1].startswith("plimsoll: the engine process was killed by signal 9")
    assert not [line for line in served.lines if "Traceback" in line]


@pytest.mark.long
@pytest.mark.parametrize("shares", [False, True])
def test_what_one_key_has_sent_another_cannot_find_out(serve: Callable[..., Served], shares: bool) -> None:
    """Guessing a prompt block by block: the cache reveals a right guess, unless its tenants are separate."""
    served = serve("--api-key", "one", "--api-key", "other", *(["--share-prefix-cache"] if shares else []))
    secret = [token % 200 for token in range(64)]

    def cached(key: str, guess: list[int], salt: str | None = None) -> int:
        client = served.client.with_options(api_key=key)
        extra = {} if salt is None else {"cache_salt": salt}
        answer = client.completions.create(model="tiny", prompt=guess, max_tokens=1, extra_body=extra)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert cached("one", secret) == 0
    first_block = [*secret[:16], *[201] * 20]
    assert cached("other", first_block) == (16 if shares else 0)
    assert cached("other", secret) == (63 if shares else 16)
    assert cached("one", secret) == 63
    assert cached("one", secret, "mine") == 0, "a salt of its own sets a request apart within its key"
    assert cached("one", secret, "mine") == 63
    assert cached("other", secret, "mine") == (63 if shares else 0)


@pytest.mark.long
def test_an_engine_that_hangs_ends_the_server_and_every_answer(serve: Callable[..., Served]) -> None:
    served = serve("--step-timeout", "3")
    engine = served.engine()
    answer = iter(ask(served, 1900, MANY))
    next(answer)
    engine.suspend()
    with pytest.raises(openai.APIError, match="the engine died: the engine process hung and was killed"):
        list(answer)
    assert served.end() == 6
    assert served.termination_log.read_text().startswith("engine-died: the engine process hung and was killed")


@pytest.mark.long
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_logits_that_are_not_finite_cost_one_request(serve: Callable[..., Served], backend: str) -> None:
    """Its neighbours in the batch continue as if it were alone, and so do later users of its blocks."""
    room = ("--max-model-len", "256", "--kv-memory", "192KiB", "--no-prefix-caching")
    served = serve("--attention-backend", backend, *room)
    create = served.client.completions.create
    extra = {"ignore_eos": True, "skip_special_tokens": False}

    def answer(prompt: list[int]) -> str:
        return create(model="tiny", prompt=prompt, max_tokens=40, temperature=0, extra_body=extra).choices[0].text

    prompts = [[start + i for i in range(length)] for start, length in ((1, 20), (60, 3), (90, 37))]
    alone = [answer(prompt) for prompt in prompts]
    broken = [*range(200, 240), BROKEN, *range(40)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        neighbours = [pool.submit(answer, prompt) for prompt in prompts]
        for options in ({"temperature": 0}, {"temperature": 1, "top_p": 0.5}, {"stream": True}, {"logprobs": 3}):
            with pytest.raises(openai.InternalServerError, match="logits are not finite") as caught:
                create(model="tiny", prompt=broken, max_tokens=40, extra_body=extra, **options)
            assert (caught.value.status_code, caught.value.code) == (500, "engine_error")
        assert [neighbour.result() for neighbour in neighbours] == alone
    metrics = served.metrics()
    assert 'plimsoll_broken_off_total{model="tiny",namespace=""} 4.0' in metrics
    assert 'plimsoll_kv_blocks_used{model="tiny",namespace=""} 0.0' in metrics
    assert 'plimsoll_kv_blocks{model="tiny",namespace=""} 23.0' in metrics
    assert [answer(prompt) for prompt in prompts * 3] == alone * 3, "three times twelve blocks: every one is used again"


class Verdict(BaseModel):
    """The model's typed output."""

    model_config = ConfigDict(extra="forbid")

    ok: bool
    level: Literal["low", "high"]


@pytest.mark.long
def test_answers_are_of_their_schema(serve: Callable[..., Served]) -> None:
    served = serve()
    messages: Any = [{"role": "user", "content": "Hi"}]
    parsed = served.client.chat.completions.parse(model="tiny", messages=messages, response_format=Verdict, seed=1)
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    parts = served.client.completions.create(
        model="tiny",
        prompt="Hi",
        n=4,
        seed=2,
        max_tokens=60,
        stream=True,
        extra_body={"structured_outputs": {"regex": "[a-f]{2,5}-[0-9]{3}"}},
    )
    texts = dict.fromkeys(range(4), "")
    for part in parts:
        texts[part.choices[0].index] += part.choices[0].text
    assert all(re.fullmatch("[a-f]{2,5}-[0-9]{3}", text) for text in texts.values()), texts
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        served.client.chat.completions.create(
            model="tiny",
            messages=messages,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "array", "uniqueItems": True}, "strict": True},
            },
        )


CALLS_AS_HERMES = "{% for t in tools or [] %}{{ t.function.name }}<tool_call>{% endfor %}{{ messages[-1].content }}"


@pytest.mark.long
def test_calls_are_of_their_tools(serve: Callable[..., Served], tiny_model: Path, tmp_path: Path) -> None:
    """A model of random weights calls the required tool, with arguments of the schema, complete and streamed."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "hermes"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": CALLS_AS_HERMES}))
    served = serve("--tool-format", "hermes", model=folder)
    parameters = {
        "type": "object",
        "properties": {
            "unit": {"enum": ["kelvin", "celsius"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["unit", "days"],
        "additionalProperties": False,
    }
    weather = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    other = {"type": "function", "function": {"name": "get_time"}}
    asked: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [weather, other],
        "seed": 3,
    }
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    whole = served.client.chat.completions.create(**asked, tool_choice=named)
    [call] = whole.choices[0].message.tool_calls or []
    jsonschema.validate(json.loads(call.function.arguments), parameters)
    streamed = ""
    for chunk in served.client.chat.completions.create(**asked, tool_choice=named, stream=True):
        streamed += "".join(added.function.arguments for added in chunk.choices[0].delta.tool_calls or ())
    assert streamed == call.function.arguments
    required = served.client.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False)
    [call] = required.choices[0].message.tool_calls or []
    assert call.function.name in ("get_weather", "get_time")
    assert required.choices[0].finish_reason == "tool_calls"


CHATS_AS_HERMES = CALLS_AS_HERMES.replace(
    "{{ messages[-1].content }}", "{% for m in messages %}{{ m.content }}{% endfor %}"
)


@pytest.mark.long
def test_responses_are_of_their_schema_and_outlive_the_server(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve("--response-store", str(tmp_path / "responses"))
    asked: Any = {"model": "tiny", "input": "Hi", "text_format": Verdict, "extra_body": {"seed": 1}}
    parsed = served.client.responses.parse(**asked)
    assert isinstance(parsed.output_parsed, Verdict)
    with served.client.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    served.process.send_signal(signal.SIGTERM)
    assert served.end() == 0
    served = serve("--response-store", str(tmp_path / "responses"))
    again = served.client.responses.retrieve(parsed.id)
    assert again.output_text == parsed.output_text
    asked |= {"previous_response_id": parsed.id}
    assert isinstance(served.client.responses.parse(**asked).output_parsed, Verdict)


@pytest.mark.long
def test_an_agent_works_with_responses(serve: Callable[..., Served], tiny_model: Path, tmp_path: Path) -> None:
    """OpenAI's own framework: the model calls a tool, reads its result, and writes an answer."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "hermes"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": CHATS_AS_HERMES}))
    served = serve("--tool-format", "hermes", model=folder)
    asked: list[str] = []

    @agents.function_tool
    def get_weather(city: Literal["Bonn", "Rome"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return "rain"

    async def run(*, stream: bool, output_type: type | None = None) -> agents.result.RunResultBase:
        async with openai.AsyncOpenAI(base_url=served.client.base_url, api_key="none", max_retries=0) as client:
            agent = agents.Agent(
                name="tiny",
                instructions="Be brief.",
                model=agents.OpenAIResponsesModel("tiny", client),
                tools=[get_weather],
                model_settings=agents.ModelSettings(
                    tool_choice="required", parallel_tool_calls=False, extra_body={"seed": 1}
                ),
                output_type=output_type,
            )
            config = agents.RunConfig(tracing_disabled=True)
            if not stream:
                return await agents.Runner.run(agent, "Hi", run_config=config)
            streamed = agents.Runner.run_streamed(agent, "Hi", run_config=config, auto_previous_response_id=True)
            kinds = {event.type async for event in streamed.stream_events()}
            assert kinds == {"raw_response_event", "run_item_stream_event", "agent_updated_stream_event"}
            return streamed

    for stream in (False, True):
        result = asyncio.run(run(stream=stream))
        assert isinstance(result.final_output, str)
        assert [type(item).__name__ for item in result.new_items] == [
            "ToolCallItem",
            "ToolCallOutputItem",
            "MessageOutputItem",
        ]
    assert len(asked) == 2
    of_a_form = asyncio.run(run(stream=False, output_type=Verdict))
    assert isinstance(of_a_form.final_output, Verdict)
    assert set(asked) <= {"Bonn", "Rome"}


THINKS = "{{ messages[-1].content }}<think>\n{# </think> #}"


@pytest.mark.long
def test_thoughts_end_with_their_budget(serve: Callable[..., Served], tiny_model: Path, tmp_path: Path) -> None:
    """A model of random weights reasons up to its budget, then writes output in the requested format."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "thinks"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": THINKS}))
    served = serve("--thinking-budget", "9", model=folder)
    schema = {
        "type": "object",
        "properties": {"unit": {"enum": ["kelvin", "celsius"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    asked: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "seed": 3, "response_format": form}
    closing = len("\n</think>")
    for budget, extra in ((9, {}), (4, {"thinking_budget": 4}), (0, {"thinking_token_budget": 0})):
        whole = served.client.chat.completions.create(**asked, extra_body=extra)
        message = whole.choices[0].message
        jsonschema.validate(json.loads(message.content or ""), schema)
        assert whole.usage is not None
        assert whole.usage.completion_tokens_details is not None
        counted = whole.usage.completion_tokens_details.reasoning_tokens
        assert counted is not None
        assert budget + closing <= counted <= budget + closing + 3
        thought, answer = "", ""
        for chunk in served.client.chat.completions.create(**asked, extra_body=extra, stream=True):
            thought += getattr(chunk.choices[0].delta, "reasoning_content", "")
            answer += chunk.choices[0].delta.content or ""
        assert (thought, answer) == (getattr(message, "reasoning_content", ""), message.content)
