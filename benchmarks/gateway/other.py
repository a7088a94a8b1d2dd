"""A gateway of other parts, to compare: `python -m gateway.other uvloop|h11 -- OPTIONS` (uvloop must be installed)."""

from __future__ import annotations

import sys
from importlib import import_module

from uvicorn.protocols.http.h11_impl import H11Protocol

from plimsoll_gateway import server
from plimsoll_gateway.main import main


def run(parts: list[str], options: list[str]) -> int:
    """Put the parts in place, and be the gateway."""
    if "uvloop" in parts:
        import_module("uvloop").install()
    if "h11" in parts:
        vars(server)["PatientProtocol"] = H11Protocol
    return main(options)


if __name__ == "__main__":
    dashes = sys.argv.index("--")
    sys.exit(run(sys.argv[1:dashes], sys.argv[dashes + 1 :]))
