"""`plimsoll batch`: runs the rows of a file on an engine in this process, without HTTP. Results become JSON lines or
table rows."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from plimsoll_runtime.api.batches.executor import LineExecutor
from plimsoll_runtime.api.batches.lines import Terms
from plimsoll_runtime.api.model_directory import OneModel
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.server.queue_limit import QueueLimit
from plimsoll_runtime.batch.inputs import InputFile, checked_kind, find_inputs
from plimsoll_runtime.batch.job import ALL, Answered, Row, Shard, check_same, describe, id_of
from plimsoll_runtime.batch.output_paths import JSONL, OutputPaths, kind_of
from plimsoll_runtime.batch.publish import Summary, publish, read_summary
from plimsoll_runtime.batch.reader import PromptRule, read_rows
from plimsoll_runtime.batch.run import Runner
from plimsoll_runtime.batch.store import Store, discard
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.options import ServingOptions
from plimsoll_runtime.text.generation_config import recommended
from plimsoll_runtime.utils.heap import seldom_collected
from plimsoll_runtime.utils.progress import Progress, silent
from plimsoll_runtime.utils.threads import quick_switches

COLUMNS: Mapping[str, type] = {
    "custom_id": str,
    "choice": int,
    "text": str,
    "finish_reason": str,
    "prompt_tokens": int,
    "completion_tokens": int,
}


class _Body(msgspec.Struct):
    """`data` and `results` (vectors, scores, labels) stay encoded: a vector's digits are copied, not parsed."""

    usage: dict[str, Any]
    choices: list[dict[str, Any]] = []
    data: list[msgspec.Raw] = []
    results: list[msgspec.Raw] = []


class _Response(msgspec.Struct):
    body: _Body


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response


_decoder = msgspec.json.Decoder(_Line)


def rows_of(line: bytes) -> list[dict[str, Any]]:
    """Return a table row for each choice, vector, score or label of an output line. Token counts are those of the whole
    response.

    The text of a choice without text is its tool calls as JSON, that of another result is its JSON.
    """
    answer = _decoder.decode(line)
    body = answer.response.body
    others = [{"index": index, "text": bytes(each).decode()} for index, each in enumerate(body.data or body.results)]
    return [
        {
            "custom_id": answer.custom_id,
            "choice": choice["index"],
            "text": _text(choice),
            "finish_reason": choice.get("finish_reason"),
            "prompt_tokens": body.usage.get("prompt_tokens", 0),
            "completion_tokens": body.usage.get("completion_tokens", 0),
        }
        for choice in body.choices or others
    ]


def _text(choice: Mapping[str, Any]) -> str | None:
    if (message := choice.get("message")) is None:
        return choice.get("text")
    calls, content = message.get("tool_calls"), message.get("content")
    text: str | None = msgspec.json.encode(calls).decode() if content is None and calls is not None else content
    return text


UNBOUNDED = 2**62
AHEAD = 2
"""Rows in flight for each slot of the engine: the others wait in its queue, so that no slot is empty."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Settings of one `plimsoll batch` run. `names` are the model names that lines may use; `defaults` are fields, as
    JSON, for bodies that lack them.

    `seed` is the base of the seeds of rows without one. `restart` deletes an earlier run's files first.
    """

    engine: EngineConfig
    names: tuple[str, ...]
    input: str
    output: Path
    endpoint: str | None = None
    prompting: PromptRule | None = None
    defaults: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    seed: int = 0
    shard: Shard = ALL
    ordered: bool = True
    restart: bool = False
    serving: ServingOptions = field(default_factory=ServingOptions)


class Board(Protocol):
    """Shows the progress of a run."""

    def begin(self, total: int, resumed: int) -> None:
        """Start the display: `total` bytes of input, and the number of rows that an earlier run finished."""

    def passed(self, row: Row) -> None:
        """Count a row that an earlier run finished."""

    def told(self, row: Row, answered: Answered) -> None:
        """Count a new result."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run. `resumed` is the number of rows that an earlier run finished; `already` says that there was
    nothing left to do."""

    summary: Summary
    resumed: int = 0
    already: bool = False


Load = Callable[[BatchConfig, Progress], AbstractAsyncContextManager[ServedModel]]


