"""from a decoder spec to a program."""
