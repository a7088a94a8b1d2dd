"""How long does the host take for a step of a GPU?"""
