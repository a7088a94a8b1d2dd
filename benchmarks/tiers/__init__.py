"""The value of a prefix on disk, compared with computing it and with finding it in the KV cache."""
