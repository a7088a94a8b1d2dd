"""How much Python does a decode step run?"""
