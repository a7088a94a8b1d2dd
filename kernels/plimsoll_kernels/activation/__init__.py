"""Gated activation of a gated MLP: activation(gate) x up (Shazeer, 2020)."""
