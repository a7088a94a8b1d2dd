"""GGUF files: metadata, tensors, and both translated to the vocabulary of config.json and safetensors."""
