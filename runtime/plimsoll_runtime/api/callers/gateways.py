"""Whether a request comes from a gateway that may say whose it is.

A gateway that has keys knows its clients; the server behind it sees one peer. So the gateway names the tenant in a
header, and proves with a credential in another that it is the one to do so. Anybody else's word on it counts for
nothing.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from plimsoll_runtime.api.callers.keys import LOOK_SECONDS
from plimsoll_runtime.api.http.errors import unavailable
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.file_watcher import WatchedFile

TENANT_HEADER = "x-plimsoll-tenant"
CREDENTIAL_HEADER = "x-plimsoll-gateway"
BELIEVED_HEADER = "x-plimsoll-tenant"
"""In an answer, with the value "believed": the server took the gateway's word, which sees by this that it did."""
DIRECT = "direct"
"""The tenant of whoever has neither a gateway in front nor a key. No key's tenant has this name: theirs are hashes."""
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OF_GATEWAY = "gateway:"


class GatewayTokensError(UsageError):
    """There is no credential where one must be; the message says where, and never what stands there."""


class Gateways:
    """The credentials of the gateways; none means that there are no gateways to be believed.

    Those of a file are read again when it has changed, so that one can be replaced while the server runs: put the new
    line beside the old one, let the gateways send it, and take the old one out.
    """

    def __init__(
        self, tokens: Sequence[str] = (), file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises GatewayTokensError where the file has no usable credential."""
        self._fixed = tuple(token.encode() for token in tokens)
        self._file = None if file is None else _watch_tokens(file, clock)

    def __bool__(self) -> bool:
        return bool(self._fixed) or self._file is not None

    def tenant(self, headers: Mapping[str, str]) -> str | None:
        """The tenant that a gateway names; None for a request that no gateway sends. Names have lower-case keys.

        Raises ApiError (503) for a wrong credential or a name that is none: the client behind it is not at fault, and
        must not be served as somebody else.
        """
        given = headers.get(CREDENTIAL_HEADER)
        if given is None or not self:
            return None
        if not self._knows(given.encode("latin-1")):
            raise unavailable("The gateway's credential is not one that this server knows; its operator must set it.")
        name = headers.get(TENANT_HEADER, "")
        if not _TENANT.fullmatch(name):
            raise unavailable(f"The gateway names no tenant: {TENANT_HEADER} must be 1 to 64 letters, digits, . _ -")
        return f"{_OF_GATEWAY}{name}"

    def _knows(self, given: bytes) -> bool:
        read = () if self._file is None else self._file.value()
        matches = [hmac.compare_digest(given, token) for token in (*self._fixed, *read)]
        return any(matches)


def is_gateways(tenant: str) -> bool:
    """Whether a gateway that is believed named that tenant, so that its other headers are to be believed too."""
    return tenant.startswith(_OF_GATEWAY)


def tokens_of(path: Path) -> tuple[bytes, ...]:
    """The credentials of a file, one a line. Raises GatewayTokensError."""
    try:
        lines = [line.strip() for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise GatewayTokensError(
            f"--gateway-token-file {path} cannot be read ({error.strerror}); give a text file, one a line"
        ) from error
    tokens = tuple(line for line in lines if line)
    if not tokens:
        raise GatewayTokensError(f"--gateway-token-file {path} holds no credential: write one a line")
    for number, token in enumerate(tokens, 1):
        if not re.fullmatch(rb"[!-~]{16,256}", token):
            raise GatewayTokensError(
                f"--gateway-token-file {path}: credential {number} must be 16 to 256 printable ASCII characters "
                "without spaces"
            )
    return tokens


def _watch_tokens(path: Path, clock: Callable[[], float]) -> WatchedFile[tuple[bytes, ...]]:
    try:
        return WatchedFile(path, tokens_of, every=LOOK_SECONDS, clock=clock)
    except OSError as error:
        raise GatewayTokensError(f"--gateway-token-file {path} cannot be read ({error.strerror})") from error
