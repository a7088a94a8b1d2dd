"""Reasoning is found in tokens wherever they are split, counted, and ended when its budget is used up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.sampling_params import ReasoningMarkers
from plimsoll_runtime.text.reasoning_budget import ReasoningTracker

CLOSING = b"\n</think>"
OPENING = 1000


class Pieces:
    """A vocabulary defined by the test: token i is the i-th piece; ids from 256 downwards are bytes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def __call__(self, token: int) -> bytes:
        if token == OPENING:
            return b"<think>"
        return self.pieces[token] if token >= 0 else bytes([-token - 1])


def byte_tokens(text: bytes) -> list[int]:
    return [-byte - 1 for byte in text]


def think(**options: object) -> ReasoningMarkers:
    given: dict[str, object] = {"begin": b"<think>", "end": b"</think>", **options}
    return ReasoningMarkers(**given)  # type: ignore[arg-type]


def follow(thought: ReasoningMarkers, *pieces: bytes, constrained: bool = False) -> ReasoningTracker:
    thoughts = ReasoningTracker(thought, Pieces(pieces), constrained=constrained)
    for token in range(len(pieces)):
        thoughts.take(token)
    return thoughts


@pytest.mark.parametrize(
    ("pieces", "inside", "tokens", "used"),
    [
        ((), False, 0, 0),
        ((b"<think>",), True, 1, 0),
        ((b" ", b"\n", b"<think>", b"a", b"b"), True, 5, 2),
        ((b"<th", b"ink", b">", b"a"), True, 4, 1),
        ((b"<think>", b"a", b"</think>"), False, 3, 1),
        ((b"<think>", b"a</", b"think", b">\n", b"b", b"<think>"), False, 4, 2),
        ((b"x", b"<think>", b"a"), False, 0, 0),
        ((b"<thought>", b"<think>", b"a"), False, 0, 0),
        ((b"</think>", b"a"), False, 0, 0),
    ],
)
def test_a_thought_at_the_beginning(pieces: tuple[bytes, ...], inside: bool, tokens: int, used: int) -> None:
    thoughts = follow(think(), *pieces)
    assert (thoughts.inside, thoughts.tokens, thoughts.used) == (inside, tokens, used)


def test_a_thought_that_the_prompt_began() -> None:
    thoughts = follow(think(open=True), b"a", b"b</thi", b"nk>", b"c")
    assert (thoughts.inside, thoughts.over, thoughts.tokens) == (False, True, 3)


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.sampled_from([b"<", b"think", b">", b"/", b"a", b" ", b"\xc3\xa9"]), max_size=30).map(b"".join),
    cuts=st.lists(st.integers(1, 6), max_size=40),
    opened=st.booleans(),
)
def test_however_it_is_cut(text: bytes, cuts: list[int], opened: bool) -> None:
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(text[at : at + cut])
        at += cut
    pieces.append(text[at:])
    thoughts = follow(think(open=opened), *pieces)
    begins = opened or text.lstrip().startswith(b"<think>")
    rest = text if opened else text.lstrip()[len(b"<think>") :]
    assert thoughts.inside == (begins and b"</think>" not in rest)
    by_bytes = ReasoningTracker(think(open=opened), Pieces([]))
    for token in byte_tokens(text):
        by_bytes.take(token)
    assert by_bytes.inside == thoughts.inside
    if begins and b"</think>" in rest:
        assert by_bytes.tokens == len(text) - len(rest) + rest.index(b"</think>") + len(b"</think>")


def test_a_budget_ends_a_thought() -> None:
    thought = think(open=True, budget=2, closing=tuple((token,) for token in byte_tokens(CLOSING)), gap=(-11, -11))
    thoughts = ReasoningTracker(thought, Pieces([b"a", b"b"]), constrained=True)
    thoughts.take(0)
    assert not thoughts.forced
    thoughts.take(1)
    for expected in [*CLOSING, *b"\n\n"]:
        if not thoughts.forced:
            break
        assert not thoughts.constrains
        [token] = thoughts.forced[0]
        assert bytes([-token - 1]) == bytes([expected])
        thoughts.take(token)
    assert (thoughts.inside, thoughts.used, thoughts.tokens) == (False, 2, 2 + len(CLOSING))
    assert thoughts.constrains


def test_no_budget_at_all() -> None:
    closing = ((5,),)
    assert list(ReasoningTracker(think(open=True, budget=0, closing=closing), Pieces([])).forced) == [(5,)]
    thoughts = ReasoningTracker(think(budget=0, closing=closing), Pieces([b"<think>"]))
    assert not thoughts.forced
    thoughts.take(0)
    assert list(thoughts.forced) == [(5,)]


