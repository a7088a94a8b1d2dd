"""Composes the program of a decoder spec."""
