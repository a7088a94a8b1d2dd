"""Damaged tokenizer files (the same in each run): each one loads, or is rejected with an error that names the file."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text import tokenizer_files
from plimsoll_runtime.text.chat_template import ChatTemplateError
from plimsoll_runtime.text.special_tokens import end_ids
from plimsoll_runtime.text.tokenizer import TextError, Tokenizer, load_tokenizer
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.gguf.metadata import GgufMetadata

SEED = 20261122
COUNT = 250
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{% endfor %}{{ bos_token }}"
SETTINGS: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "special": True},
    "add_bos_token": True,
    "additional_special_tokens": ["<|im_start|>", {"content": "<|im_end|>"}],
    "added_tokens_decoder": {
        "0": {"content": "<s>", "special": True, "lstrip": False},
        "900": {"content": "<extra>", "special": False, "normalized": True},
    },
    "chat_template": [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "{{ tools }}"}],
}
MAP: dict[str, Any] = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "additional_special_tokens": ["<s>"]}
STRANGE: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**31,
    2**63,
    10**30,
    "",
    "x",
    "\x00",
    "\ud800",
    "<s>",
    "☃" * 300,
    [],
    [None],
    ["a", 1],
    [[["a"]]],
    {},
    {"": ""},
    {"content": None},
    {"type": "Sequence"},
    {"type": "NoSuchType"},
    {"a": {"b": [1]}},
]
NAMES = ["x", "", "-1", "1e3", "added_tokens_decoder", "9" * 40]
TEMPLATES = [
    "{{",
    "{% for %}",
    "{{ messages[0].content.no.such }}",
    "{{ 1 / 0 }}",
    "{{ messages() }}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{{ ''.__class__.__mro__ }}",
    "{{ raise_exception() }}",
    "{{ strftime_now(5) }}",
    "{{ namespace(_a=1) }}",
    "{{ messages | map(attribute=5) | list | tojson(indent='x') }}",
    "{{ messages | no_such_filter }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ '%d' % 'x' }}",
    "{{ 'a'.encode('no-such') }}",
    "{{ dict(1) }}",
    "{% set messages = 5 %}{% for m in messages %}{% endfor %}",
    "{{ range(10**9) }}",
    "{% generation %}",
    "{" * 3000,
    "{% if x %}" * 200 + "{% endif %}" * 200,
    "{{ " + "(" * 5000 + ")" * 5000 + " }}",
]


def damaged(content: Any, rng: random.Random, strange: list[Any]) -> Any:
    """Change one to three places at any depth: another value, one less, one more."""
    content = copy.deepcopy(content)
    for _ in range(rng.randint(1, 3)):
        place = content
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
                place = place[key]
                continue
            turn = rng.randrange(4)
            if turn == 0:
                del place[key]
            elif turn == 1 and isinstance(place, dict):
                place[rng.choice(NAMES)] = copy.deepcopy(rng.choice(strange))
            else:
                place[key] = copy.deepcopy(rng.choice(strange))
            break
    return content


def cut(data: bytes, rng: random.Random) -> bytes:
    """Flip bytes, or cut off the end."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed if rng.random() < 0.7 else changed[: rng.randrange(len(changed))])


def mutants(content: Any) -> Iterator[bytes]:
    rng = random.Random(SEED)
    for index in range(COUNT):
        if index % 5 == 0:
            yield cut(json.dumps(content).encode(), rng)
        else:
            yield json.dumps(damaged(content, rng, STRANGE)).encode()
    yield from (b"", b"null", b"[]", b"5", b"\xff\xfe", b"{}", b'{"a":' * 100_000, b"[" * 100_000)


def refusal(work: Callable[[], object], *kinds: type[Exception]) -> str | None:
    """Return the message of the expected error, or None. Other exceptions propagate."""
    try:
        work()
    except kinds as error:
        return str(error)
    return None


def use(files: ModelFiles) -> bool:
    """Load the tokenizer and use it. Return whether it loaded; only errors with a good message are accepted."""
    told = refusal(lambda: (end_ids(files), load_tokenizer(files)), ModelError)
    if told is not None:
        assert len(told) < 2000
        assert str(files.root) in told or ".gguf" in told, told
        return False
    tokenizer = load_tokenizer(files)
    assert tokenizer.longest_piece > 0
    for text in ("Hi there, é😀", "", "<s>"):
        told = refusal(partial(round_trip, tokenizer, text), TextError)
        assert told is None or len(told) < 500
    assert tokenizer.eos_token_id is None or tokenizer.eos_token_id >= 0
    if (template := tokenizer.chat_template) is not None:
        told = refusal(lambda: template.render([{"role": "user", "content": "Hi"}]), ChatTemplateError)
        assert told is None or len(told) < 5000
    return True


