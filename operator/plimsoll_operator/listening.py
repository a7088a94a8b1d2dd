"""That a port cannot be had, as whoever starts the operator is told."""

from __future__ import annotations


class ListenError(Exception):
    """The port cannot be listened on; the message says which, and which option chooses another."""
