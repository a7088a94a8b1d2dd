"""Authenticated connection between two gateways with the same secret.

The dialling side proves the secret first, over fresh random bytes of both sides, so that a recorded handshake opens no
later connection. Messages (names of keys, counts) are authenticated but not encrypted. A message is its length, its
payload, and 16 bytes of HMAC-SHA256 over its number in this direction and its payload.
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
"""Size limit of a message. A report with the most lines and long names needs half of it."""


class WireError(Exception):
    """The peer sent data that no gateway with our secret sends. The message describes it, and never quotes it."""


class Channel:
    """An open connection on which both sides have proved the secret."""

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
        """The peer's address, without its port."""
        return str(self._writer.get_extra_info("peername")[0])

    async def send(self, payload: bytes) -> None:
        """Send a message. Raises OSError."""
        self._writer.write(len(payload).to_bytes(4, "big") + payload + _tag(self._sending, self._sent, payload))
        self._sent += 1
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Receive the next message. Raises WireError, or OSError at the end of the connection."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if size > MOST_BYTES:
                raise WireError(f"it sent a message of {size} bytes; the limit is {MOST_BYTES}")
            payload = await self._reader.readexactly(size)
            tag = await self._reader.readexactly(TAG_BYTES)
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the connection has ended") from None
        if not hmac.compare_digest(tag, _tag(self._receiving, self._received, payload)):
            raise WireError("the HMAC of a message is wrong")
        self._received += 1
        return payload

    def close(self) -> None:
        """Close the connection immediately."""
        self._writer.transport.abort()


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, known: Sequence[bytes]) -> Channel:
    """Run the handshake on a connection that a peer opened: both sides prove one of the `known` secrets. Raises
    WireError, or OSError at the end of the connection.
    """
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
    """Run the handshake on a connection that we opened: both sides prove the secret. Raises WireError, or OSError at
    the end of the connection.
    """
    theirs = await _exactly(reader, len(MAGIC) + NONCE_BYTES)
    if not theirs.startswith(MAGIC):
        raise WireError("it is not a gateway, or has another version")
    ours = secrets.token_bytes(NONCE_BYTES)
    writer.write(ours + _proof(secret, b"dials", theirs + ours))
    try:
        proof = await _exactly(reader, PROOF_BYTES)
    except ConnectionResetError:
        raise WireError("it closed the connection; check that both gateways have the same secret") from None
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
