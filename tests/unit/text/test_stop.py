"""Stop strings: no character of one is ever returned, however the text is split."""

from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.text.output import StopMatcher, UnskippedStopMatcher

ALPHABET = "ab. \n"
"""Includes white space, which may start a stop string, and may be the last text returned."""
texts = st.text(ALPHABET, max_size=40)
stops = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4)


def naive(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """Cut at the first prefix that ends with a stop string, removing the longest such string."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


@settings(max_examples=400, deadline=None)
@given(text=texts, stop=stops, include=st.booleans(), cuts=st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_any_chunking_equals_the_naive_definition(text: str, stop: list[str], include: bool, cuts: list[int]) -> None:
    matcher = StopMatcher(stop, include=include)
    expected, matched = naive(text, stop, include)
    given_out, position, turn = "", 0, 0
    while position < len(text):
        size = cuts[turn % len(cuts)]
        given_out += matcher.push(text[position : position + size])
        assert expected.startswith(given_out), "something leaked that cannot be taken back"
        position, turn = position + size, turn + 1
    assert given_out + matcher.finish() == expected
    assert matcher.matched == matched


@settings(max_examples=200, deadline=None)
@given(text=texts, stop=stops)
def test_nothing_is_held_that_cannot_begin_a_stop_string(text: str, stop: list[str]) -> None:
    matcher = StopMatcher(stop)
    given_out = matcher.push(text)
    if matcher.matched is None:
        held = text[len(given_out) :]
        assert not held or any(s.startswith(held) for s in stop)


def test_after_a_match_nothing_follows() -> None:
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("one\n") == "one"
    assert matcher.push("\ntwo") == ""
    assert (matcher.matched, matcher.push("three"), matcher.finish()) == ("\n\n", "", "")


def test_a_held_beginning_is_given_out_at_the_end() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN") == "the "
    assert matcher.finish() == "EN"


def test_held_white_space_is_given_out_at_the_end() -> None:
    matcher = StopMatcher(["\n\n#", "  ."])
    assert matcher.push("one\n\n") == "one"
    assert matcher.finish() == "\n\n"
    matcher = StopMatcher(["  ."])
    assert matcher.push("two  ") == "two"
    assert matcher.finish() == "  "


SPECIAL = "<e>"
pieces = st.lists(st.tuples(st.sampled_from(["a", "b", ".", "ab", "<e>", "<"]), st.booleans()), max_size=20)
mixed_stops = st.lists(
    st.lists(st.sampled_from(["a", "b", ".", SPECIAL]), min_size=1, max_size=3).map("".join), min_size=1, max_size=4
)


def naive_unskipped(parts: list[tuple[str, bool]], stop: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: search the text with special tokens for stop strings that contain one, else the text without
    them.
    """
    seen: list[tuple[str, bool]] = []
    for text, left_out in parts:
        for character in text:
            seen.append((character, left_out))
            whole = "".join(c for c, _ in seen)
            visible = "".join(c for c, out in seen if not out)
            found = [s for s in stop if SPECIAL in s and whole.endswith(s)]
            found += [s for s in stop if SPECIAL not in s and not left_out and visible.endswith(s)]
            if found:
                longest = max(found, key=len)
                if SPECIAL in longest:
                    kept = "".join(c for c, out in seen[: len(seen) - len(longest)] if not out)
                else:
                    kept = visible[: len(visible) - len(longest)]
                return kept + (longest if include else ""), longest
    return "".join(c for c, out in seen if not out), None


@settings(max_examples=500, deadline=None)
@given(parts=pieces, stop=mixed_stops, include=st.booleans())
def test_stops_with_special_tokens_see_the_text_with_all_of_them(
    parts: list[tuple[str, bool]], stop: list[str], include: bool
) -> None:
    parts = [(text, left_out and text == SPECIAL) for text, left_out in parts]
    matcher = UnskippedStopMatcher(stop, [s for s in stop if SPECIAL in s], include=include)
    expected, matched = naive_unskipped(parts, stop, include)
    given_out = ""
    for text, left_out in parts:
        given_out += matcher.push(text, left_out=left_out)
        assert expected.startswith(given_out), "something leaked that cannot be taken back"
    assert given_out + matcher.finish() == expected
    assert matcher.matched == matched
