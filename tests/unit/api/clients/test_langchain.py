"""LangChain's client of OpenAI's API: chats, streams, tools, structured output, batches, responses and vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field, SecretStr

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.text.tokenizer import Tokenizer

from .conftest import WAYS, standing_in

pytestmark = pytest.mark.long

KEY = SecretStr("none")


class Forecast(BaseModel):
    """The weather forecast."""

    sky: Literal["clear", "grey"]
    degrees: int = Field(ge=-60, le=60)


@tool
def get_weather(city: Literal["Bonn", "Rome"], days: Literal[1, 2] = 1) -> str:
    """The weather of a city."""
    return f"rain in {city} for {days}"


@pytest.fixture
def asking(url: str) -> Iterator[dict[str, Any]]:
    """A client without shared connections; LangChain keeps its own for the life of the process."""
    with httpx.Client() as http:
        yield {"model": "tiny", "base_url": f"{url}/v1", "api_key": KEY, "max_retries": 0, "http_client": http}


@pytest.fixture
def chat(asking: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(**asking, seed=1, max_completion_tokens=200)


def test_answers_whole_and_streamed(chat: ChatOpenAI) -> None:
    asked = [SystemMessage("Be brief."), HumanMessage("Hi")]
    short = chat.bind(max_tokens=12, temperature=0)
    whole = short.invoke(asked)
    assert isinstance(whole, AIMessage)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 12
    assert whole.response_metadata["finish_reason"] == "length"
    pieces = list(short.stream(asked, stream_usage=True))
    joined: Any = pieces[0]
    for piece in pieces[1:]:
        joined += piece
    assert isinstance(joined, AIMessageChunk)
    assert joined.content == whole.content
    assert joined.usage_metadata is not None
    assert joined.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]
    assert len(pieces) > 3


def test_a_chain_takes_many_at_once(chat: ChatOpenAI) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "You speak {tongue}."), ("human", "{text}")])
    chain = prompt | chat.bind(max_tokens=8, temperature=0) | StrOutputParser()
    inputs = [{"tongue": "Latin", "text": text} for text in ("one", "two", "three")]
    assert chain.batch(inputs) == [chain.invoke(given) for given in inputs]


async def test_many_are_awaited(asking: dict[str, Any]) -> None:
    async with httpx.AsyncClient() as http:
        short = ChatOpenAI(**asking, http_async_client=http, max_completion_tokens=8, temperature=0)
        found = await short.abatch(["one", "two"])
        assert "".join([piece.text async for piece in short.astream("one")]) == found[0].text


def test_tools_are_called(chat: ChatOpenAI) -> None:
    """The model calls a tool, reads its result and continues."""
    calling = chat.bind_tools([get_weather], tool_choice="get_weather", strict=True, parallel_tool_calls=False)
    asked: list[Any] = [HumanMessage("Hi")]
    message = calling.invoke(asked)
    assert isinstance(message, AIMessage)
    [call] = message.tool_calls
    assert not message.invalid_tool_calls
    heard = get_weather.invoke(call)
    assert isinstance(heard, ToolMessage)
    assert heard.text.startswith("rain in ")
    pieces = list(calling.stream(asked))
    joined: Any = pieces[0]
    for piece in pieces[1:]:
        joined += piece
    assert isinstance(joined, AIMessageChunk)
    assert [each["args"] for each in joined.tool_calls] == [call["args"]]
    after = chat.bind_tools([get_weather], tool_choice="none").invoke([*asked, message, heard], max_tokens=4)
    assert after.response_metadata["finish_reason"] == "length"


# LangChain logs a response of `openai` whose type does not say its format.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_answers_have_a_form(chat: ChatOpenAI, method: Any) -> None:
    asking = chat.with_structured_output(Forecast, method=method, include_raw=True)
    found = asking.invoke("Hi")
    assert isinstance(found, dict)
    assert found["parsing_error"] is None
    assert isinstance(found["parsed"], Forecast)
    seen = list(chat.with_structured_output(Forecast, method=method).stream("Hi"))
    assert seen[-1] == found["parsed"]


def test_answers_are_json(chat: ChatOpenAI) -> None:
    found = chat.with_structured_output(method="json_mode").invoke("Hi")
    assert isinstance(found, dict)


def test_log_probabilities_are_told(chat: ChatOpenAI) -> None:
    told = chat.bind(logprobs=True, top_logprobs=2, max_tokens=3).invoke("Hi").response_metadata["logprobs"]["content"]
    assert [len(each["top_logprobs"]) for each in told] == [2, 2, 2]


def test_responses_are_spoken_too(asking: dict[str, Any]) -> None:
    chat = ChatOpenAI(**asking, use_responses_api=True, temperature=0)
    short = chat.bind(max_output_tokens=16)
    whole = short.invoke("Hi")
    assert len(whole.text) > 0
    assert "".join(piece.text for piece in short.stream("Hi")) == whole.text
    message = chat.bind_tools([get_weather], tool_choice="get_weather", strict=True).invoke("Hi")
    assert isinstance(message, AIMessage)
    [call] = message.tool_calls
    assert get_weather.invoke(call).text.startswith("rain in ")
    assert isinstance(chat.with_structured_output(Forecast).invoke("Hi"), Forecast)


def test_prompts_are_completed(asking: dict[str, Any]) -> None:
    model = OpenAI(**asking, max_tokens=8, temperature=0)
    assert "".join(model.stream("one")) == model.invoke("one")
    assert model.batch(["one", "two"])[0] == model.invoke("one")


def test_errors_are_openais(chat: ChatOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p"):
        chat.invoke("Hi", top_p=9)
    with pytest.raises(openai.NotFoundError, match="tinier"):
        chat.bind(model="tinier").invoke("Hi")
    with pytest.raises(ContextOverflowError, match="maximum context length is 2048 tokens"):
        chat.invoke("x" * 3000)


@pytest.mark.parametrize("way", WAYS)
async def test_texts_become_vectors(tokenizer: Tokenizer, way: str) -> None:
    """Without a tokenizer of OpenAI's, which would be fetched and has other tokens than the model."""
    async with httpx.AsyncClient() as http, standing_in(tokenizer, pooling=PoolingInfo("embed", 4)) as vectors:
        model = OpenAIEmbeddings(
            model="fake",
            base_url=f"{vectors.ways.url(way)}/v1",
            api_key=KEY,
            check_embedding_ctx_length=False,
            max_retries=0,
            chunk_size=2,
            http_async_client=http,
        )
        numbers = vectors.running.engine.numbers
        assert await model.aembed_query("Hi") == numbers([256, *b"Hi"])
        assert await model.aembed_documents(["a", "bc", "def"]) == [
            numbers([256, *text]) for text in (b"a", b"bc", b"def")
        ]
