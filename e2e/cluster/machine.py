"""A machine of the cluster: Linux namespaces held by one supervisor process. If it is killed, they are removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGHUP

from cluster import daemon
from cluster.daemon import Daemon
from cluster.errors import ClusterError
from cluster.files import write
from cluster.layout import SOURCE, Layout
from cluster.process import Process, read_record, recorded
from cluster.wait import until

NAMESPACES = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private")


@dataclass(frozen=True)
class Machine:
    """`binds`: target -> source of folders that replace the host's, in addition to the machine's private ones."""

    layout: Layout
    name: str
    binds: Mapping[str, Path] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.layout.machines / self.name

    @property
    def group(self) -> str:
        """Path of its control group in each hierarchy."""
        return f"plimsoll-{self.layout.identity}/{self.name}"

    @property
    def process(self) -> Process | None:
        """The process that holds the namespaces, or None if it has ended."""
        found = read_record(self.home / "process")
        return found if found and found.alive else None

    def holder(self) -> Process:
        """Return `process`. Raises ClusterError if the machine is down."""
        if found := self.process:
            return found
        raise ClusterError(f"machine {self.name} is not running; start the cluster with `python3 e2e/cluster up`")

    def ensure(self, surroundings: str, wire: Callable[[], None]) -> bool:
        """Boot the machine and connect its network with `wire`, unless it runs and is connected. Returns whether it was
        booted.

        `surroundings` identifies the network: the control plane's process, or "" for the control plane itself. A
        machine that is connected to another network, or not completely, is restarted.
        """
        mark = self.home / "wired"
        if self.process is not None and mark.exists() and mark.read_text() == surroundings:
            return False
        self.kill()
        mark.unlink(missing_ok=True)
        self.boot()
        wire()
        write(mark, surroundings)
        return True

    def boot(self) -> None:
        """Start the supervisor with an empty list of daemons, and wait until it has made its mounts."""
        for source in self.binds.values():
            source.mkdir(parents=True, exist_ok=True)
        (self.home / "daemons").mkdir(parents=True, exist_ok=True)
        for stale in (self.home / "running.json", *(self.home / "daemons").iterdir()):
            stale.unlink(missing_ok=True)
        settings = {
            "binds": {target: str(source) for target, source in self.binds.items()},
            "keep": [str(self.layout.state), str(self.layout.cache)],
            "group": self.group,
        }
        write(self.home / "machine.json", json.dumps(settings, indent=1))
        argv = ["unshare", *NAMESPACES, sys.executable, str(SOURCE), "machine", str(self.home)]
        log = self.log("supervisor")
        with Path(log).open("a") as output:
            launched = subprocess.Popen(
                recorded(self.home / "process", argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(
            f"machine {self.name}",
            (self.home / "running.json").exists,
            seconds=20,
            log=log,
            failed=lambda: launched.poll() is not None,
        )

    def keep_running(self, daemons: Sequence[Daemon]) -> None:
        """Add daemons to the list and notify the supervisor, which starts new ones. Daemons that run already are not
        restarted.
        """
        daemon.save(self.home / "daemons", daemons)
        supervisor = self.holder().only_child()
        if supervisor is None:
            raise ClusterError(f"machine {self.name} has just ended; see its log {self.log('supervisor')}")
        os.kill(supervisor.pid, SIGHUP)

    def daemon(self, name: str) -> Process:
        """Return the process of a daemon. Raises ClusterError if it does not run."""
        supervisor = self.holder().only_child()
        # The supervisor records process ids of its own namespace.
        running = json.loads((self.home / "running.json").read_text())
        inner = running.get(name, {}).get("pid")
        for process in supervisor.children() if supervisor else []:
            if process.inner_pid() == inner:
                return process
        raise ClusterError(f"{name} does not run on {self.name}; there are: {', '.join(sorted(running))}")

    def enter(self, *argv: str | Path, mounts: bool = False) -> list[str]:
        """Return a command line that runs `argv` in the machine's network and, with `mounts`, its mount namespace."""
        pid = self.holder().pid
        also = [f"--mount=/proc/{pid}/ns/mnt"] if mounts else []
        return ["nsenter", f"--net=/proc/{pid}/ns/net", *also, "--", *map(str, argv)]

    def log(self, name: str) -> str:
        """Return the path of a daemon's log."""
        self.layout.logs.mkdir(parents=True, exist_ok=True)
        return str(self.layout.logs / f"{self.name}-{name}.log")

    @property
    def wired_at(self) -> float:
        """When its network was last connected, in seconds since the epoch."""
        return (self.home / "wired").stat().st_mtime

    def kill(self) -> None:
        """Kill all processes in the machine. Its folder `home` stays."""
        if found := self.process:
            found.kill()
        (self.home / "process").unlink(missing_ok=True)
