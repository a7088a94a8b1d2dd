"""How much more memory than it keeps does loading a model take?"""
