"""A model's files on their way from a hub, while its placement changes its mind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from model_support.hub import Hub, serving, use

from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.processes import Processes
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelSpec
from plimsoll_runtime.residency.states import Level

NAME = ModelName("team", "a")


async def test_the_fetch_of_a_model_that_is_removed_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Hub(stalls=True)) as hub:
        use(hub, tmp_path, monkeypatch)
        engines = Processes()
        monkeypatch.setattr(engines, "_accelerated", False)
        monkeypatch.setattr(engines._spare, "footprints", AsyncMock(return_value=(0, 0)))
        host = Host(engines, Settings(check_seconds=3600.0))
        await host.start()
        try:
            before = engines.look().reserved
            host.place(NAME, ModelSpec(revision="1", source="hf://org/model"), Level.ON_DISK, "place")
            assert await asyncio.to_thread(hub.stalled.wait, 60)
            [fetch] = engines._fetches
            assert fetch.anonymous > 2**20
            assert engines.look().reserved > before, "what fetches takes memory, too"
            host.remove(NAME, "remove")
            assert (await host.settled("remove", 60)).done
            assert await asyncio.to_thread(hub.hung_up.wait, 60)
            assert not engines._fetches
        finally:
            await host.close()
