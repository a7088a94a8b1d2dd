"""KV blocks in host memory and on a disk: the bytes."""
