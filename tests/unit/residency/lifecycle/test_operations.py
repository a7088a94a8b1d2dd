"""Operations: repeating one returns the same object, the number of kept ones is bounded, and running ones are kept."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.errors import OperationConflict
from plimsoll_runtime.residency.lifecycle.operations import Operation, Operations
from plimsoll_runtime.residency.spec import ModelName

NAME = ModelName("team", "a")


def test_known_unknown_and_another() -> None:
    operations = Operations()
    assert operations.find("x", "content") is None
    operation = Operation("x", "content", NAME)
    operations.add(operation)
    assert operations.find("x", "content") is operation is operations.get("x")
    with pytest.raises(OperationConflict):
        operations.find("x", "other")
    for text in ("", "x" * 257):
        with pytest.raises(UsageError):
            operations.find(text, "content")


def test_only_the_first_end_counts() -> None:
    operation = Operation("x", "content", NAME)
    error = UsageError("no")
    operation.end(error)
    operation.end()
    assert operation.error is error
    asyncio.run(operation.wait())


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 8))
def test_the_oldest_that_have_ended_are_forgotten(ended: list[bool], kept: int) -> None:
    operations = Operations(kept)
    made = []
    for i, done in enumerate(ended):
        operation = Operation(str(i), "content", NAME)
        if done:
            operation.end()
        operations.add(operation)
        made.append(operation)
    known = [operation for operation in made if operations.get(operation.id) is operation]
    assert [operation for operation in made if not operation.done] == [o for o in known if not o.done]
    assert len(operations) == len(known) <= max(kept, sum(not done for done in ended) + 1)
    if made:
        assert made[-1] in known
    survivors = [operation for operation in known if operation.done]
    assert survivors == [operation for operation in made if operation.done][len(survivors) * -1 :] or not survivors
