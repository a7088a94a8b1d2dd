"""What gateways say to each other of their keys: a report, and its reply. Both are whole: neither builds on another.

Times are never sent. What is asked of a clock is how long ago something was, each time of one's own.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_gateway.admission.quota.usage import Kind
from plimsoll_gateway.keys.api_key import NAME

MOST_LINES = 20_000
"""Of a report: some 600 KiB. Further keys keep the shares that they have."""

Amount = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
KeyName = Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}\Z")]
Address = Annotated[str, msgspec.Meta(min_length=3, max_length=64)]
Instance = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class BadMessageError(Exception):
    """What another gateway sent is no message; the error says what is wrong, and never quotes it."""


class Line(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One quota of a key: the share that the sender holds, what it has used of it, and what it would like in all."""

    key: KeyName
    kind: Kind
    held: Amount
    used: Amount
    want: Amount


class Report(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a gateway says to the owner of some keys, of all of theirs that were asked for lately.

    `instance` is new with each start, and `number` rises within it. `joined`: it knows the shares of all keys. Of keys
    that are not among the `lines` one that has joined holds an even share at most, and one that has not holds nothing.
    """

    sender: Address
    instance: Instance
    number: Number
    joined: bool
    lines: Annotated[tuple[Line, ...], msgspec.Meta(max_length=MOST_LINES)]


class Grant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The share of a quota that the receiver may hold from now on, and what others have used of the quota."""

    key: KeyName
    kind: Kind
    share: Amount
    elsewhere: Amount


class Reply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The owner's answer to the report of that `number`. Keys to `forget` are idle everywhere, and
    the receiver holds an even share of them."""

    instance: Instance
    number: Number
    grants: Annotated[tuple[Grant, ...], msgspec.Meta(max_length=MOST_LINES)]
    forget: Annotated[tuple[KeyName, ...], msgspec.Meta(max_length=MOST_LINES)]


_REPORT = msgspec.msgpack.Decoder(Report)
_REPLY = msgspec.msgpack.Decoder(Reply)


def read_report(data: bytes) -> Report:
    """A report as it came. Raises BadMessageError."""
    try:
        return _REPORT.decode(data)
    except UNREADABLE as error:
        raise BadMessageError(f"it sends no report: {error}") from error


def read_reply(data: bytes) -> Reply:
    """A reply as it came. Raises BadMessageError."""
    try:
        return _REPLY.decode(data)
    except UNREADABLE as error:
        raise BadMessageError(f"it sends no reply: {error}") from error
