"""Model files: sources (folders, hub, demo), formats (safetensors, GGUF), quantisation and weight images."""
