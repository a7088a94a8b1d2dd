"""What a response says of itself whatever comes of it: its id, and the request as it was understood."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.schemas.response import (
    IncompleteDetails,
    ReasoningSettings,
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
    TextSettings,
)
from plimsoll_runtime.api.schemas.response_items import OutputItem
from plimsoll_runtime.api.schemas.response_request import ResponseRequest, TextConfig

_USUAL = 1.0
"""Temperature and top_p where neither request nor model says otherwise."""


@dataclass(slots=True)
class Draft:
    """A response that is being made. `model`: the name that the client used, and once the model is known its first
    name; `recommended`: that model's defaults for sampling.
    """

    id: str
    body: ResponseRequest
    model: str
    created_at: int
    recommended: Mapping[str, float] = field(default_factory=dict)

    def response(
        self,
        status: ResponseStatus,
        output: Sequence[OutputItem] = (),
        usage: ResponseUsage | None = None,
        *,
        error: ResponseError | None = None,
    ) -> Response:
        """As it is now."""
        body = self.body
        ended = status in ("completed", "incomplete")
        return Response(
            id=self.id,
            created_at=self.created_at,
            status=status,
            background=bool(body.background),
            completed_at=int(time.time()) if ended else None,
            error=error,
            incomplete_details=IncompleteDetails("max_output_tokens") if status == "incomplete" else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            model=self.model,
            output=list(output),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning=self._reasoning(),
            safety_identifier=body.safety_identifier,
            service_tier="default",
            store=body.stored,
            temperature=self._sampled_at("temperature"),
            text=self._text(),
            tool_choice=self._tool_choice(),
            tools=[tool.told() for tool in body.tools or ()],
            top_logprobs=body.top_logprobs or 0,
            top_p=self._sampled_at("top_p"),
            truncation=body.truncation or "disabled",
            user=body.user,
            metadata=body.metadata or {},
            usage=usage,
        )

    def failed(self, error: ApiError, output: Sequence[OutputItem] = ()) -> Response:
        """It ended by an error."""
        of_client = error.status < HTTPStatus.INTERNAL_SERVER_ERROR
        told = ResponseError("invalid_prompt" if of_client else "server_error", error.message)
        return self.response("failed", output, error=told)

    def _sampled_at(self, name: str) -> float:
        given: float | None = getattr(self.body, name)
        return self.recommended.get(name, _USUAL) if given is None else given

    def _reasoning(self) -> ReasoningSettings:
        given = self.body.reasoning
        return ReasoningSettings(None, None) if given is None else ReasoningSettings(given.effort, given.summarised)

    def _text(self) -> TextSettings:
        given = self.body.text or TextConfig()
        form = {"type": "text"} if given.format is None else given.format.model_dump(by_alias=True, exclude_none=True)
        return TextSettings(form, given.verbosity or "medium")

    def _tool_choice(self) -> str | dict[str, Any]:
        choice = self.body.tool_choice
        if choice is None or isinstance(choice, str):
            return choice or "auto"
        told: dict[str, Any] = choice.told()
        return told
