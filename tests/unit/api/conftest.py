"""A server on loopback with a fake engine, and a tokenizer of one token a byte."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import openai
import pytest
import pytest_asyncio
from safetensors.numpy import save_file

from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.server.config import ServerConfig
from plimsoll_runtime.api.server.listener import listen
from plimsoll_runtime.api.server.queue_limit import QueueLimit
from plimsoll_runtime.api.server.server import Server
from plimsoll_runtime.api.server.state import ServerState
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import (
    AddRequest,
    EngineInfo,
    EngineStats,
    GroupStats,
    LogprobEntry,
    RequestOutput,
    SnapshotStats,
    TierStats,
    Vocabulary,
    pack,
)
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.errors import EngineDeadError, UsageError
from plimsoll_runtime.options import ServingOptions
from plimsoll_runtime.text.chat_template import ChatTemplate
from plimsoll_runtime.text.detokenizer import byte_of_character
from plimsoll_runtime.text.tokenizer import Tokenizer, load_tokenizer
from plimsoll_runtime.utils.option import fields_of
from plimsoll_runtime.weights.files import ModelFiles

BOS, EOS, USER, ASSISTANT = 256, 257, 258, 259
SPECIALS = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
VOCAB_SIZE = 264  # more than the tokenizer has, because models pad
MAX_MODEL_LEN = 4096
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'forbidden' %}{{ raise_exception('no') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}{{ note }}"
)


HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
BROKEN = VOCAB_SIZE - 1
"""A token whose embedding is not a number: a sequence with it has no finite logits."""
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(ModelFiles(name="m", root=tokenizer_folder, format="safetensors", config={}, weights=()))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    vocabulary = byte_of_character() | {token: 256 + index for index, token in enumerate(SPECIALS)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": 256 + index, "content": token, **flags, "special": True} for index, token in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
        },
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights, as files."""
    folder = tmp_path_factory.mktemp("tiny")
    rng = np.random.default_rng(0)

    def weight(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        made: np.ndarray[Any, np.dtype[np.float32]] = rng.standard_normal((rows, columns)).astype(np.float32)
        return made / np.float32(columns**0.5)

    head = HIDDEN // HEADS
    tensors = {"model.embed_tokens.weight": weight(VOCAB_SIZE, HIDDEN), "lm_head.weight": weight(VOCAB_SIZE, HIDDEN)}
    tensors["model.embed_tokens.weight"][BROKEN] = np.nan
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HEADS * head, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * head, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * head, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * head),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        tensors |= {f"model.layers.{layer}.{name}.weight": weight(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TINY))
    for file in tokenizer_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


