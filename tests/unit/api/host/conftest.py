"""A whole server of a fake host, with both of its APIs on loopback."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from host_support.fake_host import FakeHost

from plimsoll_runtime.api.host.config import HostConfig
from plimsoll_runtime.api.host.server import HostServer
from plimsoll_runtime.api.host.tokenizers import Tokenizers, read_tokenizer
from plimsoll_runtime.api.server.listener import listen
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.weights.files import ModelFiles

TOKEN = "full-token-1"


@dataclass
class Hosting:
    """The server, and clients for it. `read` has the files of each tokenizer that was read."""

    server: HostServer
    host: FakeHost
    url: str
    host_url: str
    ended: "asyncio.Task[int]"
    read: list[ModelFiles]
    clients: list[Any] = field(default_factory=list)

    def openai(self) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)
        self.clients.append(client)
        return client

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=120)

    def api(self, token: str | None = TOKEN) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=f"{self.host_url}/host/v1", headers=headers, timeout=120)


@asynccontextmanager
async def running_host(host: FakeHost, folder: Path, *, tokens: bool = True, **options: Any) -> AsyncIterator[Hosting]:
    read: list[ModelFiles] = []

    def counted(files: ModelFiles) -> Tokenizer:
        read.append(files)
        return read_tokenizer(files)

    config = HostConfig(port=0, host_port=0, **options)
    if tokens:
        (folder / "tokens").write_text(f"{TOKEN}\n")
        config = replace(config, host_token_file=folder / "tokens")
    listeners = (listen("127.0.0.1", 0), listen("127.0.0.1", 0))
    urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    server = HostServer(config, listeners, host, Tokenizers(counted))  # type: ignore[arg-type]
    ended = asyncio.create_task(server.run())
    hosting = Hosting(server, host, urls[0], urls[1], ended, read)
    try:
        async with hosting.http() as http:
            while (await http.get("/health")).status_code != 200:
                assert not ended.done(), ended
        yield hosting
        for client in hosting.clients:
            await client.close()
    finally:
        server.stop()
        server.stop()
        await asyncio.gather(ended, return_exceptions=True)


@pytest.fixture(scope="session")
def model_folder(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with as much of a model as finding its files needs."""
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture
def host(make_engine: Callable[[], Any], model_folder: Path) -> FakeHost:
    weights = (model_folder / "model.safetensors",)
    return FakeHost(make_engine, ModelFiles("m", model_folder, "safetensors", {}, weights))


@pytest.fixture
async def hosting(host: FakeHost, tmp_path: Path) -> AsyncIterator[Hosting]:
    async with running_host(host, tmp_path, keep_alive=0.05) as running:
        yield running


@pytest.fixture
def run_host(host: FakeHost, tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Hosting]]:
    """Runs a host with other options."""
    return partial(running_host, host, tmp_path)
