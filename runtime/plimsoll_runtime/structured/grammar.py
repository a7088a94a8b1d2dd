"""Converts constraints into llguidance's notation, rejects those that it cannot enforce, and rewords its errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.regex_rust import with_patterns
from plimsoll_runtime.structured.schemas.context import Caution
from plimsoll_runtime.structured.schemas.normalise import Normalised, normalise
from plimsoll_runtime.structured.schemas.problems import REASONS, Place, Unenforced, refuse

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

TOO_MUCH = "takes too much work to compile: it is nested too deeply, or has too many rules, references or repetitions"
NOTHING = "no value satisfies it"
_OF_SCHEMA = re.compile(r"at \d+\(\d+\): failed to compile JSON schema: (.*)", re.DOTALL)
_WORDS = (
    ("nsatisfiable", NOTHING),
    ("Regex is empty", NOTHING),
    ("not disjoint", REASONS["patternProperties"]),
    ("circular references", "it refers to a schema that it is a part of: remove the keywords next to the reference"),
    ("min/maxProperties", REASONS["minProperties"]),
    ("range", REASONS["minimum"]),
    ("egex", "it has a pattern that cannot be enforced: remove the pattern"),
)
_MOST_TRIES = 48


def in_our_words(message: str) -> str | None:
    """Return our wording of an llguidance error about a schema, or None for other errors."""
    found = _OF_SCHEMA.match(message)
    if found is None:
        return None
    return next((words for sign, words in _WORDS if sign in found[1]), TOO_MUCH)


def failing(schema: Normalised, compiles: Callable[[dict[str, Any]], bool]) -> Place | None:
    """Return the place of the smallest part of a schema that does not compile alone, tested with at most `_MOST_TRIES`
    compilations. None: no part fails alone, or the part is not in the original schema.
    """
    definitions: dict[str, Any] = schema.schema.get("$defs", {})
    place, tries, seen = None, 0, set[str]()
    waiting = _parts(schema.schema)
    while (part := next(waiting, None)) is not None and tries < _MOST_TRIES:
        name = part.get("$ref", "")[len("#/$defs/") :]
        if name in seen:
            continue
        tries += 1
        if compiles({**part, "$defs": definitions}):
            continue
        seen |= {name} if name else set()
        inner = definitions.get(name, part)
        place = schema.places.get(id(inner), place)
        waiting = _parts(inner) if isinstance(inner, Mapping) else iter(())
    return place


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the direct subschemas of a schema."""
    for keyword, value in schema.items():
        if keyword == "$ref":
            yield {"$ref": value}
        elif keyword in ("properties", "patternProperties"):
            yield from (each for each in value.values() if isinstance(each, Mapping))
        elif keyword in ("allOf", "anyOf", "prefixItems"):
            yield from (each for each in value if isinstance(each, Mapping))
        elif keyword in ("items", "additionalProperties") and isinstance(value, Mapping):
            yield value


_HEAD = '%llguidance {"no_forcing": true}\n'
_JSON_OPTIONS = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"[ ]?|\n[ \t]{0,40}",
    "coerce_one_of": False,
    "lenient": False,
}
"""Between the parts of a document, allow one space, or a line break with indentation. The bounds ensure that every text
ends.
"""
_OBJECT = "x-guidance"
_MOST_OPTIONS = 2000
_TOKENS = re.compile(r"<\[([^\]>]*)\]>")

_LIMITS: dict[str, Any] = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 25_000,
    "max_lexer_states": 10_000,
    "max_grammar_size": 200_000,
}
"""Limits of work and memory in llguidance's units: some tenths of a second, and some tens of megabytes."""


def documents_of(schema: Mapping[str, Any]) -> str:
    """Return a grammar expression (`%json ...`) for the JSON documents that a normalised schema allows. Raises
    ConstraintError.
    """
    found = _readable(schema)
    text = json.dumps(found)
    if "\\ud" in text:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ConstraintError("the schema has an unpaired surrogate, which no text can contain") from error
    return "%json " + text


