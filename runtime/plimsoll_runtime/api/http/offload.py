"""Work on a request that would hold up every stream, in a thread where its body, or what it asks for, is long.

Decoding takes up to twenty times a body's size, and no two threads can do it at once: so long bodies share one thread,
in the order in which they came, and only one of them is unfolded at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from plimsoll_runtime.api.http.disconnect import ResultT

SHORT_BODY = 2048
"""Bytes of a body that is worked on in place: about a millisecond of decoding, rendering and tokenising, less than
handing it to a thread may take. No field of a request is longer than its body, so none has to be measured alone."""

LONG_BODY = 2**20
"""Bytes of a body whose decoding may take many MiB: 7 MiB of token ids were measured to take 112."""


_one_by_one = ThreadPoolExecutor(1, thread_name_prefix="long-bodies")


async def offload(size: int, work: Callable[[], ResultT]) -> ResultT:
    """What `work` returns. Where it works on more than `SHORT_BODY` bytes (`size`), it runs in a thread.

    Such work must change nothing that the event loop uses. Cancelling drops work that has not begun, and the
    result of work that has.
    """
    if size <= SHORT_BODY:
        return work()
    thread = _one_by_one if size > LONG_BODY else None
    return await asyncio.get_running_loop().run_in_executor(thread, work)
