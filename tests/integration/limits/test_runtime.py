"""The runtime under the memory limit of an example, with abusive clients: it is not killed, and other clients are
served.

The bodies are as large as the gateway allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_support.tiny import VOCAB, make_model
from tokenizers import Tokenizer, models

from abuse import attack
from abuse.clients import ask, bombs
from abuse.group import MemoryGroup, NoGroupError, memory_group
from abuse.limits import byte_count

EXAMPLE = Path(__file__).parents[3] / "examples" / "gemma.yaml"
SMALL_POD = 1500 << 20
MANY = 24
SMALL = b'{"model": "tiny", "prompt": [3, 4], "max_tokens": 2}'


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["spec"]
    return loaded


@pytest.fixture
def group(spec: dict[str, Any]) -> Iterator[MemoryGroup]:
    try:
        with memory_group(byte_count(spec["resources"]["memory"])) as made:
            yield made
    except NoGroupError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_model("LlamaConfig", {}).save_pretrained(folder)
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


@contextlib.asynccontextmanager
async def running(group: MemoryGroup, model: Path, kv_memory: str, port: int) -> AsyncIterator[None]:
    """A runtime that is ready."""
    options = ("--name", "tiny", "--port", str(port), "--threads", "1", "--kv-memory", kv_memory)
    command = group.command(sys.executable, "-m", "plimsoll_runtime", "serve", str(model), *options)
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    said = b""
    try:
        while b" ready: " not in said:
            line = await process.stderr.readline()
            assert line, said.decode()
            said += line
        yield
        assert process.returncode is None
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


@pytest.mark.long
async def test_abuse_kills_nothing_and_stops_nobody(
    group: MemoryGroup, model: Path, spec: dict[str, Any], unused_tcp_port: int
) -> None:
    port = unused_tcp_port
    async with running(group, model, spec["runtime"]["kvMemory"], port), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask_on(port))
        dawdlers = await attack.dawdle(port)
        statuses = await attack.throw_bombs(port, "tiny")
        for writer in dawdlers:
            writer.close()
        assert not asking.done()
        asking.cancel()
    print(json.dumps({"peak_mib": group.peak >> 20, "kills": group.kills, "statuses": statuses}))
    assert group.kills == 0
    assert set(statuses) <= {400, 413, attack.GONE}
    assert statuses[400] > 0


async def ask_on(port: int) -> None:
    """Send small requests one after the other; each must be answered."""
    while True:
        assert await ask(port, SMALL) == 200


@pytest.mark.long
async def test_many_long_prompts_at_once_fit_into_a_small_pod(model: Path, unused_tcp_port: int) -> None:
    """Each is legal, and expands to twenty times its size."""
    try:
        with memory_group(SMALL_POD) as group:
            async with running(group, model, "64MiB", unused_tcp_port):
                body = bombs("tiny")["tokens"]
                statuses = await asyncio.gather(*(ask(unused_tcp_port, body) for _ in range(MANY)))
            print(json.dumps({"peak_mib": group.peak >> 20, "kills": group.kills}))
            assert group.kills == 0
            assert statuses == [400] * MANY
    except NoGroupError as reason:
        pytest.skip(str(reason))
