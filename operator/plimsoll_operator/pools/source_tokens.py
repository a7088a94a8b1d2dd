"""Tokens for private sources, from the Secrets that models name; they are read again from time to time.

Tokens are sent only to hosts. No message, record or log has one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.pools.model_placement import Problem
from plimsoll_operator.spec.identity import Object, ObjectKey
from plimsoll_operator.spec.secret_item import SecretItem
from plimsoll_operator.status.reasons import Reason

LOOK_AGAIN_SECONDS = 60.0
"""Seconds after which a Secret is read again. The operator may read Secrets, but not watch them."""
LONGEST = 4096

Read = Callable[[ObjectKey], Awaitable[Object | None]]
"""Returns a Secret, None if there is none. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `mark` differs for different tokens, but does not reveal them."""

    value: str = field(repr=False)
    mark: str


Found = Token | Problem


class SourceTokens:
    """Tokens by items of Secrets. `mark` computes the mark of a token; `clock` returns seconds."""

    def __init__(self, read: Read, mark: Callable[[str], str], clock: Callable[[], float]) -> None:
        self._read = read
        self._mark = mark
        self._clock = clock
        self._known: dict[SecretItem, tuple[Found, float]] = {}

    async def of(self, items: Iterable[SecretItem]) -> Mapping[SecretItem, Found]:
        """Return the token of each item, or why there is none. If a Secret cannot be read now, except for a lack of
        rights, return its last result.
        """
        wanted, now = set(items), self._clock()
        fresh = {item: found for item, (found, until) in self._known.items() if item in wanted and until > now}
        old = sorted(wanted - fresh.keys(), key=str)
        looked = dict(zip(old, await asyncio.gather(*map(self._look, old)), strict=True))
        self._known |= {item: (found, now + LOOK_AGAIN_SECONDS) for item, found in looked.items()}
        self._known = {
            item: known for item, known in self._known.items() if item in wanted or now < known[1] + LOOK_AGAIN_SECONDS
        }
        return fresh | looked

    async def _look(self, item: SecretItem) -> Found:
        try:
            secret = await self._read(item.secret)
        except ApiError as error:
            return self._unread(item, error)
        if secret is None:
            message = f"there is no Secret {item.secret}: create it, or name another one in spec.model.tokenSecret.name"
            return Problem(Reason.TOKEN_NOT_FOUND, message)
        content = (secret.get("data") or {}).get(item.key)
        if content is None:
            message = (
                f"the Secret {item.secret} has no key {item.key}: add it, or name another in spec.model.tokenSecret.key"
            )
            return Problem(Reason.TOKEN_NOT_FOUND, message)
        token = decode(content)
        if token is None:
            message = (
                f"the key {item.key} of the Secret {item.secret} is not a token: it must be one line of 1 to {LONGEST} "
                "printable ASCII characters without spaces"
            )
            return Problem(Reason.TOKEN_INVALID, message)
        return Token(token, self._mark(token))

    def _unread(self, item: SecretItem, error: ApiError) -> Found:
        if error.code == 403:
            message = (
                f"this operator may not read Secrets in namespace {item.namespace}; add it to operator.tokenNamespaces "
                "of the chart, or serve the model with dedicated pods, which read the Secret themselves"
            )
            return Problem(Reason.TOKEN_NOT_ALLOWED, message)
        known = self._known.get(item)
        if known is not None:
            return known[0]
        return Problem(Reason.TOKEN_NOT_FOUND, f"cannot read the Secret {item.secret}, trying again: {error}")


def decode(content: str) -> str | None:
    """Decode a token in base64, without surrounding white space; None if it is not valid."""
    try:
        token = base64.b64decode(content, validate=True).decode("ascii").strip()
    except (binascii.Error, ValueError):
        return None
    return token if re.fullmatch(f"[!-~]{{1,{LONGEST}}}", token) else None
