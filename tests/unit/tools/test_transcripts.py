"""The parsed parts of an output do not depend on how it is split."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_support.reading import pieces_of, read
from tool_support.transcripts import TOOLS, TRANSCRIPTS, Transcript

from plimsoll_runtime.tools.registry import FORMATS

NAMES = [f"{transcript.form}: {transcript.says}" for transcript in TRANSCRIPTS]


def test_every_format_has_transcripts() -> None:
    assert {transcript.form for transcript in TRANSCRIPTS} == set(FORMATS)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=NAMES)
def test_whole_and_by_characters(transcript: Transcript) -> None:
    form = FORMATS[transcript.form]
    assert read(form, TOOLS, [transcript.text]) == transcript.found
    assert read(form, TOOLS, list(transcript.text)) == transcript.found


@settings(deadline=None, max_examples=150)
@given(transcript=st.sampled_from(TRANSCRIPTS), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_in_random_pieces(transcript: Transcript, cuts: list[int]) -> None:
    assert read(FORMATS[transcript.form], TOOLS, pieces_of(transcript.text, cuts)) == transcript.found


SPLICES = st.sampled_from(
    ["", "<", "{", "}", '"', "[", "]", ",", "\\", "\n", "x", "<tool_call>", '{"name": "now"}', ";", "\ud800"]
)


@settings(deadline=None, max_examples=120)
@given(data=st.data(), transcript=st.sampled_from(TRANSCRIPTS), splice=SPLICES)
def test_whatever_a_model_writes(data: st.DataObject, transcript: Transcript, splice: str) -> None:
    """Truncated, spliced and joined outputs parse without exceptions, independently of splits, and no text is lost."""
    start = data.draw(st.integers(0, len(transcript.text)))
    end = data.draw(st.integers(start, len(transcript.text)))
    other = data.draw(st.sampled_from(TRANSCRIPTS)).text
    text = transcript.text[:start] + splice + transcript.text[end:] + data.draw(st.sampled_from(["", other]))
    form = FORMATS[transcript.form]
    found = read(form, TOOLS, [text])
    assert read(form, TOOLS, list(text)) == found
    assert read(form, TOOLS, pieces_of(text, data.draw(st.lists(st.integers(0, len(text)), max_size=8)))) == found
    if not any(isinstance(part, tuple) for part in found):
        assert "".join(map(str, found)) == text


@settings(deadline=None, max_examples=100)
@given(data=st.data(), transcript=st.sampled_from(TRANSCRIPTS))
def test_an_answer_cut_anywhere(data: st.DataObject, transcript: Transcript) -> None:
    """Parts returned while an output grows are never revoked."""
    text = transcript.text[: data.draw(st.integers(0, len(transcript.text)))]
    calls = [part for part in read(FORMATS[transcript.form], TOOLS, [text]) if isinstance(part, tuple)]
    whole = [part for part in transcript.found if isinstance(part, tuple)]
    assert [name for name, _ in calls] == [name for name, _ in whole][: len(calls)]
    assert all(long.startswith(short) for (_, short), (_, long) in zip(calls, whole, strict=False))


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=NAMES)
def test_arguments_are_objects(transcript: Transcript) -> None:
    """All complete ones; truncated or broken ones have that in their name."""
    if any(word in transcript.says for word in ("cut", "broken")):
        return
    for part in transcript.found:
        if isinstance(part, tuple):
            assert isinstance(json.loads(part[1]), dict)
