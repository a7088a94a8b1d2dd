"""The counts of `shape.run`: lines of code, files and entries of folders, and files that run in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import shape
from shape.lines import Package, code_lines, measured

CODE = '''"""Module.

Text.
"""

import os  # a comment beside code


class Box:
    """Doc."""

    size: int = 1
    """Of an attribute."""

    def text(self) -> str:
        # A comment alone.
        return """two
lines"""
'''


def test_lines_of_code_are_counted() -> None:
    assert code_lines(CODE) == 6


def test_packages_are_measured(tmp_path: Path) -> None:
    for name, text in {"__init__.py": '"""A."""\n', "one.py": CODE, "inner/two.py": "x = 1\ny = 2\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert measured(tmp_path) == Package(files=3, code=8, longest=CODE.count("\n"), entries=2)


def test_files_that_run_are_recorded(tmp_path: Path) -> None:
    """Files that ran before `begin` are left out; threads and forks are recorded too."""
    (tmp_path / "early.py").write_text("def f():\n    pass\n")
    (tmp_path / "late.py").write_text("def f():\n    pass\n")
    (tmp_path / "forked.py").write_text("def f():\n    pass\n")
    program = f"""
import os, pathlib, threading, time
import early, forked, late
folder = pathlib.Path({str(tmp_path)!r})
def until(pattern, count):
    while len(list(folder.glob(pattern))) < count:
        time.sleep(0.01)
early.f()
child = os.fork()
if child == 0:
    until("*.begun", 2)
    forked.f()
    (folder / "done").touch()
    until("*.json", 2)
    os._exit(0)
(folder / "begin").touch()
until("*.begun", 2)
thread = threading.Thread(target=late.f)
thread.start()
thread.join()
until("done", 1)
(folder / "end").touch()
until("*.json", 2)
os.waitpid(child, 0)
print(child)
"""
    recorder = Path(shape.__file__).parent / "recorder"
    environment = os.environ | {"SHAPE_FOLDER": str(tmp_path), "PYTHONPATH": f"{recorder}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    ran = {
        file.stem: {Path(each).stem for each in json.loads(file.read_text()) if str(tmp_path) in each}
        for file in tmp_path.glob("*.json")
    }
    child = done.stdout.strip()
    assert ran.pop(child) == {"forked"}
    assert list(ran.values()) == [{"late"}]
