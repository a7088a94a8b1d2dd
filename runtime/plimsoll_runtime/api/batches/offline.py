"""`plimsoll batch`: an engine in this process runs the rows of a file, without HTTP. Results become JSON lines or table
rows.
"""

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


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: msgspec.Raw | None = None


class _Choice(msgspec.Struct):
    index: int
    finish_reason: str | None = None
    message: _Message | None = None
    text: str | None = None

    @property
    def words(self) -> str | None:
        """What was said; where nothing was but tools were called, the calls as JSON."""
        if self.message is None:
            return self.text
        calls = self.message.tool_calls
        return bytes(calls).decode() if self.message.content is None and calls is not None else self.message.content


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Body(msgspec.Struct):
    """`data` and `results` are of answers that have vectors, scores, ranks or labels."""

    usage: _Usage
    choices: list[_Choice] = []
    data: list[msgspec.Raw] = []
    results: list[msgspec.Raw] = []

    @property
    def rows(self) -> list[_Choice]:
        """Its choices; what is none, as JSON."""
        others = enumerate(self.data or self.results)
        return self.choices or [_Choice(index, text=bytes(each).decode()) for index, each in others]


class _Response(msgspec.Struct):
    body: _Body


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response


_decoder = msgspec.json.Decoder(_Line)


def rows_of(line: bytes) -> list[dict[str, Any]]:
    """A row for each choice, vector, score or label. The tokens are those of all its choices."""
    answer = _decoder.decode(line)
    usage = answer.response.body.usage
    return [
        {
            "custom_id": answer.custom_id,
            "choice": choice.index,
            "text": choice.words,
            "finish_reason": choice.finish_reason,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        for choice in answer.response.body.rows
    ]


UNBOUNDED = 2**62
AHEAD = 2
"""How many rows are under way for each place in the engine's batch: the next ones wait there, so that no place does."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """One run. `names`: what lines may call the model; `defaults`: fields of bodies that lack them, as JSON.

    `seed`: of rows that have none of their own. `restart`: what an earlier run left is thrown away.
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
    """Shows how a run goes."""

    def begin(self, total: int, resumed: int) -> None:
        """The rows begin: `total` bytes are to be read, and so many rows were answered by an earlier run."""

    def passed(self, row: Row) -> None:
        """One of those was passed over."""

    def told(self, row: Row, answered: Answered) -> None:
        """One more is answered."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `resumed` rows an earlier one had answered; `already`: there was nothing left to do."""

    summary: Summary
    resumed: int = 0
    already: bool = False


Load = Callable[[BatchConfig, Progress], AbstractAsyncContextManager[ServedModel]]


def run_batch(config: BatchConfig, board: Board, progress: Progress = silent, load: Load | None = None) -> Outcome:
    """Answer all rows that have no answer yet, and put the files in their places. Raises PlimsollError."""
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
            f"{config.output} cannot be written ({error}); once it can, the same command goes on"
        ) from error
    return Outcome(summary, resumed)


def _check(config: BatchConfig, places: OutputPaths, inputs: list[InputFile]) -> None:
    """Raises UsageError for what can be known before the model is loaded."""
    if not places.output.parent.is_dir():
        raise UsageError(f"there is no folder {places.output.parent}; make it first")
    if places.output.is_dir():
        raise UsageError(f"{places.output} is a folder; name a file in it")
    checked_kind(places.output)
    if config.prompting is not None:
        config.prompting.check()
    elif tables := [file for file in inputs if file.kind.format != JSONL]:
        raise UsageError(f"{tables[0].path} is a table: say with --prompt-column or --template what its prompts are")


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
    """What an earlier run of the same job came to. Raises UsageError where another's output is in the way."""
    if not places.output.exists():
        return None
    summary = read_summary(places)
    if summary is None:
        raise UsageError(f"{places.output} is there already; give another OUTPUT, or replace it with --restart")
    check_same(job, summary.job, str(places.output))
    return summary


def _now() -> int:
    """Unix time, or what SOURCE_DATE_EPOCH says instead, so that two runs may write the same bytes."""
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
        with quick_switches(), seldom_collected():  # what the load has left is looked through first, as part of it
            store.start()
            await runner.run(read_rows(inputs, config.shard, config.prompting))
        if model.engine.failure is not None:
            raise model.engine.failure


@asynccontextmanager
async def loaded(config: BatchConfig, progress: Progress) -> AsyncIterator[ServedModel]:
    """The model, in this process."""
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
