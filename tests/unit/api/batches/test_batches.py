"""OpenAI's client uploads files, creates batches and reads their results, also after failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from gateway_support.front import gateway_before
from gateway_support.keys import CREDENTIAL, Keys

from plimsoll_runtime.api.batches.file_store import BATCHES, WORK, FileStore
from plimsoll_runtime.api.batches.job import MOST_TRIES
from plimsoll_runtime.api.batches.lines import MAX_FAULTS
from plimsoll_runtime.api.batches.records import FINAL
from plimsoll_runtime.batch.job import Tally
from plimsoll_runtime.batch.journal import Journal, Mark
from plimsoll_runtime.batch.store import JOURNAL
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.options import BatchOptions

CHAT = "/v1/chat/completions"
KEYS = ("one", "other")


def line(number: int, **body: Any) -> dict[str, Any]:
    content = {"model": "fake", "messages": [{"role": "user", "content": f"Number {number}"}], **body}
    return {"custom_id": f"request-{number}", "method": "POST", "url": CHAT, "body": content}


def text_of(lines: Sequence[Any]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines)


async def upload(client: openai.AsyncOpenAI, lines: Sequence[Any]) -> str:
    file = await client.files.create(file=("lines.jsonl", text_of(lines)), purpose="batch")
    return file.id


async def begin(client: openai.AsyncOpenAI, lines: Sequence[Any], endpoint: Any = CHAT) -> str:
    file = await upload(client, lines)
    batch = await client.batches.create(input_file_id=file, endpoint=endpoint, completion_window="24h")
    assert batch.status == "validating"
    return batch.id


async def ended(client: openai.AsyncOpenAI, name: str) -> Any:
    while (batch := await client.batches.retrieve(name)).status not in FINAL:
        pass
    return batch


async def lines_of(client: openai.AsyncOpenAI, file: str | None) -> list[dict[str, Any]]:
    assert file is not None
    content = await client.files.content(file)
    return [json.loads(each) for each in content.text.splitlines()]


@pytest.fixture
def kept(tmp_path: Path) -> BatchOptions:
    return BatchOptions(tmp_path / "files", at_once=8)


async def test_from_a_file_to_its_answers(run_server: Any, kept: BatchOptions) -> None:
    async with run_server(batches=kept) as running:
        client = running.openai()
        lines = [line(number) for number in range(30)]
        batch = await ended(client, await begin(client, lines))
        assert (batch.status, batch.model, batch.errors, batch.error_file_id) == ("completed", "fake", None, None)
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (30, 30, 0)
        assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
        answers = await lines_of(client, batch.output_file_id)
        assert sorted(answer["custom_id"] for answer in answers) == sorted(each["custom_id"] for each in lines)
        for answer in answers:
            assert answer["error"] is None
            assert answer["response"]["status_code"] == 200
            body = answer["response"]["body"]
            assert body["object"] == "chat.completion"
            assert body["choices"][0]["message"]["content"] == "Hello!"
        usage = batch.usage
        assert usage.output_tokens == sum(each["response"]["body"]["usage"]["completion_tokens"] for each in answers)
        output = await client.files.retrieve(batch.output_file_id)
        assert (output.purpose, output.bytes) == ("batch_output", len((await client.files.content(output.id)).content))


async def test_vectors_come_as_lines(run_server: Any, kept: BatchOptions) -> None:
    url = "/v1/embeddings"
    async with run_server(batches=kept, pooling=PoolingInfo("embed", 4)) as running:
        client = running.openai()
        lines = [{**line(number), "url": url, "body": {"model": "fake", "input": [[number, 9]]}} for number in range(9)]
        lines.append({**lines[0], "custom_id": "wrong", "body": {"model": "fake", "input": []}})
        batch = await ended(client, await begin(client, lines, url))
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 9, 1)
        for number, answer in enumerate(sorted(await lines_of(client, batch.output_file_id), key=by_id)):
            body = answer["response"]["body"]
            assert body["data"] == [
                {"object": "embedding", "index": 0, "embedding": running.engine.numbers([number, 9])}
            ]
        chats = await ended(client, await begin(client, [line(0)]))
        (refused,) = await lines_of(client, chats.error_file_id)
        assert refused["response"]["body"]["error"]["code"] == "unsupported_task"


def by_id(answer: dict[str, Any]) -> str:
    return str(answer["custom_id"])


async def test_a_bad_body_costs_itself(run_server: Any, kept: BatchOptions) -> None:
    async with run_server(batches=kept) as running:
        client = running.openai()
        lines = [line(0), line(1, temperature=-1), line(2, stream=True), line(3)]
        batch = await ended(client, await begin(client, lines))
        assert batch.status == "completed"
        assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 2)
        errors = {each["custom_id"]: each["response"] for each in await lines_of(client, batch.error_file_id)}
        assert {name: each["status_code"] for name, each in errors.items()} == {"request-1": 400, "request-2": 400}
        assert errors["request-1"]["body"]["error"]["param"] == "temperature"
        assert errors["request-2"]["body"]["error"]["param"] == "stream"


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        ([], "empty_file", None),
        ([line(0), b"{\n"], "invalid_line", 2),
        ([line(0), b'{"\xd2": 1}\n'], "invalid_line", 2),
        ([b'{"custom_id": "\xd2", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'], "invalid_value", 1),
        ([json.dumps(line(0)).encode().replace(b"fake", b"\xd2") + b"\n"], "model_not_found", 1),
        ([line(0), line(0)], "duplicate_custom_id", 2),
        ([line(0), line(1, model="alias")], "mismatched_model", 2),
        ([line(0, model="else")], "model_not_found", 1),
        ([line(0) | {"url": "/v1/completions"}], "invalid_value", 1),
        ([line(0) | {"method": "GET"}], "invalid_value", 1),
        ([{key: value for key, value in line(0).items() if key != "custom_id"}], "invalid_line", 1),
        ([line(0) | {"more": 1}], "unknown_parameter", 1),
    ],
)
@pytest.mark.matrix(3)
async def test_what_is_no_batch_fails_before_it_begins(
    run_server: Any, kept: BatchOptions, lines: Any, code: str, number: int | None
) -> None:
    async with run_server(batches=kept) as running:
        client = running.openai()
        batch = await ended(client, await begin(client, lines))
        assert batch.status == "failed"
        assert [(each.code, each.line) for each in batch.errors.data] == [(code, number)]
        assert running.engine.asked == []


async def test_not_every_fault_is_told(run_server: Any, kept: BatchOptions) -> None:
    async with run_server(batches=kept) as running:
        client = running.openai()
        batch = await ended(client, await begin(client, [b"no\n"] * 100))
        assert len(batch.errors.data) == MAX_FAULTS


async def test_everything_is_its_keys_alone(run_server: Any, kept: BatchOptions) -> None:
    async with run_server(batches=kept, api_keys=KEYS, share_prefix_cache=True) as running:
        mine, other = (running.openai(key) for key in KEYS)
        file = await upload(mine, [line(0)])
        batch = await begin(mine, [line(0)])
        asks: list[Callable[[], Awaitable[object]]] = [
            lambda: other.files.retrieve(file),
            lambda: other.files.content(file),
            lambda: other.files.delete(file),
            lambda: other.batches.retrieve(batch),
            lambda: other.batches.cancel(batch),
            lambda: other.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h"),
            lambda: mine.files.retrieve("file-../../../etc/passwd"),
            lambda: mine.batches.retrieve("batch_" + "0" * 32),
        ]
        for ask in asks:
            with pytest.raises(openai.NotFoundError):
                await ask()
        assert (await other.files.list()).data == []
        assert (await other.batches.list()).data == []
        assert (await ended(mine, batch)).status == "completed"


async def test_a_cancelled_batch_keeps_what_was_answered(run_server: Any, kept: BatchOptions) -> None:
    async with run_server(batches=kept) as running:
        client = running.openai()
        running.engine.pause()
        name = await begin(client, [line(number) for number in range(20)])
        await running.engine.until(lambda: len(running.engine.running) > 0)
        batch = await client.batches.cancel(name)
        assert batch.status == "cancelling"
        batch = await ended(client, name)
        assert (batch.status, batch.output_file_id) == ("cancelled", None)
        await running.engine.until(lambda: not running.engine.running)
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(name)


async def test_another_server_goes_on_where_the_first_ended(run_server: Any, kept: BatchOptions) -> None:
    async with run_server(batches=kept) as first:
        client = first.openai()
        first.engine.pause()
        name = await begin(client, [line(number) for number in range(40)])
        await first.engine.until(lambda: len(first.engine.running) > 0)
    async with run_server(batches=kept) as second:
        client = second.openai()
        batch = await ended(client, name)
        assert (batch.status, batch.request_counts.completed) == ("completed", 40)
        answers = await lines_of(client, batch.output_file_id)
        assert len({answer["custom_id"] for answer in answers}) == len(answers) == 40


async def test_lists_come_in_pages(run_server: Any, kept: BatchOptions) -> None:
    async with run_server(batches=kept) as running:
        client = running.openai()
        files = {await upload(client, [line(0)]) for _ in range(5)}
        seen = [file.id async for file in client.files.list(limit=2, order="asc")]
        assert len(seen) == 5
        assert set(seen) == files
        assert [file.id async for file in client.files.list(limit=2)] == seen[::-1]
        for query in ("limit=0", "limit=x", "order=up", "after=file-none"):
            async with running.http() as http:
                assert (await http.get(f"/v1/files?{query}")).status_code == 400
        await client.files.delete(seen[0])
        with pytest.raises(openai.NotFoundError):
            await client.files.content(seen[0])


async def test_without_a_folder_the_flag_is_named(fresh: Any) -> None:
    client = fresh.openai()
    for ask in (client.files.list, client.batches.list, partial(upload, client, [line(0)])):
        with pytest.raises(openai.APIStatusError, match="--files-dir") as caught:
            await ask()
        assert caught.value.status_code == 501


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"purpose": "batch"}, "file"),
        ({"file": ("a", b"x")}, "purpose"),
        ({"file": ("a", b"x"), "purpose": "vision"}, "purpose"),
        ({"file": ("a", b"x"), "purpose": "batch", "mood": "good"}, "mood"),
        ({"file": ("a", b"x"), "purpose": "batch", "expires_after[anchor]": "now"}, "expires_after[anchor]"),
        (
            {"file": ("a", b"x"), "purpose": "batch", "expires_after[anchor]": "created_at"},
            "expires_after[seconds]",
        ),
    ],
)
async def test_a_form_that_is_none_is_refused_by_its_field(
    run_server: Any, kept: BatchOptions, form: dict[str, Any], param: str
) -> None:
    async with run_server(batches=kept) as running, running.http() as http:
        parts = {name: value if isinstance(value, tuple) else (None, value) for name, value in form.items()}
        answer = await http.post("/v1/files", files=parts)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert await left(running) == []


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "application/json"}, b"{}"),
        ({"content-type": "multipart/form-data"}, b""),
        ({"content-type": "multipart/form-data; boundary=b"}, b"--b\r\n"),
        ({"content-type": "multipart/form-data; boundary=b"}, b"--bx\r\n\r\n--b--"),
        ({"content-type": "multipart/form-data; boundary=b"}, b"--b\r\nX: y\r\n\r\nz\r\n--b--"),
    ],
)
async def test_a_body_that_is_no_form_is_refused(
    run_server: Any, kept: BatchOptions, headers: dict[str, str], body: bytes
) -> None:
    async with run_server(batches=kept) as running, running.http() as http:
        answer = await http.post("/v1/files", content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_multipart")


async def test_too_much_is_refused_and_leaves_nothing(run_server: Any, tmp_path: Path) -> None:
    async with run_server(batches=BatchOptions(tmp_path, most_bytes=10_000)) as running:
        client = running.openai()
        with pytest.raises(openai.APIStatusError) as caught:
            await client.files.create(file=("a", b"x" * 20_000), purpose="batch")
        assert (caught.value.status_code, caught.value.code) == (413, "files_full")
        file = await client.files.create(file=("../a\\b.jsonl", b"x" * 5000), purpose="batch")
        assert (file.filename, file.bytes) == ("b.jsonl", 5000)
        assert [each.id for each in (await client.files.list()).data] == [file.id]


async def left(running: Any) -> list[str]:
    async with httpx.AsyncClient(base_url=running.url) as http:
        return [each["id"] for each in (await http.get("/v1/files")).json()["data"]]


async def test_two_servers_share_a_folder(run_server: Any, tmp_path: Path) -> None:
    """One of the servers runs the batch, whichever got the request."""
    shared = BatchOptions(tmp_path / "files", shared=True, at_once=4)
    async with run_server(batches=shared) as one, run_server(batches=shared) as other:
        names = [await begin(each.openai(), [line(number) for number in range(25)]) for each in (one, other, one)]
        for name in names:
            batch = await ended(one.openai(), name)
            assert (batch.status, batch.request_counts.completed) == ("completed", 25)
            answers = await lines_of(other.openai(), batch.output_file_id)
            assert len({each["custom_id"] for each in answers}) == len(answers) == 25
        elsewhere = await begin(one.openai(), [line(0, model="elsewhere")])
        await one.openai().batches.cancel(elsewhere)
        assert (await ended(other.openai(), elsewhere)).status == "cancelled"


async def test_lines_give_way_to_live_requests(run_server: Any, tmp_path: Path) -> None:
    """While a client's request is in flight, a quarter of the lines run."""
    async with run_server(batches=BatchOptions(tmp_path / "files", at_once=8)) as running:
        client = running.openai()
        running.engine.pause()
        live = asyncio.ensure_future(client.chat.completions.create(model="fake", messages=line(0)["body"]["messages"]))
        await running.engine.until(lambda: len(running.engine.running) == 1)
        name = await begin(client, [line(number) for number in range(30)])
        await running.engine.until(lambda: len(running.engine.running) == 3)
        running.engine.resume()
        await live
        assert (await ended(client, name)).request_counts.completed == 30


