"""A server of a tiny model, one with fake engines, a gateway for each, and clients in environments of their own.

Servers and gateways of this process run on a loop in another thread, so that clients may be synchronous.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from gateway_support.front import gateway_before
from server_support.process import serving

from plimsoll_runtime.text.chat_template import ChatTemplate
from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import running_server

HERE = Path(__file__).parent
CLIENTS = Path(sys.prefix) / "clients"
"""Where `make clients` installs packages that conflict with the project's own."""

HINT = "not installed: make clients"
SECONDS = 240
"""Seconds after which a client counts as hung."""

AS_HERMES = (
    "{% for t in tools or [] %}{{ t.function.name }}<tool_call>{% endfor %}{% for m in messages %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
WAYS = ("directly", "through the gateway")


@dataclass(frozen=True)
class Ways:
    """The addresses of a server and of the gateway in front of it; clients see no difference."""

    server: str
    gateway: str

    def url(self, way: str) -> str:
        return self.server if way == WAYS[0] else self.gateway


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as started:
        yield started


@pytest.fixture(scope="session")
def tiny_that_calls(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with a template that has a tool-call format."""
    folder = Path(shutil.copytree(tiny_model, tmp_path_factory.mktemp("clients") / "tiny"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": AS_HERMES}))
    return folder


@pytest.fixture(scope="module")
def tiny(tiny_that_calls: Path, portal: BlockingPortal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    log = tmp_path_factory.mktemp("tiny") / "termination-log"
    with (
        serving(tiny_that_calls, log, "--tool-format", "hermes", "--dtype", "float32") as served,
        portal.wrap_async_context_manager(gateway_before(served.url, ("tiny",))) as gateway,
    ):
        yield Ways(served.url, gateway)


@pytest.fixture(params=WAYS)
def url(request: pytest.FixtureRequest, tiny: Ways) -> str:
    """Return the URL of "tiny", a real model."""
    return tiny.url(request.param)


@dataclass(frozen=True)
class StandIn:
    """A server whose engine writes what a test says, and the gateway in front of it."""

    running: Any
    ways: Ways

    def answers(self, text: str) -> None:
        self.running.engine.reset()
        self.running.engine.answer = text.encode()

    def follows(self, *texts: str) -> None:
        """Set the texts that answer the next requests, one each."""
        self.running.engine.reset()
        self.running.engine.script = [text.encode() for text in texts]

    @property
    def shown(self) -> str:
        """Return the last prompt of the model."""
        return bytes(token for token in self.running.engine.asked[-1].prompt_token_ids if token < 256).decode()


@asynccontextmanager
async def standing_in(tokenizer: Tokenizer, **options: Any) -> AsyncIterator[StandIn]:
    """A server whose model writes tool calls in the format of Hermes; `options` are those of `running_server`."""
    before, tokenizer.chat_template = tokenizer.chat_template, ChatTemplate(AS_HERMES)
    try:
        async with (
            running_server(tokenizer, **options) as server,
            gateway_before(server.url, ("fake",)) as gateway,
        ):
            yield StandIn(server, Ways(server.url, gateway))
    finally:
        tokenizer.chat_template = before


def client_python(package: str) -> str:
    """Return the interpreter of the environment with a package, or skip the test."""
    if not any(CLIENTS.glob(f"lib/python*/site-packages/{package}")):
        pytest.skip(f"{package} is {HINT}")
    return str(CLIENTS / "bin" / "python")


def run_client(*command: str | Path, **environment: str) -> Any:
    """Run a client in a process of its own; return the JSON on the last line of its output."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        command, env=os.environ | offline | environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
