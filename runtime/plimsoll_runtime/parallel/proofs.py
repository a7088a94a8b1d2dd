"""Proofs that both ends of a connection have the group's token, which is never sent."""

from __future__ import annotations

import hashlib
import hmac

LEADER = "leader"


def member_role(group: str, index: int) -> str:
    """Return the role of a member."""
    return f"member {index} of {group}"


def proof(token: str | None, role: str, leader_nonce: bytes, member_nonce: bytes) -> bytes:
    """Return the HMAC-SHA256 of a role and both nonces; empty without a token.

    The roles differ, so that neither end can return the other one's proof.
    """
    if token is None:
        return b""
    parts = (role.encode(), leader_nonce, member_nonce)
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(token.encode(), text, hashlib.sha256)


def is_proof(given: bytes, token: str | None, role: str, leader_nonce: bytes, member_nonce: bytes) -> bool:
    """Return whether `given` is the proof. Without a token anything is."""
    return token is None or hmac.compare_digest(given, proof(token, role, leader_nonce, member_nonce))
