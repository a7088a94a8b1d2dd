"""The error of a prompt for which the model's context has no room.

Agents recognise its words and shorten the conversation: "This model's maximum context length is N tokens" (litellm and
what is built on it, Pi, opencode), "please reduce the length of" (OpenHands), and the code (LangChain, which looks for
it in the message: OpenAI's client says nothing but that).
"""

from __future__ import annotations

from plimsoll_runtime.api.http.errors import ApiError

TOO_LONG = "context_length_exceeded"
"""The error's code."""


def too_long(limit: int, had: str, shorten: str, param: str) -> ApiError:
    """`had`: what the request came to, in tokens; `shorten`: what is to become shorter."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, {had}. "
        f"Please reduce the length of {shorten} ({TOO_LONG})."
    )
    return ApiError(message, param=param, code=TOO_LONG)


def no_room(limit: int, prompt: int, answer: int | None, param: str) -> ApiError:
    """A prompt of so many tokens does not fit beside an answer of as many as the request wants; None: any number."""
    if answer is None:
        return too_long(
            limit, f"your {param} resulted in {prompt} tokens, and an answer needs one more", f"the {param}", param
        )
    had = f"you requested {prompt + answer} tokens ({prompt} in the {param}, {answer} in the completion)"
    return too_long(limit, had, f"the {param} or completion", param)


def too_many_characters(limit: int, characters: int, longest_piece: int, param: str) -> ApiError:
    """A text is too long even if each of its tokens is as long as a token can be."""
    least = -(-characters // longest_piece)
    return too_long(
        limit, f"your {param} resulted in at least {least} tokens ({characters} characters)", f"the {param}", param
    )
