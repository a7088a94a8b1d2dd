"""Credentials: API keys, which are kept as hashes, gateways that may name a tenant, and the tenants of keys."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import pbkdf2_hmac, sha256
from http import HTTPStatus
from pathlib import Path

from plimsoll_runtime.api.http.errors import ApiError, unavailable
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.file_watcher import WatchedFile

LOOK_SECONDS = 1.0


class ApiKeys:
    """No keys and no file: everybody is let in."""

    def __init__(
        self, keys: Sequence[str] = (), file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises UsageError where the file has no usable key."""
        self._fixed = tuple(sha256(key.encode()).digest() for key in keys)
        self._file = None if file is None else _watch_keys(file, clock)

    @property
    def needed(self) -> bool:
        """Whether requests must carry a key."""
        return bool(self._fixed) or self._file is not None

    def check(self, headers: Mapping[str, str]) -> str | None:
        """The key that is given: after `Bearer` in Authorization, else in x-api-key, as Anthropic's clients send it.

        None where none is needed. Raises ApiError (401) for any that is wrong, after the same time for any of those.
        Names of headers are in lower case.
        """
        if not self.needed:
            return None
        token = given_key(headers)
        known = self._fixed if self._file is None else (*self._fixed, *self._file.value())
        digest = sha256(token).digest()
        matches = [hmac.compare_digest(digest, each) for each in known]
        if not any(matches):
            told = "Incorrect API key" if token else "Missing API key"
            raise ApiError(
                f"{told}: give a valid one in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return token.decode(errors="surrogateescape")


def given_key(headers: Mapping[str, str]) -> bytes:
    """The key after `Bearer` in Authorization, else that of x-api-key; or nothing.

    Headers come as Latin-1, whatever the client wrote; its bytes are what is compared.
    """
    scheme, _, given = headers.get("authorization", "").partition(" ")
    bearer = given.strip() if scheme.lower() == "bearer" else ""
    return (bearer or headers.get("x-api-key", "").strip()).encode("latin-1")


def _watch_keys(path: Path, clock: Callable[[], float]) -> WatchedFile[tuple[bytes, ...]]:
    try:
        return WatchedFile(path, _hashes_of, every=LOOK_SECONDS, clock=clock)
    except OSError as error:
        raise UsageError(f"--api-key-file {path} cannot be read ({error.strerror})") from error


def _hashes_of(path: Path) -> tuple[bytes, ...]:
    """Of the keys in a file, one a line. Raises UsageError, also where it has none: a server without keys is open."""
    try:
        keys = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file {path} cannot be read ({error}); give a text file, one key a line") from error
    if not keys:
        raise UsageError(f"--api-key-file {path} holds no key: write one a line, or leave the option out")
    for number, key in enumerate(keys, 1):
        if len(key) > 256 or any(c.isspace() or not c.isprintable() for c in key):
            raise UsageError(
                f"--api-key-file {path}: key {number} must be 1 to 256 printable characters without spaces"
            )
    return tuple(sha256(key.encode()).digest() for key in keys)


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

    A gateway that has keys knows its clients; the server behind it sees one peer. So the gateway names the tenant in a
    header, and proves with a credential in another header that it may do so. Without a valid credential the name is
    ignored.
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


ROUNDS = 10_000
"""Of the hash that makes a tenant's name from its key: about 5 ms, once for each key. The names of cached blocks derive
from it, and on a disk they outlive the server: guessing keys from them costs as much for each guess."""
_PURPOSE = b"plimsoll/tenant"


class Tenants:
    """The tenant of each API key. Each has what is kept for it to itself; where `shared`, not so cached prefixes.

    `usage.cached_tokens` and the time to the first token show whether a prefix was cached, block by block. Shared
    between keys, that would tell one client how much of another's prompt it has guessed.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._names: dict[str, str] = {}

    def of(self, key: str | None) -> str:
        """The name of a key's tenant, the same in every run of the server; empty for no key."""
        if key is None:
            return ""
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = pbkdf2_hmac("sha256", key.encode(), _PURPOSE, ROUNDS).hex()
        return name

    def cached_as(self, name: str) -> str:
        """Whose cached prefixes the tenant of that name uses: empty where all use the same. It must hold no "/" (see
        `salted`).
        """
        return "" if self._shared else name


def salted(tenant: str, own: str | None) -> str:
    """The salt of a request's prefixes: its tenant's name, and what it asked for itself within that."""
    return f"{tenant}/{own or ''}" if tenant else own or ""
