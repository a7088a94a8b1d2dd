"""From a source's name to a model that answers: files, tokenizer, engine, with progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from plimsoll_runtime.api.served_model import Engine, ServedModel
from plimsoll_runtime.api.server.config import ServerConfig
from plimsoll_runtime.api.server.queue_limit import QueueLimit
from plimsoll_runtime.api.server.state import ServerState
from plimsoll_runtime.driver.build.model_files import find_files
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.text.generation_config import recommended
from plimsoll_runtime.text.tokenizer import Tokenizer, load_tokenizer
from plimsoll_runtime.utils.progress import DOWNLOAD, Progress, Transfer
from plimsoll_runtime.utils.threads import in_daemon_thread
from plimsoll_runtime.weights.files import ModelFiles

StartEngine = Callable[[EngineConfig, Progress], Awaitable[Engine]]


async def load_model(config: ServerConfig, state: ServerState, start_engine: StartEngine) -> ServedModel:
    """Find the files, then load tokenizer and engine side by side. Raises PlimsollError.

    Cancelling it ends an engine that has been started; a download in a thread is left to end with the process.
    """
    loop = asyncio.get_running_loop()

    def from_thread(stage: str, fraction: float) -> None:
        loop.call_soon_threadsafe(state.loading, stage, fraction)

    def downloads(transfer: Transfer) -> None:
        loop.call_soon_threadsafe(state.loading, DOWNLOAD, transfer.fraction, transfer)

    def find() -> ModelFiles:
        return find_files(config.engine, from_thread, on_transfer=downloads)

    def read() -> Tokenizer:
        tokenizer = load_tokenizer(files)
        _ = tokenizer.longest_piece
        return tokenizer

    files = await in_daemon_thread(find)
    settings = recommended(files, config.serving.generation_config)
    reading = asyncio.ensure_future(in_daemon_thread(read))
    state.loading("start the engine", 0.0)
    try:
        engine = await start_engine(config.engine, state.loading)
    except BaseException:
        reading.cancel()
        raise
    try:
        state.loading("tokenizer", 0.0)
        tokenizer = await reading
    except BaseException:
        await engine.stop()
        raise
    return ServedModel(
        names=config.names,
        engine=engine,
        tokenizer=tokenizer,
        created=int(time.time()),
        chat_stop=files.chat_stop,
        room=QueueLimit(config.serving.max_waiting, config.serving.max_waiting_tokens),
        options=config.serving,
        recommended=settings,
        about=files.about,
    )
