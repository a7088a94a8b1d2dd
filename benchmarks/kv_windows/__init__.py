"""The number of sequences in a cache whose sliding windows free blocks."""