@pytest.mark.parametrize(("policy", "priorities"), [("fcfs", [0, 0]), ("priority", [-3, 100])])
async def test_lines_come_last_where_priorities_count(
    run_server: Any, kept: BatchOptions, policy: str, priorities: list[int]
) -> None:
    async with run_server(batches=kept) as running:
        client = running.openai()
        running.engine.info = msgspec.structs.replace(running.engine.info, policy=policy)
        said = {"priority": -3} if policy == "priority" else {}
        await ended(client, await begin(client, [line(0, **said), line(1)]))
        assert sorted(request.context.params.priority for request in running.engine.asked) == priorities


async def test_a_batch_that_ends_every_server_is_given_up(run_server: Any, kept: BatchOptions) -> None:
    file_store = FileStore(kept.folder, kept.most_bytes)
    async with run_server(batches=kept) as running:
        running.engine.pause()
        name = await begin(running.openai(), [line(number) for number in range(3)])
        await running.engine.until(lambda: len(running.engine.running) == 3)
    stored = file_store.batch("", name)
    assert stored.tries == 1
    file_store.keep_batch(msgspec.structs.replace(stored, tries=MOST_TRIES))
    async with run_server(batches=kept) as running:
        batch = await ended(running.openai(), name)
        assert (batch.status, batch.errors.data[0].code) == ("failed", "no_progress")
        assert running.engine.asked == []


