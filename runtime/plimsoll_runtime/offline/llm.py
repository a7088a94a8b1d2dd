"""Offline inference: `LLM(model).generate(prompts, params)`, with the same engine as the server.

Models of other tasks compute vectors, scores or labels: `embed`, `score` and `classify`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.driver.build.model_files import find_files
from plimsoll_runtime.driver.clients.blocking_client import BlockingEngine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.engine.protocol.messages import (
    AddRequest,
    EngineInfo,
    EngineStats,
    LogprobEntry,
    RequestContext,
    RequestOutput,
    Vocabulary,
    unpack,
)
from plimsoll_runtime.engine.protocol.pooling import Task
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.offline.interrupts import Uninterrupted
from plimsoll_runtime.offline.pooling import Classification, PoolingCalls, VectorProgress, Vectors
from plimsoll_runtime.structured.checker import Checker
from plimsoll_runtime.structured.grammar import check_tokens
from plimsoll_runtime.structured.vocabulary import vocabulary_of
from plimsoll_runtime.text.generation_config import GenerationConfigSource, recommended
from plimsoll_runtime.text.output import OutputText
from plimsoll_runtime.text.pooling import PooledText
from plimsoll_runtime.text.tokenizer import load_tokenizer
from plimsoll_runtime.utils.option import options_of
from plimsoll_runtime.utils.progress import silent

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(slots=True)
class Completion:
    """One generated output. `logprobs` has an entry for each of `token_ids` if the parameters ask for them.

    `finish_reason` is "stop" or "length". If the output was cut short, it is "deadline" (the first token came too late,
    so it is empty), "error" (the engine could not continue, for example because logits were not finite) or
    "unavailable" (lost ranks were not replaced in time), and `error` says why.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[LogprobEntry] | None = None
    error: str | None = None


