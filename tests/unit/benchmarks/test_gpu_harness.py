"""Parts of a device's checks, with fake commands: time limits, interruptions, missing packages, records."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpu import bench, check
from gpu.harness import bench_parts, bounded, call, check_parts, ledger, session, sources, wheels
from gpu.harness.ledger import Ledger, Record
from gpu.harness.outcomes import Outcomes, line
from gpu.harness.part import SKIPPED, Part, Status, status_of
from gpu.harness.session import Session

SLEEPS = "import time; print('begun', flush=True); time.sleep(600)"
Make = Callable[..., Session]


def part(name: str, code: str, seconds: int = 60, **more: Any) -> Part:
    """Return a fake part: a few lines of Python."""
    return Part(name, f"that {name} works", seconds, ("-c", code), **more)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    defaults = {"name": "check", "state": tmp_path / "state", "out": tmp_path / "out", "run": {"gpu": "a stand-in"}}
    return lambda **more: Session(**{**defaults, **more})


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "GRACE_SECONDS", 1.0)
    monkeypatch.setattr(session, "LEAST_SECONDS", 0.0)


def test_a_command_within_its_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "log"
    command = [sys.executable, "-c", "import os; print(os.environ['WORD']); raise SystemExit(3)"]
    ended = bounded.run(command, seconds=60, environment={"WORD": "hello"}, log=log)
    assert (ended.code, ended.tail) == (3, ["hello"])
    assert log.read_text() == "hello\n"
    assert capsys.readouterr().out == "hello\n"


@pytest.mark.long
def test_a_command_past_its_bound_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    tells = f"import os; open({str(pid)!r}, 'w').write(str(os.getpid())); {SLEEPS}"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {tells!r}]).wait()"
    began = time.monotonic()
    ended = bounded.run([sys.executable, "-c", child], seconds=5, environment={}, log=tmp_path / "log")
    assert ended.code is None
    assert time.monotonic() - began < 60
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid.read_text())).wait(timeout=20)


@pytest.mark.parametrize(
    ("code", "tests", "status"),
    [
        (0, False, Status.PASSED),
        (5, True, Status.PASSED),
        (5, False, Status.FAILED),
        (SKIPPED, False, Status.SKIPPED),
        (1, True, Status.FAILED),
        (-9, False, Status.FAILED),
        (None, True, Status.STOPPED),
    ],
)
def test_what_an_exit_code_means(code: int | None, tests: bool, status: Status) -> None:
    assert status_of(code, tests=tests) is status


def test_parts_run_in_order_whatever_becomes_of_each(make: Make) -> None:
    parts = [
        part("good", "print('fine')"),
        part("bad", "print('it broke'); raise SystemExit(1)"),
        part("absent", f"print('no such tool'); raise SystemExit({SKIPPED})"),
        replace(part("silent", ""), command=("-c", "print('skipped: no GPU')", "{json}")),
        replace(part("telling", ""), command=("-c", "import sys; open(sys.argv[1], 'w').write('[1]')", "{json}")),
    ]
    found = make().perform(parts)
    assert [(r.status, r.reason, r.result) for r in found.parts.values()] == [
        (Status.PASSED, "", None),
        (Status.FAILED, "it broke", None),
        (Status.SKIPPED, "no such tool", None),
        (Status.FAILED, "skipped: no GPU", None),
        (Status.PASSED, "", [1]),
    ]
    assert call.code_of(parts, found) == 1
    assert call.code_of([parts[0], parts[2]], found) == 0


def test_a_part_past_its_bound_is_not_done_and_runs_again(make: Make) -> None:
    found = make().perform([part("slow", SLEEPS, seconds=1)])
    assert found.parts["slow"].status is Status.STOPPED
    assert found.parts["slow"].reason == "not done within 1 s"
    assert make().perform([part("slow", "pass")]).parts["slow"].status is Status.PASSED


def test_a_result_that_was_cut_off_is_none(make: Make) -> None:
    code = "import sys, time; open(sys.argv[1], 'w').write('[1, '); print('begun', flush=True); time.sleep(600)"
    cut = replace(part("cut", "", seconds=2), command=("-c", code, "{json}"))
    found = make().perform([cut]).parts["cut"]
    assert (found.status, found.result) == (Status.STOPPED, None)


def test_a_second_call_goes_on(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted = part("counted", f"open({str(tmp_path / 'runs')!r}, 'a').write('x')")
    broken = part("broken", f"open({str(tmp_path / 'tries')!r}, 'a').write('x'); raise SystemExit(1)")
    for _ in range(3):
        make().perform([counted, broken])
    assert (tmp_path / "runs").read_text() == "x"
    assert (tmp_path / "tries").read_text() == "xxx"
    assert "before; AGAIN=1 runs it again" in capsys.readouterr().out
    make(again=True).perform([counted])
    assert (tmp_path / "runs").read_text() == "xx"


def test_the_time_of_a_call_bounds_its_parts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LEAST_SECONDS", 5.0)
    times = iter([0.0, 1.0, 96.0])
    bounds = []

    def noted(command: Sequence[str], *, seconds: float, **more: Any) -> bounded.Ended:
        bounds.append(seconds)
        return bounded.Ended(0, 1.0, [])

    monkeypatch.setattr(bounded, "run", noted)
    found = make(limit=100.0, clock=lambda: next(times)).perform([part("one", "", 300), part("two", "", 60)])
    assert bounds == [99.0]
    assert found.parts["two"].status is Status.NOT_BEGUN
    assert "call again" in found.parts["two"].reason


TEST_FILE = """
import pytest

