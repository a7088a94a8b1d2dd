"""The speed of a product in each instruction set."""
