"""A gateway with other parts for comparison: `python -m gateway.other uvloop|h11|unguarded|still -- OPTIONS`.

`uvloop`: the event loop of uvloop, which must be installed. `h11`: uvicorn's protocol with the h11 parser. `unguarded`:
uvicorn's protocol without the gateway's `ConnectionGuard`. `still`: timed tasks run only once.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from plimsoll_gateway.server import server
from plimsoll_gateway.server.main import main


def run(parts: list[str], options: list[str]) -> int:
    """Replace the parts, and run the gateway. `options` are its command-line options."""
    if "uvloop" in parts:
        import_module("uvloop").install()
    if "still" in parts:
        _stop_clock()
    for part, protocol in (("h11", H11Protocol), ("unguarded", HttpToolsProtocol)):
        if part in parts:
            vars(server)["guarded"] = lambda _limit, protocol=protocol: protocol
    return main(options)


def _stop_clock() -> None:
    """Make each `asyncio.sleep` with a delay above 0 last an hour, so that timed tasks do not run again."""
    rest = asyncio.sleep

    async def sleep(delay: float) -> None:
        await rest(3600 if delay > 0 else 0)

    vars(asyncio)["sleep"] = sleep


if __name__ == "__main__":
    dashes = sys.argv.index("--")
    sys.exit(run(sys.argv[1:dashes], sys.argv[dashes + 1 :]))
