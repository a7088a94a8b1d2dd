"""A guide's masks: of a grammar, of the end of reasoning, and of grammars with reasoning."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from tool_support.markers import END, SPECIAL
from tool_support.reading import read
from tool_support.transcripts import TOOLS

from plimsoll_kernels.sampling.masks import words_of
from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.engine.protocol.messages import RequestContext, Vocabulary
from plimsoll_runtime.engine.protocol.plan import SlotInit
from plimsoll_runtime.engine.protocol.sampling_params import ReasoningMarkers, SamplingParams
from plimsoll_runtime.execution.sampling.constraints import STRAY, Guide, guide_of
from plimsoll_runtime.reasoning.registry import FORMATS as REASONING
from plimsoll_runtime.structured.matcher import Grammars
from plimsoll_runtime.tools.registry import FORMATS

PIECES = [bytes([byte]) for byte in range(256)] + [marker.encode() for marker in SPECIAL]
PLAIN = set(b'abgs019{}",.:')
IDS = {marker: END + index for index, marker in enumerate(SPECIAL)}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    made = Grammars()
    lengths = array("I", map(len, PIECES)).tobytes()
    made.use(Vocabulary(b"".join(PIECES), lengths, list(range(END, len(PIECES))), [END]))
    return made


def tokens(text: str) -> list[int]:
    """Return markers as tokens of their own, and the rest as bytes."""
    found: list[int] = []
    while text:
        marker = next((marker for marker in SPECIAL if text.startswith(marker)), None)
        found += [IDS[marker]] if marker else list(text[0].encode())
        text = text[len(marker) if marker else 1 :]
    return found


def allowed(guide: Guide) -> list[int]:
    """Return the tokens that may be next."""
    mask = np.zeros(words_of(len(PIECES)), dtype=np.int32)
    if not guide.limits:
        return list(range(len(PIECES)))
    if guide.matches and guide.matcher is not None:
        mask[:] = np.frombuffer(guide.matcher.inner.compute_bitmask(), dtype=np.int32)[: mask.size]
    guide.write(mask)
    bits = mask.view(np.uint32)
    return [token for token in range(len(PIECES)) if bits[token // 32] >> np.uint32(token % 32) & 1]


def guided(grammars: Grammars, thought: ReasoningMarkers, constraint: Constraint | None) -> Guide:
    params = SamplingParams(thought=thought, constraint=constraint)
    guide = guide_of(SlotInit(0, RequestContext(params, 0), [1]), grammars)
    assert guide is not None
    return guide


def harmony(**options: object) -> ReasoningMarkers:
    marks = REASONING["harmony"].marks
    closing = (*((token,) for token in tokens(marks.closing)), (ord("f"), ord("c")))
    made: dict[str, object] = {
        "begin": marks.begin.encode(),
        "end": marks.end.encode(),
        "anywhere": True,
        "closing": closing,
    }
    return ReasoningMarkers(**(made | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("budget", [0, 5])
def test_a_budget_within_a_grammar_of_calls(grammars: Grammars, required: bool, budget: int) -> None:
    """The reasoning ends with its budget, and the grammar continues."""
    source = FORMATS["harmony"].grammar(TOOLS, IDS.get, required=required, parallel=False)
    for number in range(3):
        chance = random.Random(number)
        guide = guided(grammars, harmony(budget=budget, answer=()), Constraint("lark", source))
        written = tokens("<|channel|>analysis<|message|>")
        for token in written:
            assert token in allowed(guide)
            guide.take(token)
        for _ in range(2000):
            if END in (options := allowed(guide)):
                break
            ends = [IDS["<|end|>"]] if IDS["<|end|>"] in options and len(written) > 40 else []
            plain = [token for token in options if token in PLAIN]
            written.append(chance.choice(ends or plain or options))
            guide.take(written[-1])
            assert guide.error is None
        else:
            raise AssertionError("it does not end")
        text = b"".join(PIECES[token] for token in written).decode()
        thought, _, rest = text.partition("<|end|>")
        assert len(thought) == len("<|channel|>analysis<|message|>") + budget
        assert rest.startswith("<|start|>assistant<|channel|>c" if required else "<|start|>assistant<|channel|>")
        calls = [part for part in read(FORMATS["harmony"], TOOLS, [rest]) if isinstance(part, tuple)]
        assert len(calls) == 1 or not required


def test_nothing_ends_an_answer_within_its_thought(grammars: Grammars) -> None:
    thought = ReasoningMarkers(begin=b"<t>", end=b"</t>", open=True, barred=(64,))
    guide = guided(grammars, thought, Constraint.choice(["yes"]))
    for token in b"Hm.</t":
        assert allowed(guide) == [other for other in range(len(PIECES)) if other not in (END, 64)]
        guide.take(token)
    guide.take(ord(">"))
    assert allowed(guide) == [ord("y")]


def test_a_thought_may_come_first(grammars: Grammars) -> None:
    opening = IDS["<|python_tag|>"]
    thought = ReasoningMarkers(begin=b"<|python_tag|>", end=b"[ARGS]", opening=opening, gap=(10, 10))
    guide = guided(grammars, thought, Constraint.choice(["yes"]))
    assert allowed(guide) == [ord("y"), opening]
    for token in (opening, ord("x"), IDS["[ARGS]"]):
        guide.take(token)
    for token in (10, 10, ord("y"), ord("e"), ord("s"), END):
        assert allowed(guide) == [token]
        guide.take(token)
    assert guide.error is None


def test_an_answer_that_begins_in_its_thought_s_last_token(grammars: Grammars) -> None:
    vocabulary = [*PIECES, b">x"]
    made = Grammars()
    lengths = array("I", map(len, vocabulary)).tobytes()
    made.use(Vocabulary(b"".join(vocabulary), lengths, list(range(END, len(PIECES))), [END]))
    guide = guided(made, ReasoningMarkers(begin=b"<t>", end=b"</t>", open=True), Constraint.choice(["yes"]))
    for token in (*b"</t", len(PIECES)):
        guide.take(token)
    assert guide.error == STRAY


def test_a_budget_alone_limits_nothing_else(grammars: Grammars) -> None:
    thought = ReasoningMarkers(begin=b"<t>", end=b"</t>", open=True, budget=2, closing=((60,), (47, 33)))
    guide = guided(grammars, thought, None)
    for token in b"ab":
        assert not guide.limits
        guide.take(token)
    assert allowed(guide) == [60]
    guide.take(60)
    assert allowed(guide) == [33, 47]
    unlimited = RequestContext(SamplingParams(thought=ReasoningMarkers(begin=b"a", end=b"b")), 0)
    assert guide_of(SlotInit(0, unlimited, [1]), grammars) is None
