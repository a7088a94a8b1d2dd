"""Requests as lines of a file: `plimsoll batch`, and /v1/files with /v1/batches."""
