"""The engine: requests in, steps, outputs out. It drives the scheduler and whatever runner it is given."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from collections.abc import Sequence as ReadOnly
from typing import Protocol

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.messages import (
    AddRequest,
    EngineInfo,
    EngineStats,
    LogprobEntry,
    RequestOutput,
    StepOutputs,
)
from plimsoll_runtime.engine.plan import ScheduledSequence, SequenceOutput, StepPlan, StepResult, TokenLogprob
from plimsoll_runtime.engine.policy import make_policy
from plimsoll_runtime.engine.scheduler import Scheduler
from plimsoll_runtime.engine.sequence import Phase, Sequence
from plimsoll_runtime.errors import EngineDeadError, UsageError


class Runner(Protocol):
    """Whatever can compute a plan."""

    def run(self, plan: StepPlan) -> StepResult:
        """One output for each of the plan's sequences, in its order."""


class EngineCore:
    """One model's requests. A step is schedule, run, commit; nothing happens between steps.

    A runner that raises has lost the engine: `step` raises EngineDeadError, and so does every later call.
    """

    def __init__(self, config: EngineConfig, info: EngineInfo, runner: Runner) -> None:
        self.info = info
        self._runner = runner
        self._check = config.check_integrity
        self._scheduler = Scheduler(
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            prefix_caching=config.prefix_caching,
            policy=make_policy(config.policy),
        )
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = itertools.count()
        self._ends = frozenset(info.eos_token_ids)
        self._failure: str | None = None
        self._steps = self._prompt_tokens = self._generated_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as of now."""
        scheduler = self._scheduler
        return EngineStats(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            blocks_total=scheduler.pool.num_usable,
            blocks_used=scheduler.pool.num_usable - scheduler.pool.num_free,
            blocks_cached=len(scheduler.cache),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            cache_query_tokens=scheduler.cache_query_tokens,
            cache_hit_tokens=scheduler.cache_hit_tokens,
            preemptions=scheduler.preemptions,
            evictions=scheduler.cache.evictions,
        )

    def add(self, request: AddRequest) -> None:
        """Take a request. Raises UsageError for one that can never be served, EngineDeadError after a failure."""
        self._check_alive()
        self._check_request(request)
        seed = request.params.seed
        self._sequences[request.request_id] = sequence = Sequence(
            request,
            arrival=next(self._arrivals),
            seed=seed if seed is not None else random.getrandbits(62),
            max_model_len=self.info.max_model_len,
        )
        self._scheduler.add(sequence)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown ones are ignored, and no output of theirs follows."""
        for request_id in request_ids:
            sequence = self._sequences.pop(request_id, None)
            if sequence is not None:
                self._scheduler.remove(sequence)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        self._scheduler.reset_prefix_cache()

    def step(self) -> StepOutputs:
        """Compute one step and say what it added to whom."""
        self._check_alive()
        if not self._scheduler.has_work:
            return StepOutputs([], self.stats)
        plan, sequences = self._scheduler.schedule()
        result = self._run(plan)
        outputs = [
            output
            for scheduled, sequence, computed in zip(plan.sequences, sequences, result.outputs, strict=True)
            if (output := self._commit(scheduled, sequence, computed)) is not None
        ]
        self._steps += 1
        if self._check:
            self._scheduler.check_integrity()
        return StepOutputs(outputs, self.stats)

    def _run(self, plan: StepPlan) -> StepResult:
        try:
            if not plan.sequences:
                raise RuntimeError("requests wait, but the scheduler found nothing to do")
            return self._runner.run(plan)
        except Exception as error:
            self._failure = f"a step failed: {type(error).__name__}: {error}"
            raise EngineDeadError(self._failure) from error

    def check_integrity(self) -> None:
        """Raises AssertionError when the engine's records disagree."""
        self._scheduler.check_integrity()
        assert all(s.phase is not Phase.DONE for s in self._sequences.values()), "a request is done and still known"

    def _commit(
        self, scheduled: ScheduledSequence, sequence: Sequence, computed: SequenceOutput
    ) -> RequestOutput | None:
        """Take a sequence's output over; None when there is nothing to tell."""
        if sequence.phase is not Phase.RUNNING:
            return None
        if computed.error is not None:
            return self._end(sequence, RequestOutput(sequence.request_id, finish_reason="error", error=computed.error))
        end = scheduled.start + len(scheduled.token_ids)
        self._prompt_tokens += max(0, min(end, sequence.prompt_len) - scheduled.start)
        self._collect_prompt(scheduled, sequence, computed.prompt_logprobs)
        self._scheduler.commit(sequence, len(scheduled.token_ids))
        if computed.token_id is None:
            return None
        return self._append(sequence, computed.token_id, computed.logprob)

    @staticmethod
    def _collect_prompt(scheduled: ScheduledSequence, sequence: Sequence, reports: ReadOnly[TokenLogprob]) -> None:
        """Positions that a preemption made compute twice are reported once."""
        if reports:
            known = len(sequence.prompt_logprobs)
            sequence.prompt_logprobs.extend(reports[max(0, known - scheduled.start) :])

    def _append(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> RequestOutput:
        first = sequence.num_outputs == 0
        sequence.tokens.append(token_id)
        self._generated_tokens += 1
        reason, stop_token_id = self._finish_reason(sequence, token_id)
        wanted = first and sequence.params.prompt_logprobs is not None
        output = RequestOutput(
            sequence.request_id,
            token_ids=[token_id],
            logprobs=[] if logprob is None else [_entry(logprob)],
            prompt_logprobs=[_entry(p) for p in sequence.prompt_logprobs] if wanted else None,
            finish_reason=reason,
            stop_token_id=stop_token_id,
            cached_tokens=sequence.cached_tokens if first else 0,
        )
        return output if reason is None else self._end(sequence, output)

    def _finish_reason(self, sequence: Sequence, token_id: int) -> tuple[str | None, int | None]:
        params = sequence.params
        if sequence.num_outputs >= params.min_tokens and (
            token_id in params.stop_token_ids or (token_id in self._ends and not params.ignore_eos)
        ):
            return "stop", token_id
        return ("length", None) if len(sequence.tokens) >= sequence.max_len else (None, None)

    def _end(self, sequence: Sequence, output: RequestOutput) -> RequestOutput:
        del self._sequences[sequence.request_id]
        self._scheduler.remove(sequence)
        return output

    def _check_request(self, request: AddRequest) -> None:
        prompt, limit = request.prompt_token_ids, self.info.max_model_len
        if request.request_id in self._sequences:
            raise UsageError(f"request id {request.request_id!r} is in use")
        if not prompt:
            raise UsageError("the prompt is empty: give at least one token")
        if len(prompt) >= limit:
            raise UsageError(
                f"the prompt has {len(prompt)} tokens, but prompt and answer together may have {limit}; "
                "shorten it, or serve the model with a larger --max-model-len"
            )
        if min(prompt) < 0 or max(prompt) >= self.info.vocab_size:
            raise UsageError(f"the prompt has token ids outside the vocabulary (0 to {self.info.vocab_size - 1})")

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(self._failure)


def _entry(report: TokenLogprob) -> LogprobEntry:
    return LogprobEntry(report.token_id, report.logprob, report.rank, list(report.top))
