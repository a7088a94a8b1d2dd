"""The options of a group of several machines."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.group_options import (
    GroupOptions,
    address,
    ip_address,
    ports,
    split_address,
    split_ports,
    token,
)
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.option_values import OptionError

ADDRESS = "member-0:29500"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("member-0.group.svc:29500", ("member-0.group.svc", 29500)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[fd00::1]:65535", ("fd00::1", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, found: tuple[str, int]) -> None:
    assert address(text) == text
    assert split_address(text) == found


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "fd00::1:5", "a b:1", "h:1:2"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not HOST:PORT|is not between 0 and 65535"):
        address(text)


def test_ports_are_a_range() -> None:
    assert ports("29501-29510") == "29501-29510"
    assert split_ports("29501-29503") == range(29501, 29504)


@pytest.mark.parametrize("text", ["29501", "5-4", "0-9", "1-65536", "5-5", "a-b", "1-2-3"])
def test_other_ranges_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not FIRST-LAST|fewer than 2 ports|is not between"):
        ports(text)


def test_own_address_and_token_are_checked() -> None:
    assert ip_address("fd00::1") == "fd00::1"
    with pytest.raises(OptionError, match="'member-0' is not an IP address"):
        ip_address("member-0")
    assert token("x" * 16) == "x" * 16
    for text in ("x" * 15, "x" * 257, "x" * 15 + " "):
        with pytest.raises(OptionError, match="16 to 256 printable ASCII characters"):
            token(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 2}, "--group-size 2 needs --group-address HOST:PORT"),
        ({"size": 2, "index": 2, "address": ADDRESS}, "--group-index 2 must be below --group-size, which is 2"),
        ({"address": ADDRESS}, "--group-size is 1, but --group-address is set"),
        ({"index": 1}, "--group-size is 1, but --group-index is set"),
        ({"size": 65, "address": ADDRESS}, "size must be at most 64, not 65"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GroupOptions(**options)


def test_every_member_has_the_same_number_of_ranks() -> None:
    group = GroupOptions(size=3, index=1, address=ADDRESS)
    assert [list(group.ranks(6, index)) for index in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert not group.leads
    with pytest.raises(UsageError, match=r"4 ranks \(--tensor-parallel 4 .* must be a multiple of --group-size 3"):
        EngineConfig(model="m", tensor_parallel=4, group=group)


def test_stages_and_their_ranks_are_divided_among_members() -> None:
    group = GroupOptions(size=3, index=1, address=ADDRESS)
    config = EngineConfig(model="m", tensor_parallel=2, pipeline_parallel=3, group=group)
    assert config.ranks == 6
    with pytest.raises(
        UsageError, match=r"4 ranks \(--tensor-parallel 2 times --pipeline-parallel 2\) must be a multiple"
    ):
        EngineConfig(model="m", tensor_parallel=2, pipeline_parallel=2, group=group)


def test_more_ranks_than_a_group_may_have() -> None:
    with pytest.raises(UsageError, match="--tensor-parallel 64 times --pipeline-parallel 2 are 128 ranks; use at most"):
        EngineConfig(model="m", tensor_parallel=64, pipeline_parallel=2)
