"""Work on a request that would hold up every stream, in a thread where its body is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

SHORT_BODY = 2048
"""Bytes of a body that is worked on in place: about a millisecond of decoding, rendering and tokenising, less than
handing it to a thread may take. No field of a request is longer than its body, so none has to be measured alone."""

ResultT = TypeVar("ResultT")


async def offload(data: bytes | bytearray, work: Callable[[], ResultT]) -> ResultT:
    """What `work` makes of the body `data`; work on a long one runs in a thread.

    Such work must change nothing that the event loop uses. Cancelling does not end a thread: its result is dropped.
    """
    return work() if len(data) <= SHORT_BODY else await asyncio.to_thread(work)
