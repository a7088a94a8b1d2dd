"""Two machines for the members of a parallel group: network namespaces, joined to each other and to this one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from groups_support.ranks import until

END_SECONDS = 30.0


@dataclass(frozen=True)
class Machine:
    """A network namespace. `address`: on the link between the machines. `front`: what this process reaches it by.

    `link`: the interface of the link between the machines.
    """

    namespace: str
    address: str
    front: str
    link: str

    def command(self, *words: str) -> list[str]:
        """Return a command that runs on the machine. It has the same process id as the program."""
        return ["ip", "netns", "exec", self.namespace, *words]

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """Set the link between the machines down within the context."""
        _ip("-n", self.namespace, "link", "set", self.link, "down")
        try:
            yield
        finally:
            _ip("-n", self.namespace, "link", "set", self.link, "up")

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Drop all packets between the machines within the context; neither gets an error. Skips the test if that is
        not permitted.
        """
        rule = ("INPUT", "-i", self.link, "-j", "DROP")
        dropped = subprocess.run(self.command("iptables", "-A", *rule), capture_output=True, text=True, check=False)
        if dropped.returncode:
            pytest.skip(f"packets cannot be dropped: {dropped.stderr.strip()}")
        out = ("OUTPUT", "-o", self.link, "-j", "DROP")
        subprocess.run(self.command("iptables", "-A", *out), check=True)
        try:
            yield
        finally:
            for each in (rule, out):
                subprocess.run(self.command("iptables", "-D", *each), check=True)

    def pids(self) -> list[int]:
        """Return the processes that run on the machine."""
        return [int(word) for word in _ip("netns", "pids", self.namespace).split()]


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Create two machines, and remove them at the end. Skips the test if that is not permitted."""
    _skip_unless_permitted()
    mark, net = os.getpid(), f"198.18.{os.getpid() % 250}"
    machines = (
        Machine(f"plm{mark}a", f"{net}.1", f"{net}.6", "between"),
        Machine(f"plm{mark}b", f"{net}.2", f"{net}.10", "between"),
    )
    with ExitStack() as undo:
        for machine, here in zip(machines, (f"{net}.5", f"{net}.9"), strict=True):
            _ip("netns", "add", machine.namespace)
            undo.callback(_ip, "netns", "del", machine.namespace)
            front = f"{machine.namespace}h"
            _ip("link", "add", front, "type", "veth", "peer", "name", "front", "netns", machine.namespace)
            _ip("addr", "add", f"{here}/30", "dev", front)
            _ip("link", "set", front, "up")
            _ip("-n", machine.namespace, "addr", "add", f"{machine.front}/30", "dev", "front")
            for link in ("lo", "front"):
                _ip("-n", machine.namespace, "link", "set", link, "up")
        one, other = machines
        _ip(
            *("-n", one.namespace, "link", "add", one.link, "type", "veth"),
            *("peer", "name", other.link, "netns", other.namespace),
        )
        for machine in machines:
            _ip("-n", machine.namespace, "addr", "add", f"{machine.address}/30", "dev", machine.link)
            _ip("-n", machine.namespace, "link", "set", machine.link, "up")
        yield machines
        until(lambda: not any(machine.pids() for machine in machines), END_SECONDS)


def _skip_unless_permitted() -> None:
    if shutil.which("ip") is None:
        pytest.skip("the program ip is not installed")
    probe = f"plm{os.getpid()}x"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"network namespaces are not permitted: {made.stderr.strip()}")
    _ip("netns", "del", probe)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