def round_trip(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode(text))


@pytest.fixture
def folder(byte_level_backend: tokenizers.Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "m").mkdir()
    byte_level_backend.save(str(tmp_path / "m" / "tokenizer.json"))
    return tmp_path / "m"


def files_of(folder: Path) -> ModelFiles:
    return ModelFiles(name="m", root=folder, format="safetensors", config={}, weights=())


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tokenizer.json", "byte_level_backend"),
        ("tokenizer.json", "sentencepiece_backend"),
        ("tokenizer.json", "word_piece_backend"),
        ("tokenizer_config.json", "byte_level_backend"),
        ("special_tokens_map.json", "byte_level_backend"),
        ("chat_template.json", "byte_level_backend"),
    ],
)
def test_damaged_json(name: str, kind: str, folder: Path, request: pytest.FixtureRequest) -> None:
    backend = request.getfixturevalue(kind)
    backend.save(str(folder / "tokenizer.json"))
    contents = {
        "tokenizer.json": json.loads(backend.to_str()),
        "tokenizer_config.json": SETTINGS,
        "special_tokens_map.json": MAP,
        "chat_template.json": {"chat_template": TEMPLATE},
    }
    served = 0
    for data in mutants(contents[name]):
        (folder / name).write_bytes(data)
        served += use(files_of(folder))
    assert 10 < served < COUNT, "some are harmless, and some are not"


@pytest.mark.parametrize("merges", [["a ▁b"], [["a", "▁b"]]])
def test_a_prefix_that_would_cut_a_character(merges: list[Any], folder: Path) -> None:
    """The library would abort the process."""
    vocabulary = {"a": 0, "▁b": 1, "a▁b": 2}
    model = {"type": "BPE", "continuing_subword_prefix": "x", "vocab": vocabulary, "merges": merges}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read: the second piece of the merge .* with 'x'"):
        load_tokenizer(files_of(folder))


def test_a_tokenizer_that_panics_is_refused_where_it_is_loaded(
    sentencepiece_backend: tokenizers.Tokenizer, folder: Path
) -> None:
    content = json.loads(sentencepiece_backend.to_str())
    content["post_processor"]["single"].append({"SpecialToken": {"id": "<none>", "type_id": 0}})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"tokenizer in .*/m cannot be used: .*(fetch|mend)"):
        load_tokenizer(files_of(folder))


def test_a_panic_in_one_text_is_no_end_of_the_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rust panics are not caught by `except Exception`. Neither is Ctrl-C, which must propagate."""
    tokenizer = load_tokenizer(files_of(folder))
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    for raised, expected in ((panic, TextError), (KeyboardInterrupt, KeyboardInterrupt), (RuntimeError, TextError)):
        monkeypatch.setattr(tokenizer, "_backend", Broken(raised))
        with pytest.raises(expected):
            tokenizer.encode("a")


class Broken:
    def __init__(self, raised: type[BaseException]) -> None:
        self._raised = raised

    def encode_batch_fast(self, *_: object, **__: object) -> None:
        raise self._raised("no entry found for key")


def test_a_prefix_that_pieces_have_is_served(folder: Path) -> None:
    model = {
        "type": "BPE",
        "continuing_subword_prefix": "##",
        "vocab": {"a": 0, "##b": 1, "ab": 2},
        "merges": ["a ##b"],
    }
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    assert load_tokenizer(files_of(folder)).encode("ab") == [2]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_damaged_templates(template: str, place: str, folder: Path) -> None:
    jinja = place.endswith(".jinja")
    (folder / place).write_text(template if jinja else json.dumps({"chat_template": template}))
    assert use(files_of(folder)), "a template matters to chats only"


def test_a_template_that_is_no_text_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe{{")
    with pytest.raises(ModelError, match=r"chat_template\.jinja is not UTF-8"):
        load_tokenizer(files_of(folder))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"added_tokens_decoder": {"x": {"content": "a"}}}, r"added_tokens_decoder: .*`int`"),
        ({"added_tokens_decoder": {"-1": {"content": "a"}}}, r"added_tokens_decoder: .*>= 0"),
        ({"added_tokens_decoder": {"1": {"content": 5}}}, r"added_tokens_decoder: .*`str`, got `int`"),
        ({"added_tokens_decoder": {"1": {}}}, r"added_tokens_decoder: .*`content`"),
        ({"added_tokens_decoder": [1]}, r"added_tokens_decoder: .*got `array`"),
        ({"additional_special_tokens": 5}, "additional_special_tokens: "),
        ({"eos_token": 7}, "eos_token: .*got `int`"),
        ({"chat_template": 5}, "chat_template: "),
        ({"chat_template": [{"name": "default"}]}, "chat_template: .*`template`"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(settings: dict[str, Any], told: str, folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=rf"tokenizer_config\.json: {told}.*(fetch|mend)"):
        load_tokenizer(files_of(folder))


VALUES: dict[str, dict[str, Any]] = {
    "llama": {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{v:02X}>" for v in range(256)), "▁", "H", "i", "Hi"],
        "tokenizer.ggml.scores": [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1, 1, 4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.chat_template": TEMPLATE,
    },
    "gpt2": {
        "general.architecture": "qwen2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*map(chr, range(0x21, 0x7F)), *map(chr, range(0x100, 0x144)), "Hi", "<end>"],
        "tokenizer.ggml.token_type": [*[1] * 162, 1, 3],
        "tokenizer.ggml.merges": ["H i"],
        "tokenizer.ggml.eos_token_id": 163,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    },
}
GGUF_STRANGE: list[Any] = [True, 0, -1, 1.5, 2**31, 2**63, "", "x", "a b c"]
GGUF_STRANGE += [[], [1, 2], [1.5], ["a", "b"], ["", ""], [" "]]


def gguf_mutants(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield values that a GGUF file can have: lists of one scalar type, or of texts."""
    rng = random.Random(SEED)
    for key in values:
        yield {k: v for k, v in values.items() if k != key}
        for strange in GGUF_STRANGE:
            yield values | {key: strange}
        if isinstance(values[key], list):
            yield values | {key: values[key][:-1]}
            yield values | {key: [*values[key], values[key][0]]}
    for _ in range(COUNT):
        yield damaged(values, rng, GGUF_STRANGE)


