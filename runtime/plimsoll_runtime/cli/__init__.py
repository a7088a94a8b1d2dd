"""The `plimsoll` command: parse, call, print."""
