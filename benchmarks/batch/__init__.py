"""Compares `plimsoll batch` with HTTP clients of the server, and checks that its memory is flat."""