@dataclass(slots=True)
class Generation:
    """A prompt and its outputs. `prompt_logprobs[i]` belongs to prompt token i + 1."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion]
    prompt_logprobs: list[LogprobEntry] | None = None
    cached_tokens: int = 0


class LLM:
    """A loaded model, ready to generate.

    `model` is a folder, a .gguf file, demo://NAME or a Hugging Face id; `options` are those of `EngineConfig`. If
    `generate` or `chat` gets no parameters, `generation_config="model"` samples as generation_config.json says and
    "none" ignores that file.

    With `engine="child"` the engine runs in a process of its own and leaves the caller's process as it is. With "here",
    on a CPU, torch in the caller's process has only one thread besides those of our kernels. A process that forks needs
    `overlap=False`, because the thread that runs steps does not exist in the fork.

    Raises PlimsollError (SourceError, ModelError, MemoryLimitError, UsageError) if the model cannot be loaded.
    """

    def __init__(
        self,
        model: str,
        *,
        engine: Literal["here", "child"] = "here",
        generation_config: GenerationConfigSource = "model",
        **options: Any,
    ) -> None:
        config = _config(model, options)
        files = find_files(config)
        self._tokenizer = load_tokenizer(files)
        self._chat_stop = files.chat_stop
        self._recommended: dict[str, Any] = dict(recommended(files, generation_config))
        self._kept: EngineCore | BlockingEngine | None = (
            build_engine(config, silent) if engine == "here" else BlockingEngine(config)
        )
        self._checker = Checker()
        self._ids = itertools.count()

    @property
    def info(self) -> EngineInfo:
        """Facts about the loaded model: dtype, sizes, backend."""
        return self._engine.info

    @property
    def stats(self) -> EngineStats:
        """The engine's counters: tokens, prefix hits, preemptions."""
        return self._engine.stats

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Generation]:
        """Generate for each prompt (text or token ids), with one set of parameters or one for each prompt.

        Results are in the order of the prompts. Raises UsageError for an invalid prompt before anything is
        generated.
        """
        if (task := self._task) != "generate":
            raise UsageError(f"the model serves the task {task}; use {task}()")
        batch = _as_batch(prompts)
        chosen = _spread(params if params is not None else SamplingParams(**self._recommended), len(batch))
        self._check_constraints(chosen)
        contexts = [RequestContext(p, p.output_seed()) for p in chosen]
        requests = [self._request(prompt, context) for prompt, context in zip(batch, contexts, strict=True)]
        texts = [prompt if isinstance(prompt, str) else None for prompt in batch]
        return self._run(requests, texts)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Generation]:
        """Generate the next message of each conversation, with the model's chat template."""
        batch: Sequence[Any] = conversations
        if batch and isinstance(batch[0], Mapping):
            batch = [batch]
        usual = SamplingParams(max_tokens=None, **self._recommended)
        chosen = _spread(usual if params is None else params, len(batch))
        chosen = [msgspec.structs.replace(p, stop=(*p.stop, *self._chat_stop)) for p in chosen]
        template = self._tokenizer.chat_template
        if template is None:
            raise UsageError("the model has no chat template; use generate(), or add chat_template.jinja to its files")
        prompts = [self._tokenizer.encode(template.render(messages), add_special_tokens=False) for messages in batch]
        return self.generate(prompts, chosen)

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Vectors:
        """Return a vector for each text, or list of token ids: float32 [texts, size], in order.

        `prompt_name` is one of the model's prompts, put before each text. `dimensions` cuts vectors to that many
        numbers. `truncate` cuts texts that are too long. Raises UsageError for an invalid text before anything is
        computed.
        """
        return self._pooling("embed").embed(_as_batch(texts), prompt_name, dimensions, truncate=truncate)

    def score(
        self,
        ones: str | Sequence[str],
        others: str | Sequence[str],
        *,
        instruction: str | None = None,
        truncate: bool = False,
    ) -> list[float]:
        """Return how well each text matches the one at the same index in `others`; one text alone is compared with all.

        Uses a model that reads both texts, or the cosine similarity of their vectors. `instruction` says how to
        judge pairs, for models that take one. Raises UsageError.
        """
        asked, told = ([texts] if isinstance(texts, str) else list(texts) for texts in (ones, others))
        return self._pooling("score", "embed").score(asked, told, instruction, truncate=truncate)

    def classify(self, texts: str | Sequence[str | tuple[str, str]], *, truncate: bool = False) -> list[Classification]:
        """Return the labels of each text, or pair of texts. Raises UsageError."""
        return self._pooling("classify").classify([texts] if isinstance(texts, str) else texts, truncate=truncate)

    def reset_prefix_cache(self) -> None:
        """Drop every cached prefix. Allowed only while no request runs."""
        with Uninterrupted():
            self._engine.reset_prefix_cache()

    def close(self) -> None:
        """End the engine and free its memory, process and folder. Later calls raise UsageError."""
        if isinstance(self._kept, BlockingEngine):
            self._kept.stop()
        self._kept = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _engine(self) -> EngineCore | BlockingEngine:
        if self._kept is None:
            raise UsageError("this LLM is closed; create a new one")
        return self._kept

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return vocabulary_of(self._tokenizer, self.info.vocab_size, self.info.eos_token_ids)

    def _check_constraints(self, chosen: Sequence[SamplingParams]) -> None:
        constraints = dict.fromkeys(params.constraint for params in chosen if params.constraint is not None)
        try:
            for constraint in constraints:
                self._checker.check(constraint)
                check_tokens(constraint, self.info.vocab_size)
            if constraints or any(params.thought is not None for params in chosen):
                self._engine.use(self._vocabulary)
        except ConstraintError as error:
            raise UsageError(f"the constraint {error}") from error

    @property
    def _task(self) -> Task:
        return "generate" if self.info.pooling is None else self.info.pooling.task

    def _pooling(self, *tasks: Task) -> PoolingCalls:
        """Return the calls of a model that serves one of `tasks`. Raises UsageError."""
        if self.info.pooling is None or self._task not in tasks:
            raise UsageError(
                f"the model serves the task {self._task}, and this call needs {' or '.join(tasks)}; use "
                f"{self._task}(), or load the model with another task=..."
            )
        return PoolingCalls(self._tokenizer, self.info, self._vectors)

    def _vectors(self, texts: Sequence[PooledText]) -> list[bytes]:
        """Return the packed vector of each text. Raises ModelError if the model could not compute one."""
        params = SamplingParams(max_tokens=1, temperature=0.0)
        requests = [self._request(text.ids, RequestContext(params, seed=0, second_text=text.second)) for text in texts]
        found = {request.request_id: VectorProgress() for request in requests}
        self._drive(requests, found)
        return [progress.vector() for progress in found.values()]

    def _request(self, prompt: Prompt, context: RequestContext) -> AddRequest:
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return AddRequest(str(next(self._ids)), ids, context)

    def _run(self, requests: Sequence[AddRequest], texts: Sequence[str | None]) -> list[Generation]:
        found = {
            r.request_id: _GenerationProgress(r, text, self._tokenizer) for r, text in zip(requests, texts, strict=True)
        }
        self._drive(requests, found)
        return [progress.result for progress in found.values()]

    def _drive(
        self, requests: Sequence[AddRequest], progress_of: Mapping[str, _GenerationProgress | VectorProgress]
    ) -> None:
        """Run requests until all are over, and push each output to its progress."""
        engine, under_way = self._engine, dict(progress_of)
        # Ctrl-C is handled between two steps. Waiting for a child can take long, so there it is handled at any time
        # except while a message is sent to the child.
        with Uninterrupted(hold=isinstance(engine, EngineCore)) as held:
            try:
                for request in requests:
                    with Uninterrupted():
                        engine.add(request)
                while under_way:
                    held.let_in()
                    for output in engine.step().outputs:
                        progress = under_way.get(output.request_id)
                        if progress is None or not progress.push(output):
                            continue
                        del under_way[output.request_id]
                        if output.finish_reason is None:
                            with Uninterrupted():
                                engine.abort([output.request_id])
            finally:
                with Uninterrupted():
                    engine.abort(list(under_way))


