"""Options of a parallel group whose ranks are on several machines, its members."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.option import Option, check_options, option
from plimsoll_runtime.utils.option_values import OptionError, port

SERVE = Option(("serve",), "engine")
MOST_MEMBERS = 64
TOKEN_LENGTHS = (16, 256)


def address(text: str) -> str:
    """Return HOST:PORT unchanged. Raises OptionError for any other text."""
    split_address(text)
    return text


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT or [IPv6]:PORT. Raises OptionError."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s\[\]:]{1,253})):([0-9]{1,5})", text)
    if found is None or not (number := port(found[3])) > 0:
        raise OptionError(f"{text[:64]!r} is not HOST:PORT with a port from 1 to 65535; write one like member-0:29500")
    return found[1] or found[2], number


def ports(text: str) -> str:
    """Return FIRST-LAST unchanged. Raises OptionError for any other text."""
    split_ports(text)
    return text


def split_ports(text: str) -> range:
    """Return the ports of FIRST-LAST. Raises OptionError."""
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    if found is None:
        raise OptionError(f"{text[:64]!r} is not FIRST-LAST; write a range like 29501-29510")
    first, last = port(found[1]), port(found[2])
    if not 0 < first < last:
        raise OptionError(f"{text} has fewer than 2 ports; a group needs one for steps and one for gloo")
    return range(first, last + 1)


def ip_address(text: str) -> str:
    """Return an IP address unchanged. Raises OptionError for any other text."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise OptionError(f"{text[:64]!r} is not an IP address") from None
    return text


def token(text: str) -> str:
    """Return a group's token unchanged. Raises OptionError unless it has 16 to 256 printable characters."""
    least, most = TOKEN_LENGTHS
    if not re.fullmatch(f"[!-~]{{{least},{most}}}", text):
        raise OptionError(f"it must be {least} to {most} printable ASCII characters without spaces")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Number of members, and how this one reaches the others. Raises UsageError for contradictory values."""

    size: int = option(
        1,
        "number of machines (members) that the ranks are divided among evenly. All members run "
        "the same command, except for --group-index",
        SERVE,
        flag="--group-size",
        maximum=MOST_MEMBERS,
    )
    index: int = option(
        0,
        "number of this member, from 0. Member 0 leads the group and answers requests; the others only have /health, "
        "/live and /metrics",
        SERVE,
        flag="--group-index",
        minimum=0,
        maximum=MOST_MEMBERS - 1,
    )
    address: str | None = option(
        None,
        "address of member 0, which the others connect to. Member 0 listens on this port. Members prove to each other "
        "that they have the same token if PLIMSOLL_GROUP_TOKEN is set; the traffic is not encrypted",
        SERVE,
        flag="--group-address",
        metavar="HOST:PORT",
        parse=address,
    )
    ports: str | None = option(
        None,
        "on member 0: ports for the connections of ranks. gloo also uses ports that the system chooses",
        SERVE,
        flag="--group-ports",
        metavar="FIRST-LAST",
        parse=ports,
        usual="chosen by the system",
    )
    own_address: str | None = option(
        None,
        "IP address of this member, which must be that of one of its network interfaces",
        SERVE,
        flag="--group-own-address",
        metavar="IP",
        parse=ip_address,
        usual="that of the connection to the other members",
    )
    join_seconds: float = option(
        300.0,
        "on a member other than 0: how long it tries to reach member 0 before it exits with code 6",
        SERVE,
        unit="seconds",
    )
    token: str | None = option(
        None,
        "secret that all members must have, 16 to 256 printable characters",
        SERVE,
        flag="",
        variable="PLIMSOLL_GROUP_TOKEN",
        parse=token,
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.size == 1 and (self.address is not None or self.index):
            raise UsageError(
                f"--group-size is 1, but --group-{'index' if self.index else 'address'} is set; set --group-size to "
                "the number of members"
            )
        if self.size > 1 and self.address is None:
            raise UsageError(f"--group-size {self.size} needs --group-address HOST:PORT, the address of member 0")
        if self.index >= self.size:
            raise UsageError(f"--group-index {self.index} must be below --group-size, which is {self.size}")

    @property
    def leads(self) -> bool:
        """Whether this is member 0."""
        return self.index == 0

    def ranks(self, total: int, index: int) -> range:
        """Return the numbers of a member's ranks, of `total` ranks of the group."""
        share = total // self.size
        return range(index * share, (index + 1) * share)
