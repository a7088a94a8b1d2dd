"""An engine for tests: it answers a prompt with the prompt's tokens in reverse order, and a random number from the
seed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from plimsoll_runtime.api.batches.offline import BatchConfig
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, EngineStats, RequestOutput, Vocabulary
from plimsoll_runtime.text.tokenizer import load_tokenizer
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.weights.files import ModelFiles

INFO = EngineInfo(
    model="mirror",
    architecture="Mirror",
    dtype="float32",
    device="cpu",
    attention_backend="none",
    vocab_size=264,
    max_model_len=4096,
    block_size=16,
    num_blocks=1000,
    weight_bytes=1,
    kv_bytes=1,
    eos_token_ids=[257],
    max_sequences=64,
)
TURNS = 7
"""An output takes up to this many turns of the loop, so rows end in another order than they began."""


class Mirror:
    """An engine that records its requests."""

    def __init__(self) -> None:
        self.info = INFO
        self.stats = EngineStats()
        self.failure = None
        self.asked: list[AddRequest] = []

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        self.asked.append(request)
        context, prompt = request.context, list(request.prompt_token_ids)
        seed = 0 if context.params.seed is None else context.seed
        for _ in range(Random(f"{prompt} {seed}").randrange(TURNS)):
            await asyncio.sleep(0)
        tokens = [token for token in reversed(prompt) if token < 256] + [ord("a") + seed % 26]
        yield RequestOutput(request.request_id, tokens[: context.params.max_tokens], finish_reason="length")

    def use(self, vocabulary: Vocabulary) -> None:
        raise AssertionError("nothing is constrained")

    def drain(self) -> None:
        pass

    @property
    def pid(self) -> None:
        return None

    async def wait_dead(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.info = INFO


class Loader:
    """Creates a mirror for a model and records it in `mirrors`."""

    def __init__(self, tokenizer_folder: Path) -> None:
        files = ModelFiles(name="m", root=tokenizer_folder, format="safetensors", config={}, weights=())
        self._tokenizer = load_tokenizer(files)
        self.mirrors: list[Mirror] = []

    @asynccontextmanager
    async def __call__(self, config: BatchConfig, _progress: Progress) -> AsyncIterator[ServedModel]:
        mirror = Mirror()
        self.mirrors.append(mirror)
        yield ServedModel(config.names, mirror, self._tokenizer, 0)


class Silent:
    """A board that shows nothing."""

    def begin(self, total: int, resumed: int) -> None:
        self.total, self.resumed, self.rows = total, resumed, 0

    def passed(self, _row: object) -> None:
        self.resumed -= 1

    def told(self, _row: object, _answered: object) -> None:
        self.rows += 1
