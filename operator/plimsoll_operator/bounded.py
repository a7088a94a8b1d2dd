"""Reading the answers of processes that need not be honest."""

from __future__ import annotations

import aiohttp


class TooLargeError(Exception):
    """An answer has more bytes than are read; the message says how many that is."""


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of an answer, so that one that does not end costs no memory. Raises TooLargeError."""
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit:
            raise TooLargeError(f"its answer is larger than {limit} bytes")
    return bytes(data)