@pytest.fixture
def gguf_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], ModelFiles]:
    """Return a function that writes files with these metadata."""
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "m.gguf"
    made = iter(range(10**6))

    def build(values: dict[str, Any]) -> ModelFiles:
        metadata = GgufMetadata(values, str(next(made)), {})
        monkeypatch.setattr(tokenizer_files, "read_metadata", lambda _: metadata)
        return ModelFiles(name="m", root=tmp_path, format="gguf", config={}, weights=(path,))

    return build


@pytest.mark.parametrize("kind", VALUES)
def test_damaged_gguf_vocabularies(kind: str, gguf_files: Callable[[dict[str, Any]], ModelFiles]) -> None:
    assert use(gguf_files(VALUES[kind]))
    served = total = 0
    for values in gguf_mutants(VALUES[kind]):
        total += 1
        served += use(gguf_files(values))
    assert 10 < served < total - 10


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        ("llama", {"tokenizer.ggml.tokens": [1, 2, 3]}, "`str`, got `int` - at .*tokenizer.ggml.tokens"),
        ("llama", {"tokenizer.ggml.scores": [0.0, 1.0]}, "2 scores for 263 tokens"),
        ("gpt2", {"tokenizer.ggml.token_type": [1]}, "1 token types for 164 tokens"),
        ("gpt2", {"tokenizer.ggml.merges": ["Hi"]}, "the merge 'Hi' does not have two parts"),
        ("llama", {"tokenizer.ggml.eos_token_id": -3}, ">= 0 - at .*tokenizer.ggml.eos_token_id"),
        ("llama", {"tokenizer.chat_template": 5}, "got `int` - at .*tokenizer.chat_template"),
    ],
)
def test_what_is_wrong_with_a_gguf_file_is_named(
    kind: str, change: dict[str, Any], told: str, gguf_files: Callable[[dict[str, Any]], ModelFiles]
) -> None:
    with pytest.raises(ModelError, match=rf"m\.gguf: .*{told}.*convert it again"):
        load_tokenizer(gguf_files(VALUES[kind] | change))


@pytest.mark.parametrize(
    ("name", "size"), [("tokenizer.json", 2**29), ("tokenizer_config.json", 2**26), ("chat_template.jinja", 2**26)]
)
def test_a_file_that_no_memory_has_room_for_is_not_read(tmp_path: Path, name: str, size: int) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    with (tmp_path / name).open("wb") as file:
        file.truncate(size + 1)
    with pytest.raises(ModelError, match=rf"{name} has {size + 1:,} bytes, more than the limit of {size:,}"):
        load_tokenizer(ModelFiles("m", tmp_path, "safetensors", {}, ()))
