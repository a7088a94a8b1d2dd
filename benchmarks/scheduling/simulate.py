"""Runs the real scheduler step by step, with a clock that the cost model advances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext, RequestOutput
from plimsoll_runtime.engine.protocol.plan import SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.scheduler.policies import SECOND_NS, new_policy
from plimsoll_runtime.engine.scheduler.scheduler import Scheduler
from scheduling.cost import CostModel, StepWork, work_of
from scheduling.traces import TraceRequest

EOS, TOKEN, FIRST_TENANT_TOKEN, FIRST_OWN_TOKEN = 0, 1, 10, 1000
INTERACTIVE_PRIORITY = -1


@dataclass(frozen=True, slots=True)
class Engine:
    """The simulated engine: step costs, and the scheduler's limits."""

    cost: CostModel
    num_blocks: int = 1281
    block_size: int = 16
    max_len: int = 4096
    max_batch_tokens: int = 512
    max_sequences: int = 32

    def limits(self) -> Limits:
        """Return the scheduler's limits."""
        return Limits(
            self.num_blocks,
            self.block_size,
            self.max_len,
            self.max_batch_tokens,
            self.max_sequences,
            frozenset({EOS}),
        )

    def seconds_alone(self, request: TraceRequest) -> float:
        """Return the duration of a request without other requests and cache hits."""
        prompt, answer = request.prompt_len, request.answer_len
        steps = -(-prompt // self.max_batch_tokens) + answer - 1
        context = (answer - 1) * (prompt + answer // 2)
        return self.cost.seconds(StepWork(steps, prompt, answer - 1, context, prompt * (prompt + 1) // 2))

    def seconds_in_crowd(self, request: TraceRequest) -> float:
        """Return a request's share of the engine's time with the maximum number of sequences and its tenant's prefix
        cached.
        """
        own, answer = request.prompt_len - request.prefix, request.answer_len
        context = answer * (request.prompt_len + answer // 2)
        pairs = own * request.prefix + own * (own + 1) // 2
        busy = self.cost.seconds(StepWork(0, own, answer, context, pairs))
        return busy + self.cost.step * answer / self.max_sequences


@dataclass(slots=True)
class Outcome:
    """Result of a request: the time of each of its tokens in seconds; none if its deadline passed before the first."""

    request: TraceRequest
    token_times: list[float] = field(default_factory=list)
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """All outcomes of a trace under a policy, and the engine's counters."""

    outcomes: list[Outcome]
    seconds: float
    steps: int
    preemptions: int
    hit_share: float


def simulate(engine: Engine, policy: str, trace: Sequence[TraceRequest]) -> Run:
    """Serve a trace to its end."""
    return _Simulation(engine, policy, trace).run()


class _Simulation:
    def __init__(self, engine: Engine, policy: str, trace: Sequence[TraceRequest]) -> None:
        self._engine = engine
        self._now_ns = 1
        self._scheduler = Scheduler(engine.limits(), new_policy(policy), lambda: self._now_ns)
        self._all = [Outcome(request) for request in sorted(trace, key=lambda request: request.at)]
        self._coming = self._all[::-1]
        self._live: dict[str, Outcome] = {}
        self._slots: dict[int, Outcome] = {}
        self._by_prompt: dict[int, Outcome] = {}
        self._serial = 0

    def run(self) -> Run:
        while self._coming or len(self._scheduler):
            if not len(self._scheduler):
                self._now_ns = max(self._now_ns, _ns(self._coming[-1].request.at))
            self._add_arrived()
            self._tell(self._scheduler.expire())
            step = self._scheduler.schedule()
            if step is not None:
                self._fill_slots(step.plan)
                self._now_ns += _ns(self._engine.cost.seconds(work_of(step.plan)))
                self._tell(self._scheduler.commit(step, self._result(step.plan)))
        stats = self._scheduler.stats()
        hits = stats.cache_hit_tokens / max(1, stats.cache_query_tokens)
        return Run(self._all, self._now_ns / SECOND_NS, stats.steps, stats.preemptions, hits)

    def _add_arrived(self) -> None:
        while self._coming and _ns(self._coming[-1].request.at) <= self._now_ns:
            outcome = self._coming.pop()
            request = outcome.request
            self._serial += 1
            params = SamplingParams(
                temperature=0.0,
                max_tokens=request.max_tokens,
                priority=INTERACTIVE_PRIORITY if request.interactive else 0,
                deadline=request.deadline,
            )
            prompt = self._prompt(request)
            self._by_prompt[prompt[-1]] = outcome
            self._live[str(self._serial)] = outcome
            context = RequestContext(params, seed=0, arrived_ns=_ns(request.at))
            self._scheduler.add(AddRequest(str(self._serial), prompt, context))

    def _prompt(self, request: TraceRequest) -> list[int]:
        """Return tokens that identify the tenant, then tokens that identify the request."""
        own = FIRST_OWN_TOKEN + self._serial
        return [FIRST_TENANT_TOKEN + request.tenant] * request.prefix + [own] * (request.prompt_len - request.prefix)

    def _fill_slots(self, plan: StepPlan) -> None:
        for init in plan.new_slots:
            self._slots[init.slot] = self._by_prompt[init.prompt_ids[-1]]

    def _result(self, plan: StepPlan) -> StepResult:
        return StepResult([self._output(s.slot) if s.sample else SequenceOutput() for s in plan.sequences])

    def _output(self, slot: int) -> SequenceOutput:
        """Return a fixed token, or EOS as the last token of the output."""
        outcome = self._slots[slot]
        last = len(outcome.token_times) + 1 >= outcome.request.answer_len
        return SequenceOutput(EOS if last else TOKEN)

    def _tell(self, outputs: Sequence[RequestOutput]) -> None:
        now = self._now_ns / SECOND_NS
        for output in outputs:
            outcome = self._live[output.request_id]
            if output.finish_reason == "deadline":
                outcome.given_up = True
            else:
                outcome.token_times.append(now)
            if output.finish_reason is not None:
                del self._live[output.request_id]


def _ns(seconds: float) -> int:
    return int(seconds * SECOND_NS)
