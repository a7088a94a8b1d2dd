"""Machines: when one is restarted, how commands run in it, and its first process."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster import supervisor as supervisor_module
from cluster.daemon import Daemon, flags, load, save
from cluster.errors import ClusterError
from cluster.layout import Layout
from cluster.machine import Machine
from cluster.process import Process, find_process
from cluster.supervisor import Supervisor


@dataclass(frozen=True)
class FakeMachine(Machine):
    """Records calls that would change real namespaces."""

    done: list[str] = field(default_factory=list)

    @property
    def process(self) -> Process | None:
        return find_process(os.getpid()) if "boot" in self.done and self.done[-1] != "kill" else None

    def boot(self) -> None:
        self.done.append("boot")

    def kill(self) -> None:
        self.done.append("kill")

    def wire(self) -> None:
        self.done.append("wire")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(state=tmp_path / "state", cache=tmp_path / "cache")


def test_a_machine_is_wired_once(layout: Layout) -> None:
    machine = FakeMachine(layout, "n1")
    assert machine.ensure("hub 1", machine.wire)
    assert not machine.ensure("hub 1", machine.wire)
    assert machine.done == ["kill", "boot", "wire"]


def test_a_machine_whose_hub_is_another_starts_anew(layout: Layout) -> None:
    machine = FakeMachine(layout, "n1")
    machine.ensure("hub 1", machine.wire)
    assert machine.ensure("hub 2", machine.wire)
    assert machine.done == ["kill", "boot", "wire"] * 2


def test_a_machine_that_was_left_half_wired_starts_anew(layout: Layout) -> None:
    machine = FakeMachine(layout, "n1")

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.ensure("hub 1", interrupted)
    assert machine.process is not None
    assert machine.ensure("hub 1", machine.wire)
    assert machine.done == ["kill", "boot", "kill", "boot", "wire"]


def test_a_dead_machine_says_how_to_start_it(layout: Layout) -> None:
    with pytest.raises(ClusterError, match="e2e/cluster up"):
        Machine(layout, "n1").enter("true")


def test_commands_enter_by_process_id(layout: Layout) -> None:
    machine = FakeMachine(layout, "n1", done=["boot"])
    network = f"--net=/proc/{os.getpid()}/ns/net"
    assert machine.enter("ip", "link") == ["nsenter", network, "--", "ip", "link"]
    assert f"--mount=/proc/{os.getpid()}/ns/mnt" in machine.enter("ctr", mounts=True)


def test_two_checkouts_have_groups_of_their_own(layout: Layout, tmp_path: Path) -> None:
    other = Layout(state=tmp_path / "other", cache=layout.cache)
    assert Machine(layout, "n1").group != Machine(other, "n1").group


def test_a_list_of_daemons_is_read_as_it_was_written(tmp_path: Path) -> None:
    daemons = [
        Daemon("b", ("/bin/b", *flags(data_dir="/x")), "/logs/b", {"HOME": "/"}),
        Daemon("a", ("/bin/a",), "/logs/a"),
    ]
    save(tmp_path, daemons)
    assert load(tmp_path) == {daemon.name: daemon for daemon in daemons}
    assert daemons[0].argv[1] == "--data-dir=/x"


class WithChild(Process):
    """A holder whose only child is the supervisor, here the test process."""

    def only_child(self) -> Process | None:
        return find_process(os.getpid())


def test_a_daemon_is_found_by_its_name(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(layout, "n1", done=["boot"])
    machine.home.mkdir(parents=True)
    monkeypatch.setattr(Machine, "holder", lambda self: WithChild(pid=os.getpid(), started=0))
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as one,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as two,
    ):
        state = {name: {"pid": child.pid, "starts": 1} for name, child in (("kubelet", one), ("containerd", two))}
        (machine.home / "running.json").write_text(json.dumps(state))
        assert machine.daemon("kubelet").pid == one.pid
        assert machine.daemon("containerd").pid == two.pid
        with pytest.raises(ClusterError, match="etcd does not run on n1; there are: containerd, kubelet"):
            machine.daemon("etcd")


def ended(pid: int) -> None:
    """Wait until a child has ended, without reaping it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_daemon_that_ends_is_started_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_SECONDS", 3600.0)
    log = tmp_path / "log"
    save(
        tmp_path / "daemons",
        [Daemon("brief", ("/bin/sh", "-c", "echo $GREETING"), str(log), {"GREETING": "hello"})],
    )
    supervisor = Supervisor(tmp_path)
    supervisor.read_list()
    supervisor.start_due()
    (pid,) = supervisor.running
    assert json.loads((tmp_path / "running.json").read_text()) == {"brief": {"pid": pid, "starts": 1}}
    ended(pid)
    supervisor.reap()
    assert supervisor.running == {}
    supervisor.start_due()
    assert supervisor.running == {}, "not at once: one that cannot start must not spin"
    supervisor.due["brief"] = time.monotonic()
    supervisor.start_due()
    (again,) = supervisor.running
    ended(again)
    supervisor.reap()
    assert log.read_text() == "hello\nhello\n"
    assert supervisor.starts == {"brief": 2}


def test_the_list_may_grow_and_what_runs_is_left_alone(tmp_path: Path) -> None:
    one = Daemon("one", ("/bin/true",), str(tmp_path / "log"))
    supervisor = Supervisor(tmp_path)
    save(tmp_path / "daemons", [one])
    supervisor.read_list()
    supervisor.due.clear()
    save(tmp_path / "daemons", [one, Daemon("two", ("/bin/true",), str(tmp_path / "log"))])
    supervisor.read_list()
    assert list(supervisor.due) == ["two"]
