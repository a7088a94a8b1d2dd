"""What the client of a sequence hears of it."""

from __future__ import annotations

from plimsoll_runtime.engine.messages import LogprobEntry, RequestOutput
from plimsoll_runtime.engine.plan import ScheduledSequence, SequenceOutput, TokenLogprob
from plimsoll_runtime.engine.scores import pack
from plimsoll_runtime.engine.sequence import SequenceState


def token_message(
    sequence: SequenceState, tokens: list[int], logprob: TokenLogprob | None, reason: str | None
) -> RequestOutput | None:
    """New tokens, and why the last of them is the last one if it is. The first of a request also carries what is told
    once. None of one that is told whole, before its end.
    """
    answered, sequence.answered = sequence.answered, True
    if sequence.told_whole:
        if reason is None:
            return None
        answered, tokens = False, sequence.output_ids
    stop_token_id = tokens[-1] if reason == "stop" else None
    logprobs = [] if logprob is None else [_entry(logprob)]
    if answered:
        return RequestOutput(sequence.request_id, tokens, logprobs, None, reason, stop_token_id)
    return RequestOutput(
        sequence.request_id,
        tokens,
        logprobs,
        sequence.prompt_logprobs,
        reason,
        stop_token_id,
        sequence.cached_tokens,
    )


def vector_message(sequence: SequenceState, output: SequenceOutput) -> RequestOutput:
    """What came of a prompt of which no tokens were wanted."""
    return RequestOutput(
        sequence.request_id, finish_reason="stop", cached_tokens=sequence.cached_tokens, vector=output.vector
    )


def deadline_message(sequence: SequenceState) -> RequestOutput:
    """The deadline has passed."""
    place = "in the prompt" if sequence.admitted else "in the queue"
    error = f"its deadline of {sequence.params.deadline:g} s passed before the first token, when it was {place}"
    return RequestOutput(sequence.request_id, finish_reason="deadline", error=error)


def record_prompt_logprobs(sequence: SequenceState, entry: ScheduledSequence, output: SequenceOutput) -> None:
    """Keep what is new: after a preemption positions may be computed again that were reported before."""
    assert sequence.prompt_logprobs is not None
    new = output.prompt_logprobs[max(0, sequence.scored - entry.start) :]
    sequence.prompt_logprobs.extend(pack([_entry(logprob) for logprob in new]))
    sequence.scored += len(new)


def _entry(logprob: TokenLogprob) -> LogprobEntry:
    return LogprobEntry(logprob.token_id, logprob.logprob, logprob.rank, list(logprob.top))
