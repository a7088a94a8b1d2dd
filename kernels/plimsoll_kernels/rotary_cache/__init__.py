"""From the product of queries, keys and values to attention: norms over heads, rotation, keys and values cached."""
