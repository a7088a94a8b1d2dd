"""Credentials: API keys, stored as hashes, gateways that may name a tenant, and the tenants of keys."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import pbkdf2_hmac, sha256
from http import HTTPStatus
from pathlib import Path

from plimsoll_runtime.api.http.errors import ApiError, unavailable
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.file_watcher import WatchedFile

LOOK_SECONDS = 1.0


class _Secrets:
    """Secrets from options, and from a file that is read again when it changes."""

    def __init__(
        self,
        fixed: Iterable[bytes],
        file: Path | None,
        read: Callable[[Path], tuple[bytes, ...]],
        clock: Callable[[], float],
    ) -> None:
        """`read` returns the secrets of a file; it raises UsageError, also for a file that it cannot read."""
        self._fixed = tuple(fixed)
        self._file = None if file is None else WatchedFile(file, read, every=LOOK_SECONDS, clock=clock)

    def __bool__(self) -> bool:
        return bool(self._fixed) or self._file is not None

    def has(self, given: bytes) -> bool:
        """Return whether this is one of the secrets; takes the same time for every wrong one."""
        read = () if self._file is None else self._file.value()
        matches = [hmac.compare_digest(given, each) for each in (*self._fixed, *read)]
        return any(matches)


class ApiKeys:
    """API keys from options and a file. Without either, every request is accepted."""

    def __init__(
        self, keys: Sequence[str] = (), file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises UsageError if the file has no valid key."""
        self._hashes = _Secrets((sha256(key.encode()).digest() for key in keys), file, _hashes_of, clock)

    @property
    def needed(self) -> bool:
        """Whether requests need a key."""
        return bool(self._hashes)

    def check(self, headers: Mapping[str, str]) -> str | None:
        """Return the request's key: after `Bearer` in Authorization, or in x-api-key, as Anthropic's clients send it.

        Returns None if no key is needed. Raises ApiError (401) for a wrong key, after the same time for every wrong
        key. Header names must be in lower case.
        """
        if not self.needed:
            return None
        token = given_key(headers)
        if not self._hashes.has(sha256(token).digest()):
            told = "Incorrect API key" if token else "Missing API key"
            raise ApiError(
                f"{told}; send a valid one in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return token.decode(errors="surrogateescape")


def given_key(headers: Mapping[str, str]) -> bytes:
    """Return the key after `Bearer` in Authorization, or that of x-api-key; empty if there is none.

    Headers are decoded as Latin-1, whatever the client wrote; encoding restores the bytes.
    """
    scheme, _, given = headers.get("authorization", "").partition(" ")
    bearer = given.strip() if scheme.lower() == "bearer" else ""
    return (bearer or headers.get("x-api-key", "").strip()).encode("latin-1")


def _hashes_of(path: Path) -> tuple[bytes, ...]:
    """Return the hashes of the keys in a file, one on each line. Raises UsageError, also for an empty file, because
    a server without keys accepts every request."""
    try:
        keys = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--api-key-file {path} cannot be read ({error}); give a text file with one key on each line"
        ) from error
    if not keys:
        raise UsageError(f"--api-key-file {path} has no key; write one on each line, or leave out the option")
    for number, key in enumerate(keys, 1):
        if len(key) > 256 or any(c.isspace() or not c.isprintable() for c in key):
            raise UsageError(
                f"--api-key-file {path}: key {number} must be 1 to 256 printable characters without spaces"
            )
    return tuple(sha256(key.encode()).digest() for key in keys)


TENANT_HEADER = "x-plimsoll-tenant"
CREDENTIAL_HEADER = "x-plimsoll-gateway"
BELIEVED_HEADER = "x-plimsoll-tenant"
"""In a response, with the value "believed": the server has accepted the gateway's tenant."""
DIRECT = "direct"
"""Tenant of requests without a gateway and without a key. No key's tenant has this name: theirs are hashes."""
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OF_GATEWAY = "gateway:"


