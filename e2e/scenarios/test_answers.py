"""A ModelDeployment is applied, becomes Ready, and answers through the ingress with the same text as `LLM`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from harness.kube import Kube
from harness.settings import Settings
from plimsoll_runtime import LLM, SamplingParams

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The three largest cities of France are"
TOKENS = 24


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected output of the chat, and of the completion."""

    answer: str
    continued: str


@pytest.fixture(scope="module")
def expected() -> Expected:
    """The outputs of `LLM` in this process, with the options of the ModelDeployment below."""
    llm = LLM("demo://gemma-3-270m", dtype="float32", max_model_len=1024, kv_memory="256MiB", threads=2)
    [result] = llm.chat([QUESTION], SamplingParams(temperature=0, max_tokens=TOKENS))
    [continued] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True))
    return Expected(result.outputs[0].text, continued.outputs[0].text)


def test_a_model_deployment_answers(
    kube: Kube, client: openai.OpenAI, demo: dict[str, Any], expected: Expected
) -> None:
    demo["spec"]["runtime"] = {"dtype": "float32", "maxModelLen": 1024, "kvMemory": "256MiB", "threads": 2}
    kube.apply(demo)
    kube.wait_condition("gemma", "Ready", "True")
    for kind in ("Placed", "Loaded", "Routable"):
        condition = kube.condition("gemma", kind)
        assert condition is not None
        assert condition["status"] == "True", kube.describe("gemma")
    reasons = [reason for _, reason, _ in kube.events("gemma")]
    assert 0 < len(reasons) < 12, reasons
    name = demo["spec"]["model"]["servedNames"][0]
    assert name in [m.id for m in client.models.list()]

    whole: Any = client.chat.completions.create(model=name, messages=QUESTION, temperature=0, max_tokens=TOKENS)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].message.content == expected.answer
    assert whole.usage.completion_tokens > 0

    chunks: Any = client.chat.completions.create(
        model=name,
        messages=QUESTION,
        temperature=0,
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces = list(chunks)
    assert "".join(c.choices[0].delta.content or "" for c in pieces if c.choices) == expected.answer
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens

    long: Any = client.completions.create(
        model=name, prompt=PROMPT, temperature=0, max_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}
    )
    texts = [c.choices[0].text for c in long if c.choices]
    assert "".join(texts) == expected.continued
    assert len([t for t in texts if t]) > TOKENS / 8, "the answer came in a few lumps, so something buffers it"

    # The list names at most 50 models, and parallel scenarios may serve hundreds.
    with pytest.raises(openai.NotFoundError, match=r"'nobody' does not exist\. Known models: "):
        client.chat.completions.create(model="nobody", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=name, messages=QUESTION, temperature=-1)


def test_every_path_of_the_docs_leads_to_the_gateway_through_the_ingress(settings: Settings) -> None:
    """The request id shows that the gateway answered: other servers, like the ingress with its own 404, send none."""

    def ask(method: str, path: str) -> httpx.Response:
        body: dict[str, Any] | None = {} if method == "post" else None
        return httpx.request(method, settings.url + path, headers={"Host": settings.host}, json=body, timeout=60)

    paths: dict[str, Any] = ask("get", "/openapi.json").json()["paths"]
    inside = {"/health", "/live", "/"}  # "/" of a shared host belongs to other services
    assert inside | {"/v1/chat/completions", "/v2/rerank", "/tokenize", "/docs"} < paths.keys()
    for path, methods in paths.items():
        for method in methods:
            answer = ask(method, re.sub("{[a-z_]+}", "none", path))
            assert ("x-request-id" in answer.headers) == (path not in inside), (method, path, answer.text)
            assert "unknown_path" not in answer.text, (method, path)