async def test_work_that_is_damaged_fails_its_batch(run_server: Any, kept: BatchOptions) -> None:
    file_store = FileStore(kept.folder, kept.most_bytes)
    async with run_server(batches=kept) as running:
        running.engine.pause()
        name = await begin(running.openai(), [line(0)])
        await running.engine.until(lambda: len(running.engine.running) == 1)
    journal = Journal(file_store.path("", BATCHES, name, f"{WORK}.work") / JOURNAL)
    list(journal.records())
    journal.add(Mark(0, [], 99, 0, Tally(), 0.0))
    journal.sync()
    journal.close()
    async with run_server(batches=kept) as running:
        batch = await ended(running.openai(), name)
        assert (batch.status, batch.errors.data[0].code) == ("failed", "work_lost")
    assert not file_store.places("", name).work.exists()


async def test_lines_are_counted(run_server: Any, kept: BatchOptions) -> None:
    async with run_server(batches=kept) as running:
        client = running.openai()
        await ended(client, await begin(client, [line(0), line(1), line(2, temperature=-1)]))
        async with running.http() as http:
            shown = (await http.get("/metrics")).text
    assert 'plimsoll_batch_lines_total{model="fake",namespace="",outcome="answered"} 2.0' in shown
    assert 'plimsoll_batch_lines_total{model="fake",namespace="",outcome="failed"} 1.0' in shown


