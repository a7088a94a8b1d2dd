"""From a decoder spec to a program."""
