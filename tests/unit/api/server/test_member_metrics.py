"""Metrics of a member of a parallel group other than the leader."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from plimsoll_runtime.api.server.config import ServerConfig
from plimsoll_runtime.api.server.listener import listen
from plimsoll_runtime.api.server.member_server import MemberServer
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.group_options import GroupOptions
from plimsoll_runtime.residency.spec import ModelName

GROUP = GroupOptions(size=2, index=1, address="127.0.0.1:9")
ENGINE = EngineConfig(model="m", tensor_parallel=2, group=GROUP)
CONFIG = ServerConfig(ENGINE, ("first",), deployment=ModelName("team", "deployed"))
LABELS = 'member="1",model="deployed",namespace="team"'


@pytest.mark.parametrize("apart", [True, False])
async def test_metrics_of_a_member_are_on_their_own_port_if_it_has_one(
    monkeypatch: pytest.MonkeyPatch, *, apart: bool
) -> None:
    leaving = asyncio.Event()

    async def live(_server: MemberServer) -> None:
        await leaving.wait()

    monkeypatch.setattr(MemberServer, "_live", live)
    probes, metrics = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    with probes, metrics:
        running = asyncio.create_task(MemberServer(CONFIG, probes, metrics if apart else None).run())
        async with httpx.AsyncClient() as client:
            found = await client.get(f"{_url(metrics if apart else probes)}/metrics")
            assert (await client.get(f"{_url(probes)}/live")).status_code == 200
            assert (await client.get(f"{_url(probes)}/metrics")).status_code == (404 if apart else 200)
            if apart:
                assert (await client.get(f"{_url(metrics)}/live")).status_code == 404
        leaving.set()
        assert await running == 0
    lines = found.text.splitlines()
    for line in (f"plimsoll_member_ready{{{LABELS}}} 0.0", f"plimsoll_member_generations_total{{{LABELS}}} 0.0"):
        assert line in lines
    assert 'plimsoll_build_info{component="member",version="' in found.text
    assert "process_resident_memory_bytes " in found.text


def _url(listener: Any) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"
