"""What a server does with a step's outputs, in this process: its message, the texts, the events. Sockets are left out.

A running server does this in another process, beside the next step; here it follows the step, so that it can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from plimsoll_runtime.api.http.errors import json_line
from plimsoll_runtime.api.schemas.outputs import CompletionAnswer, CompletionChoice
from plimsoll_runtime.engine.protocol.messages import AddRequest, StepOutputs
from plimsoll_runtime.engine.step_timing import StepPhase, Timeline
from plimsoll_runtime.text.output import OutputText
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.version import FINGERPRINT


class ServerPath:
    """The answers of some requests as streams of completions."""

    def __init__(self, requests: Iterable[AddRequest], tokenizer: Tokenizer, timeline: Timeline) -> None:
        self._texts = {r.request_id: OutputText(r.params, tokenizer) for r in requests}
        self._timeline = timeline
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(StepOutputs)

    def send(self, done: StepOutputs) -> list[bytes]:
        """The events that a step's outputs become. It has to follow the step at once: its first phase begins there."""
        arrived = self._decoder.decode(self._encoder.encode(done))
        self._timeline.lap(StepPhase.MESSAGE)
        deltas = [(output.request_id, self._texts[output.request_id].push(output)) for output in arrived.outputs]
        self._timeline.lap(StepPhase.DETOKENISE)
        events = []
        for name, delta in deltas:
            choice = CompletionChoice(0, delta.text, finish_reason=delta.finish_reason)
            event = CompletionAnswer(name, 0, "profile", [choice], FINGERPRINT)
            events.append(b"data: " + json_line(event) + b"\n\n")
        self._timeline.lap(StepPhase.EVENTS)
        return events
