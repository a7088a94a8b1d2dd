"""Each path has a limit for bodies: larger ones are refused in the path's error format, and nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.api.batches import upload
from plimsoll_runtime.api.batches.file_store import FileStore
from plimsoll_runtime.api.server.limits import BODY_BYTES, KEPT_APART, OPTION, VARIABLE, limits_with
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.cli.serve import server_config
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.options import BatchOptions

MOST, FILE, BATCH = 1000, 3 << 20, 700
LIMITS = limits_with([("/v1/files", FILE), (None, MOST), ("/v1/batches", BATCH)])
FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
HEADERS = {"/v1/files": {"content-type": "multipart/form-data; boundary=b"}}
JSON = {"content-type": "application/json"}


def body_of(path: str, size: int) -> bytes:
    """Return a body that is too large by this many bytes, or not."""
    return FORM + b"x" * size + END if path == "/v1/files" else b" " * size


def pieces(body: bytes) -> Iterator[bytes]:
    return (body[at : at + (1 << 16)] for at in range(0, len(body), 1 << 16))


async def undeclared(body: bytes) -> AsyncIterator[bytes]:
    for piece in pieces(body):
        yield piece


@pytest.fixture
async def small(run_server: Any, tmp_path: Path) -> AsyncIterator[Any]:
    async with run_server(batches=BatchOptions(tmp_path / "files"), body_limits=LIMITS) as running:
        yield running


async def test_what_is_larger_is_refused_in_the_paths_own_words(small: Any) -> None:
    async with small.http() as http:
        for path in BODY_BYTES:
            limit, headers = LIMITS.bytes[path], HEADERS.get(path, JSON)
            for content in (body_of(path, limit + 1), undeclared(body_of(path, limit + 1))):
                answer = await http.post(path, content=content, headers=headers)
                assert answer.status_code == 413, path
                told = answer.json()["error"]
                assert f"larger than {limit} bytes" in told["message"], path
                assert OPTION in told["message"], path
                assert answer.headers["connection"] == "close"
                if path.startswith("/v1/messages"):
                    assert answer.json()["type"] == "error"
                    assert told["type"] == "request_too_large"
            answer = await http.post(path, content=body_of(path, limit), headers=headers)
            assert answer.status_code == (200 if path == "/v1/files" else 400), path
    assert small.engine.asked == []


async def test_of_a_file_that_is_too_large_nothing_is_left(small: Any, tmp_path: Path) -> None:
    async with small.http() as http:
        body = undeclared(body_of("/v1/files", FILE + 1))
        assert (await http.post("/v1/files", content=body, headers=HEADERS["/v1/files"])).status_code == 413
    assert FileStore(tmp_path / "files", 1).used_bytes() == 0


async def test_a_file_that_has_no_room_is_refused_before_all_of_it_has_come(
    run_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload does not declare its size, so the data on disk is limited while it arrives."""
    monkeypatch.setattr(upload, "LOOK_BYTES", 1 << 20)
    most, file_store, lay = 4 << 20, FileStore(tmp_path / "files", 1), [0]

    async def long() -> AsyncIterator[bytes]:
        yield FORM
        for _ in range(32):
            yield b"x" * (1 << 20)
            lay.append(file_store.used_bytes())
        yield END

    async with run_server(batches=BatchOptions(tmp_path / "files", most_bytes=most)) as running, running.http() as http:
        answer = await http.post("/v1/files", content=long(), headers=HEADERS["/v1/files"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "files_full")
    assert most < max(lay) <= most + upload.LOOK_BYTES + upload.PIECE_BYTES
    assert file_store.used_bytes() == 0


def test_a_limit_for_all_leaves_those_of_one_path_alone() -> None:
    assert {LIMITS.bytes[path] for path in BODY_BYTES.keys() - KEPT_APART} == {MOST}
    assert (LIMITS.bytes["/v1/files"], LIMITS.bytes["/v1/batches"]) == (FILE, BATCH)
    assert limits_with([(None, 5)]).bytes["/v1/files"] == BODY_BYTES["/v1/files"]


def test_the_command_line_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*words: str) -> dict[str, int]:
        return dict(server_config(build_parser().parse_args(["serve", "m", *words])).body_limits.bytes)

    assert parse() == dict(BODY_BYTES)
    monkeypatch.setenv(VARIABLE, "64MiB, /tokenize=1KiB,/v1/score=2KiB")
    found = parse(OPTION, "/v1/score=3KiB")
    assert (found["/v1/chat/completions"], found["/tokenize"], found["/v1/score"]) == (64 << 20, 1 << 10, 3 << 10)
    assert found["/v1/files"] == BODY_BYTES["/v1/files"]
    monkeypatch.setenv(VARIABLE, "/v1/audio=1KiB")
    with pytest.raises(UsageError, match="PLIMSOLL_MAX_BODY_BYTES: '/v1/audio' must be one of /v1/chat"):
        parse()


@pytest.mark.parametrize("word", ["0", "/tokenize=", "/tokenize=40%", "=5MiB", "x"])
def test_a_limit_that_is_none_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "m", OPTION, word])
    assert OPTION in capsys.readouterr().err
