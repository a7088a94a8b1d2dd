"""How many sequences does a cache hold where windows give blocks back?"""
