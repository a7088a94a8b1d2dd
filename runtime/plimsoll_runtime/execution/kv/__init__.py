"""The memory of the KV cache and of recurrent states."""