def enforceable(constraint: Constraint) -> dict[str, Any]:
    """Return the enforceable part of a "json" constraint's schema. Raises ConstraintError if the schema is malformed,
    or if the constraint is strict and some part cannot be enforced.
    """
    [found] = _schemas(constraint)
    if constraint.strict:
        refuse(found.unenforced)
    return found.schema


def unenforced(constraint: Constraint) -> Sequence[Unenforced]:
    """Return the keywords of a constraint's schemas that outputs may violate. Raises ConstraintError for a malformed
    constraint.
    """
    return [each for found in _schemas(constraint) for each in found.unenforced]


def cautious(constraint: Constraint) -> Iterator[tuple[Constraint, Sequence[Unenforced]]]:
    """Yield weaker versions of a "json" constraint, to be tried in turn if the library rejects it, each with the
    keywords that it does not enforce; none for a strict constraint. Raises ConstraintError for a malformed schema, or
    one that has become too long.
    """
    if constraint.kind != "json" or constraint.strict:
        return
    schema = _parsed(constraint.source)
    known = normalise(schema)
    for caution in (Caution.COUNTS, Caution.REFERENCES):
        found = normalise(schema, caution=caution)
        if found.schema != known.schema:
            yield Constraint.json(found.schema), found.unenforced
        known = found


def _schemas(constraint: Constraint) -> Sequence[Normalised]:
    """Return the constraint's schemas in enforceable form. Raises ConstraintError."""
    if constraint.kind == "json":
        schema = _parsed(constraint.source)
        if isinstance(schema, dict) and _OBJECT in schema:
            raise ConstraintError(f"the schema's keyword {_OBJECT!r} is not supported; remove it")
        return [normalise(schema)]
    if constraint.kind == "tags":
        given = enumerate(_tags_of(constraint.source).structures)
        return [normalise(each.schema, Place().at("structures", index, "schema")) for index, each in given]
    return ()


def _readable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with options and patterns as llguidance expects them."""
    try:
        return {**with_patterns(schema), _OBJECT: _JSON_OPTIONS}
    except RecursionError as error:
        raise ConstraintError("is nested too deeply") from error


def limits() -> LLParserLimits:
    """Return the limits of work for compiling and matching."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False, **_LIMITS)


def to_llguidance(constraint: Constraint) -> str:
    """Return a constraint in llguidance's notation. Raises ConstraintError if it is malformed.

    The notation is Lark's with `%json` for schemas (llguidance, docs/syntax.md). Forcing is off: a mask has every token
    that the language allows next, even if the tokenizer would split the text differently.
    """
    if constraint.kind not in ("json", "tags"):
        return _HEAD + _WRITERS[constraint.kind](constraint.source)
    if constraint.kind == "json":
        return _HEAD + "start: " + documents_of(enforceable(constraint))
    schemas = _schemas(constraint)
    if constraint.strict:
        refuse([each for found in schemas for each in found.unenforced])
    return _HEAD + _tags(constraint.source, schemas)


def check(constraint: Constraint, tokenizer: LLTokenizer | None = None) -> None:
    """Raise ConstraintError for a constraint that is malformed, too large, or cannot be enforced. Without a tokenizer,
    also for a grammar that names tokens.
    """
    from llguidance import LLMatcher

    def messages_of(grammar: str) -> tuple[bool, list[str]]:
        return LLMatcher.validate_grammar_with_warnings(grammar, tokenizer, limits=limits())

    wrong, messages = messages_of(to_llguidance(constraint))
    if not messages:
        return
    words = readable_error(messages[0]) if wrong else f"cannot be enforced: {readable_error(messages[0])}"
    if constraint.kind == "json":
        [schema] = _schemas(constraint)
        place = failing(schema, lambda part: not messages_of(_HEAD + "start: " + documents_of(part))[1])
        words = words if place is None else f"at '{place.shown}': {words}"
    raise ConstraintError(words)