def test_no_character_is_cut() -> None:
    thought = think(open=True, budget=1, closing=((5,),))
    assert not follow(thought, b"\xc3").forced
    assert follow(thought, b"\xc3", b"\xa9").forced
    assert follow(thought, b"\xc3", b"a").forced


def test_a_constraint_holds_behind_the_thought() -> None:
    thoughts = ReasoningTracker(think(opening=OPENING, gap=(-11,)), Pieces([b"{"]), constrained=True)
    assert (thoughts.constrains, thoughts.opening) == (True, OPENING)
    thoughts.take(OPENING)
    assert (thoughts.constrains, thoughts.opening) == (False, None)
    for token in byte_tokens(b"a</think>"):
        assert not thoughts.constrains
        thoughts.take(token)
    assert list(thoughts.forced) == [(-11,)]
    thoughts.take(-11)
    assert (thoughts.constrains, thoughts.over) == (True, True)


def test_no_gap_where_one_is_written_or_nothing_is_constrained() -> None:
    gap = (-11,)
    assert not follow(think(open=True, gap=gap), b"a</think>", constrained=False).forced
    assert not follow(think(open=True, gap=gap), b"a</think>\n", constrained=True).forced
    assert follow(think(open=True), b"a</think>{", constrained=True).stray
    assert not follow(think(open=True), b"a</think> \n", constrained=True).stray


def test_an_end_that_is_part_of_what_follows() -> None:
    thoughts = follow(think(open=True, implied=(b"<call>",)), b"a", b"b<c", b"all>")
    assert (thoughts.inside, thoughts.tokens) == (False, 1)
    assert thoughts.stray
    barring = ReasoningTracker(think(open=True, barred=(7,)), Pieces([b"</think>"]))
    assert list(barring.barred) == [7]
    barring.take(0)
    assert list(barring.barred) == []


HARMONY = ReasoningMarkers(
    begin=b"<|channel|>analysis", end=b"<|end|>", anywhere=True, answer=(b"<|channel|>final", b"<|message|>")
)


def test_thoughts_in_messages() -> None:
    channel, message, end = b"<|channel|>", b"<|message|>", b"<|end|>"
    answer = [channel, b"ana", b"lysis", message, b"a", b"b", end, b"<|start|>", b"assistant"]
    thoughts = follow(HARMONY, *answer)
    assert (thoughts.tokens, thoughts.used, thoughts.inside, thoughts.constrains) == (7, 3, False, False)
    thoughts = follow(HARMONY, *answer, *answer, channel, b"final", b" x", message)
    assert (thoughts.tokens, thoughts.inside, thoughts.constrains, thoughts.over) == (14, False, True, False)
    assert follow(HARMONY, *answer, channel, b"commentary", message).constrains is False


def test_nothing_is_said_before_a_constrained_answer() -> None:
    steered = msgspec.structs.replace(HARMONY, steer=(b"<|channel|>", (1, 5)))
    pieces = (b"<|channel|>", b"analysis", b"<|message|>", b"<|end|>", b"<|channel|>", b"final", b"<|message|>")
    thoughts, forced = ReasoningTracker(steered, Pieces(pieces), constrained=True), []
    for token in range(len(pieces)):
        thoughts.take(token)
        forced.append(list(thoughts.forced))
    assert forced == [[(1, 5)], [], [], [], [(1, 5)], [], []]
    assert thoughts.constrains
    assert not follow(steered, b"<|channel|>").forced


def test_a_budget_says_what_follows() -> None:
    bounded = msgspec.structs.replace(HARMONY, steer=(b"<|channel|>", (1, 5)), budget=0, closing=((3,), (0,), (5,)))
    pieces = (b"<|channel|>", b"analysis", b"<|message|>", b"<|end|>", b"x", b"final")
    thoughts = ReasoningTracker(bounded, Pieces(pieces), constrained=True)
    for token in (0, 1):
        thoughts.take(token)
    assert list(thoughts.forced) == [(3,), (0,), (5,)]
    for token in (3, 0, 5):
        thoughts.take(token)
    assert (thoughts.inside, list(thoughts.forced)) == (False, [])


@pytest.mark.parametrize(
    "options", [{"begin": b""}, {"end": b""}, {"answer": (b"",)}, {"budget": -1, "closing": ((1,),)}, {"budget": 3}]
)
def test_what_is_no_thought(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"markers|budget"):
        think(**options)
