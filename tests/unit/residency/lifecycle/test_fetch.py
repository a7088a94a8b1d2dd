"""Fetching a model's files from a hub while its placement changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from model_support.hub import MAIN, Hub, serving, use

from plimsoll_runtime.driver.process.handshake import Needs
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.residency.engines import processes as module
from plimsoll_runtime.residency.engines.processes import Processes
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.residency.states import Level
from plimsoll_runtime.weights.files import ModelFiles

NAME = ModelName("team", "a")
NEEDS = Needs(image=1, private=0, workspace=1, block_bytes=1, kv_least=1, kv_most=1, max_model_len=1, overhead=1)


class Spare:
    """A fake standby pool that records configs and starts nothing."""

    def __init__(self) -> None:
        self.configs = list[EngineConfig]()

    async def footprints(self) -> tuple[int, int]:
        return 0, 0

    async def needs(self, config: EngineConfig, _kv: int | None) -> Needs:
        self.configs.append(config)
        return NEEDS

    async def engine(self, config: EngineConfig, *_: object) -> None:
        self.configs.append(config)
        raise EngineDeadError("started enough")

    async def close(self) -> None:
        """Do nothing: there are no processes."""


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Processes:
    made = Processes()
    monkeypatch.setattr(made, "_accelerated", False)
    monkeypatch.setattr(made, "_spare", Spare())
    return made


async def test_what_was_found_is_what_is_measured_and_loaded(
    engines: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Hub()) as hub:
        use(hub, tmp_path, monkeypatch)
        spec = ModelSpec(revision="1", source="hf://org/model", model_revision="main")
        found = await engines.find(NAME, spec)
        assert found.files.root.name == MAIN
    with pytest.raises(EngineDeadError, match="started enough"):
        await engines.start(NAME, spec, found, None, Grant(1, 1, 1))
    asked = [(config.model, config.revision) for config in cast(Spare, engines._spare).configs]
    assert asked == [(str(found.files.root), None)] * 2, "the hub, which is gone, is not asked again"


@pytest.mark.parametrize(
    ("source", "form", "asked"),
    [("file:///m/a.gguf", "gguf", "/m/a.gguf"), ("/m", "safetensors", "/m"), ("demo://one", "gguf", "demo://one")],
)
async def test_other_sources(
    engines: Processes, monkeypatch: pytest.MonkeyPatch, source: str, form: Any, asked: str
) -> None:
    """A demo model keeps its name, because its file does not tell its EOS tokens."""
    files = ModelFiles("a", Path("/m"), form, {}, (Path("/m/a.gguf"),))
    monkeypatch.setattr(module, "resolve", lambda *_, **__: files)
    assert (await engines.find(NAME, ModelSpec(revision="1", source=source))).files is files
    [config] = cast(Spare, engines._spare).configs
    assert (config.model, config.revision) == (asked, None)


async def test_the_fetch_of_a_model_that_is_removed_ends(
    engines: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Hub(stalls=True)) as hub:
        use(hub, tmp_path, monkeypatch)
        host = Host(engines, Settings(check_seconds=3600.0))
        await host.start()
        try:
            before = engines.look().reserved
            host.place(NAME, ModelSpec(revision="1", source="hf://org/model"), Level.ON_DISK, "place")
            assert await asyncio.to_thread(hub.stalled.wait, 60)
            assert engines._fetches.anonymous > 2**20
            assert engines.look().reserved > before, "what fetches takes memory, too"
            host.remove(NAME, "remove")
            assert (await host.settled("remove", 60)).done
            assert await asyncio.to_thread(hub.hung_up.wait, 60)
            async with asyncio.timeout(60):
                while engines._fetches.anonymous:
                    await asyncio.sleep(0.01)
        finally:
            await host.close()
