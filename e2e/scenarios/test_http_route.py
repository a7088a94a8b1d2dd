"""The chart's HTTPRoute: an OpenAI client gets responses through the Gateway under each of its host names."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from harness.settings import Settings

MODEL = "routed"
PROMPT = "w5 w6 w7 w8 w9 w10"
TOKENS = 64


def test_each_host_name_answers_whole_and_as_a_stream(
    settings: Settings, serving: dict[str, Any], openai_options: dict[str, Any]
) -> None:
    hosts = settings.route_hosts.split(",") if settings.route_hosts else []
    if not hosts:
        pytest.skip("there is no Gateway that the HTTPRoute could attach to: unset KUBECONFIG for a cluster with one")
    asked: dict[str, Any] = {"model": serving["metadata"]["name"], "prompt": PROMPT, "max_tokens": TOKENS}
    asked |= {"temperature": 0, "extra_body": {"ignore_eos": True}}
    answers = set()
    for host in hosts:
        with openai.OpenAI(**openai_options | {"default_headers": {"Host": host}}) as client:
            assert asked["model"] in [model.id for model in client.models.list()]
            answers.add(client.completions.create(**asked).choices[0].text)
            texts = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
            answers.add("".join(texts))
            assert len([text for text in texts if text]) > TOKENS / 8, "something buffers the stream"
    assert len(answers) == 1
