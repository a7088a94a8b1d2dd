"""The tokenizer that a GGUF file describes in its metadata, as a tokenizer.json."""
