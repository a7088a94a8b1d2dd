"""The fields of a request's body that the gateway reads: model, estimated tokens, start of the prompt.

`CpuTimeSlices` limits the time that reading large bodies takes from other requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from plimsoll_gateway.errors.dialects import RESPONSES
from plimsoll_gateway.proxy.json_members import name_in, read_members
from plimsoll_gateway.routing.prefix import PREFIX_BYTES
from plimsoll_gateway.routing.response_affinity import place_in

BYTES_PER_TOKEN = 4  # of English text and of code; other scripts have up to three tokens in as many bytes
USUAL_ANSWER = 256  # tokens, if the request does not limit them
MOST_ANSWERS = 4096  # the most outputs of one request, as in the runtime
_PROMPTS = ("messages", "prompt", "input", "documents", "text_2", "tokens", "text")
_BEFORE = ("tools", "system")
"""Chat templates put these before the messages."""
_BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_ANSWERS = ("best_of", "n")
_COUNT = msgspec.json.Decoder(int)
_PROMPT_ALONE = frozenset(
    [
        "/v1/embeddings",
        "/v1/score",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/classify",
        "/v1/messages/count_tokens",
        "/v1/responses/input_tokens",
        "/tokenize",
        "/detokenize",
    ]
)
"""Paths whose requests generate nothing."""
_NOTHING = memoryview(b"")
_NO_HINT = (b"", b"null", b'""')


class RequestFields(msgspec.Struct, frozen=True):
    """`prompt_tokens` and `answer_tokens` are estimates from sizes and limits.

    `prefix`: the start of the prompt's JSON.
    `salt`, `hint`: the JSON of the client's cache_salt and prompt_cache_key; empty without them.
    `streams`: the response is to be a stream.
    `place`: place (response_affinity) of the replica that stores the response that the request continues; empty if any
    replica can serve it.
    `runs_on`: the request runs in the background, and its response reports no usage.
    """

    model: str
    prompt_tokens: int = 0
    answer_tokens: int = 0
    prefix: bytes = b""
    salt: bytes = b""
    hint: bytes = b""
    streams: bool = False
    place: str = ""
    runs_on: bool = False

    @property
    def tokens(self) -> int:
        """The estimated tokens of prompt and output."""
        return self.prompt_tokens + self.answer_tokens


def read_fields(path: str, text: memoryview) -> RequestFields:
    """Read the fields from the body of a request for `path`. Raises Refusal 400 with the error in the body."""
    members = read_members(text)
    name = name_in(members)
    prompt = [members[key] for key in _BEFORE if key in members]
    for key in _PROMPTS:
        if key in members:
            prompt.append(members[key])
            break
    hint = members.get("prompt_cache_key", _NOTHING)
    return RequestFields(
        model=name,
        prompt_tokens=1 + sum(map(len, prompt)) // BYTES_PER_TOKEN,
        answer_tokens=0 if path in _PROMPT_ALONE else _answer_tokens(members),
        prefix=_beginning(prompt),
        salt=bytes(members.get("cache_salt", _NOTHING)[:PREFIX_BYTES]),
        hint=b"" if hint in _NO_HINT else bytes(hint[:PREFIX_BYTES]),
        streams=_is_true(members, "stream"),
        place=place_in(members) if path.startswith(RESPONSES) else "",
        runs_on=_is_true(members, "background"),
    )


def _beginning(parts: list[memoryview]) -> bytes:
    """Return the first PREFIX_BYTES of all parts joined."""
    return b"".join(part[:PREFIX_BYTES] for part in parts)[:PREFIX_BYTES]


def _answer_tokens(members: Mapping[str, memoryview]) -> int:
    each, answers = USUAL_ANSWER, 1
    for key in _BOUNDS:
        if key in members and (bound := _count(members[key])) is not None:
            each = bound
            break
    for key in _ANSWERS:
        if key in members:
            answers = max(answers, _count(members[key]) or 1)
    return each * min(MOST_ANSWERS, answers)


def _is_true(members: Mapping[str, memoryview], key: str) -> bool:
    return key in members and bytes(members[key][:5]) == b"true"


def _count(text: memoryview) -> int | None:
    """Parse a whole number, negative ones as 0; None if it is invalid, which the replica reports."""
    if len(text) > 12:
        return None
    try:
        return max(0, _COUNT.decode(text))
    except msgspec.MsgspecError:
        return None


# The pause is this many times as long as the work: a small request needs several iterations of the event loop, which
# should not all be delayed.
REST = 3

ResultT = TypeVar("ResultT")


class CpuTimeSlices:
    """Runs functions one at a time, in order of arrival. After each one, all wait for REST times its duration."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = asyncio.Lock()
        self._rested = 0.0  # when the pause ends

    async def take(self, work: Callable[[], ResultT]) -> ResultT:
        """Call `work` after earlier calls and the pause after them, and return its result."""
        async with self._lock:
            while (left := self._rested - self._clock()) > 0:
                await self._sleep(left)
            began = self._clock()
            try:
                return work()
            finally:
                ended = self._clock()
                self._rested = ended + REST * (ended - began)
