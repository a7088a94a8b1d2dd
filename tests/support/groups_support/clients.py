"""Clients that ask a server for the same texts while its ranks are lost."""

from __future__ import annotations

import threading

from groups_support.ranks import SECONDS, text
from server_support.process import Served


class Client(threading.Thread):
    """Asks for the same text again and again; `wrong` are the other texts that it got."""

    def __init__(self, server: Served, number: int, tokens: int, ended: threading.Event) -> None:
        super().__init__()
        self._tokens = tokens
        self._server = server
        self._prompt = [number + 1, 3, 5] * (number + 1)
        self._number = number
        self._ended = ended
        self.expected = self._ask()
        self.texts = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self._ended.is_set():
            found = self._ask()
            self.texts += 1
            if found != self.expected:
                self.wrong.append(found)

    def _ask(self) -> str:
        return text(self._server, self._prompt, self._tokens, self._number)

    def finish(self) -> None:
        """Wait for the last text; raise AssertionError if it does not come, or if a text was wrong."""
        self.join(SECONDS)
        assert not self.is_alive()
        assert not self.wrong
        assert self.texts > 0
