"""The messages between gateways: a report and its reply. Both are complete; neither depends on an earlier one.

They contain no times: gateways measure intervals with their own clocks only.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_gateway.admission.quota.usage import Kind
from plimsoll_gateway.keys.api_key import NAME

MOST_LINES = 20_000
"""The most lines of a report, about 600 KiB. Further keys keep their current shares."""

Amount = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
KeyName = Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}\Z")]
Address = Annotated[str, msgspec.Meta(min_length=3, max_length=64)]
Instance = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class BadMessageError(Exception):
    """A peer sent an invalid message. The error describes it, and never quotes it."""


class Line(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One quota of a key: the sender's share, its usage, and the share it wants."""

    key: KeyName
    kind: Kind
    held: Amount
    used: Amount
    want: Amount


class Report(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The report of a gateway to another one, about the quotas in use that the other one owns.

    `instance` is new at each start; `number` increases within it. `joined`: the sender knows the shares of all keys. Of
    a key that is not in `lines`, a joined sender holds at most an even share, and one that has not joined holds
    nothing.
    """

    sender: Address
    instance: Instance
    number: Number
    joined: bool
    lines: Annotated[tuple[Line, ...], msgspec.Meta(max_length=MOST_LINES)]


class Grant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The share of a quota that the receiver may hold, and the usage of the other gateways."""

    key: KeyName
    kind: Kind
    share: Amount
    elsewhere: Amount


class Reply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The owner's reply to the report with this `number`. `instance` is the owner's. The keys in `forget` are idle at
    all gateways; the receiver holds an even share of them.
    """

    instance: Instance
    number: Number
    grants: Annotated[tuple[Grant, ...], msgspec.Meta(max_length=MOST_LINES)]
    forget: Annotated[tuple[KeyName, ...], msgspec.Meta(max_length=MOST_LINES)]


REPORT = msgspec.msgpack.Decoder(Report)
REPLY = msgspec.msgpack.Decoder(Reply)
MessageT = TypeVar("MessageT")


def read_message(decoder: msgspec.msgpack.Decoder[MessageT], data: bytes) -> MessageT:
    """Decode a message with `REPORT` or `REPLY`. Raises BadMessageError."""
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise BadMessageError(f"it sent an invalid message: {error}") from error
