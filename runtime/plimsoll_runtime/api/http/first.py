"""Waiting for whichever of several things comes first."""

from __future__ import annotations

import asyncio


async def first(*awaitables: object) -> None:
    """Return when any is done. Coroutines are cancelled then, tasks are left alone."""
    own = [asyncio.ensure_future(a) for a in awaitables if asyncio.iscoroutine(a)]
    tasks = [a for a in awaitables if isinstance(a, asyncio.Task)]
    try:
        await asyncio.wait({*own, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
