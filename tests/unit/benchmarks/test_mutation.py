"""A mutant changes one operator, stays findable when other functions change, and is drawn by its seed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutation.mutants import draw, place_of, places, replaced
from mutation.run import ROOT, _digest, _reaching, _verdict

SOURCE = '''"""A module: 1 + 1."""

import math

LIMIT = 1


class Queue:
    def admit(self, waiting: int, room: int = 2) -> bool:
        """Whether ü fits: 1 < 2."""
        if waiting < room and not self.closed:
            return True
        raise ValueError(f"{waiting + 1} waiting")

    def check_integrity(self) -> None:
        assert self.size >= 0 or self.size == 1


def total(values: list[int]) -> int:
    return max(sum(values) * 2, 0)
'''


def test_every_operator_of_a_function_is_a_place() -> None:
    found = [(each.mutant.function, each.mutant.before, each.mutant.after) for each in places("m.py", SOURCE)]
    assert found == [
        ("Queue.admit", "waiting < room and (not self.closed)", "waiting < room or not self.closed"),
        ("Queue.admit", "waiting < room", "waiting <= room"),
        ("Queue.admit", "not self.closed", "self.closed"),
        ("Queue.admit", "True", "False"),
        ("total", "max(sum(values) * 2, 0)", "min(sum(values) * 2, 0)"),
        ("total", "sum(values) * 2", "sum(values) // 2"),
        ("total", "2", "3"),
        ("total", "0", "1"),
    ]


def test_a_mutant_differs_from_its_file_by_its_operator() -> None:
    for place in places("m.py", SOURCE):
        changed = replaced(SOURCE, place, f"({place.mutant.after})")
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
        assert ast.dump(ast.parse(replaced(SOURCE, place, f"({place.mutant.before})"))) == ast.dump(ast.parse(SOURCE))


def test_a_mutant_is_found_again_unless_its_function_changes(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SOURCE)
    mutant = places("m.py", SOURCE)[-2].mutant
    (tmp_path / "m.py").write_text(SOURCE.replace("waiting < room and", "waiting > 5 or waiting < room and"))
    text, place = place_of(mutant, tmp_path)
    assert text.encode()[place.start : place.end] == b"2"
    (tmp_path / "m.py").write_text(SOURCE.replace("* 2", "* 4"))
    with pytest.raises(LookupError, match=r"m.py: total has changed; draw the list again"):
        place_of(mutant, tmp_path)


def test_draws_are_the_seeds() -> None:
    folders = ["operator/plimsoll_operator/placement", "runtime/plimsoll_runtime/engine"]
    drawn = draw(ROOT, folders, 4, seed=1)
    assert drawn == draw(ROOT, folders, 4, seed=1) != draw(ROOT, folders, 4, seed=2)
    assert [any(each.path.startswith(folder) for folder in folders) for each in drawn] == [True] * 4


def test_a_server_that_one_test_started_is_reached_by_all_of_its_file() -> None:
    tests = ["a.py::one", "a.py::two", "b.py::three", "b.py::four"]
    names = {_digest("a.py::one", "setup"), _digest("b.py::four", "call")}
    assert _reaching(tests, names) == ["a.py::one", "a.py::two", "b.py::four"]


@pytest.mark.parametrize(("short", "long", "code"), [(9, 1, 0), (8, 2, 1), (0, 0, 0)])
def test_nine_in_ten_are_killed_by_the_short_set(short: int, long: int, code: int) -> None:
    outcomes = (
        [{"not long": "t"}] * short + [{"not long": None, "long": "t"}] * long + [{"not long": None, "long": None}]
    )
    assert _verdict(outcomes) == code
