"""How long from the wish for a sleeping model to its first token?"""
