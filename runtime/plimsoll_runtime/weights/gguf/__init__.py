"""GGUF files: metadata and tensors, translated to the vocabulary of config.json and safetensors."""
