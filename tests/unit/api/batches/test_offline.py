"""`plimsoll batch` without a model: every format, and crashes at any point."""

from __future__ import annotations

import bz2
import csv
import gc
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as arrow
import pyarrow.parquet
import pytest
import zstandard
from batch_support.mirror import Loader, Silent

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.api.batches.lines import CHAT
from plimsoll_runtime.api.batches.offline import BatchConfig, Outcome, rows_of, run_batch
from plimsoll_runtime.api.schemas.parts import LEFT_OUT
from plimsoll_runtime.batch.job import Shard
from plimsoll_runtime.batch.output_paths import OutputPaths
from plimsoll_runtime.batch.reader import PromptRule
from plimsoll_runtime.batch.store import Store
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.options import ImageParts, ServingOptions

SUPPORT = Path(__file__).parents[3] / "support"
PLAIN = [{"prompt": f"text {number}"} for number in range(10)]
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
UNPACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".zst": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


@pytest.fixture(scope="session")
def loader(tokenizer_folder: Path) -> Loader:
    return Loader(tokenizer_folder)


@pytest.fixture
def batch(tmp_path: Path, loader: Loader) -> Any:
    """Run a batch in a folder of its own."""

    def run(given: str, output: str, **options: Any) -> Outcome:
        engine = EngineConfig(model="m", max_sequences=8)
        config = BatchConfig(engine, ("m", "alias"), str(tmp_path / given), tmp_path / output, **options)
        return run_batch(config, Silent(), load=loader)

    return run


def jsonl(lines: Sequence[Any]) -> bytes:
    return b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def texts(lines: Sequence[dict[str, Any]]) -> list[str]:
    return [line["response"]["body"]["choices"][0]["text"][:-1] for line in lines]


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def test_what_the_load_left_is_looked_through_before_time_counts(
    batch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[int] = []
    started = Store.start

    def start(store: Store) -> None:
        frozen.append(gc.get_freeze_count())
        started(store)

    monkeypatch.setattr(Store, "start", start)
    (tmp_path / "in.jsonl").write_bytes(jsonl(PLAIN))
    before = gc.get_freeze_count()
    batch("in.jsonl", "out.jsonl")
    assert len(frozen) == 1
    assert frozen[0] > before


def test_lines_of_every_form(batch: Any, tmp_path: Path) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "alias", "prompt": "ab"}},
        {"custom_id": "b", "url": CHAT, "body": {"messages": hello}},
        {"body": {"prompt": [97, 98]}, "url": "/v1/completions"},
        {"prompt": "cd", "custom_id": "d", "mood": "good"},
        {"messages": hello, "max_tokens": 2},
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl(lines) + b"\n  \n")
    outcome = batch("in.jsonl", "out.jsonl")
    assert (outcome.summary.tally.rows, outcome.summary.tally.failed) == (5, 0)
    answers = read(tmp_path / "out.jsonl")
    assert [answer["custom_id"] for answer in answers] == ["a", "b", "row-2", "d", "row-4"]
    assert texts([answers[0], answers[2], answers[3]]) == ["ba", "ba", "dc"]
    assert answers[1]["response"]["body"]["choices"][0]["message"]["content"].startswith("iH")
    assert answers[4]["response"]["body"]["choices"][0]["message"]["content"] == "iH"
    assert answers[3]["response"]["ignored"] == "mood"
    assert not OutputPaths(tmp_path / "out.jsonl").work.exists()
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_a_bad_line_costs_only_itself(batch: Any, tmp_path: Path) -> None:
    bad: list[Any] = [
        b"{\n",
        b"\xff\n",
        b"[1]\n",
        {"custom_id": "x"},
        {"custom_id": 3, "prompt": "a"},
        {"prompt": "a", "temperature": -1},
        {"prompt": "a", "model": "other"},
        {"prompt": "a", "stream": True},
        {"url": "/v1/images", "body": {}},
        {"url": CHAT, "body": 3},
        {"url": CHAT, "method": "GET", "body": {}},
        b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}\n",
        {"prompt": [1000]},
    ]
    (tmp_path / "in.jsonl").write_bytes(jsonl([*bad, {"prompt": "ab"}]))
    outcome = batch("in.jsonl", "out.jsonl")
    assert (outcome.summary.tally.rows, outcome.summary.tally.failed) == (len(bad) + 1, len(bad))
    assert texts(read(tmp_path / "out.jsonl")) == ["ba"]
    errors = read(tmp_path / "out.errors.jsonl")
    assert [error["source"] for error in errors] == [
        {"file": str(tmp_path / "in.jsonl"), "line": number} for number in range(1, len(bad) + 1)
    ]
    for error in errors:
        assert error["response"]["status_code"] in (400, 404)
        assert error["response"]["body"]["error"]["message"]
    assert errors[3]["custom_id"] == "x"


