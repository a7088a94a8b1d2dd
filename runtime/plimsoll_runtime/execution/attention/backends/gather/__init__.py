"""Attention on a CPU with stock torch: gathered blocks, batched matrix products, no kernel of our own."""