def run_batch(config: BatchConfig, board: Board, progress: Progress = silent, load: Load | None = None) -> Outcome:
    """Run all rows without a result, and move the files into place. Raises PlimsollError."""
    places = OutputPaths(config.output)
    inputs = find_inputs(config.input, places.made)
    _check(config, places, inputs)
    job = _job(config, inputs)
    if config.restart:
        discard(places)
    if not places.work.exists() and (found := _complete(places, job)) is not None:
        return Outcome(found, already=True)
    try:
        with Store(places, job, ordered=config.ordered, created=_now()) as store:
            resumed = len(store.done)
            if store.end is None:
                model = (load or loaded)(config, progress)
                asyncio.run(_answer(config, inputs, id_of(job), store, board, model))
            summary = publish(places, job, store.finish(), COLUMNS, rows_of)
            store.remove()
    except OSError as error:
        raise UsageError(
            f"{config.output} cannot be written ({error}); fix this and repeat the command to resume the run"
        ) from error
    return Outcome(summary, resumed)


def _check(config: BatchConfig, places: OutputPaths, inputs: list[InputFile]) -> None:
    """Raise UsageError for errors that can be found before the model is loaded."""
    if not places.output.parent.is_dir():
        raise UsageError(f"the folder {places.output.parent} does not exist; create it first")
    if places.output.is_dir():
        raise UsageError(f"{places.output} is a folder; name a file in it")
    checked_kind(places.output)
    if config.prompting is not None:
        config.prompting.check()
    elif tables := [file for file in inputs if file.kind.format != JSONL]:
        raise UsageError(f"{tables[0].path} is a table; give its prompts with --prompt-column or --template")


def _job(config: BatchConfig, inputs: list[InputFile]) -> dict[str, object]:
    prompting = config.prompting or PromptRule()
    engine, serving = config.engine, config.serving
    return describe(
        inputs,
        config.shard,
        {
            "model": [engine.model, engine.revision, engine.dtype, engine.model_impl, engine.task, *config.names],
            "reading": [
                serving.tool_format,
                serving.reasoning_format,
                serving.generation_config,
                serving.image_parts,
            ],
            "endpoint": config.endpoint,
            "prompting": [prompting.column, prompting.template, prompting.field, prompting.id_column],
            "defaults": {name: bytes(value).decode() for name, value in sorted(config.defaults.items())},
            "seed": config.seed,
            "ordered": config.ordered,
            "format": kind_of(config.output).format,
        },
    )


def _complete(places: OutputPaths, job: Mapping[str, object]) -> Summary | None:
    """Return the summary of an earlier run of the same job; None if there is no output. Raises UsageError if the output
    is another job's."""
    if not places.output.exists():
        return None
    summary = read_summary(places)
    if summary is None:
        raise UsageError(f"{places.output} exists already; choose another OUTPUT, or replace it with --restart")
    check_same(job, summary.job, str(places.output))
    return summary


def _now() -> int:
    """Return SOURCE_DATE_EPOCH if it is set, so that runs are reproducible; otherwise the Unix time."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(given) if given.isdecimal() else int(time.time())


async def _answer(
    config: BatchConfig,
    inputs: list[InputFile],
    job: str,
    store: Store,
    board: Board,
    loading: AbstractAsyncContextManager[ServedModel],
) -> None:
    defaults = {"model": msgspec.Raw(msgspec.json.encode(config.names[0])), **config.defaults}
    terms = Terms(job, store.created, config.endpoint, defaults=defaults, seed=config.seed, sourced=True)
    async with loading as model:
        board.begin(sum(file.size for file in inputs), len(store.done))
        answering = LineExecutor(OneModel(model), terms, alone=True)
        runner = Runner(answering, store, AHEAD * config.engine.max_sequences, board.told, board.passed)
        with quick_switches(), seldom_collected():  # collects the load's garbage first, outside the measured time
            store.start()
            await runner.run(read_rows(inputs, config.shard, config.prompting))
        if model.engine.failure is not None:
            raise model.engine.failure


@asynccontextmanager
async def loaded(config: BatchConfig, progress: Progress) -> AsyncIterator[ServedModel]:
    """Load the model in this process, and stop its engine at the end of the context."""
    from plimsoll_runtime.driver.build.engine import build_engine
    from plimsoll_runtime.driver.build.model_files import find_files
    from plimsoll_runtime.driver.clients.inline_client import InlineEngine
    from plimsoll_runtime.text.tokenizer import load_tokenizer

    engine_config = replace(config.engine, offline=True)
    files = find_files(engine_config, progress)
    settings = recommended(files, config.serving.generation_config)
    tokenizer = load_tokenizer(files)
    engine = InlineEngine(build_engine(engine_config, progress))
    try:
        yield ServedModel(
            config.names,
            engine,
            tokenizer,
            int(time.time()),
            files.chat_stop,
            QueueLimit(UNBOUNDED, UNBOUNDED),
            config.serving,
            settings,
        )
    finally:
        await engine.stop()
