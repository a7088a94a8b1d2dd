"""The work of steps: floating point operations and bytes, as sums over a few amounts that a step is counted in."""