class _GenerationProgress:
    """A request for generated tokens while it runs."""

    def __init__(self, request: AddRequest, text: str | None, tokenizer: Any) -> None:
        params = request.context.params
        self._completion = Completion(logprobs=None if params.logprobs is None else [])
        self._output = OutputText(params, tokenizer)
        self.result = Generation(text, list(request.prompt_token_ids), [self._completion])

    def push(self, output: RequestOutput) -> bool:
        """Add a step's output; return True when the request is over."""
        if output.error is not None:
            self._completion.finish_reason, self._completion.error = output.finish_reason, output.error
            return True
        delta = self._output.push(output)
        completion = self._completion
        completion.text += delta.text
        completion.token_ids.extend(delta.token_ids)
        if completion.logprobs is not None:
            completion.logprobs.extend(output.logprobs[: len(delta.token_ids)])
        if output.prompt_logprobs is not None:
            self.result.prompt_logprobs = list(unpack(output.prompt_logprobs))
        self.result.cached_tokens = max(self.result.cached_tokens, output.cached_tokens)
        completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
        return delta.finish_reason is not None


def _config(model: str, options: Mapping[str, Any]) -> EngineConfig:
    known = {option.name for option in options_of(EngineConfig, "LLM")}
    if unknown := sorted(set(options) - known):
        raise UsageError(f"unknown option {', '.join(unknown)}; LLM takes {', '.join(sorted(known))}")
    try:
        return msgspec.convert({"model": model, "offline": True, **options}, EngineConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"an option of LLM has the wrong type: {error}") from error


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _spread(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise UsageError(f"{len(params)} sampling params for {count} prompts; give one, or one for each prompt")
    return list(params)
