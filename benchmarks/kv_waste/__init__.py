"""How much of the allocated KV cache holds nothing?"""
