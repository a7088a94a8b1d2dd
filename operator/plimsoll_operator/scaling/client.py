"""The door to gateways: `GET /demand` on their metrics port, errors in our words."""

from __future__ import annotations

import aiohttp

from plimsoll_operator.bounded import TooLargeError, read_bounded
from plimsoll_operator.scaling.demand import LIMIT, Demand, decode_demand

WAIT_SECONDS = 5.0
"""How long a gateway may hold the question for news: numbers that are no news are then as old as this at most."""
ANSWER_SECONDS = 10.0


class GatewayError(Exception):
    """A gateway did not answer; the message says why."""


class GatewayClient:
    """One gateway."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def demand(self, after: int, wait: float = WAIT_SECONDS) -> Demand:
        """The answer, once its sequence is beyond `after` or `wait` seconds have passed.

        Raises GatewayError and BadDemandError.
        """
        timeout = aiohttp.ClientTimeout(total=wait + ANSWER_SECONDS)
        query = f"?after={after}&wait={wait:g}"
        try:
            async with self._session.get(
                f"{self._url}/demand{query}", timeout=timeout, allow_redirects=False
            ) as response:
                data = await read_bounded(response, LIMIT)
        except TooLargeError as error:
            raise GatewayError(str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise GatewayError(f"it cannot be reached: {error or type(error).__name__}") from error
        if response.status != 200:
            words = data[:200].decode("utf-8", "replace")
            raise GatewayError(f"it answered {response.status} to GET /demand: {words}")
        return decode_demand(data)
