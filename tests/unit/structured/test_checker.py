"""Constraints are tried in a separate process, which may fail."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structured_support.schemas import cases

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.checker import MOST_KNOWN, Checker
from plimsoll_runtime.structured.grammar import TOO_MUCH


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


def rules(count: int) -> Constraint:
    chain = "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(count))
    return Constraint.grammar(f'start: a0\n{chain}a{count}: "x"')


def definitions(count: int, kind: str) -> Constraint:
    def step(i: int) -> dict[str, Any]:
        reference = {"$ref": f"#/$defs/d{i + 1}"}
        return {"type": "array", "items": reference} if kind == "items" else {kind: [reference, reference]}

    chain = {f"d{i}": step(i) for i in range(count)}
    return Constraint.json({"$ref": "#/$defs/d0", "$defs": {**chain, f"d{count}": {"type": "null"}}})


def combinations(width: int) -> Constraint:
    one = [{"properties": {f"p{i}": {"const": i}}} for i in range(width)]
    return Constraint.json({"allOf": [{"anyOf": one, "type": "object"} for _ in range(width)]})


BOMBS = {
    "rules": rules(5000),
    "rules of terminals": Constraint.grammar(rules(5000).source.replace("a", "T").replace("stTrt: T0", "start: T0")),
    "arrays of arrays": definitions(2000, "items"),
    "everything twice": definitions(2000, "allOf"),
    "either of two": definitions(2000, "anyOf"),
    "combinations": combinations(10),
    "nesting": Constraint("json", '{"type":"array","items":' * 5000 + "{}" + "}" * 5000),
    "brackets": Constraint("json", "[" * 100_000),
    "parentheses": Constraint.grammar("start: " + "(" * 10_000 + '"x"' + ")" * 10_000),
    "groups": Constraint.regex("(" * 2000 + "a" + ")" * 2000),
    "wide strings": Constraint.json({"properties": {f"p{i}": {"maxLength": 100_000} for i in range(5000)}}),
    "alternatives": Constraint.grammar("start: " + "|".join(f'"x{i}"' for i in range(20_000))),
}


@pytest.mark.matrix(2)
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=list(BOMBS))
def test_a_bomb_ends_nothing_but_itself(checker: Checker, bomb: Constraint) -> None:
    with pytest.raises(ConstraintError):
        checker.check(bomb)
    with pytest.raises(ConstraintError):
        checker.check(bomb)
    checker.check(Constraint.choice(["fine"]))


def test_what_overflows_the_stack_is_told_as_what_it_is(checker: Checker) -> None:
    with pytest.raises(ConstraintError, match="nested too deeply, or has too many rules"):
        checker.check(rules(4999))
    assert TOO_MUCH in str(checker._known[rules(4999)])


def test_schemas_that_no_text_satisfies(checker: Checker) -> None:
    for schema in ({"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}):
        with pytest.raises(ConstraintError, match="no text satisfies it"):
            checker.check(Constraint.json(schema))


def test_all_schemas_pass(checker: Checker) -> None:
    for case in cases():
        checker.check(Constraint.json(case.schema))


def test_what_was_found_is_kept() -> None:
    checker = Checker()
    checker.check(Constraint.choice(["a"]))
    assert checker._process is not None
    checker._process.kill()
    checker._process.wait()
    checker.check(Constraint.choice(["a"]))
    with pytest.raises(ConstraintError, match="takes too much work"):
        checker.check(Constraint.choice(["b"]))
    for i in range(MOST_KNOWN + 1):
        checker.check(Constraint.choice([f"option {i}"]))
    assert len(checker._known) == MOST_KNOWN
    checker.check(Constraint.choice(["b"]))


def test_from_several_threads_at_once() -> None:
    checker = Checker()
    found: list[str | None] = []

    def ask(i: int) -> None:
        try:
            checker.check(Constraint.choice([f"option {i}"]) if i % 3 else rules(4000 + i))
        except ConstraintError as error:
            found.append(str(error))
        else:
            found.append(None)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(None) == 8
    assert found.count(TOO_MUCH) == 4
