"""Members of a parallel group, each on a machine of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai
import psutil
from groups_support.machines import Machine
from groups_support.ranks import until
from server_support.process import Served

TOKEN = "a-token-of-this-group"
CONTROL_PORT = 29500
HTTP_PORT = 8000
START_SECONDS = 120.0
END_SECONDS = 30.0
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class MemberProcess:
    """A running member. Its log is in a file."""

    machine: Machine
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://{self.machine.front}:{HTTP_PORT}"

    def status(self, path: str = "/health") -> int:
        """Return the status of a path; 0 if nothing listens."""
        try:
            return httpx.get(self.url + path, timeout=10).status_code
        except httpx.TransportError:
            return 0

    def says(self, words: str) -> bool:
        return words in self.log.read_text()

    def rank(self, number: int) -> psutil.Process:
        """Return the process of a rank of this member."""
        name = f"plimsoll-rank-{number}"
        [found] = [each for each in psutil.Process(self.process.pid).children(recursive=True) if each.name() == name]
        return found

    def end(self) -> int:
        """Wait for the end of the process; return its exit code."""
        return self.process.wait(START_SECONDS)

    def kill(self) -> None:
        """Kill the process, and wait until the processes that it started have ended too. May be called again."""
        if self.process.poll() is None:
            others = psutil.Process(self.process.pid).children(recursive=True)
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(END_SECONDS)
            _, alive = psutil.wait_procs(others, END_SECONDS)
            assert not alive


@contextmanager
def member(
    model: Path,
    machine: Machine,
    leader: Machine,
    index: int,
    log: Path,
    *options: str,
    token: str = TOKEN,
    variables: Mapping[str, str] = NOTHING,
) -> Iterator[MemberProcess]:
    """Start a member of a group of two. It is killed at the end. `variables`: of its environment."""
    command = [sys.executable, "-m", "plimsoll_runtime", "serve", str(model), "--name", "tiny"]
    command += ["--host", machine.front, "--port", str(HTTP_PORT), "--kv-memory", "8MiB", "--threads", "1"]
    command += ["--group-size", "2", "--group-index", str(index)]
    command += ["--group-address", f"{leader.address}:{CONTROL_PORT}", "--group-ports", "29501-29520", *options]
    environment = os.environ | {"PLIMSOLL_GROUP_TOKEN": token} | dict(variables)
    with log.open("ab") as file:
        process = subprocess.Popen(machine.command(*command), stderr=file, env=environment)
    found = MemberProcess(machine, process, log)
    try:
        yield found
    finally:
        found.kill()


def served(leader: MemberProcess, stack: ExitStack) -> Served:
    """Return the leader as a server, whose client is closed with the stack."""
    client = stack.enter_context(openai.OpenAI(base_url=f"{leader.url}/v1", api_key="-", max_retries=0))
    process: subprocess.Popen[str] = leader.process  # type: ignore[assignment]
    return Served(process, client, leader.log, [])


@dataclass
class Group:
    """Two members, which can be started again. `variables`: of the environment of each, by index."""

    model: Path
    machines: tuple[Machine, Machine]
    logs: Path
    options: tuple[str, ...]
    stack: ExitStack
    members: dict[int, MemberProcess]
    variables: dict[int, Mapping[str, str]] = field(default_factory=dict)

    def start(self, index: int) -> MemberProcess:
        leader, machine = self.machines[0], self.machines[index]
        log = self.logs / f"member-{index}"
        variables = self.variables.get(index, NOTHING)
        started = member(self.model, machine, leader, index, log, *self.options, variables=variables)
        found = self.stack.enter_context(started)
        self.members[index] = found
        return found

    def until_ready(self) -> float:
        return until(lambda: all(each.status() == 200 for each in self.members.values()), START_SECONDS)

    @property
    def server(self) -> Served:
        return served(self.members[0], self.stack)


def layout(tensor: int, stages: int) -> tuple[str, ...]:
    return ("--tensor-parallel", str(tensor), "--pipeline-parallel", str(stages))


@contextmanager
def running(
    model: Path,
    machines: tuple[Machine, Machine],
    logs: Path,
    *options: str,
    variables: Mapping[int, Mapping[str, str]] | None = None,
) -> Iterator[Group]:
    with ExitStack() as stack:
        found = Group(model, machines, logs, options, stack, {}, dict(variables or {}))
        for index in (1, 0):
            found.start(index)
        found.until_ready()
        yield found
