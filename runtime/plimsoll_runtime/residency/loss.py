"""The loss of a device: it comes once, and for good."""

from __future__ import annotations

import asyncio

from plimsoll_runtime.errors import DeviceLostError


class Loss:
    """Of a host's device; `error` is None as long as there is none."""

    def __init__(self) -> None:
        self.error: DeviceLostError | None = None
        self._came = asyncio.Event()

    def tell(self, error: DeviceLostError) -> bool:
        """It is lost; whether that is news. Only the first reason counts."""
        if self.error is not None:
            return False
        self.error = error
        self._came.set()
        return True

    async def wait(self) -> None:
        """Return once the device is lost."""
        await self._came.wait()
