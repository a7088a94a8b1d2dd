"""A connection between two gateways that have the same secret: each proves it, and each message carries a proof.

Whoever dials proves first, over fresh random bytes of both sides, so that what somebody overhears opens no connection
later. What is said is no secret (names of keys and counts), and is not hidden; that nobody else has said it is what
matters. A message is its length, its bytes and 16 bytes of HMAC-SHA256 over its number in this direction and itself.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256

MAGIC = b"plimsoll-leases/1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
TAG_BYTES = 16
MOST_BYTES = 4 << 20
"""Of one message: a report with as many lines as it may have, and long names, takes half of it."""


class WireError(Exception):
    """The other side says what no gateway with our secret would; the message says what, and never quotes it."""


class Channel:
    """An open connection on which both sides have proved themselves."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sending: bytes, receiving: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._sending = sending
        self._receiving = receiving
        self._sent = 0
        self._received = 0

    @property
    def host(self) -> str:
        """The other side's address, without its port."""
        return str(self._writer.get_extra_info("peername")[0])

    async def send(self, payload: bytes) -> None:
        """Say something. Raises OSError."""
        self._writer.write(len(payload).to_bytes(4, "big") + payload + _tag(self._sending, self._sent, payload))
        self._sent += 1
        await self._writer.drain()

    async def receive(self) -> bytes:
        """The next message. Raises WireError, or OSError at the end."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if size > MOST_BYTES:
                raise WireError(f"a message of {size} bytes, and {MOST_BYTES} is the most")
            payload = await self._reader.readexactly(size)
            tag = await self._reader.readexactly(TAG_BYTES)
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the connection has ended") from None
        if not hmac.compare_digest(tag, _tag(self._receiving, self._received, payload)):
            raise WireError("a message that is not as it was sent")
        self._received += 1
        return payload

    def close(self) -> None:
        """End it now."""
        self._writer.transport.abort()


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, known: Sequence[bytes]) -> Channel:
    """Let in who has one of our secrets. Raises WireError, or OSError at the end."""
    ours = MAGIC + secrets.token_bytes(NONCE_BYTES)
    writer.write(ours)
    theirs = await _exactly(reader, NONCE_BYTES)
    proof = await _exactly(reader, PROOF_BYTES)
    secret = next((one for one in known if hmac.compare_digest(proof, _proof(one, b"dials", ours + theirs))), None)
    if secret is None:
        raise WireError("it does not have our secret")
    writer.write(_proof(secret, b"accepts", ours + theirs))
    return _channel(reader, writer, secret, ours + theirs, dials=False)


async def dial(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> Channel:
    """Come in with our secret. Raises WireError, or OSError at the end."""
    theirs = await _exactly(reader, len(MAGIC) + NONCE_BYTES)
    if not theirs.startswith(MAGIC):
        raise WireError("it is no gateway, or one of another version")
    ours = secrets.token_bytes(NONCE_BYTES)
    writer.write(ours + _proof(secret, b"dials", theirs + ours))
    try:
        proof = await _exactly(reader, PROOF_BYTES)
    except ConnectionResetError:
        raise WireError("it refuses us: do both have the same secret?") from None
    if not hmac.compare_digest(proof, _proof(secret, b"accepts", theirs + ours)):
        raise WireError("it does not have our secret")
    return _channel(reader, writer, secret, theirs + ours, dials=True)


def _channel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, nonces: bytes, *, dials: bool
) -> Channel:
    dialler, acceptor = _proof(secret, b"from who dials", nonces), _proof(secret, b"from who accepts", nonces)
    return Channel(reader, writer, *((dialler, acceptor) if dials else (acceptor, dialler)))


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("the connection has ended") from None


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + b"\0" + nonces, sha256)


def _tag(key: bytes, number: int, payload: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + payload, sha256)[:TAG_BYTES]
