"""How a server meets those who come: over TLS or not, from which web pages, and what its log looks like."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from plimsoll_runtime.errors import UsageError

logger = logging.getLogger(__name__)

EXPOSED = ("X-Request-Id", "request-id", "Retry-After", "x-plimsoll-ignored")
Stamps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Door:
    """Options of a server: the files of its `certificate` (a chain, in PEM) and of that one's `key`, the origins of
    web pages that may read its answers ("*": all), and the form of its log.
    """

    certificate: Path | None = None
    key: Path | None = None
    origins: tuple[str, ...] = ()
    log_format: Literal["text", "json"] = "text"

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, for the web pages that may ask it."""
        if not self.origins:
            return app
        return CORSMiddleware(
            app, allow_origins=self.origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED
        )


class Certificate:
    """What a server proves itself with. New connections get what the files say by then: certificates are renewed while
    a server runs. Files that cannot be used leave the last ones in force, and the log says so.
    """

    def __init__(self, chain: Path, key: Path) -> None:
        """Raises UsageError where the files cannot be used."""
        self._files = chain, key
        try:
            self._stamps = self._look()
            self.context = self._loaded()
        except OSError as error:  # ssl's errors are some, too
            raise UsageError(
                f"--tls-certificate {chain} and --tls-key {key} cannot be used ({error}): they must be PEM, and belong "
                "together"
            ) from error

    def renew(self) -> None:
        """Look whether the files have changed."""
        try:
            stamps = self._look()
            if stamps == self._stamps:
                return
            self._stamps = stamps
            self._loaded()  # one that fails half way would be a context without a key
            self.context.load_cert_chain(*self._files)
            logger.info("the certificate was read again")
        except OSError as error:
            logger.error("the certificate cannot be read again, and the one read before stays in use: %s", error)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._files)
        return context

    def _look(self) -> Stamps:
        found = (file.stat() for file in self._files)
        return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)
