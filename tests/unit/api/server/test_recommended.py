"""A model's recommended sampling settings replace those that a request leaves out, on every endpoint."""

from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.api.server.config import ServerConfig
from plimsoll_runtime.api.server.server import load_model
from plimsoll_runtime.api.server.state import ServerState
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.options import ServingOptions
from plimsoll_runtime.text.generation_config import GenerationConfigSource

SAID = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5}
USUAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 8},
}


def copy(model: Path, to: Path, generation_config: str) -> None:
    for file in model.iterdir():
        (to / file.name).symlink_to(file)
    (to / "generation_config.json").write_text(generation_config)


def sampled(engine: Any) -> dict[str, float]:
    params = engine.asked[-1].context.params
    return {field: getattr(params, field) for field in USUAL}


@pytest.mark.matrix(2)
@pytest.mark.parametrize("path", BODIES)
async def test_requests_that_leave_a_field_out_have_the_models(run_server: Any, path: str) -> None:
    async with run_server(recommended=SAID) as server, server.http() as http:
        for more, expected in (
            ({}, SAID),
            ({"temperature": None, "top_p": None}, SAID),
            ({"temperature": 0.5, "top_p": 1}, SAID | {"temperature": 0.5, "top_p": 1.0}),
            ({"temperature": 0}, SAID | {"temperature": 0.0}),
        ):
            answer = await http.post(path, json={"model": "fake", **BODIES[path], **more})
            assert answer.status_code == 200, answer.text
            assert sampled(server.engine) == expected
            if path == "/v1/responses":
                told = answer.json()
                assert (told["temperature"], told["top_p"]) == (expected["temperature"], expected["top_p"])


@pytest.mark.matrix(2)
@pytest.mark.parametrize("path", BODIES)
async def test_without_a_recommendation_they_have_openais(run_server: Any, path: str) -> None:
    async with run_server() as server, server.http() as http:
        answer = await http.post(path, json={"model": "fake", **BODIES[path]})
        assert answer.status_code == 200, answer.text
        assert sampled(server.engine) == USUAL


@pytest.mark.parametrize(("source", "expected"), [("model", {"temperature": 0.25}), ("none", {})])
async def test_the_server_reads_them_with_the_model(
    source: GenerationConfigSource, expected: dict[str, float], tiny_model: Path, tmp_path: Path, make_engine: Any
) -> None:
    copy(tiny_model, tmp_path, '{"temperature": 0.25}')
    config = ServerConfig(EngineConfig(model=str(tmp_path)), ("m",), ServingOptions(generation_config=source))

    async def start(*_: Any) -> Any:
        return make_engine()

    assert (await load_model(config, ServerState(("m",)), start)).recommended == expected


async def test_a_value_that_cannot_be_used_is_refused_before_the_engine_starts(
    tiny_model: Path, tmp_path: Path
) -> None:
    copy(tiny_model, tmp_path, '{"top_p": 7}')

    async def start(*_: Any) -> Any:
        raise AssertionError("the engine was started")

    with pytest.raises(ModelError, match=r"has top_p 7: it must be at least 0 and at most 1.*--generation-config none"):
        await load_model(ServerConfig(EngineConfig(model=str(tmp_path)), ("m",)), ServerState(("m",)), start)