@pytest.mark.matrix(2)
@pytest.mark.parametrize("suffix", PACKED)
def test_compressed_files_go_in_and_come_out(batch: Any, tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"in.jsonl{suffix}").write_bytes(PACKED[suffix](jsonl(PLAIN)))
    batch(f"in.jsonl{suffix}", f"out.jsonl{suffix}")
    lines = UNPACKED[suffix]((tmp_path / f"out.jsonl{suffix}").read_bytes()).splitlines()
    assert texts([json.loads(line) for line in lines]) == [line["prompt"][::-1] for line in PLAIN]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_damaged_file_is_told_and_what_was_read_is_kept(batch: Any, tmp_path: Path, suffix: str) -> None:
    whole = PACKED[suffix](os.urandom(30_000).hex().encode())
    (tmp_path / f"in.jsonl{suffix}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="is damaged or incomplete"):
        batch(f"in.jsonl{suffix}", "out.jsonl")


def test_tables_with_a_template(batch: Any, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('id,text,note\nr1,"a\nb",x\nr2,c,\nr3,too,many,fields\nr4,d,y\n')
    rows = {"id": ["p1"], "text": ["pq"], "note": [{"deep": 1}]}
    pyarrow.parquet.write_table(arrow.table(rows), tmp_path / "in2.parquet")
    prompting = PromptRule(template="{{ text }}|{{ id }}", field="messages", id_column="id")
    outcome = batch("in*", "out.csv", prompting=prompting, defaults={"n": raw(2)}, endpoint=CHAT)
    assert (outcome.summary.tally.rows, outcome.summary.tally.failed) == (5, 1)
    with (tmp_path / "out.csv").open(newline="") as file:
        answers = list(csv.DictReader(file))
    assert [(each["custom_id"], each["choice"]) for each in answers] == [
        (name, str(choice)) for name in ("r1", "r2", "r4", "p1") for choice in range(2)
    ]
    assert answers[0]["text"].startswith("1r|b\na")
    assert read(tmp_path / "out.errors.jsonl")[0]["source"]["line"] == 3


def test_vectors_are_rows_of_tables() -> None:
    vectors = [{"index": 0, "embedding": [0.5]}, {"index": 1, "embedding": [1.5]}]
    body = {"data": vectors, "usage": {"prompt_tokens": 3}}
    rows = rows_of(json.dumps({"custom_id": "a", "response": {"body": body}}).encode())
    assert [json.loads(row["text"]) for row in rows] == vectors
    assert [(row["choice"], row["prompt_tokens"], row["completion_tokens"]) for row in rows] == [(0, 3, 0), (1, 3, 0)]


def test_parquet_comes_out(batch: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(jsonl([{"text": "ab", "more": 1}, {"text": 3}, {"none": 1}]))
    outcome = batch("in.jsonl", "out.parquet", prompting=PromptRule(column="text"))
    assert outcome.summary.tally.failed == 2
    rows = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [(row["custom_id"], row["text"][:-1], row["completion_tokens"]) for row in rows] == [("row-0", "ba", 3)]


@pytest.mark.parametrize(
    ("files", "options", "told"),
    [
        ({}, {}, "matches no input file"),
        ({"in.txt": b""}, {}, "has no known suffix"),
        ({"in.csv": b"a\n1\n"}, {}, "give its prompts with --prompt-column"),
        ({"in.csv": b""}, {"prompting": PromptRule(column="a")}, "needs a first line"),
        ({"in.csv": b"a,a\n1,2\n"}, {"prompting": PromptRule(column="a")}, "each column a different name"),
        ({"in.jsonl": b""}, {"prompting": PromptRule("a", "{{ a }}")}, "exactly one of"),
        ({"in.jsonl": b""}, {"prompting": PromptRule(template="{{ a")}, "is not a valid Jinja template"),
        ({"in.parquet": b"PAR1"}, {"prompting": PromptRule(column="a")}, "cannot be read as Parquet"),
    ],
)
@pytest.mark.matrix(2)
def test_what_cannot_be_read_is_told(
    batch: Any, tmp_path: Path, files: dict[str, bytes], options: dict[str, Any], told: str
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=told):
        batch("in*", "out.jsonl", **options)


@pytest.mark.parametrize(("output", "library"), [("out.jsonl.zst", "zstandard"), ("out.parquet", "pyarrow.parquet")])
def test_a_library_that_is_missing_is_told_before_the_model_is_loaded(
    batch: Any, loader: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, library: str
) -> None:
    (tmp_path / "in.jsonl").write_bytes(jsonl(PLAIN))
    monkeypatch.setitem(sys.modules, library, None)
    count = len(loader.mirrors)
    with pytest.raises(UsageError, match=r"pip install 'plimsoll-serving\[batch\]'"):
        batch("in.jsonl", output)
    assert len(loader.mirrors) == count


@pytest.mark.long
def test_a_template_sees_plain_values_in_a_sandbox(batch: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(jsonl([{"a": "x"}]))
    for template in ("{{ a.__class__ }}", "{{ missing }}", "{% for i in range(10**9) %}x{% endfor %}"):
        outcome = batch("in.jsonl", "out.jsonl", prompting=PromptRule(template=template), restart=True)
        assert outcome.summary.tally.failed == 1, template
        message = read(tmp_path / "out.errors.jsonl")[0]["response"]["body"]["error"]["message"]
        assert "--template" in message


@pytest.mark.long
def test_shards_make_the_whole(batch: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(jsonl(PLAIN))
    batch("in.jsonl", "all.jsonl")
    names = [f"out-{index}.jsonl" for index in range(3)]
    for index, name in enumerate(names):
        batch("in.jsonl", name, shard=Shard(index, 3))
    by_id = {line["custom_id"]: texts([line]) for name in names for line in read(tmp_path / name)}
    assert by_id == {line["custom_id"]: texts([line]) for line in read(tmp_path / "all.jsonl")}


@pytest.mark.long
def test_each_row_has_a_seed_of_its_own(batch: Any, loader: Loader, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(jsonl([{"prompt": "a"}, {"prompt": "a"}, {"prompt": "a", "seed": 5}]))
    asked = []
    for name, seed in (("one.jsonl", 0), ("two.jsonl", 0), ("three.jsonl", 1)):
        batch("in.jsonl", name, seed=seed)
        asked.append(sorted(request.context.params.seed or 0 for request in loader.mirrors[-1].asked))
    assert asked[0] == asked[1] != asked[2]
    assert len(set(asked[0])) == 3
    assert 5 in asked[0]
    assert 5 in asked[2]


def test_unordered_has_the_same_lines(batch: Any, tmp_path: Path) -> None:
    lines = [{"prompt": "x" * (number * 37 % 200 + 1)} for number in range(200)]
    (tmp_path / "in.jsonl").write_bytes(jsonl(lines))
    batch("in.jsonl", "ordered.jsonl", defaults={"max_tokens": raw(300)})
    batch("in.jsonl", "unordered.jsonl", defaults={"max_tokens": raw(300)}, ordered=False)
    ordered, unordered = (texts(read(tmp_path / f"{name}.jsonl")) for name in ("ordered", "unordered"))
    assert [len(text) for text in ordered] == [len(line["prompt"]) for line in lines]
    assert ordered != unordered
    assert sorted(ordered) == sorted(unordered)


def test_a_complete_run_is_not_run_again(batch: Any, loader: Loader, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(jsonl(PLAIN))
    first = batch("in.jsonl", "out.jsonl")
    count = len(loader.mirrors)
    again = batch("in.jsonl", "out.jsonl")
    assert again.already
    assert again.summary == first.summary
    assert len(loader.mirrors) == count
    with pytest.raises(UsageError, match=r"another run \(seed differ\)"):
        batch("in.jsonl", "out.jsonl", seed=1)
    (tmp_path / "other.jsonl").touch()
    with pytest.raises(UsageError, match="exists already"):
        batch("in.jsonl", "other.jsonl")
    assert not batch("in.jsonl", "other.jsonl", restart=True).already
    with pytest.raises(UsageError, match="is the input"):
        batch("in.jsonl", "in.jsonl")


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_instants_it_writes_the_same(tokenizer_folder: Path, tmp_path: Path, seed: int) -> None:
    lines: list[dict[str, Any]] = [{"prompt": f"{number} " * (number * 7 % 40 + 1)} for number in range(150)]
    lines[7]["temperature"] = -1
    (tmp_path / "in.jsonl").write_bytes(jsonl(lines))
    command = [sys.executable, str(SUPPORT / "batch_support" / "killed.py"), str(tokenizer_folder)]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "SOURCE_DATE_EPOCH": "1000"}
    done = subprocess.run(
        [*command, str(tmp_path / "in.jsonl"), str(tmp_path), "20", str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3, "hardly a run was killed"
    for suffix in (".jsonl", ".errors.jsonl"):
        whole, killed = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("whole", "killed"))
        assert whole == killed
    assert not (tmp_path / "killed.jsonl.work").exists()


def test_a_full_disk_is_told_and_the_run_goes_on_later(
    batch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(jsonl(PLAIN))

    def full(*_arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(UsageError, match="No space left"):
            batch("in.jsonl", "out.jsonl")
    batch("in.jsonl", "out.jsonl")
    assert len(read(tmp_path / "out.jsonl")) == len(PLAIN)


def test_csv_is_read_as_written() -> None:
    from plimsoll_runtime.batch.inputs import csv_rows

    rows = list(csv_rows(io.BytesIO(b'a,b\r\n1,"x ""y"""\r\n\r\n2,\xff\r\n3,4\r\n'), Path("t.csv")))
    assert rows == [({"a": "1", "b": 'x "y"'}, None), (None, "is not in UTF-8"), ({"a": "3", "b": "4"}, None)]


def run_real(model: Path, lines: Sequence[Any], output: str, folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Run a batch with a real engine in this process."""
    (folder / "in.jsonl").write_bytes(jsonl(lines))
    engine = EngineConfig(model=str(model), threads=1, kv_memory="4MiB", max_model_len=256, max_sequences=4, **options)
    config = BatchConfig(engine, ("m",), str(folder / "in.jsonl"), folder / output)
    assert run_batch(config, Silent()).summary.tally.failed == 0
    return [line["response"]["body"] for line in read(folder / output)]


def test_a_line_gives_what_the_engine_gives(tiny_model: Path, tmp_path: Path) -> None:
    prompts = ["one", "two two", "three three three", "four", "five"]
    lines = [{"prompt": each, "max_tokens": 9, "temperature": 0, "ignore_eos": True} for each in prompts]
    stopped = {"prompt": "one", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stop": ["e", "a", "\n"]}
    form = {"prompt": "one", "structured_outputs": {"choice": ["yes", "no"]}, "temperature": 0}
    bodies = run_real(tiny_model, [*lines, stopped, form], "out.jsonl", tmp_path)
    with LLM(str(tiny_model), threads=1, kv_memory="4MiB", max_model_len=256) as llm:
        wanted = llm.generate(prompts, SamplingParams(max_tokens=9, temperature=0, ignore_eos=True))
        params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True, stop=("e", "a", "\n"))
        [short] = llm.generate(["one"], params)
    assert [body["choices"][0]["text"] for body in bodies[:-2]] == [each.outputs[0].text for each in wanted]
    assert bodies[-2]["choices"][0]["text"] == short.outputs[0].text
    assert bodies[-1]["choices"][0]["text"] in ("yes", "no")


def test_images_are_refused_or_described(tiny_model: Path, tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    rows = [{"messages": [{"role": "user", "content": content}], "max_tokens": 1} for content in ([image], LEFT_OUT)]
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows))
    engine = EngineConfig(model=str(tiny_model), threads=1, kv_memory="4MiB", max_model_len=256, max_sequences=4)

    def run(output: str, parts: ImageParts) -> Outcome:
        given = str(tmp_path / "in.jsonl")
        serving = ServingOptions(image_parts=parts)
        return run_batch(BatchConfig(engine, ("m",), given, tmp_path / output, serving=serving), Silent())

    told, refused = run("told.jsonl", "describe"), run("refused.jsonl", "refuse")
    assert (told.summary.tally.failed, refused.summary.tally.failed) == (0, 1)
    shown, written = (line["response"]["body"]["usage"]["prompt_tokens"] for line in read(tmp_path / "told.jsonl"))
    assert shown == written
    [error] = read(tmp_path / "refused.errors.jsonl")
    assert "messages[0].content[0].type" in json.dumps(error)


def test_vectors_come_out_too(tiny_model: Path, tmp_path: Path) -> None:
    texts = ["one", "two two", "three"]
    [body] = run_real(tiny_model, [{"input": texts}], "out.jsonl", tmp_path, task="embed")
    with LLM(str(tiny_model), threads=1, max_model_len=256, task="embed") as llm:
        wanted = llm.embed(texts)
    for found, vector in zip(body["data"], wanted, strict=True):
        assert found["embedding"] == pytest.approx(vector.tolist(), abs=1e-5)
