"""The output of a response while it grows: parts of the output become items, and events that report them.

One item is open at a time. Text of white space only opens no message: models write line ends between tool calls, and
after reasoning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from plimsoll_runtime.api.responses.errors import item_id
from plimsoll_runtime.api.schemas.outputs import ChatLogprob
from plimsoll_runtime.api.schemas.response import (
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
    SummaryText,
)
from plimsoll_runtime.api.schemas.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    Numbered,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    SummaryDelta,
    SummaryDone,
    SummaryPartAdded,
    SummaryPartDone,
    TextDelta,
    TextDone,
)
from plimsoll_runtime.tools.arguments import is_whole

Events = Iterator[Numbered]


class Output:
    """The items so far. `first` is the number of the first one in the response, after its input. If `summarised`,
    reasoning goes into the item's summary, otherwise into its content.

    `words`, `thoughts`, `call` and `arguments` add output; `finish` ends it. Callers must consume all their events,
    because the items grow with them.
    """

    def __init__(self, response: str, first: int, *, summarised: bool) -> None:
        self.items: list[OutputItem] = []
        self._response = response
        self._first = first
        self._summarised = summarised
        self._open: OutputItem | None = None
        self._texts: list[str] = []
        self._logprobs: list[ChatLogprob] = []
        self._blank = ""  # white space that starts the next message, if text follows it
        self._unsaid: list[ChatLogprob] = []  # of tokens whose text has not been sent yet

    @property
    def in_words(self) -> bool:
        """Whether text is likely to come next: a message is open, or no item is."""
        return self._open is None or isinstance(self._open, MessageItem)

    def words(self, text: str, logprobs: Sequence[ChatLogprob] = ()) -> Events:
        """Add text for the user, with the log probabilities of its tokens."""
        self._unsaid += logprobs
        if not isinstance(self._open, MessageItem):
            self._blank += text
            if not self._blank.strip():
                return
            text, self._blank = self._blank, ""
            yield from self._message()
        if not text and not self._unsaid:
            return
        told, self._unsaid = self._unsaid, []
        self._texts.append(text)
        self._logprobs += told
        yield TextDelta(**self._place(), delta=text, logprobs=told)

    def thoughts(self, text: str) -> Events:
        """Add reasoning."""
        if not isinstance(self._open, ReasoningItem):
            yield from self._close("completed")
            yield from self._add(ReasoningItem(self._id("rs"), [], [], status="in_progress"))
            if self._summarised:
                yield SummaryPartAdded(**self._place(), part=SummaryText(""))
            else:
                yield PartAdded(**self._place(), part=ReasoningText(""))
        self._texts.append(text)
        yield (SummaryDelta if self._summarised else ReasoningDelta)(**self._place(), delta=text)

    def call(self, call_id: str, name: str) -> Events:
        """Start a tool call."""
        yield from self._close("completed")
        yield from self._add(FunctionCallItem(self._id("fc"), call_id, name, "", status="in_progress"))

    def arguments(self, text: str) -> Events:
        """Add arguments of the last tool call."""
        self._texts.append(text)
        yield ArgumentsDelta(**self._place(), delta=text)

    def finish(self, status: Status) -> Events:
        """End the output. A complete output without text and calls gets a message that is empty or white space."""
        silent = not any(isinstance(item, MessageItem | FunctionCallItem) for item in self.items)
        if silent and status == "completed":
            blank = self._blank
            yield from self._message()
            yield from self.words(blank)
        yield from self._close(status)

    def snapshot(self) -> list[OutputItem]:
        """Return the items in their present state, the open one incomplete."""
        if self._open is None:
            return list(self.items)
        return [*self.items[:-1], self._ended("incomplete")]

    def _message(self) -> Events:
        unsaid = self._unsaid
        yield from self._close("completed")
        self._unsaid = unsaid
        yield from self._add(MessageItem(self._id("msg"), "assistant", [], status="in_progress"))
        yield PartAdded(**self._place(), part=OutputText(""))

    def _add(self, item: OutputItem) -> Events:
        self.items.append(item)
        self._open = item
        yield ItemAdded(output_index=len(self.items) - 1, item=item)

    def _close(self, status: Status) -> Events:
        """Close the open item, if there is one; text held back for a message is dropped."""
        self._blank, self._unsaid = "", []
        if self._open is None:
            return
        ended, place = self._ended(status), self._place()
        match ended:
            case MessageItem(content=[OutputText() as part]):
                yield TextDone(**place, text=part.text, logprobs=part.logprobs)
                yield PartDone(**place, part=part)
            case ReasoningItem(summary=[summary]):
                yield SummaryDone(**place, text=summary.text)
                yield SummaryPartDone(**place, part=summary)
            case ReasoningItem(content=[thoughts]):
                yield ReasoningDone(**place, text=thoughts.text)
                yield PartDone(**place, part=thoughts)
            case FunctionCallItem():
                yield ArgumentsDone(**place, name=ended.name, arguments=ended.arguments)
        self.items[-1], self._open = ended, None
        self._texts, self._logprobs = [], []
        yield ItemDone(output_index=place["output_index"], item=ended)

    def _ended(self, status: Status) -> OutputItem:
        """Return the open item with its whole content, as a new object, because the client was sent the empty one. A
        call is complete if its arguments are, however the response ends."""
        text = "".join(self._texts)
        match self._open:
            case MessageItem(id=own, role=role):
                return MessageItem(own, role, [OutputText(text, logprobs=list(self._logprobs))], status)
            case ReasoningItem(id=own) if self._summarised:
                return ReasoningItem(own, [SummaryText(text)], [], status=status)
            case ReasoningItem(id=own):
                return ReasoningItem(own, [], [ReasoningText(text)], status=status)
            case FunctionCallItem(id=own, call_id=call_id, name=name):
                return FunctionCallItem(own, call_id, name, text, "completed" if is_whole(text) else "incomplete")
        raise AssertionError("no item is open")

    def _place(self) -> dict[str, Any]:
        """Return the fields that say to which item an event belongs."""
        return {"output_index": len(self.items) - 1, "item_id": self.items[-1].id}

    def _id(self, kind: str) -> str:
        return item_id(kind, self._response, self._first + len(self.items))
