"""The first process of a machine: sets up its mounts, then starts its daemons and restarts them when they end.

Its only argument is its folder: `machine.json` has the mounts, `daemons/` the list of daemons; SIGHUP means that the
list has grown. When it is killed, the kernel ends every process in the machine and removes its mounts and network, so
no cleanup is needed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster import cgroups, daemon, mounts
from cluster.daemon import Daemon
from cluster.files import write

RESTART_SECONDS = 1.0
SIGNALS = {signal.SIGCHLD, signal.SIGHUP}


@dataclass
class Supervisor:
    """`running`: process id -> name; `due`: name -> time of its next start (monotonic seconds)."""

    home: Path
    known: dict[str, Daemon] = field(default_factory=dict)
    running: dict[int, str] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)

    def read_list(self) -> None:
        """Schedule the start of every new daemon on the list."""
        for name, listed in daemon.load(self.home / "daemons").items():
            if name not in self.known:
                self.known[name] = listed
                self.due[name] = time.monotonic()

    def reap(self) -> None:
        """Reap ended processes: daemons are scheduled again, orphans of containers are only reaped."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self.running.pop(pid, None)
            if name is not None:
                code = os.waitstatus_to_exitcode(status)
                print(f"{name} ended with {code}; starting it again in {RESTART_SECONDS} s", flush=True)
                self.due[name] = time.monotonic() + RESTART_SECONDS

    def start_due(self) -> None:
        """Start daemons that are due, and record all running ones."""
        now = time.monotonic()
        for name in [name for name, when in self.due.items() if when <= now]:
            del self.due[name]
            self.running[spawn(self.known[name])] = name
            self.starts[name] = self.starts.get(name, 0) + 1
        state = {name: {"pid": pid, "starts": self.starts[name]} for pid, name in self.running.items()}
        write(self.home / "running.json", json.dumps(state, indent=1))

    def pause(self) -> None:
        """Sleep until a signal arrives or a start is due."""
        if self.due:
            signal.sigtimedwait(SIGNALS, max(0.0, min(self.due.values()) - time.monotonic()))
        else:
            signal.sigwaitinfo(SIGNALS)


def spawn(wanted: Daemon) -> int:
    """Start a daemon with its output appended to its log, and return its process id in this machine's namespace."""
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        wanted.argv[0],
        wanted.argv,
        {**os.environ, **wanted.env},
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, wanted.log, append, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)],
        setsid=True,
        setsigmask=[],
    )


def main(home: Path) -> None:
    """Run the supervisor; does not return."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    settings = json.loads((home / "machine.json").read_text())
    mounts.isolate(
        binds={Path(target): Path(source) for target, source in settings["binds"].items()},
        keep=[Path(path) for path in settings["keep"]],
    )
    # Remove groups of containers of an earlier machine, for which the kubelet would search for a long time.
    hierarchies, group = cgroups.complete(), Path(settings["group"])
    cgroups.remove(hierarchies, group)
    cgroups.create(hierarchies, group)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    supervisor = Supervisor(home)
    while True:
        supervisor.read_list()
        supervisor.reap()
        supervisor.start_due()
        supervisor.pause()
