"""Moving and merging modules by a plan: `shape.moves`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shape.moves import Names, carry_out, merged

PLAN = {
    "pkg/__init__.py": "pkg/__init__.py",
    "pkg/sent.py": "pkg/wire/message.py",
    "pkg/status.py": "pkg/status/status.py",
    "pkg/core.py": "pkg/core.py",
    "pkg/helper.py": "pkg/core.py",
}
FILES = {
    "pkg/__init__.py": '"""A package."""\n',
    "pkg/sent.py": '"""Messages."""\n\nLIMIT = 3\n',
    "pkg/status.py": '"""Status."""\n\nfrom pkg import sent\n\n\ndef limit() -> int:\n    return sent.LIMIT\n',
    "pkg/core.py": (
        '"""The core."""\n\nfrom __future__ import annotations\n\nfrom pkg.helper import Base\n'
        "from pkg.status import limit\n\n\nclass Core(Base):\n    size = limit()\n"
    ),
    "pkg/helper.py": (
        '"""A helper."""\n\nfrom __future__ import annotations\n\nimport os\n\n\nclass Base:\n    name = os.sep\n'
    ),
    "use.py": (
        "import pkg.sent\nfrom pkg import core, helper, sent\n\n"
        "NAME = 'pkg.status.limit'\nprint(core.Core.size, helper.Base.name, sent.LIMIT, pkg.sent.LIMIT)\n"
    ),
    "notes.md": "See `pkg/sent.py`, pkg.status and pkg.statuses.\n",
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_is_carried_out(repository: Path) -> None:
    """The program says the same before and after, and nothing names an old module."""

    def said() -> str:
        return subprocess.run([sys.executable, "use.py"], capture_output=True, text=True, check=True).stdout

    before = said()
    carry_out(PLAN, Path(), {"pkg/wire/__init__.py": "The wire", "pkg/status/__init__.py": "The status"})
    assert said() == before == "3 / 3 3\n"
    files = {str(file) for file in Path().rglob("*.py")}
    assert files == {*PLAN.values(), "pkg/wire/__init__.py", "pkg/status/__init__.py", "use.py"}
    assert "NAME = 'pkg.status.status.limit'" in Path("use.py").read_text()
    assert Path("notes.md").read_text() == "See `pkg/wire/message.py`, pkg.status.status and pkg.statuses.\n"
    core = Path("pkg/core.py").read_text()
    assert core.startswith('"""The core."""')
    assert "A helper" not in core
    assert core.index("class Base") < core.index("class Core"), "what another file imports comes first"
    assert "pkg.helper" not in core


def test_clashes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"one.py": "X = 1\nSAME = 0\n", "two.py": "X = 2\nSAME = 0\n"}
    merged(texts, "one.py", {"one.py": set(), "two.py": set()})
    assert capsys.readouterr().err == "one.py: X is defined in one.py and in two.py\n"


def test_a_new_name_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    names = Names({"pkg/sent.py": "pkg/message.py"})
    text = names.in_python("from pkg import sent\n\nmessage = sent.LIMIT\n", "f.py")
    assert text == "from pkg import (message)\n\nmessage = message.LIMIT\n"
    assert "f.py: sent becomes message" in capsys.readouterr().err
