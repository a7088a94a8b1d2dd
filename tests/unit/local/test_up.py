"""`plimsoll up`, `status` and `down` as processes, with a fake runtime."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

RUN_UP = Path(__file__).with_name("run_up.py")
PATIENCE = 120.0


def model(name: str, source: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"source": source}, **spec},
    }


class Laptop:
    """State folder, files and commands of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "PLIMSOLL_CACHE": str(folder / "cache"),
            "PLIMSOLL_MODEL_PATH": "",
            "PLIMSOLL_API_KEY": "",
        }
        self.running: list[subprocess.Popen[str]] = []

    def write(self, *models: dict[str, Any]) -> str:
        path = self.folder / "models.yaml"
        path.write_text("\n---\n".join(map(json.dumps, models)))
        return str(path)

    def up(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", str(RUN_UP), *arguments],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "env": self.environment,
                **options,
            },
        )
        self.running.append(process)
        return process

    def up_on_terminal(self, columns: int, *arguments: str) -> tuple[subprocess.Popen[str], int]:
        """Return the process, and a descriptor to read its terminal output from."""
        ours, theirs = pty.openpty()
        env = {**self.environment, "TERM": "xterm", "COLUMNS": str(columns)}
        process = self.up(*arguments, stdout=theirs, stderr=theirs, stdin=theirs, env=env)
        os.close(theirs)
        return process, ours

    def plimsoll(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "plimsoll_runtime", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def record(self, port: int) -> dict[str, Any] | None:
        path = self.folder / "state" / "plimsoll" / str(port) / "up.json"
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        return None

    def until(self, port: int, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the record once a condition holds."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            record = self.record(port)
            if record is not None and holds(record):
                return record
            time.sleep(0.05)
        raise AssertionError(f"not in time: {self.record(port)}")


def replicas(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [replica for one in record["models"] for replica in one["replicas"]]


def all_ready(record: dict[str, Any]) -> bool:
    return all(entry["phase"] == "ready" for entry in [*replicas(record), record["gateway"]])


def rest_of(terminal: int) -> bytes:
    """Return the terminal output until the process closes its side."""
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other side has closed
        while piece := os.read(terminal, 4096):
            shown += piece
    os.close(terminal)
    return shown


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        return json.load(response)


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    made = Laptop(tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def port(unused_tcp_port: int) -> int:
    return unused_tcp_port


def gone(pids: list[int]) -> bool:
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=PATIENCE)
    return not alive


@pytest.mark.long
def test_ask_once_prints_the_answer_and_leaves_nothing(laptop: Laptop, port: int) -> None:
    file = laptop.write(model("gemma", "demo://gemma-3-270m", replicas=2, template={"nodeSelector": {"a": "b"}}))
    process = laptop.up(file, "--port", str(port), "--ask", "What is the capital of France?", "--once")
    answer, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert answer == "The capital of France is Paris.\n"
    assert "gemma: without effect on a laptop: spec.template.nodeSelector" in said
    assert "gemma-0: loading: reading weights 25%" in said
    assert said.count("Gemma Terms of Use") == 1, "the user does not see the runtime's log"
    assert laptop.record(port) is None
    assert "no `plimsoll up` is running" in laptop.plimsoll("status").stdout


def test_serve_status_and_down(laptop: Laptop, port: int) -> None:
    file = laptop.write(
        model("gemma", "demo://gemma-3-270m", replicas=2, runtime={"maxModelLen": 512}),
        model("off", "demo://x", replicas=0),
    )
    process = laptop.up(file, "--port", str(port))
    record = laptop.until(port, all_ready)
    url = f"http://127.0.0.1:{port}"
    assert record["url"] == url
    assert [(one["source"], one["revision"]) for one in record["models"]] == [
        ("demo://gemma-3-270m", None),
        ("demo://x", None),
    ]
    listed = {entry["id"]: entry for entry in get(f"{url}/v1/models")["data"]}
    assert listed["off"]["message"] == "the model is scaled to zero (spec.replicas: 0)"
    log = Path(replicas(record)[0]["log"]).read_text()
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    assert f"'--max-model-len', '512', '--threads', '{cores}', '--host', '127.0.0.1'" in log

    status = laptop.plimsoll("status", "--verbose")
    assert status.returncode == 0
    assert f"pid {process.pid}, since " in status.stdout
    assert "gemma-1: ready" in status.stdout
    _, below = status.stdout.split("    gemma-1: ready")
    assert below.splitlines()[1:3] == ["      device: a MIG slice: 20 GiB", "      device: no bfloat16"]
    assert replicas(record)[0]["findings"] == ["a MIG slice: 20 GiB", "no bfloat16"]
    assert record["gateway"]["findings"] == []
    assert json.loads(laptop.plimsoll("status", "--json").stdout)[0]["pid"] == process.pid
    again = laptop.plimsoll("up", file, "--port", str(port))
    assert again.returncode == 2
    assert f"port {port} of 127.0.0.1 is in use" in again.stderr
    assert f"plimsoll down --port {port}" in again.stderr

    pids = [entry["pid"] for entry in [*replicas(record), record["gateway"]]]
    down = laptop.plimsoll("down")
    assert (down.returncode, down.stdout) == (0, f"stopped {url}\n")
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert f"curl {url}/v1/chat/completions" in said
    assert gone(pids)
    assert laptop.plimsoll("down").returncode == 1


@pytest.mark.long
def test_models_that_share_a_process(laptop: Laptop, port: int) -> None:
    path = laptop.write(
        model("first", "demo://ok", template={"env": [{"name": "OF_BOTH", "value": "1"}]}), model("second", "demo://ok")
    )
    up = laptop.up(path, "--port", str(port), "--line", "1GiB", "--sleepers", "64MiB", "--ask", "What?")
    record = laptop.until(port, all_ready)
    assert [entry["slot"] for entry in replicas(record)] == ["host", "host"]
    folder = laptop.folder / "state" / "plimsoll" / str(port)
    assert (folder / "host-token").stat().st_mode & 0o777 == 0o600
    log = (folder / "host.log").read_text()
    assert "'--line', '1GiB'" in log
    assert f"'--sleepers', '{64 * 2**20}'" in log
    assert "OF_BOTH=1" in log
    assert up.stdout is not None
    assert up.stdout.readline() == "first says hello.\n"
    for name in ("first", "second"):
        body = json.dumps({"model": name, "messages": []}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{record['url']}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            assert f"{name} says".encode() in response.read()
    _, head, first, second = laptop.plimsoll("status").stdout.splitlines()
    assert head.split() == ["MODEL", "STATE", "MEMORY", "REQUESTS", "TOKENS/S", "IDLE"]
    assert first.split()[:7] == ["first", "asleep", "in", "memory", "7", "MiB", "2"]
    assert 100 < float(first.split()[7]) < 300, "of two looks at the host's metrics"
    assert second.split()[7:] == ["0", "-"], "requests wait for it"
    shown = laptop.plimsoll("status", "--verbose").stdout
    assert "default/second as second\n    asleep in memory for " in shown
    assert (
        "; 3 min idle; 0 MiB of device memory, 7 MiB of host memory for its image; 0 requests in flight, 2 waiting"
        in shown
    )
    assert "a processor: 512 MiB of 1.0 GiB (--line) granted (256 MiB of it reserved for the runtime), " in shown
    assert "7 MiB of 64 MiB for sleepers, memory pressure none" in shown
    assert "    device: 3.0 GiB of it are held by a game\n    device: it has no bfloat16\n" in shown
    (shown_record,) = json.loads(laptop.plimsoll("status", "--json").stdout)
    assert shown_record["host"]["instance"] == "fake"
    token = (folder / "host-token").read_text().strip()
    assert token not in laptop.plimsoll("status", "--json").stdout + log
    assert laptop.plimsoll("down").returncode == 0
    assert up.wait(PATIENCE) == 0
    assert not (folder / "host-token").exists()


def a_pool(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "RuntimePool",
        "metadata": {"name": "shared"},
        "spec": {"resources": {"memory": "512Mi"}, "memory": {"line": "50%", "sleepers": "128Mi"}, **spec},
    }


@pytest.mark.long
def test_a_pool_is_one_process(laptop: Laptop, port: int) -> None:
    placed = {"placement": {"pool": "shared"}}
    path = laptop.write(
        a_pool(), model("a", "demo://ok", **placed), model("b", "demo://ok", **placed), model("c", "demo://ok")
    )
    up = laptop.up(path, "--port", str(port), "--ask", "What?")
    record = laptop.until(port, all_ready)
    assert [entry["slot"] for entry in replicas(record)] == ["host", "host", "c-0"]
    log = (laptop.folder / "state" / "plimsoll" / str(port) / "host.log").read_text()
    assert f"'--line', '{192 * 2**20}', '--sleepers', '{128 * 2**20}'" in log
    assert up.stdout is not None
    assert up.stdout.readline() == "a says hello.\n"
    assert "    c-0: ready" in laptop.plimsoll("status", "--verbose").stdout
    assert laptop.plimsoll("down").returncode == 0
    _, said = up.communicate(timeout=PATIENCE)
    assert "pool shared: 512 MiB of 1.0 GiB taken, 7 MiB of 64 MiB asleep\n" in said
    assert said.count("b: asleep in memory: 3 min idle\n") == 1


@pytest.mark.long
def test_a_terminal_shows_where_models_of_a_pool_are(laptop: Laptop, port: int) -> None:
    file = laptop.write(a_pool(), model("a", "demo://ok", placement={"pool": "shared"}))
    process, terminal = laptop.up_on_terminal(80, file, "--port", str(port))
    shown = b""
    while b"3 min idle" not in shown:
        shown += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    rest_of(terminal)
    assert process.wait(timeout=PATIENCE) == 0
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in shown.decode().splitlines()]
    assert any(re.search(r"pool shared +512 MiB of 1.0 GiB taken, 7 MiB of 64 MiB asleep$", row) for row in rows), rows
    assert any(re.search(r"a +asleep in memory [0-9]+ s: 3 min idle$", row) for row in rows), rows
    assert all(len(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", row)) <= 80 for row in rows if "taken" in row or "idle" in row)


def test_pools_that_cannot_run(laptop: Laptop) -> None:
    placed = model("a", "demo://ok", placement={"pool": "shared"})
    apart = laptop.plimsoll("up", laptop.write(a_pool(), placed), "--apart")
    assert apart.returncode == 2
    assert "says whether it shares the pool; leave the option out" in apart.stderr
    alone = laptop.plimsoll("up", laptop.write(a_pool()))
    assert alone.returncode == 2
    assert "no ModelDeployment found, only a RuntimePool; add its models" in alone.stderr


@pytest.mark.long
def test_status_is_a_table_whatever_runs(laptop: Laptop, port: int) -> None:
    long = "a-very-long-name-of-a-model-for-a-narrow-table"
    file = laptop.write(
        model(long, "demo://ok", replicas=2),
        model("idle", "demo://x"),
        model("mute", "demo://mute"),
        model("stuck", "demo://stuck"),
        model("bad", "demo://crash"),
        model("off", "demo://x", replicas=0),
    )
    laptop.up(file, "--port", str(port))
    laptop.until(
        port,
        lambda now: (
            [one["phase"] for one in replicas(now)[:5]] == [*["ready"] * 4, "loading"]
            and "Nonsense" in replicas(now)[5]["detail"]
            and now["gateway"]["phase"] == "ready"
        ),
    )
    began = time.monotonic()
    shown = laptop.plimsoll("status").stdout
    assert time.monotonic() - began < PATIENCE / 2
    endpoint, _head, *lines = shown.splitlines()
    assert endpoint.startswith(f"http://127.0.0.1:{port}/v1  up ")
    assert max(map(len, shown.splitlines())) <= 80
    ok, idle, mute, stuck, _bad, off = lines[:6]
    assert ok.startswith("a-very-long-name-of-")
    name, ready, word, size, unit, requests, rate, idle_for = ok.split()
    assert name.endswith("...")
    assert (ready, word, unit, requests, idle_for) == ("2/2", "ready", "MiB", "4", "-")
    assert int(size) > 10
    assert 500 < float(rate) < 1500, "two replicas with 500 each"
    assert idle.split()[:2] == ["idle", "ready"]
    assert idle.split()[-2:] == ["5", "min"]
    assert mute.split() == ["mute", "no", "answer", *"----"]
    assert stuck.split()[:2] == ["stuck", "loading"]
    assert off.split() == ["off", "off", *"----"]
    assert "mute-0: no answer within 1 s" in lines
    assert any(line.startswith("bad-0: ") for line in lines)
    [record] = json.loads(laptop.plimsoll("status", "--json").stdout)
    usage = {one["name"]: one["usage"] for one in record["models"]}
    assert usage["mute"] is usage["off"] is None
    assert 300 <= usage["idle"]["idleSeconds"] < 300 + PATIENCE
    assert replicas(record)[0]["usage"]["requests"] == 2
    assert [one["answers"] for one in replicas(record)[:4]] == [True, True, True, False]


@pytest.mark.long
def test_what_dies_is_started_again(laptop: Laptop, port: int) -> None:
    laptop.up(laptop.write(model("gemma", "demo://gemma-3-270m")), "--port", str(port))
    record = laptop.until(port, all_ready)
    (replica,) = replicas(record)
    os.kill(replica["pid"], signal.SIGKILL)
    os.kill(record["gateway"]["pid"], signal.SIGKILL)
    later = laptop.until(
        port,
        lambda now: all_ready(now) and replicas(now)[0]["restarts"] == now["gateway"]["restarts"] == 1,
    )
    assert replicas(later)[0]["pid"] != replica["pid"]
    assert get(f"http://127.0.0.1:{port}/v1/models/gemma")["owned_by"] == "default"


@pytest.mark.long
def test_nothing_outlives_a_killed_up(laptop: Laptop, port: int) -> None:
    process = laptop.up(laptop.write(model("gemma", "demo://stuck", replicas=2)), "--port", str(port))
    record = laptop.until(port, lambda now: all(entry["phase"] == "loading" for entry in replicas(now)))
    pids = [entry["pid"] for entry in [*replicas(record), record["gateway"]]]
    process.kill()
    assert gone(pids)
    assert laptop.plimsoll("status").returncode == 1
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.long
def test_a_second_signal_stops_at_once(laptop: Laptop, port: int) -> None:
    process = laptop.up(laptop.write(model("gemma", "demo://stuck")), "--port", str(port))
    record = laptop.until(port, lambda now: replicas(now)[0]["phase"] == "loading")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    # The grace period of a runtime that ignores SIGTERM is longer than this test.
    assert gone([replicas(record)[0]["pid"]])


@pytest.mark.long
def test_a_source_runs_and_its_file_is_printed(laptop: Laptop, port: int) -> None:
    arguments = ("demo://gemma-3-270m", "--port", str(port), "--ask", "What is the capital of France?", "--once")
    answer, said = laptop.up(*arguments).communicate(timeout=PATIENCE)
    assert answer == "The capital of France is Paris.\n"
    _, _, printed = said.partition("as a file, for `plimsoll up` and `kubectl apply`:\n")
    file = laptop.folder / "printed.yaml"
    file.write_text(printed.partition("\n\n")[0])
    again = laptop.up(str(file), *arguments[1:])
    assert again.communicate(timeout=PATIENCE)[0] == answer
    assert again.returncode == 0


@pytest.mark.long
def test_once_fails_with_the_reason(laptop: Laptop, port: int) -> None:
    process = laptop.up(laptop.write(model("bad", "demo://crash")), "--port", str(port), "--ask", "?", "--once")
    answer, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4
    assert answer == ""
    assert "plimsoll up: bad-0 does not become ready: exited with code 4: unknown architecture 'Nonsense'" in said


@pytest.mark.long
def test_one_bad_model_does_not_stop_the_others(laptop: Laptop, port: int) -> None:
    file = laptop.write(model("gemma", "demo://gemma-3-270m"), model("bad", "demo://crash"))
    laptop.up(file, "--port", str(port))
    known = laptop.until(port, lambda now: [one["phase"] for one in replicas(now)] == ["ready", "failed"])
    assert replicas(known)[1]["detail"] == "failed: exited with code 4: unknown architecture 'Nonsense'"

    def is_told(now: dict[str, Any]) -> bool:
        """The gateway reads the routing table some time after it has changed."""
        if now["gateway"]["phase"] != "ready":
            return False
        listed = {entry["id"]: entry for entry in get(f"http://127.0.0.1:{port}/v1/models")["data"]}
        return "unknown architecture" in listed["bad"]["message"]

    laptop.until(port, is_told)


@pytest.mark.long
def test_only_what_a_restart_may_cure_is_started_again(laptop: Laptop, port: int) -> None:
    """A model that was ready has fitted into memory, so a restart may help."""
    final, passing = (2, 3, 4, 5), (1, 6, 8, 9, 10)
    sources = [f"demo://exit-{code}" for code in (*final, *passing)] + ["demo://tight"]
    laptop.up(laptop.write(*(model(f"m{i}", source) for i, source in enumerate(sources))), "--port", str(port))
    known = laptop.until(port, lambda now: all(one["restarts"] >= 2 for one in replicas(now)[len(final) :]))
    failed, again = replicas(known)[: len(final)], replicas(known)[len(final) :]
    assert [(one["phase"], one["restarts"], one["pid"]) for one in failed] == [("failed", 1, None)] * len(final)
    assert "failed" not in {one["phase"] for one in again}


@pytest.mark.long
def test_it_ends_where_no_model_is_left(laptop: Laptop, port: int) -> None:
    file = laptop.write(
        model("a", "demo://exit-3"), model("b", "demo://exit-3", replicas=2), model("c", "demo://x", replicas=0)
    )
    process = laptop.up(file, "--port", str(port), "--ask", "Are you there?")
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert "b-1: exited with code 3" in said
    assert "a-0: a restart would not help; correct the error, then run `plimsoll up` again" in said
    assert "restarting" not in said
    assert laptop.record(port) is None


@pytest.mark.long
def test_a_terminal_gets_a_live_table_and_the_answer(laptop: Laptop, port: int) -> None:
    file = laptop.write(model("gemma", "demo://gemma-3-270m"))
    asked = ("--ask", "What is the capital of France?", "--once")
    process, terminal = laptop.up_on_terminal(100, file, "--port", str(port), *asked)
    text = rest_of(terminal).decode()
    assert process.wait(timeout=PATIENCE) == 0
    assert "\x1b[" in text
    assert "The capital of France is Paris." in text


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--apart", "--line", "1GiB"], "leave out --apart"),
        (["--once"], "add --ask QUESTION"),
        (["--port", "99999"], "between 0 and 65535"),
        (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1"),
    ],
)
def test_options_that_make_no_sense(laptop: Laptop, arguments: list[str], what: str) -> None:
    done = laptop.plimsoll("up", laptop.write(model("gemma", "demo://gemma-3-270m")), *arguments)
    assert done.returncode == 2
    assert what in done.stderr


def test_code_that_comes_with_a_model_needs_the_flag_too(laptop: Laptop) -> None:
    bringing = model("code", "demo://gemma-3-270m", model={"source": "hf://org/m", "trustRemoteCode": True})
    done = laptop.plimsoll("up", laptop.write(bringing))
    assert done.returncode == 2
    assert "code: spec.model.trustRemoteCode runs code from the model's repository" in done.stderr
    assert "add --trust-remote-code" in done.stderr


def test_files_are_refused_as_a_whole(laptop: Laptop) -> None:
    file = laptop.write(
        model("a", "demo://x", replicas=-1),
        model("b", "pvc://claim/path"),
        model("c", "demo://x", foo=1),
        model("d", "demo://x"),
        model("d", "demo://x"),
    )
    done = laptop.plimsoll("up", file)
    assert done.returncode == 2
    assert "spec.replicas: Invalid value: -1" in done.stderr
    assert "pvc://claim/path is a volume of a cluster" in done.stderr
    assert 'unknown field "spec.foo"' in done.stderr
    assert '"default/d" is defined twice' in done.stderr


def test_served_names_must_differ(laptop: Laptop) -> None:
    names = {"source": "demo://x", "servedNames": ["same"]}
    done = laptop.plimsoll("up", laptop.write(model("a", "", model=names), model("b", "", model=names)))
    assert done.returncode == 2
    assert 'the served name "same" is already used by "a"' in done.stderr
