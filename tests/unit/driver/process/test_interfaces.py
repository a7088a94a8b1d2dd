"""The network interfaces of NCCL and gloo: what is chosen, which values are refused, and what NCCL itself says."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest
from kernel_support.nccl_id import asked, interface_with, library

from plimsoll_runtime.driver.process import interfaces
from plimsoll_runtime.driver.process.interfaces import (
    check_interface,
    nccl_interfaces,
    set_interface,
    with_addresses,
)
from plimsoll_runtime.errors import UsageError

NAMES = ["lo", "eth0", "eth1", "ib0"]


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "with_addresses", lambda: NAMES)


@pytest.mark.parametrize(
    ("value", "selected"),
    [
        ("=eth0", ["eth0"]),
        ("=eth", []),
        ("eth", ["eth0", "eth1"]),
        ("eth1,ib", ["eth1", "ib0"]),
        ("=lo,ib0", ["lo", "ib0"]),
        ("^lo", ["eth0", "eth1", "ib0"]),
        ("^eth,lo", ["ib0"]),
        ("^=eth0,lo", ["eth1", "ib0"]),
        ("=eth0:5000", ["eth0"]),
    ],
)
def test_values_of_nccl(value: str, selected: list[str]) -> None:
    assert nccl_interfaces(value, NAMES) == selected


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("value", ["", "=eth0", "eth", "^lo", "^docker,lo", "ens,eth", "^=lo"])
def test_values_that_nccl_can_use(value: str) -> None:
    check_interface("nccl", {"NCCL_SOCKET_IFNAME": value})


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("=eth9", "names none of this machine's interfaces"),
        ("eth9,ens", "names none of this machine's interfaces"),
        ("=eth", "names none of this machine's interfaces"),
        ("^eth,ib,lo", "excludes all interfaces"),
        ("=", "has an empty name"),
        ("eth0,", "has an empty name"),
        ("eth0,^lo", r"has '\^lo' within its list"),
    ],
)
def test_values_that_nccl_cannot_use(value: str, problem: str) -> None:
    message = f"NCCL_SOCKET_IFNAME=.* {problem}.*; the interfaces with an address are lo, eth0, eth1, ib0. Unset it"
    with pytest.raises(UsageError, match=message):
        check_interface("nccl", {"NCCL_SOCKET_IFNAME": value})
    check_interface("gloo", {"NCCL_SOCKET_IFNAME": value})


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("eth9", "names no interface with 'eth9'"),
        ("eth0,eth9", "names no interface with 'eth9'"),
        ("eth", "names no interface with 'eth'"),
        ("=eth0", "has '=eth0', but gloo takes exact names only"),
        ("^lo", r"has '\^lo', but gloo takes exact names only"),
        ("eth0,", "has an empty name"),
    ],
)
def test_values_that_gloo_cannot_use(value: str, problem: str) -> None:
    with pytest.raises(UsageError, match=f"GLOO_SOCKET_IFNAME=.* {problem}.*lo, eth0, eth1, ib0"):
        check_interface("gloo", {"GLOO_SOCKET_IFNAME": value})
    for usable in ("", "eth0", "eth0,ib0"):
        check_interface("gloo", {"GLOO_SOCKET_IFNAME": usable})


def test_each_backend_has_its_own_variable() -> None:
    for backend, expected in (
        ("gloo", {"GLOO_SOCKET_IFNAME": "lo"}),
        ("local", {"GLOO_SOCKET_IFNAME": "lo"}),
        ("nccl", {"NCCL_SOCKET_IFNAME": "=lo", "NCCL_GRAPH_REGISTER": "0"}),
    ):
        environment: dict[str, str] = {}
        set_interface(backend, "127.0.0.1", environment)
        assert environment == expected


def test_the_users_value_is_kept() -> None:
    own = {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "^lo", "NCCL_GRAPH_REGISTER": "1"}
    for backend in ("gloo", "nccl"):
        environment = dict(own)
        set_interface(backend, "127.0.0.1", environment)
        assert environment == own


@pytest.fixture
def nccl() -> Path:
    found = library()
    if found is None:
        pytest.skip("the wheel nvidia-nccl is not installed")
    return found


def of_this_process(**variables: str) -> dict[str, str]:
    """Return this process's environment without NCCL's variables, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    return {**kept, **variables}


def addresses() -> list[str]:
    """Return an IPv4 address of each interface that has one."""
    found = psutil.net_if_addrs().values()
    return [next(a.address for a in each if a.family == socket.AF_INET) for each in found if _has_ipv4(each)]


def _has_ipv4(each: object) -> bool:
    return any(address.family == socket.AF_INET for address in each)  # type: ignore[attr-defined]


def test_nccl_meets_at_the_address_that_was_meant(nccl: Path) -> None:
    for address in addresses():
        assert asked(address, of_this_process(), nccl) == address


def test_nccl_agrees_about_values(nccl: Path) -> None:
    """Each value selects for NCCL one of the interfaces that it selects here, or none for both."""
    names = with_addresses()
    for value in ("=lo", "^lo", "=eth9", "eth9", "eth9,lo", "^=lo", f"^{','.join(names)}", "=lo:5000", "=l"):
        selected = nccl_interfaces(value, names)
        found = asked("", of_this_process(NCCL_SOCKET_IFNAME=value), nccl)
        if selected:
            assert interface_with(found) in selected, value
        else:
            assert found.startswith("invalid usage"), value
