"""How far is paged attention from the machine's limits, and from torch's SDPA over dense keys and values?"""
