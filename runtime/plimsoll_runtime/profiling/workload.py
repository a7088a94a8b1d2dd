"""Workloads of the profiler: greedy requests of random tokens that arrive together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.kv.cache_groups import sequence_blocks
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import UsageError

WORKLOADS = {
    "uniform": "every request has --prompt-len tokens and generates --output-len tokens",
    "mixed": "both lengths are drawn uniformly, from a sixteenth of the given length up to it",
    "shared-prefix": "like uniform, but all prompts are equal except for their last 16 tokens",
}
OWN_TOKENS = 16
SHORTEST = 16
"""Ratio of the longest to the shortest length in `mixed`."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`name` is one of WORKLOADS; lengths in tokens."""

    name: str
    batch: int
    prompt_len: int
    output_len: int

    def check(self, config: EngineConfig) -> None:
        """Check what can be checked before a model is loaded. Raises UsageError."""
        if self.batch > config.max_sequences:
            raise UsageError(
                f"--batch {self.batch} exceeds --max-sequences {config.max_sequences}, so the requests cannot run "
                "together; raise --max-sequences or lower --batch"
            )
        if self.name == "shared-prefix" and self.prompt_len <= OWN_TOKENS:
            raise UsageError(
                f"--prompt-len {self.prompt_len} leaves nothing to share, because the last {OWN_TOKENS} tokens of "
                f"each shared-prefix prompt differ; give at least {OWN_TOKENS + 1}"
            )
        if config.max_model_len is not None:
            self._check_length(config.max_model_len)

    def check_fits(self, info: EngineInfo) -> None:
        """Check that the loaded engine can run the workload as one batch. Raises UsageError."""
        if info.pooling is not None:
            raise UsageError(
                f"only models that generate text can be profiled, but the task of this model is {info.pooling.task}"
            )
        self._check_length(info.max_model_len)
        blocks = self.batch * sequence_blocks(info.groups, self.prompt_len + self.output_len, info.block_size)
        if blocks > info.num_blocks - 1:
            raise UsageError(
                f"{self.batch} sequences of {self.prompt_len + self.output_len} tokens need {blocks} KV blocks of "
                f"{info.block_size} tokens, but there are {info.num_blocks - 1}; raise --kv-memory or lower --batch"
            )

    def requests(self, vocab_size: int, *, longest_output: int | None = None) -> list[AddRequest]:
        """Return the requests, the same at every call. `longest_output` limits their outputs."""
        rng = random.Random(0)
        prefix = _tokens(rng, self.prompt_len - OWN_TOKENS, vocab_size) if self.name == "shared-prefix" else []
        requests = []
        for index in range(self.batch):
            prompt_len, output_len = self._lengths(rng)
            prompt = prefix + _tokens(rng, prompt_len - len(prefix), vocab_size)
            limit = output_len if longest_output is None else min(output_len, longest_output)
            params = SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True)
            requests.append(AddRequest(f"profile-{index}", prompt, RequestContext(params, seed=0)))
        return requests

    def _lengths(self, rng: random.Random) -> tuple[int, int]:
        if self.name != "mixed":
            return self.prompt_len, self.output_len
        return _up_to(rng, self.prompt_len), _up_to(rng, self.output_len)

    def _check_length(self, limit: int) -> None:
        if self.prompt_len + self.output_len > limit:
            raise UsageError(
                f"--prompt-len {self.prompt_len} and --output-len {self.output_len} make "
                f"{self.prompt_len + self.output_len} tokens, but the limit of a sequence is {limit}; lower one of "
                "them"
            )


def _up_to(rng: random.Random, longest: int) -> int:
    return rng.randint(-(-longest // SHORTEST), longest)


def _tokens(rng: random.Random, count: int, vocab_size: int) -> list[int]:
    return [rng.randrange(vocab_size) for _ in range(count)]


def prompt_tokens(requests: Sequence[AddRequest]) -> int:
    """Return the number of tokens in all prompts."""
    return sum(len(r.prompt_token_ids) for r in requests)