def test_right():
    with open({ran!r}, "a") as file:
        file.write("x")

def test_wrong():
    assert {right}

@pytest.mark.skip(reason="not here")
def test_absent():
    pass
"""


@pytest.fixture
def tested(tmp_path: Path) -> Callable[[bool], Part]:
    """Return a part of three tests, one of which passes or fails."""

    def write(right: bool) -> Part:
        file = tmp_path / "test_stand_in.py"
        file.write_text(TEST_FILE.format(ran=str(tmp_path / "ran"), right=right))
        (tmp_path / "pytest.ini").touch()
        plain = ("-m", "pytest", "-q", "-c", str(tmp_path / "pytest.ini"), "-p", "no:cacheprovider")
        command = (*plain, "-p", "gpu_support.progress", str(file))
        return Part("tested", "", 120, command, tests=True, environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})

    return write


def test_tests_that_passed_do_not_run_again(make: Make, tested: Callable[[bool], Part], tmp_path: Path) -> None:
    found = make().perform([tested(False)]).parts["tested"]
    assert found.status is Status.FAILED
    assert found.reason == "test_stand_in.py::test_wrong"
    assert found.tests is not None
    assert found.tests.record() == {
        "passed": ["test_stand_in.py::test_right"],
        "failed": ["test_stand_in.py::test_wrong"],
        "skipped": {"test_stand_in.py::test_absent": "not here"},
    }
    again = make().perform([tested(True)]).parts["tested"]
    assert again.status is Status.PASSED
    assert again.tests is not None
    assert str(again.tests) == "2 passed, 0 failed, 1 skipped"
    assert (tmp_path / "ran").read_text() == "x"


def test_what_a_call_that_was_cut_off_has_seen_counts(
    make: Make, tested: Callable[[bool], Part], tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    half = '{"test": "test_stand_in.py::test_wr'
    (tmp_path / "state" / "tested.outcomes").write_text(
        line("test_stand_in.py::test_right", "passed", "") + half + "\n"
    )
    assert make().perform([tested(True)]).parts["tested"].status is Status.PASSED
    assert not (tmp_path / "ran").exists()
    make(again=True).perform([tested(True)])
    assert (tmp_path / "ran").read_text() == "x"


def test_a_part_of_which_no_test_ran_proves_nothing(make: Make, tested: Callable[[bool], Part]) -> None:
    none, absent = (replace(tested(True), command=(*tested(True).command, "-k", k)) for k in ("nothing", "absent"))
    assert make().perform([none]).parts["tested"].status is Status.FAILED
    found = make(again=True).perform([absent]).parts["tested"]
    assert (found.status, found.reason) == (Status.SKIPPED, "not here")


def test_outcomes() -> None:
    found = Outcomes()
    found.add("a", "passed")
    found.add("a", "failed")
    found.add("b", "failed")
    found.add("b", "passed")
    found.add("c", "skipped", "why")
    assert found.record() == {"passed": ["b"], "failed": ["a"], "skipped": {"c": "why"}}
    assert Outcomes.of(found.record()) == found


def test_the_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    outcomes = Outcomes({"a"}, set(), {"b": "why"})
    written = Ledger({"gpu": "x"}, {"one": Record(Status.STOPPED, "slow", 1.5, "abc", "python", [1], outcomes)})
    written.write(tmp_path / "deep" / "one.json", tmp_path / "two.json")
    assert ledger.read(tmp_path / "deep" / "one.json") == ledger.read(tmp_path / "two.json") == written
    assert ledger.read(tmp_path / "none.json") == Ledger()
    (tmp_path / "two.json").write_text("[]")
    with pytest.raises(ValueError, match="remove it to start over"):
        ledger.read(tmp_path / "two.json")


def test_what_ran_on_other_sources_is_said_to(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found = make().perform([part("one", "pass")])
    assert "other sources" not in call.listing([part("one", "")], found)
    monkeypatch.setattr(call, "digest", lambda: "another")
    assert "on other sources" in call.listing([part("one", "")], found)
    assert len(sources.digest()) == 12


def test_parts_see_the_sources_and_what_was_installed(make: Make, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "brought_along.py").touch()
    code = "import brought_along, plimsoll_runtime, plimsoll_kernels, gpu.check, gpu_support.progress"
    found = make(site=tmp_path / "site").perform([part("imports", code, environment={"PYTHONSAFEPATH": "1"})])
    assert found.parts["imports"].status is Status.PASSED


def test_without_packages_only_what_needs_none_is_begun(make: Make) -> None:
    parts = [part("environment", "pass", needs=False), part("kernels", "raise SystemExit(1)")]
    found = make(missing=["msgspec", "pyzmq"]).perform(parts)
    assert found.parts["environment"].status is Status.PASSED
    assert found.parts["kernels"].status is Status.NOT_BEGUN
    assert found.parts["kernels"].reason.startswith("msgspec, pyzmq missing: run make gpu-wheels")


def test_parts_that_are_begun_anyway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheels, "required", lambda: ["no-such-package"])
    parts = (part("one", "pass"),)
    assert run_main(monkeypatch, lambda: check.main(parts), tmp_path) == 1
    assert run_main(monkeypatch, lambda: check.main(parts), tmp_path, "--anyway") == 0
    assert capsys.readouterr().out.count("missing: no-such-package") == 2


def test_missing_packages_and_their_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"msgspec", "torch", "pytest-asyncio"} <= set(wheels.required())
    assert wheels.missing(["pytest", "no-such-package"]) == ["no-such-package"]
    with pytest.raises(ValueError, match="has no wheels"):
        wheels.install(tmp_path, tmp_path / "site")
    for name in ("pytest-9.0-py3-none-any.whl", "no_such_package-1.0-py3-none-any.whl"):
        (tmp_path / name).touch()
    commands: list[Sequence[str]] = []
    assert wheels.install(tmp_path, tmp_path / "site", lambda command: commands.append(command) or 0) == [  # type: ignore[func-returns-value]
        "no-such-package"
    ]
    [command] = commands
    assert command[-1] == str(tmp_path / "no_such_package-1.0-py3-none-any.whl")
    assert {"--no-index", "--no-deps", "--find-links", "--target"} <= set(command)
    with pytest.raises(ValueError, match="pip ended with 1"):
        wheels.install(tmp_path, tmp_path / "site", lambda command: 1)


def test_what_is_fetched_is_what_is_needed_and_not_large() -> None:
    found = {pin.split("==")[0] for pin in wheels.pins(wheels.required(), "3.12")}
    assert {"msgspec", "pydantic", "pydantic-core", "starlette", "pyzmq", "pluggy"} <= found
    assert not found & set(wheels.PRESENT)
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> int:
        commands.append(command)
        return 7

    assert wheels.download(Path("/tmp"), "3.12", run) == 7
    assert commands[0][commands[0].index("--python-version") + 1] == "3.12"
    assert any(argument.startswith("msgspec==") for argument in commands[0])


def run_main(
    monkeypatch: pytest.MonkeyPatch, main: Callable[[], int], tmp_path: Path, *arguments: str, device: str = "a GPU"
) -> int:
    monkeypatch.setattr(call, "device_name", lambda: device)
    monkeypatch.setattr(call, "run_on", lambda device: {"gpu": device})
    own = ["--state", str(tmp_path / "state"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["main", *own, *arguments])
    return main()


def test_without_a_gpu_nothing_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, check.main, tmp_path, device="") == 2
    assert "nothing was checked: torch sees no CUDA or ROCm device" in capsys.readouterr().out
    assert run_main(monkeypatch, check.main, tmp_path, "--no-gpu-is-fine", device="") == 0
    assert run_main(monkeypatch, bench.main, tmp_path, device="") == 0
    assert "skipped: no GPU" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_check_runs_the_parts_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = (part("one", "pass"), part("two", "raise SystemExit(1)"))
    assert run_main(monkeypatch, lambda: check.main(parts), tmp_path, "--list") == 0
    assert capsys.readouterr().out.count("not run") == 2
    assert run_main(monkeypatch, lambda: check.main(parts), tmp_path, "--part", "one") == 0
    assert run_main(monkeypatch, lambda: check.main(parts), tmp_path) == 1
    written = json.loads((tmp_path / "out" / "gpu-check.json").read_text())
    assert written["run"] == {"gpu": "a GPU"}
    assert {name: each["status"] for name, each in written["parts"].items()} == {"one": "passed", "two": "failed"}
    with pytest.raises(SystemExit):
        run_main(monkeypatch, lambda: check.main(parts), tmp_path, "--part", "three")
    (tmp_path / "state" / "check.json").write_text("{")
    assert run_main(monkeypatch, lambda: check.main(parts), tmp_path) == 2
    assert "nothing was checked: " in capsys.readouterr().out


def test_bench_writes_each_result_and_judges_all_goals(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {"decode": {"decode": {"of_bandwidth": 0.9}}, "idle": {"idle": {"idle": 0.5, "between_ms": 0.1}}}

    def stand_ins(*arguments: str) -> list[Part]:
        assert arguments == ("--rounds", "2")
        code = "import sys; open(sys.argv[2], 'w').write(sys.argv[1])"
        texts = {name: json.dumps({"gpu": gpu, "workloads": []}) for name, gpu in results.items()}
        return [Part(name, "", 60, ("-c", code, text, "{json}")) for name, text in texts.items()]

    monkeypatch.setattr(bench, "parts", stand_ins)
    assert run_main(monkeypatch, bench.main, tmp_path, "--rounds", "2") == 1
    assert json.loads((tmp_path / "out" / "gpu-decode.json").read_text())["gpu"] == results["decode"]
    judged = json.loads((tmp_path / "out" / "gpu-bench.json").read_text())["run"]["goals"]
    assert {(g["work"], g["status"]) for g in judged if g["status"] != "not measured"} == {
        ("decode", "met"),
        ("idle", "missed"),
        ("host", "met"),
    }
    assert "missed        idle: less than 3 % in steady decoding: 50.0%" in capsys.readouterr().out


def test_a_device_that_torch_cannot_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(call, "ASK", "raise ImportError('libcuda is gone')")
    monkeypatch.setattr(sys, "argv", ["main", "--state", str(tmp_path)])
    assert check.main() == 2
    assert "torch cannot be asked for a device: ImportError: libcuda is gone" in capsys.readouterr().out


@pytest.mark.parametrize("known", [check_parts.PARTS, bench_parts.parts()], ids=["check", "bench"])
def test_every_part_fits_a_command_of_ten_minutes(known: Sequence[Part]) -> None:
    assert len({each.name for each in known}) == len(known)
    assert all(each.seconds < 480 and each.proves for each in known)


def test_parity_is_checked_whole_and_once() -> None:
    folder = sources.ROOT / check_parts.PARITY
    files = sorted(path.name for path in folder.glob("test_*.py"))
    named = [*check_parts.TEXTS, *check_parts.MIXTURES, *check_parts.LOGITS]
    assert len(set(named)) == len(named)
    assert set(named) < set(files)
    others = next(each for each in check_parts.PARTS if each.name == "parity-others")
    assert {argument.rpartition("/")[2] for argument in others.command if argument.startswith("--ignore")} == set(named)


def test_bench_asks_what_there_is() -> None:
    from gpu.run import QUESTIONS
    from serving.run import GPU_LINES

    assert set(bench_parts.MEASURED) == {*QUESTIONS, *GPU_LINES}
