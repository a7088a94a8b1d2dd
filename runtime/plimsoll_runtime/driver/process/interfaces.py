"""The network interfaces that NCCL and gloo use: their environment variables, which are set here or checked."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence

import psutil

from plimsoll_runtime.driver.process.network import interface_of
from plimsoll_runtime.errors import UsageError

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
REGISTER = "NCCL_GRAPH_REGISTER"
"""Whether NCCL registers the buffers of sums that are captured in a graph."""


def set_interface(backend: str, address: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let the ranks of this process's group meet at the interface that has an IP address.

    A variable that the user has set is kept; see `check_interface`. Call it before the backend is created, because its
    library reads the variables only once. Raises UsageError if no interface has the address.
    """
    if backend == "nccl":
        # Registration waits for the same capture of all other ranks, so one that fails would stop them all.
        environment.setdefault(REGISTER, "0")
        if not environment.get(NCCL):
            # Without "=", NCCL also takes interfaces whose names begin with this one.
            environment[NCCL] = f"={interface_of(address)}"
    elif not environment.get(GLOO):
        environment[GLOO] = interface_of(address)


def check_interface(backend: str, environment: Mapping[str, str] = os.environ) -> None:
    """Check the user's variable of a backend: nccl or gloo.

    Raises UsageError, with the interfaces of this machine, if it has a form that the library does not read, or if it
    selects no interface. gloo uses all interfaces of its list, so each of them must exist.
    """
    variable = NCCL if backend == "nccl" else GLOO
    value = environment.get(variable, "")
    if not value:
        return
    interfaces = with_addresses()
    problem = _nccl_problem(value, interfaces) if backend == "nccl" else _gloo_problem(value, interfaces)
    if problem:
        example = f"={interfaces[0]}" if backend == "nccl" else interfaces[0]
        raise UsageError(
            f"{variable}={value!r} {problem}; the interfaces with an address are {', '.join(interfaces)}. Unset it, or "
            f"set one like {variable}={example}"
        )


def with_addresses() -> list[str]:
    """Return the names of the network interfaces that have an IP address."""
    families = (socket.AF_INET, socket.AF_INET6)
    found = psutil.net_if_addrs()
    return [name for name, addresses in found.items() if any(each.family in families for each in addresses)]


def nccl_interfaces(value: str, interfaces: Sequence[str]) -> list[str]:
    """Return the interfaces that NCCL_SOCKET_IFNAME selects, in their order.

    Its value is a list of prefixes (`eth,ib`), of exact names (`=eth0,eth1`), or of those to exclude (`^docker`,
    `^=lo`).
    """
    excludes, exact, names = _nccl_list(value)
    return [each for each in interfaces if any(_matches(each, name, exact) for name in names) != excludes]


def _nccl_list(value: str) -> tuple[bool, bool, list[str]]:
    """Return whether the names are excluded, whether they are exact, and the names."""
    excludes = value.startswith("^")
    rest = value.removeprefix("^")
    # A name may be followed by a port, NAME:PORT.
    return excludes, rest.startswith("="), [each.partition(":")[0] for each in rest.removeprefix("=").split(",")]


def _matches(interface: str, name: str, exact: bool) -> bool:
    return interface == name if exact else interface.startswith(name)


def _nccl_problem(value: str, interfaces: Sequence[str]) -> str:
    """Return the fault of a value of NCCL_SOCKET_IFNAME; empty if there is none."""
    excludes, _, names = _nccl_list(value)
    if not all(names):
        return "has an empty name"
    if wrong := [name for name in names if name[0] in "^="]:
        return f"has {wrong[0]!r} within its list: ^ and = belong to the beginning, and apply to all names"
    if nccl_interfaces(value, interfaces):
        # A list may have names of other machines' interfaces too.
        return ""
    return "excludes all interfaces" if excludes else "names none of this machine's interfaces"


def _gloo_problem(value: str, interfaces: Sequence[str]) -> str:
    """Return the fault of a value of GLOO_SOCKET_IFNAME, a list of exact names; empty if there is none."""
    for name in value.split(","):
        if not name:
            return "has an empty name"
        if name[0] in "^=":
            return f"has {name!r}, but gloo takes exact names only, without ^ and ="
        if name not in interfaces:
            return f"names no interface with {name!r}"
    return ""