async def test_through_the_gateway_it_is_the_same(run_server: Any, kept: BatchOptions, tmp_path: Path) -> None:
    """With the gateway's keys, each with its own files and batches."""
    keys = Keys(tmp_path)
    for name in KEYS:
        keys.add(name)
    async with (
        run_server(batches=kept, gateway_tokens=(CREDENTIAL,)) as running,
        gateway_before(running.url, ["fake"], **keys.options(), files_model="fake") as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=keys.texts["one"], max_retries=0) as mine,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=keys.texts["other"], max_retries=0) as other,
    ):
        batch = await ended(mine, await begin(mine, [line(number) for number in range(12)]))
        assert (batch.status, batch.request_counts.completed) == ("completed", 12)
        assert len(await lines_of(mine, batch.output_file_id)) == 12
        assert {request.context.cache_salt for request in running.engine.asked} == {"gateway:one/"}
        with pytest.raises(openai.NotFoundError):
            await other.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            await other.files.content(batch.output_file_id)
        assert (await mine.files.delete(batch.input_file_id)).deleted


@pytest.mark.long
async def test_a_large_file_streams_through_the_gateway(run_server: Any, kept: BatchOptions) -> None:
    """The file is larger than the gateway's memory; the gateway finds its server by the answers of the models and
    stores nothing."""
    piece, pieces = b"x" * (1 << 20), 160
    held: list[str] = []

    async def form(gateway: httpx.AsyncClient) -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="large.jsonl"\r\n\r\n'
        for number in range(pieces):
            if number % 40 == 39:
                shown = (await gateway.get("/metrics")).text
                held.extend(line for line in shown.splitlines() if line.startswith("plimsoll_gateway_body_bytes "))
            yield piece
        yield b"\r\n--b--\r\n"

    async with (
        run_server(batches=kept) as running,
        gateway_before(running.url, ["fake"], files="ns/shared") as url,
        httpx.AsyncClient(base_url=url, timeout=120) as gateway,
    ):
        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await gateway.post("/v1/files", content=form(gateway), headers=headers)
        assert (answer.status_code, answer.json()["bytes"]) == (200, pieces * len(piece))
        content = await gateway.get(f"/v1/files/{answer.json()['id']}/content")
        assert content.content == piece * pieces
    assert held == ["plimsoll_gateway_body_bytes 0.0"] * 4
