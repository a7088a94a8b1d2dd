"""Builders for tests of the scheduler and the engine core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from simulated import EOS, VOCAB, SimulatedRunner

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import Compiler, EngineCore, Runner
from plimsoll_runtime.engine.kv.cache_groups import ONE_FULL, Rule
from plimsoll_runtime.engine.kv.offload.index import TierIndex
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, RequestContext, RequestOutput
from plimsoll_runtime.engine.protocol.prompt import Prompt
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.sequence import QueueEntry, Report, SequenceKv, SequenceState
from plimsoll_runtime.engine.step_timing import Timeline

BLOCK_BYTES = 100


def make_core(
    *,
    num_blocks: int = 65,
    block_size: int = 4,
    max_model_len: int | None = None,
    least_blocks: int = 0,
    most_blocks: int = 0,
    wrap: Callable[[Runner], Runner] = lambda runner: runner,
    timelines: Sequence[Timeline] = (),
    groups: Sequence[Rule] = ONE_FULL,
    tiers: Callable[[SimulatedRunner], TierIndex] | None = None,
    compiler: Compiler | None = None,
    snapshots: int | None = None,
    **options: Any,
) -> tuple[EngineCore, SimulatedRunner]:
    """Return a core with a simulated runner (wrapped by `wrap`), which checks its integrity after every step.

    With a number of `snapshots`, which may be 0, the runner is recurrent.
    """
    defaults = {"max_batch_tokens": 16, "max_sequences": 4, "overlap": False, "check_integrity_every": 1}
    config = EngineConfig(model="simulated", **(defaults | options))
    info = EngineInfo(
        model="simulated",
        architecture="none",
        dtype="none",
        device="cpu",
        attention_backend="none",
        vocab_size=VOCAB,
        max_model_len=max_model_len or (num_blocks - 1) * block_size,
        block_size=block_size,
        num_blocks=num_blocks,
        weight_bytes=0,
        kv_bytes=BLOCK_BYTES * num_blocks,
        eos_token_ids=[EOS],
        policy=config.policy,
        least_blocks=least_blocks,
        most_blocks=most_blocks,
        groups=tuple(groups),
        recurrent=snapshots is not None,
        snapshots=snapshots or 0,
    )
    sizes = (num_blocks, block_size, config.max_batch_tokens, config.max_sequences)
    runner = SimulatedRunner(*sizes, groups, recurrent=snapshots is not None)
    index = None if tiers is None else tiers(runner)
    return EngineCore(config, info, wrap(runner), *timelines, tiers=index, compiler=compiler), runner


def request(
    name: str,
    prompt: Sequence[int],
    *,
    salt: str = "",
    max_tokens: int | None = 8,
    ignore_eos: bool = True,
    temperature: float = 0.0,
    **params: Any,
) -> AddRequest:
    """Return a request that is greedy and runs to its limit, unless the arguments say otherwise."""
    stop = (salt,) if salt else ()
    chosen = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=ignore_eos, stop=stop, **params)
    return AddRequest(name, prompt, RequestContext(chosen, chosen.output_seed(), salt))


def with_context(request: AddRequest, **changes: Any) -> AddRequest:
    """Return the request with another context."""
    return msgspec.structs.replace(request, context=msgspec.structs.replace(request.context, **changes))


def sequence_of(
    params: SamplingParams,
    queue: QueueEntry,
    prompt: Sequence[int],
    max_len: int,
    stop_ids: Iterable[int] = (),
    min_len: int = 0,
) -> SequenceState:
    """Return a waiting sequence."""
    context, kv = RequestContext(params, seed=0), SequenceKv([])
    return SequenceState(
        f"r{queue.arrival}", context, Prompt(prompt), min_len, max_len, frozenset(stop_ids), queue, kv, Report()
    )


def drain(core: EngineCore, limit: int = 2000) -> dict[str, list[RequestOutput]]:
    """Step until no work is left; return the outputs of each request."""
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(limit):
        if not core.has_work:
            return outputs
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("requests are still running")


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    """Return all tokens of a request's outputs."""
    return [token for output in outputs for token in output.token_ids]
