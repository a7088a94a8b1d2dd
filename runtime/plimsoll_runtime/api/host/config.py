"""The options of a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plimsoll_runtime.api.server.config import FrontConfig
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.utils.option import Option, option

KEEP_ALIVE_SECONDS = 5.0
TOKENS_VARIABLE = "PLIMSOLL_HOST_TOKENS"
"""Environment variable with hashes of tokens, as an alternative to a token file."""

HOST_API = Option(("host",), "host API")


@dataclass(frozen=True, slots=True)
class HostConfig(FrontConfig):
    """Options of one host process. `models` are placed at the start."""

    host_address: str = option("", "address of the host API", HOST_API, metavar="ADDRESS", usual="that of --host")
    host_port: int = option(
        8100, "port of the host API, 0 for a free one", HOST_API, metavar="PORT", minimum=0, maximum=65535
    )
    host_token_file: Path | None = option(
        None,
        "file of bearer tokens for the host API, one per line; it is read again when it changes. Or set "
        "PLIMSOLL_HOST_TOKENS to their SHA-256. Without either the host API is open, and starts only on a "
        "loopback address",
        HOST_API,
        metavar="FILE",
    )
    host_token_hashes: str = option(
        "", "SHA-256 of bearer tokens of the host API", HOST_API, flag="", variable=TOKENS_VARIABLE
    )
    models: tuple[tuple[ModelName, ModelSpec], ...] = ()
    keep_alive: float = option(
        KEEP_ALIVE_SECONDS,
        "seconds until a stream that waits for its model gets its HTTP headers, and between its keep-alive comments "
        "after that; later failures are error events",
        HOST_API,
        group="requests for models that sleep",
        flag="--keep-alive-seconds",
        unit="seconds",
        minimum=0.1,
    )

    @property
    def inner_address(self) -> str:
        """The address that the host API listens on."""
        return self.host_address or self.host
