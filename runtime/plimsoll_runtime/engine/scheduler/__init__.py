"""The scheduler: admits sequences and plans the tokens of each step."""
