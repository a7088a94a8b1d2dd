"""A mask has exactly the tokens that can continue to a word of the language, compared with enumerated languages."""

from __future__ import annotations

import json
import re
from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.protocol.messages import Vocabulary
from plimsoll_runtime.structured.matcher import MOST_KEPT, MOST_WARMTH, Grammars, Matcher
from plimsoll_runtime.structured.vocabulary import vocabulary_of
from plimsoll_runtime.text.tokenizer import Tokenizer


def pieces(vocabulary: Vocabulary) -> list[bytes]:
    lengths = array("I")
    lengths.frombytes(vocabulary.lengths)
    found, at = [], 0
    for length in lengths:
        found.append(vocabulary.spelled[at : at + length])
        at += length
    assert at == len(vocabulary.spelled)
    return found


def allowed(matcher: Matcher) -> set[int]:
    mask = matcher.inner.compute_bitmask()
    assert matcher.error is None
    return {token for token in range(8 * len(mask)) if mask[token // 8] >> (token % 8) & 1}


def by_hand(words: set[bytes], text: bytes, vocabulary: Vocabulary) -> set[int]:
    """Return the tokens after which `text` is still a prefix of a word, and the EOS tokens if it is a word."""
    beginnings = {word[:i] for word in words for i in range(len(word) + 1)}
    found = {
        token
        for token, piece in enumerate(pieces(vocabulary))
        if piece and token not in vocabulary.special_ids and text + piece in beginnings
    }
    return found | (set(vocabulary.end_ids) if text in words else set())


WORDS = st.sets(st.text(alphabet='abc{}"é🙂 :1', min_size=1, max_size=6), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS, kind=st.sampled_from(["choice", "regex", "grammar"]), data=st.data())
def test_every_mask_of_a_finite_language(
    grammars: Grammars, vocabulary: Vocabulary, words: set[str], kind: str, data: st.DataObject
) -> None:
    listed = sorted(words)
    constraint = {
        "choice": lambda: Constraint.choice(listed),
        "regex": lambda: Constraint.regex("|".join(re.escape(word).replace("\\ ", " ") for word in listed)),
        "grammar": lambda: Constraint.grammar(
            "start: " + " | ".join(json.dumps(w, ensure_ascii=False) for w in listed)
        ),
    }[kind]()
    matcher, text, spelled = grammars.matcher(constraint), b"", pieces(vocabulary)
    whole = {word.encode() for word in words}
    for _ in range(30):
        expected = by_hand(whole, text, vocabulary)
        assert allowed(matcher) == expected
        token = data.draw(st.sampled_from(sorted(expected)))
        matcher.take(token)
        assert matcher.error is None
        if token in vocabulary.end_ids:
            assert text in whole
            return
        text += spelled[token]
    raise AssertionError("words of six characters do not end")


def test_a_sequence_that_was_put_off_goes_on_where_it_was(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = Constraint.json({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    tokens = tokenizer.encode('{"a": 12')
    one_by_one, at_once = grammars.matcher(constraint), grammars.matcher(constraint)
    for token in tokens:
        one_by_one.take(token)
    at_once.take_all(tokens)
    assert allowed(one_by_one) == allowed(at_once)


def test_a_token_that_is_not_allowed_puts_it_into_error(grammars: Grammars, tokenizer: Tokenizer) -> None:
    matcher = grammars.matcher(Constraint.choice(["yes"]))
    matcher.take(tokenizer.encode("n")[0])
    assert matcher.error is not None
    assert grammars.matcher(Constraint.choice(["yes"])).error is None


def test_after_its_end_only_ends_follow(grammars: Grammars, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    matcher = grammars.matcher(Constraint.choice(["yes"]))
    matcher.take_all(tokenizer.encode("yes"))
    for _ in range(3):
        assert allowed(matcher) == set(vocabulary.end_ids)
        matcher.take(vocabulary.end_ids[0])
        assert matcher.error is None


def test_tags_leave_free_text_alone(grammars: Grammars, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"type": "boolean"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    tag = {"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f"]}
    matcher = grammars.matcher(Constraint.tags(tag))
    matcher.take_all(tokenizer.encode("some { text, a < b; "))
    assert vocabulary.end_ids[0] in allowed(matcher)
    matcher.take_all(tokenizer.encode('<f>{"x":'))
    assert matcher.error is None
    assert vocabulary.end_ids[0] not in allowed(matcher)
    matcher.take_all(tokenizer.encode(" true}</f> and more"))
    assert matcher.error is None
    assert vocabulary.end_ids[0] in allowed(matcher)


def test_several_ends_and_what_is_never_written(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocab_size + 5
    vocabulary = vocabulary_of(tokenizer, size, [0, 7, size + 3])
    assert vocabulary.end_ids == [0, 7]
    assert pieces(vocabulary)[tokenizer.vocab_size :] == [b""] * 5
    made = Grammars()
    made.use(vocabulary)
    free = allowed(made.matcher(Constraint.regex("(.|\n)*")))
    assert {0, 7} <= free
    assert not free & set(range(tokenizer.vocab_size, size))


def test_models_that_cannot_be_constrained(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConstraintError, match="no token of its vocabulary is an EOS token"):
        vocabulary_of(tokenizer, 100, [])
    monkeypatch.setattr(tokenizer, "spelling", None)
    with pytest.raises(ConstraintError, match="decodes only whole texts"):
        vocabulary_of(tokenizer, 100, [1])


def test_the_latest_grammars_are_kept(vocabulary: Vocabulary) -> None:
    made = Grammars()
    made.use(vocabulary)
    first = made.prepare(Constraint.choice(["first"]))
    first.result()
    for i in range(MOST_KEPT - 1):
        made.matcher(Constraint.choice([f"option {i}"]))
    assert made.prepare(Constraint.choice(["first"])) is first
    for i in range(MOST_KEPT):
        made.matcher(Constraint.choice([f"other {i}"]))
    assert made.prepare(Constraint.choice(["first"])) is not first


def test_an_engine_that_was_told_no_vocabulary() -> None:
    with pytest.raises(ConstraintError, match="has no vocabulary for constraints"):
        Grammars().matcher(Constraint.choice(["a"]))


TEXTS = Constraint.json({"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 60})
KNOWN = (
    TEXTS,
    Constraint.json({"type": "object"}),
    Constraint.regex("([a-f]{1,3}-)*[0-9]{2,5}"),
    Constraint.choice(["yes", "yes and no", "no"]),
)


def kept_by(vocabulary: Vocabulary) -> Grammars:
    made = Grammars()
    made.use(vocabulary)
    return made


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(constraint=st.sampled_from(KNOWN), lengths=st.lists(st.integers(0, 60), min_size=1, max_size=4), data=st.data())
def test_masks_do_not_depend_on_what_earlier_sequences_have_left(
    vocabulary: Vocabulary, constraint: Constraint, lengths: list[int], data: st.DataObject
) -> None:
    used, rng = kept_by(vocabulary), data.draw(st.randoms(use_true_random=False))
    for length in lengths:
        warm, cold = used.matcher(constraint), kept_by(vocabulary).matcher(constraint)
        for _ in range(length):
            options = allowed(warm)
            assert options == allowed(cold)
            token = rng.choice(sorted(options))
            for matcher in (warm, cold):
                matcher.take(token)
                assert matcher.error is None
        warm.leave()


def test_what_a_sequence_found_out_is_there_for_the_next_up_to_a_bound(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    grammars = kept_by(vocabulary)
    template = grammars.prepare(TEXTS).result()
    assert template.warmth == 0
    short, long = grammars.matcher(TEXTS), grammars.matcher(TEXTS)
    short.take_all(tokenizer.encode('["abc'))
    short.leave()
    left = template.warmth
    assert left == len(tokenizer.encode('["abc')) > 0
    for token in tokenizer.encode('["' + '", "'.join(["abcdef"] * 40)):
        long.take(token)
    assert long.error is None
    assert template.warmth == MOST_WARMTH
    grammars.matcher(TEXTS).leave()
    long.leave()
    assert template.warmth == MOST_WARMTH


def test_a_sequence_in_error_leaves_nothing(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    grammars = kept_by(vocabulary)
    matcher = grammars.matcher(Constraint.choice(["yes"]))
    matcher.take(tokenizer.encode("n")[0])
    matcher.leave()
    assert grammars.prepare(Constraint.choice(["yes"])).result().warmth == 0
    assert allowed(grammars.matcher(Constraint.choice(["yes"]))) == set(tokenizer.encode("y"))
