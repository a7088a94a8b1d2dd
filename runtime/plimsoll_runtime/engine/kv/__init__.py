"""Which of its cached tokens a layer still reads: the rule of a group of layers, one file a rule."""
