"""The end of an engine, which nothing interrupts."""

from __future__ import annotations

import asyncio

from plimsoll_runtime.residency.engines import Engine


async def ended(engine: Engine) -> None:
    """End an engine, and wait for that even if this task is cancelled meanwhile: its memory is not free before."""
    stopping = asyncio.ensure_future(engine.stop())
    cancelled = False
    while not stopping.done():
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            cancelled = True
    stopping.result()
    if cancelled:
        raise asyncio.CancelledError
