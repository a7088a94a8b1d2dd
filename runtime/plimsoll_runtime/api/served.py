"""A model that is loaded: what a request needs of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from plimsoll_runtime.api.engine import Engine
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.image_parts import ImageParts
from plimsoll_runtime.api.load.room import Room
from plimsoll_runtime.engine.limits import check_priority
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.text.generation_config import Recommended
from plimsoll_runtime.text.tokenizer import Tokenizer

MAX_LOGIT_BIAS = 300
"""As many as OpenAI takes. They are added in every step, and everybody's step waits: 262,144 cost 10 ms each time."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model. `chat_stop` are strings that end a chat answer; `created` is when it was ready (Unix
    time); `max_logit_bias`: how many token ids of a request may have a bias. `tool_format`: how it writes calls of
    tools, None where its chat template says so. `strict_parameters`: fields that nothing here knows are refused.
    `reasoning_format`: how it writes thoughts, None where its chat template says so. `thinking_budget`: how many tokens
    thoughts may have where a request does not say. `image_parts`: what becomes of images. `recommended`: sampling
    settings of requests that leave them out. `about`: what a person should know of it before talking to it.
    """

    names: tuple[str, ...]
    engine: Engine
    tokenizer: Tokenizer
    created: int
    chat_stop: tuple[str, ...] = ()
    room: Room = field(default_factory=Room)
    max_logit_bias: int = MAX_LOGIT_BIAS
    tool_format: str | None = None
    strict_parameters: bool = False
    reasoning_format: str | None = None
    thinking_budget: int | None = None
    image_parts: ImageParts = "refuse"
    recommended: Recommended = field(default_factory=dict)
    about: str | None = None

    def check_priority(self, params: SamplingParams) -> None:
        """Raises ApiError for a priority that the engine would ignore."""
        try:
            check_priority(params, self.engine.info)
        except UsageError as error:
            raise ApiError(f"Invalid value for 'priority': {error}.", param="priority", code="invalid_value") from error