class GatewayTokensError(UsageError):
    """A credential is missing or invalid; the message names its place, never its value."""


class Gateways:
    """The credentials of the gateways. Without any, tenants named by gateways are ignored.

    A file is read again when it changes, so that a credential can be replaced while the server runs: add the new line,
    let the gateways send it, and remove the old line.

    A gateway with keys knows its clients; the server behind it sees one peer. So the gateway names the tenant in one
    header, and proves with a credential in another header that it may do so. Without a valid credential the name is
    ignored.
    """

    def __init__(
        self, tokens: Sequence[str] = (), file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises GatewayTokensError if the file has no valid credential."""
        self._tokens = _Secrets((token.encode() for token in tokens), file, tokens_of, clock)

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def tenant(self, headers: Mapping[str, str]) -> str | None:
        """Return the tenant that a gateway names; None for a request without a gateway. Header names must be in lower
        case.

        Raises ApiError (503) for a wrong credential or an invalid name: the client behind the gateway is not at
        fault, and must not be served as another tenant.
        """
        given = headers.get(CREDENTIAL_HEADER)
        if given is None or not self:
            return None
        if not self._tokens.has(given.encode("latin-1")):
            raise unavailable(
                "The gateway's credential is not among this server's (--gateway-token-file or "
                "PLIMSOLL_GATEWAY_TOKEN); the operator of the server must add it."
            )
        name = headers.get(TENANT_HEADER, "")
        if not _TENANT.fullmatch(name):
            raise unavailable(
                f"The gateway sent no valid tenant; {TENANT_HEADER} must be 1 to 64 letters, digits, . _ -"
            )
        return f"{_OF_GATEWAY}{name}"


def is_gateways(tenant: str) -> bool:
    """Return whether a trusted gateway named the tenant, so that its other headers are trusted too."""
    return tenant.startswith(_OF_GATEWAY)


def tokens_of(path: Path) -> tuple[bytes, ...]:
    """Return the credentials of a file, one on each line. Raises GatewayTokensError."""
    try:
        lines = [line.strip() for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise GatewayTokensError(
            f"--gateway-token-file {path} cannot be read ({error.strerror}); give a text file, one on each line"
        ) from error
    tokens = tuple(line for line in lines if line)
    if not tokens:
        raise GatewayTokensError(f"--gateway-token-file {path} has no credential; write one on each line")
    for number, token in enumerate(tokens, 1):
        if not re.fullmatch(rb"[!-~]{16,256}", token):
            raise GatewayTokensError(
                f"--gateway-token-file {path}: credential {number} must be 16 to 256 printable ASCII characters "
                "without spaces"
            )
    return tokens


ROUNDS = 10_000
"""Rounds of the hash that makes a tenant's name from its key: about 5 ms, once for each key. The hashes of cached
blocks derive from the name and outlive the server on disk, so each guess of a key costs as much."""
_PURPOSE = b"plimsoll/tenant"


class Tenants:
    """The tenant of each API key. Each tenant's data is its own, except cached prefixes if `shared`.

    `usage.cached_tokens` and the time to the first token reveal, block by block, whether a prefix was cached. Shared
    between keys, that would tell one client how much of another's prompt it has guessed.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._names: dict[str, str] = {}

    def of(self, key: str | None) -> str:
        """Return the tenant of a key, the same in every run of the server; empty for no key."""
        if key is None:
            return ""
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = pbkdf2_hmac("sha256", key.encode(), _PURPOSE, ROUNDS).hex()
        return name

    def cached_as(self, name: str) -> str:
        """Return the namespace of a tenant's cached prefixes, empty if all tenants share one. It must not contain
        "/" (see `salted`)."""
        return "" if self._shared else name


def salted(tenant: str, own: str | None) -> str:
    """Return the cache salt of a request: its tenant's name and, within that, its own salt."""
    return f"{tenant}/{own or ''}" if tenant else own or ""
