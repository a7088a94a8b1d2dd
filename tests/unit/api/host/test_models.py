"""Requests for the models of a host, by their names."""

import asyncio
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from plimsoll_runtime.api.http.concurrency import LONG_BODY
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.residency.errors import DoesNotFit, NotPlaced, Refused

CHAT: list[Any] = [{"role": "user", "content": "Hi"}]


async def complete(hosting: Any, model: str, **fields: Any) -> str:
    answer = await hosting.openai().completions.create(model=model, prompt="Hi", **fields)
    return str(answer.choices[0].text)


async def test_each_name_is_answered_by_its_own_engine(hosting: Any) -> None:
    one, two = hosting.host.add("team/one", "first", "alias"), hosting.host.add("team/two")
    for model, answer in ((one, b"of one"), (two, b"of two")):
        hosting.host.rouse(model)
        model.engine.answer = answer
    assert await complete(hosting, "first") == await complete(hosting, "alias") == "of one"
    assert await complete(hosting, "two") == "of two"
    chat = await hosting.openai().chat.completions.create(model="alias", messages=CHAT)
    assert (chat.choices[0].message.content, chat.model) == ("of one", "first")
    assert (len(one.engine.asked), len(two.engine.asked)) == (3, 1)
    for unknown in ("one", "team/one", "three"):
        with pytest.raises(openai.NotFoundError, match="does not exist; this server has alias, first, two"):
            await complete(hosting, unknown)


async def test_a_request_for_a_model_that_sleeps_waits_until_it_is_awake(hosting: Any) -> None:
    model = hosting.host.add("team/m")
    asked = asyncio.create_task(complete(hosting, "m"))
    await hosting.host.until(lambda: model.waiting == 1)
    assert not asked.done()
    hosting.host.rouse(model)
    assert await asked == "Hello!"
    assert (model.waiting, model.active) == (0, 0)


async def test_a_model_is_in_use_until_its_stream_has_ended(hosting: Any) -> None:
    model = hosting.host.add("team/m")
    hosting.host.rouse(model)
    model.engine.pause()
    stream = await asyncio.create_task(_first_event(hosting, model))
    assert model.active == 1
    model.engine.resume()
    async for _ in stream:
        pass
    await hosting.host.until(lambda: model.active == 0)


async def _first_event(hosting: Any, model: Any) -> Any:
    creating = asyncio.create_task(hosting.openai().completions.create(model="m", prompt="a", stream=True))
    await model.engine.until(lambda: bool(model.engine.running))
    model.engine.resume()
    stream = await creating
    await anext(aiter(stream))
    return stream


@pytest.mark.parametrize("stream", [False, True])
async def test_who_hangs_up_waits_no_more(hosting: Any, stream: bool) -> None:
    model = hosting.host.add("team/m")
    async with hosting.http() as http:
        body = {"model": "m", "prompt": "a", "stream": stream}
        asked = asyncio.create_task(http.post("/v1/completions", json=body))
        await hosting.host.until(lambda: model.waiting == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    await hosting.host.until(lambda: model.waiting == 0)
    async with asyncio.timeout(60):
        await hosting.server.state.idle.wait()


async def test_what_the_host_refuses_has_its_status(hosting: Any) -> None:
    model = hosting.host.add("team/m")
    hosting.host.refuse(model, Refused("too_many_waiting", "3 requests wait for team/m already", 7.2))
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="3 requests wait for team/m already") as caught:
            await complete(hosting, "m", stream=stream)
        assert (caught.value.status_code, caught.value.code) == (503, "too_many_waiting")
        assert caught.value.response.headers["retry-after"] == "8"
    hosting.host.refuse(model, DoesNotFit("team/m needs 9 GiB of 4"))
    with pytest.raises(openai.InternalServerError, match="needs 9 GiB of 4") as caught:
        await complete(hosting, "m")
    assert (caught.value.status_code, caught.value.response.headers["x-should-retry"]) == (507, "false")
    hosting.host.refuse(model, NotPlaced("team/m has just left"))
    with pytest.raises(openai.NotFoundError, match="has just left"):
        await complete(hosting, "m")


async def stream_lines(
    hosting: Any, started: "asyncio.Future[Any]", path: str = "/v1/completions", **fields: Any
) -> list[str]:
    """Return the blocks of a stream; `started` gets its status when it starts, or with other `fields` its headers."""
    async with hosting.http() as http:
        body = {"model": "m", "prompt": "a", "stream": True} | fields
        async with http.stream("POST", path, json=body) as response:
            started.set_result(response.headers if fields else response.status_code)
            return [line async for line in response.aiter_lines() if line]


