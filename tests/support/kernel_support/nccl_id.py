"""Asks NCCL for the id of a new group, in a process of its own: `python nccl_id.py LIBRARY ADDRESS`.

`ncclGetUniqueId` opens a socket on the interface of NCCL_SOCKET_IFNAME and needs no GPU. The address of the socket is
in the id. ADDRESS: the interface with this IP address is chosen as the process of a rank does; "": none is chosen.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import psutil

from plimsoll_runtime.driver.process.interfaces import set_interface

ID_BYTES = 128
SOCKADDR = 8
"""Offset of the socket's address in the id, after a random number."""


def library() -> Path | None:
    """Return NCCL's library in the wheel that torch requires; None if it is not installed."""
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") is not None else None
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [path for folder in folders for path in Path(folder, "lib").glob("libnccl.so*")]
    return found[0] if found else None


def asked(address: str, environment: Mapping[str, str], nccl: Path) -> str:
    """Return the IP address in the id that a process with this environment gets, or NCCL's error."""
    command = [sys.executable, __file__, str(nccl), address]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def interface_with(address: str) -> str:
    """Return the interface with an address as NCCL returns it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    raise AssertionError(f"no interface has the address {address}")


def _address_of(identity: bytes) -> str:
    [family] = struct.unpack_from("=H", identity, SOCKADDR)
    begin = SOCKADDR + (4 if family == socket.AF_INET else 8)
    return socket.inet_ntop(family, identity[begin : begin + (4 if family == socket.AF_INET else 16)])


def main() -> None:
    library_path, address = sys.argv[1:]
    if address:
        set_interface("nccl", address)
    nccl = ctypes.CDLL(library_path)
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    identity = ctypes.create_string_buffer(ID_BYTES)
    code = nccl.ncclGetUniqueId(identity)
    print(nccl.ncclGetErrorString(code).decode() if code else _address_of(identity.raw))


if __name__ == "__main__":
    main()
