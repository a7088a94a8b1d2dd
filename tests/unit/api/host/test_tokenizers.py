"""Tokenizers are read once for all waiting callers, and forgotten with their models."""

import asyncio
import threading
from typing import Any

import pytest

from plimsoll_runtime.api.host.tokenizers import FAILED_SECONDS, Failure, Tokenizers, TokenizerSource
from plimsoll_runtime.errors import ModelError

ONE, OTHER = TokenizerSource("hf://org/one", None), TokenizerSource("hf://org/one", "v2")
FILES: Any = object()


class Reader:
    """Reads when the test allows it, and counts the reads."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = 0
        self.error: Exception | None = None

    def __call__(self, _files: Any) -> Any:
        self.begun += 1
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        return object()


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def tokenizers(reader: Reader) -> Tokenizers:
    return Tokenizers(reader)


async def test_who_gives_up_ends_it_for_nobody(tokenizers: Tokenizers, reader: Reader) -> None:
    asking = [asyncio.create_task(tokenizers.get(ONE, FILES)) for _ in range(3)]
    while ONE not in tokenizers:
        await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.gather(asking[0], return_exceptions=True)
    reader.go_on.set()
    one, other = await asyncio.gather(*asking[1:])
    assert one is other is await tokenizers.get(ONE, FILES)
    assert reader.begun == 1


async def test_each_revision_has_its_own(tokenizers: Tokenizers, reader: Reader) -> None:
    reader.go_on.set()
    assert await tokenizers.get(ONE, FILES) is not await tokenizers.get(OTHER, FILES)


async def test_what_failed_is_tried_again(tokenizers: Tokenizers, reader: Reader) -> None:
    reader.go_on.set()
    reader.error = ModelError("it has no tokenizer.json")
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        await tokenizers.get(ONE, FILES)
    assert ONE not in tokenizers
    reader.error = None
    await tokenizers.get(ONE, FILES)
    assert reader.begun == 2


async def test_that_it_cannot_be_read_is_known_for_a_while(reader: Reader) -> None:
    now = 100.0
    tokenizers = Tokenizers(reader, lambda: now)
    reader.go_on.set()
    reader.error = ModelError("it has no tokenizer.json")
    assert tokenizers.failure(ONE) is None
    for _ in range(2):
        with pytest.raises(ModelError):
            await tokenizers.get(ONE, FILES)
        assert tokenizers.failure(ONE) == Failure(reader.error, FAILED_SECONDS)
        assert tokenizers.failure(OTHER) is None
        now += FAILED_SECONDS
        assert tokenizers.failure(ONE) is None
    now -= 1
    assert tokenizers.failure(ONE) == Failure(reader.error, 1)
    tokenizers.keep_only([OTHER])
    assert tokenizers.failure(ONE) is None
    with pytest.raises(ModelError):
        await tokenizers.get(ONE, FILES)
    reader.error = None
    await tokenizers.get(ONE, FILES)
    assert tokenizers.failure(ONE) is None


async def test_what_is_not_placed_any_more_is_forgotten(tokenizers: Tokenizers, reader: Reader) -> None:
    reader.go_on.set()
    for source in (ONE, OTHER):
        await tokenizers.get(source, FILES)
    tokenizers.keep_only({OTHER})
    assert (ONE in tokenizers, OTHER in tokenizers) == (False, True)


async def test_one_that_is_forgotten_while_it_is_read_is_still_given_to_who_waits(
    tokenizers: Tokenizers, reader: Reader
) -> None:
    asking = asyncio.create_task(tokenizers.get(ONE, FILES))
    while ONE not in tokenizers:
        await asyncio.sleep(0)
    tokenizers.keep_only(())
    reader.go_on.set()
    assert await asking
    assert ONE not in tokenizers
