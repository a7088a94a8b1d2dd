"""`plimsoll chat` and `plimsoll ask`: talk to a model in a terminal."""
