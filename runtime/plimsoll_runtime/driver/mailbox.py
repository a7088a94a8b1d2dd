"""Where one request's outputs wait for whoever reads them."""

from __future__ import annotations

import asyncio

from plimsoll_runtime.engine.protocol.messages import RequestOutput


class Mailbox:
    """Outputs of one request, for one reader. One who is slow gets several at once and holds up nobody."""

    __slots__ = ("_error", "_outputs", "_waiter")

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything that has come was taken."""
        return not self._outputs

    def put(self, output: RequestOutput) -> None:
        """Add an output."""
        self._outputs.append(output)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Nothing will come any more: the reader gets what is there, then the error."""
        self._error = error
        self._wake()

    async def take(self) -> RequestOutput:
        """All that has come since the last time, as one output; waits for it. Raises the error of `fail`."""
        while not self._outputs:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        outputs, self._outputs = self._outputs, []
        return joined(outputs)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def joined(outputs: list[RequestOutput]) -> RequestOutput:
    """Consecutive outputs of one request as one."""
    if len(outputs) == 1:
        return outputs[0]
    first, last = outputs[0], outputs[-1]
    return RequestOutput(
        request_id=first.request_id,
        token_ids=[token for output in outputs for token in output.token_ids],
        logprobs=[entry for output in outputs for entry in output.logprobs],
        prompt_logprobs=first.prompt_logprobs,
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
        cached_tokens=first.cached_tokens,
        error=last.error,
    )
