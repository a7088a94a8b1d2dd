"""Every class of Transformers that generates text, as a tiny random model: whether and how it is served, and its
accuracy.
"""
