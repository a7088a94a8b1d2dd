"""How much each key may ask: requests and tokens a minute, and requests under way at once."""
