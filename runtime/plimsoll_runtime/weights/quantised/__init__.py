"""Safetensors whose matrices have few bits a number: what their configs say, and how they are converted."""
