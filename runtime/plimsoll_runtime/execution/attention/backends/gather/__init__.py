"""Attention on a CPU with stock torch: gathered blocks and batched matrix products."""
