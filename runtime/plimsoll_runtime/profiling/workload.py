"""What is asked of the engine while it is profiled: greedy requests of random tokens that arrive together."""

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
    "uniform": "every request has --prompt-len tokens and generates --output-len",
    "mixed": "both lengths drawn uniformly, from a sixteenth of them up to them",
    "shared-prefix": "as uniform, but all prompts begin the same and only the last 16 tokens are their own",
}
OWN_TOKENS = 16
SHORTEST = 16
"""Of mixed lengths, the shortest is the longest divided by this."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`name` is one of WORKLOADS; lengths in tokens."""

    name: str
    batch: int
    prompt_len: int
    output_len: int

    def check(self, config: EngineConfig) -> None:
        """Refuse what can be seen to be impossible before a model is loaded. Raises UsageError."""
        if self.batch > config.max_sequences:
            raise UsageError(
                f"--batch {self.batch} is more than --max-sequences {config.max_sequences}: "
                "they would not run together; raise the one or lower the other"
            )
        if self.name == "shared-prefix" and self.prompt_len <= OWN_TOKENS:
            raise UsageError(
                f"--prompt-len {self.prompt_len} leaves nothing to share: of each prompt of shared-prefix the last "
                f"{OWN_TOKENS} tokens are its own; give at least {OWN_TOKENS + 1}"
            )
        if config.max_model_len is not None:
            self._check_length(config.max_model_len)

    def check_fits(self, info: EngineInfo) -> None:
        """Refuse what this engine would not run in one batch. Raises UsageError."""
        if info.pooling is not None:
            raise UsageError(f"what generates is profiled, and this model is served for the task {info.pooling.task}")
        self._check_length(info.max_model_len)
        blocks = self.batch * sequence_blocks(info.groups, self.prompt_len + self.output_len, info.block_size)
        if blocks > info.num_blocks - 1:
            raise UsageError(
                f"{self.batch} sequences of {self.prompt_len + self.output_len} tokens need {blocks} KV blocks of "
                f"{info.block_size} tokens, there are {info.num_blocks - 1}: raise --kv-memory or lower --batch"
            )

    def requests(self, vocab_size: int, *, longest_output: int | None = None) -> list[AddRequest]:
        """The same requests at every call. `longest_output` cuts all answers to it."""
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
                f"{self.prompt_len + self.output_len} tokens, but a sequence may have {limit}"
            )


def _up_to(rng: random.Random, longest: int) -> int:
    return rng.randint(-(-longest // SHORTEST), longest)


def _tokens(rng: random.Random, count: int, vocab_size: int) -> list[int]:
    return [rng.randrange(vocab_size) for _ in range(count)]


def prompt_tokens(requests: Sequence[AddRequest]) -> int:
    """Tokens of all prompts."""
    return sum(len(r.prompt_token_ids) for r in requests)