class FakeEngine:
    """Answers every request with `answer`, a token a step, then the EOS token.

    While `script` has texts, each request takes the next of them instead. With `paused`, a step waits for `resume`.
    Requests, aborts and running ids are recorded for the tests.
    """

    def __init__(self) -> None:
        self.info = EngineInfo(
            model="fake",
            architecture="Fake",
            dtype="float32",
            device="cpu",
            attention_backend="none",
            vocab_size=VOCAB_SIZE,
            max_model_len=MAX_MODEL_LEN,
            block_size=16,
            num_blocks=1000,
            weight_bytes=1,
            kv_bytes=1,
            eos_token_ids=[EOS],
            max_sequences=64,
        )
        phases = (0.5, 0.25, 8.0, 2.0, 0.125, 0.0, 0.25, 0.5, 0.0, 0.0)
        self.stats = EngineStats(
            running=1,
            blocks_total=1000,
            blocks_used=250,
            cache_query_tokens=400,
            cache_hit_tokens=300,
            preemptions=3,
            evictions=7,
            attention_fallbacks=2,
            kernels_compiled=5,
            phase_seconds=phases,
            tiers=TierStats(
                host_blocks=4,
                disk_blocks=90,
                under_way=3,
                hit_tokens=96,
                spilled=50,
                dropped=2,
                loaded=6,
                failed=1,
                passed=8,
            ),
            snapshots=SnapshotStats(rows=12, kept=9, taken=31, resumed=21),
            group=GroupStats(
                generation=17,
                lost={"rank_ended": 2, "other": 0},
                reason="rank 3 was killed by signal 9",
                stage="wait for member 1",
                refused_connections=4,
                waited={0: 1.5, 10: 0.25},
            ),
        )
        self.running: set[str] = set()
        self.changed = asyncio.Event()
        self.stopped = False
        self.failure: EngineDeadError | None = None
        self.vocabulary: Vocabulary | None = None
        self._going = asyncio.Event()
        self._dead = asyncio.Event()
        self.reset()

    def reset(self) -> None:
        """Restore the initial answer, and forget the requests."""
        self.answer = b"Hello!"
        self.script: list[bytes] = []
        self.error: str | None = None
        self.error_after = 0
        self.refusal: str | None = None
        self.asked: list[AddRequest] = []
        self.aborted: list[str] = []
        self._going.set()

    def use(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def pause(self) -> None:
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    def die(self) -> None:
        self.failure = EngineDeadError("it was killed")
        self._dead.set()
        self._going.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on the requests to become true."""
        while not condition():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 60)

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        self.asked.append(request)
        if self.refusal is not None:
            raise UsageError(self.refusal)
        self.running.add(request.request_id)
        self.changed.set()
        finished = False
        try:
            tokens = self._tokens(request)
            for turn, token_id in enumerate(tokens):
                await self._step()
                if self.error is not None and turn == self.error_after:
                    finished = True
                    yield RequestOutput(request.request_id, finish_reason="error", error=self.error)
                    return
                last = turn == len(tokens) - 1
                finished = finished or last
                yield self._output(request, turn, token_id, last)
        finally:
            if not finished:
                self.aborted.append(request.request_id)
            self.running.discard(request.request_id)
            self.changed.set()

    def drain(self) -> None:
        pass

    @property
    def pid(self) -> None:
        return None

    async def wait_dead(self) -> None:
        await self._dead.wait()

    async def stop(self) -> None:
        self.stopped = True
        self._dead.set()
        self._going.set()

    async def _step(self) -> None:
        await asyncio.sleep(0)
        await self._going.wait()
        if self._dead.is_set():
            raise self.failure or EngineDeadError("it was stopped")

    def _tokens(self, request: AddRequest) -> list[int]:
        text = self.script.pop(0) if self.script else self.answer
        tokens = list(text) if request.context.params.ignore_eos else [*text, EOS]
        return tokens[: request.context.params.max_tokens]

    def _output(self, request: AddRequest, turn: int, token_id: int, last: bool) -> RequestOutput:
        params = request.context.params
        ends = token_id == EOS
        return RequestOutput(
            request.request_id,
            [token_id],
            [entry(token_id, params.logprobs)] if params.logprobs is not None else [],
            pack([entry(i, params.prompt_logprobs) for i in request.prompt_token_ids[1:]])
            if turn == 0 and params.prompt_logprobs is not None
            else None,
            ("stop" if ends else "length") if last else None,
            token_id if ends else None,
            cached_tokens=16 if turn == 0 else 0,
        )


class PoolingEngine(FakeEngine):
    """Answers every request with a vector, after one step: see `numbers`."""

    def __init__(self, pooling: PoolingInfo) -> None:
        super().__init__()
        self.info = msgspec.structs.replace(self.info, pooling=pooling)

    def _tokens(self, request: AddRequest) -> list[int]:
        return [0]

    def _output(self, request: AddRequest, turn: int, token_id: int, last: bool) -> RequestOutput:
        assert self.info.pooling is not None
        made = self.numbers(list(request.prompt_token_ids))[: max(2, self.info.pooling.size)]
        vector = np.array(made, np.float32).tobytes()
        return RequestOutput(request.request_id, finish_reason="stop", cached_tokens=1, vector=vector)

    def numbers(self, ids: list[int]) -> list[float]:
        """Return the vector of a prompt: its length and its ends, all of which a float32 represents exactly."""
        return [len(ids) / 64, ids[0] / 256, ids[-1] / 256, 1.0]


def entry(token_id: int, count: int) -> LogprobEntry:
    """Return a log probability that identifies its token; the first alternative is the token itself, then its
    neighbours."""
    top = [((token_id + step) % 256, -0.01 * token_id - step) for step in range(count)]
    return LogprobEntry(token_id, -0.01 * token_id, 1, top) if token_id else LogprobEntry(0, -math.inf, 1, top)


@dataclass(frozen=True)
class Running:
    """A listening server, and clients for it."""

    server: Server
    engine: FakeEngine
    host: str
    port: int
    ended: "asyncio.Task[int]"
    metrics_url: str = ""
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def openai(self, key: str = "none") -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120)
        self.clients.append(client)
        return client

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=120)


Load = Callable[[ServerConfig, ServerState], Awaitable[ServedModel]]


@contextmanager
def template(tokenizer: Tokenizer, source: str) -> Iterator[None]:
    """Give the tokenizer this chat template within the block."""
    before, tokenizer.chat_template = tokenizer.chat_template, ChatTemplate(source)
    try:
        yield
    finally:
        tokenizer.chat_template = before


@asynccontextmanager
async def running_server(
    tokenizer: Tokenizer,
    load: Load | None = None,
    termination_log: Path | None = None,
    pooling: PoolingInfo | None = None,
    recommended: Mapping[str, float] | None = None,
    about: str | None = None,
    **options: object,
) -> AsyncIterator[Running]:
    """Run a whole server with a fake engine, which computes vectors if `pooling` is set.

    `options` are ServerConfig's and ServingOptions'. `recommended` are the sampling settings of the model's files,
    and `about` its note for people.
    """
    engine = FakeEngine() if pooling is None else PoolingEngine(pooling)

    async def loaded(config: ServerConfig, _state: ServerState) -> ServedModel:
        room = QueueLimit(config.serving.max_waiting, config.serving.max_waiting_tokens)
        return ServedModel(
            config.names,
            engine,
            tokenizer,
            1_700_000_000,
            ("STOPCHAT",),
            room,
            config.serving,
            recommended=recommended or {},
            about=about,
            deployment=config.deployment,
        )

    log = None if termination_log is None else str(termination_log)
    serving: dict[str, Any] = {name: options.pop(name) for name in fields_of(ServingOptions) if name in options}
    config = ServerConfig(
        EngineConfig(model="fake"),
        ("fake", "alias"),
        ServingOptions(**serving),
        port=0,
        termination_log=log,
        **options,  # type: ignore[arg-type]
    )
    listener = listen("127.0.0.1", 0)
    metrics = None if config.metrics_port is None else listen("127.0.0.1", config.metrics_port)
    server = Server(config, listener, load or loaded, metrics)  # type: ignore[arg-type]
    host, port = listener.getsockname()
    ended = asyncio.create_task(server.run())
    try:
        metrics_url = "" if metrics is None else f"http://127.0.0.1:{metrics.getsockname()[1]}"
        running = Running(server, engine, host, port, ended, metrics_url)
        async with running.http() as http:
            while load is None and (await http.get("/health")).status_code != 200:
                assert not ended.done(), ended
        yield running
        for client in running.clients:
            await client.close()
    finally:
        server.stop()
        server.stop()
        engine.resume()
        await asyncio.gather(ended, return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tokenizer: Tokenizer) -> AsyncIterator[Running]:
    async with running_server(tokenizer) as server:
        yield server


@pytest.fixture
def running(shared: Running) -> Running:
    """The module's server, with its engine in the initial state. A test's loop must be the module's too."""
    shared.engine.reset()
    return shared


@pytest.fixture
def make_engine() -> type[FakeEngine]:
    """For servers that start engines themselves."""
    return FakeEngine


@pytest.fixture
async def fresh(tokenizer: Tokenizer) -> AsyncIterator[Running]:
    """A server for one test, which may end it."""
    async with running_server(tokenizer) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keep_server(tokenizer: Tokenizer) -> AsyncIterator[Callable[..., Awaitable[Running]]]:
    """Runs a server for the rest of a module: `await keep_server(pooling=info)`."""
    async with AsyncExitStack() as stack:
        yield lambda **options: stack.enter_async_context(running_server(tokenizer, **options))


@pytest.fixture
def run_server(tokenizer: Tokenizer) -> Callable[..., AbstractAsyncContextManager[Running]]:
    """Runs a server with other options: `async with run_server(api_keys=("k",)) as server`."""
    return partial(running_server, tokenizer)
