"""Shares one device among many models: decides which are awake, and wakes and evicts them."""
