"""The `plimsoll` command line: parses arguments, calls the runtime, prints results."""