async def test_a_stream_that_waits_for_long_gets_comments_and_then_its_answer(hosting: Any) -> None:
    model = hosting.host.add("team/m")
    started = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(stream_lines(hosting, started))
    assert await started == 200
    assert model.waiting == 1
    hosting.host.rouse(model)
    lines = await reading
    comments = [line for line in lines if line.startswith(":")]
    assert lines[: len(comments)] == [": the model is being loaded"] * len(comments)
    assert comments
    texts = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[len(comments) : -2]]
    assert ("".join(texts), lines[-1]) == ("Hello!", "data: [DONE]")


async def test_anthropics_clients_get_pings_meanwhile(hosting: Any) -> None:
    model = hosting.host.add("team/m")
    started = asyncio.get_running_loop().create_future()
    fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    reading = asyncio.create_task(stream_lines(hosting, started, "/v1/messages", **fields))
    assert (await started)["x-plimsoll-ignored"] == "prompt"
    hosting.host.rouse(model)
    lines = await reading
    begin = lines.index("event: message_start")
    assert lines[:begin] == ["event: ping", 'data: {"type":"ping"}'] * (begin // 2)
    assert begin
    assert lines[-2:] == ["event: message_stop", 'data: {"type":"message_stop"}']


async def test_what_is_ignored_of_a_long_body_is_told_before_the_model_is_awake(hosting: Any) -> None:
    model = hosting.host.add("team/m")
    started = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(stream_lines(hosting, started, mood="x" * LONG_BODY))
    assert (await started)["x-plimsoll-ignored"] == "mood"
    hosting.host.rouse(model)
    assert (await reading)[-1] == "data: [DONE]"


async def test_what_fails_after_a_comment_is_an_error_event(hosting: Any) -> None:
    model = hosting.host.add("team/m")
    started = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(stream_lines(hosting, started))
    assert await started == 200
    hosting.host.refuse(model, Refused("load_failed", "team/m could not be loaded", 5.0))
    lines = await reading
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "load_failed"
    assert all(line.startswith(":") for line in lines[:-1])


async def test_a_tokenizer_that_cannot_be_read_is_an_error_event_too(
    hosting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise ModelError("tokenizer.json is cut off")

    model = hosting.host.add("team/m")
    monkeypatch.setattr(hosting.server._models._tokenizers, "get", fails)
    started = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(stream_lines(hosting, started))
    assert await started == 200
    hosting.host.rouse(model)
    error = json.loads((await reading)[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("load_failed", "server_error")
    assert error["message"] == "The model's files cannot be used: tokenizer.json is cut off"
    await hosting.host.until(lambda: model.active == 0)


async def test_no_model_is_woken_whose_tokenizer_could_just_not_be_read(hosting: Any) -> None:
    def fails(_files: Any) -> Any:
        raise ModelError("tokenizer.json is cut off")

    tokenizers = hosting.server._models._tokenizers
    tokenizers._read = fails
    model = hosting.host.add("team/m")
    async with asyncio.timeout(60):
        while not tokenizers._failed:
            await asyncio.sleep(0.01)
    with pytest.raises(openai.InternalServerError, match=r"tokenizer\.json is cut off") as caught:
        await complete(hosting, "m")
    assert (caught.value.status_code, caught.value.code) == (503, "load_failed")
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
    assert (model.waiting, model.active) == (0, 0)


async def test_a_model_bounds_how_many_tokens_may_have_a_bias(hosting: Any) -> None:
    hosting.host.rouse(hosting.host.add("team/m", runtime={"maxLogitBias": 1}))
    assert await complete(hosting, "m", logit_bias={"1": 1}) == "Hello!"
    with pytest.raises(openai.BadRequestError, match="limit of 1 "):
        await complete(hosting, "m", logit_bias={"1": 1, "2": 1})


async def test_a_models_files_recommend_its_sampling_unless_its_spec_says_not(hosting: Any, host: Any) -> None:
    host._files = replace(host._files, generation_config={"temperature": 0.25})
    for name, runtime, expected in (("m", {}, 0.25), ("n", {"generationConfig": "none"}, 1.0)):
        model = hosting.host.add(f"team/{name}", runtime=runtime)
        hosting.host.rouse(model)
        assert await complete(hosting, name) == "Hello!"
        assert model.engine.asked[-1].context.params.temperature == expected


async def test_the_death_of_an_engine_ends_its_own_requests_only(hosting: Any) -> None:
    doomed, other = hosting.host.add("team/m"), hosting.host.add("team/other")
    for model in (doomed, other):
        hosting.host.rouse(model)
        model.engine.pause()
    started = asyncio.get_running_loop().create_future()
    streaming = asyncio.create_task(stream_lines(hosting, started))
    whole = asyncio.create_task(complete(hosting, "m"))
    unharmed = asyncio.create_task(complete(hosting, "other"))
    await doomed.engine.until(lambda: len(doomed.engine.running) == 2)
    await other.engine.until(lambda: len(other.engine.running) == 1)
    doomed.engine.die()
    with pytest.raises(openai.InternalServerError, match="the engine died") as caught:
        await whole
    assert caught.value.code == "engine_died"
    assert json.loads("\n".join(await streaming).removeprefix("data: "))["error"]["code"] == "engine_died"
    assert not unharmed.done()
    other.engine.resume()
    assert await unharmed == "Hello!"
    hosting.host.rouse(doomed)
    assert await complete(hosting, "m") == "Hello!"


async def test_a_new_engine_is_used_from_its_first_request_on(hosting: Any) -> None:
    model = hosting.host.add("team/m")
    hosting.host.rouse(model)
    await complete(hosting, "m")
    before = model.engine
    hosting.host.lull(model)
    hosting.host.rouse(model)
    await complete(hosting, "m")
    assert (len(before.asked), len(model.engine.asked)) == (1, 1)


async def test_models_are_listed_with_their_state(hosting: Any) -> None:
    hosting.host.add("team/b", "big", "large")
    awake = hosting.host.add("team/a")
    hosting.host.rouse(awake)
    await complete(hosting, "a")
    listed = [model async for model in hosting.openai().models.list()]
    assert [(m.id, m.model_extra["state"], m.model_extra["max_model_len"]) for m in listed] == [
        ("a", "Resident", 4096),
        ("big", "InHost", None),
        ("large", "InHost", None),
    ]
    assert (await hosting.openai().models.retrieve("large")).model_extra["state"] == "InHost"
    with pytest.raises(openai.NotFoundError, match="this server has a, big, large"):
        await hosting.openai().models.retrieve("b")


async def test_metrics_carry_the_models_namespace_and_name(hosting: Any) -> None:
    one, _two = hosting.host.add("team/one", "first"), hosting.host.add("team/two")
    hosting.host.rouse(one)
    await complete(hosting, "first")
    async with hosting.http() as http:
        await http.post("/v1/completions", json={"model": "x", "prompt": ""})
        lines = (await http.get("/metrics")).text.splitlines()
    for line in (
        'plimsoll_requests_total{code="200",endpoint="/v1/completions",model="one",namespace="team"} 1.0',
        'plimsoll_requests_total{code="404",endpoint="/v1/completions",model="",namespace=""} 1.0',
        'plimsoll_request_seconds_count{model="one",namespace="team"} 1.0',
        'plimsoll_ready{model="",namespace=""} 1.0',
        'plimsoll_answers_waiting{model="one",namespace="team"} 0.0',
        'plimsoll_answers_waiting{model="two",namespace="team"} 0.0',
        'plimsoll_kv_usage_ratio{model="one",namespace="team"} 0.25',
        'plimsoll_host_model_state{model="one",namespace="team",state="Resident"} 1.0',
        'plimsoll_host_model_state{model="two",namespace="team",state="InHost"} 1.0',
        'plimsoll_host_model_state{model="two",namespace="team",state="Resident"} 0.0',
        "plimsoll_host_device_line_bytes 90.0",
    ):
        assert line in lines, line
    assert not [line for line in lines if line.startswith("plimsoll_kv_usage_ratio") and "two" in line]
    assert len([line for line in lines if line.startswith("# TYPE plimsoll_answers_waiting ")]) == 1


async def test_the_hosts_own_counts_are_metrics(hosting: Any) -> None:
    counters = hosting.host.counters
    counters.evictions = 3
    counters.refusals["too_many_waiting"] += 2
    for seconds in (0.2, 0.2, 700.0):
        counters.wake_seconds.add(seconds)
    async with hosting.http() as http:
        lines = (await http.get("/metrics")).text.splitlines()
    for line in (
        "plimsoll_host_evictions_total 3.0",
        'plimsoll_host_refusals_total{code="too_many_waiting"} 2.0',
        'plimsoll_host_wake_seconds_bucket{le="0.1"} 0.0',
        'plimsoll_host_wake_seconds_bucket{le="0.25"} 2.0',
        'plimsoll_host_wake_seconds_bucket{le="600.0"} 2.0',
        'plimsoll_host_wake_seconds_bucket{le="+Inf"} 3.0',
        "plimsoll_host_wake_seconds_count 3.0",
        "plimsoll_host_wake_seconds_sum 700.4",
        "plimsoll_host_load_seconds_count 0.0",
    ):
        assert line in lines, line


async def test_the_log_says_which_model(hosting: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plimsoll_runtime")
    hosting.host.rouse(hosting.host.add("team/m", "first"))
    await complete(hosting, "first")
    async with hosting.http() as http:
        await http.post("/v1/completions", json={"model": "a\nb", "prompt": ""})
    lines = [record.getMessage() for record in caplog.records if record.name == "plimsoll_runtime.api.server.access"]
    assert [line.rpartition(", model ")[2] for line in lines] == ["first", "-"]


async def test_tokenizers_are_read_before_they_are_needed_and_once(hosting: Any) -> None:
    models = [hosting.host.add(f"team/m{index}") for index in range(3)]  # with the same source
    tokenizers = hosting.server._models._tokenizers
    async with asyncio.timeout(60):
        while not tokenizers._kept or not all(reading.done() for reading in tokenizers._kept.values()):
            await asyncio.sleep(0)
    for model in models:
        hosting.host.rouse(model)
        await complete(hosting, model.name.name)
    assert hosting.read == [models[0].files], "those that the host has found: a hub may have others by now"
    for model in models:
        hosting.host.drop(str(model.name))
    with pytest.raises(openai.NotFoundError, match="this server has no model yet"):
        await complete(hosting, "m0")
    assert not tokenizers._kept


async def test_models_of_one_source_that_was_found_in_two_revisions_have_a_tokenizer_each(
    hosting: Any, tmp_path: Path
) -> None:
    one, two = (hosting.host.add(f"team/{name}", name) for name in ("one", "two"))
    shutil.copytree(one.files.root, tmp_path / "newer")
    two.files = replace(two.files, root=tmp_path / "newer")
    for model in (one, two):
        hosting.host.rouse(model)
        await complete(hosting, model.name.name)
    assert {files.root for files in hosting.read} == {one.files.root, two.files.root}


async def test_the_only_model_needs_no_name_to_tokenise(hosting: Any) -> None:
    hosting.host.rouse(hosting.host.add("team/m"))
    async with hosting.http() as http:
        answer = await http.post("/tokenize", json={"prompt": "Hi"})
        assert answer.json()["tokens"] == [256, 72, 105]
        hosting.host.add("team/other")
        answer = await http.post("/tokenize", json={"prompt": "Hi"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
        answer = await http.post("/detokenize", json={"model": "m", "tokens": [72]})
        assert answer.json() == {"prompt": "H"}


async def test_each_model_has_room_of_its_own(hosting: Any) -> None:
    small = hosting.host.add("team/small", runtime={"maxWaiting": 1})
    other = hosting.host.add("team/other")
    for model in (small, other):
        hosting.host.rouse(model)
        model.engine.pause()
    waiting = asyncio.create_task(complete(hosting, "small"))
    await small.engine.until(lambda: bool(small.engine.running))
    with pytest.raises(openai.InternalServerError, match=r"the limit is 1 \(--max-waiting\)"):
        await complete(hosting, "small")
    other.engine.resume()
    assert await complete(hosting, "other") == "Hello!"
    small.engine.resume()
    assert await waiting == "Hello!"


async def test_a_model_that_is_renamed_answers_to_its_new_name_alone(hosting: Any) -> None:
    model = hosting.host.add("team/m", "old")
    hosting.host.rouse(model)
    await complete(hosting, "old")
    model.spec = type(model.spec)(revision="2", source=model.spec.source, served_names=("new",))
    assert await complete(hosting, "new") == "Hello!"
    with pytest.raises(openai.NotFoundError, match="this server has new"):
        await complete(hosting, "old")
