"""Waiting outputs are joined into one."""

from __future__ import annotations

import asyncio

import pytest

from plimsoll_runtime.driver.clients.requests import Mailbox, joined
from plimsoll_runtime.engine.protocol.messages import LogprobEntry, RequestOutput, pack
from plimsoll_runtime.errors import EngineDeadError

ENTRY = LogprobEntry(5, -1.0, 1, [])


def test_joined_says_all_that_its_parts_said() -> None:
    parts = [
        RequestOutput("r", [1], [ENTRY], prompt_logprobs=pack([ENTRY]), cached_tokens=4),
        RequestOutput("r", [2], [ENTRY]),
        RequestOutput("r", [3], [ENTRY], finish_reason="stop", stop_token_id=3),
    ]
    assert joined(parts) == RequestOutput("r", [1, 2, 3], [ENTRY] * 3, pack([ENTRY]), "stop", 3, 4)
    assert joined(parts[:1]) is parts[0]
    error = RequestOutput("r", finish_reason="error", error="broken")
    assert joined([parts[1], error]).error == "broken"


async def test_what_came_before_an_error_is_read_before_it() -> None:
    mailbox = Mailbox()
    mailbox.put(RequestOutput("r", [1]))
    mailbox.fail(EngineDeadError("gone"))
    assert (await mailbox.take()).token_ids == [1]
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="gone"):
            await mailbox.take()


async def test_a_reader_who_waits_is_woken() -> None:
    mailbox = Mailbox()
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    mailbox.put(RequestOutput("r", [1]))
    mailbox.put(RequestOutput("r", [2]))
    assert (await reader).token_ids == [1, 2]


async def test_a_reader_who_gave_up_can_come_back() -> None:
    mailbox = Mailbox()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(mailbox.take(), 0)
    mailbox.put(RequestOutput("r", [1]))
    assert (await mailbox.take()).token_ids == [1]
