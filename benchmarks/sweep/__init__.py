"""Every class of Transformers that generates text, as a tiny random model: whether it is served, how, and how right."""
