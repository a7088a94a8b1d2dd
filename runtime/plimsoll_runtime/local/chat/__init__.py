"""`plimsoll chat` and `plimsoll ask`: a model in a terminal."""