def check_tokens(constraint: Constraint, vocab_size: int) -> None:
    """Raise ConstraintError for a grammar that names a token (`<[7]>`, `<[7-9,12]>`) outside the vocabulary."""
    if constraint.kind not in ("grammar", "lark"):
        return
    for named in _TOKENS.findall(constraint.source):
        largest = max(map(int, re.findall(r"\d+", named)), default=0)
        if largest >= vocab_size:
            raise ConstraintError(f"names the token {largest}, but the vocabulary has {vocab_size} tokens")


def readable_error(message: str) -> str:
    """Return an llguidance error without its excerpts of the generated grammar. Errors about a schema get our own
    wording.
    """
    if "NoExtension" in message:
        return "no text satisfies it"
    words = in_our_words(message)
    if words is not None:
        return words
    return " ".join(message.split("\n   1 |")[0].replace("<non-verbose/>", "").split())


def _regex(source: str) -> str:
    from llguidance import LLMatcher

    lark: str = json.loads(LLMatcher.grammar_from_regex(source))["grammars"][0]["lark_grammar"]
    return lark


def _choice(source: str) -> str:
    return "start: " + _any_of(source, "a choice")


def _without(source: str) -> str:
    return f"start: TEXT\nTEXT: /(?s:.*)/ & ~(/(?s:.*)/ ({_any_of(source, 'the list of forbidden texts')}) /(?s:.*)/)"


def _any_of(source: str, what: str) -> str:
    options = _parsed(source)
    if not isinstance(options, list) or not options or not all(isinstance(o, str) and o for o in options):
        raise ConstraintError(f"{what} must be a list of one or more texts, none of them empty")
    if len(options) > _MOST_OPTIONS:
        raise ConstraintError(f"{what} has {len(options)} texts; at most {_MOST_OPTIONS} are allowed")
    return " | ".join(json.dumps(option, ensure_ascii=False) for option in options)


def _grammar(source: str) -> str:
    if "%llguidance" in source:
        raise ConstraintError("the directive %llguidance is not supported; remove it")
    if "::=" not in source:
        return source
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        lark: str = gbnf_to_lark(source)
    except Exception as error:  # it raises errors of many types
        raise ConstraintError(f"the EBNF grammar cannot be read: {error}") from error
    return lark


class _Structure(msgspec.Struct):
    begin: str
    schema: dict[str, Any]
    end: str


class _Tags(msgspec.Struct):
    structures: list[_Structure]
    triggers: list[str]


def _tags_of(source: str) -> _Tags:
    try:
        given = msgspec.json.decode(source, type=_Tags)
    except msgspec.DecodeError as error:
        raise ConstraintError(f"a structural tag needs structures and triggers: {error}") from error
    if not given.structures:
        raise ConstraintError("a structural tag needs at least one structure")
    return given


def _tags(source: str, schemas: Sequence[Normalised]) -> str:
    from llguidance import StructTag

    given = _tags_of(source)
    tags = [
        StructTag(
            trigger=_trigger(structure.begin, given.triggers),
            begin=structure.begin,
            grammar=_readable(found.schema),
            end=structure.end,
        )
        for structure, found in zip(given.structures, schemas, strict=True)
    ]
    lark: str = StructTag.to_grammar(tags, assume_special=False)
    return lark


def _trigger(begin: str, triggers: list[str]) -> str:
    found = next((trigger for trigger in triggers if trigger and begin.startswith(trigger)), None)
    if found is None:
        raise ConstraintError(f"no trigger is a prefix of the structure's begin {begin[:40]!r}; add one to 'triggers'")
    return found


def _parsed(source: str) -> object:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"is not valid JSON: {error}") from error


_WRITERS: Mapping[str, Callable[[str], str]] = {
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "lark": str,
    "without": _without,
}
