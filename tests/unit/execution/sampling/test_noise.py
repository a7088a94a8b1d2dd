"""Uniform numbers for (seed, index) are uniform, and the same in any batch."""

import numpy as np

from plimsoll_runtime.execution.sampling.state import uniforms


def test_uniforms_are_uniform_and_independent_of_order() -> None:
    seeds, indices = np.arange(200).repeat(100), np.tile(np.arange(100), 200)
    values = uniforms(seeds, indices)
    histogram, _ = np.histogram(values, bins=20, range=(0, 1))
    expected = len(values) / 20
    assert ((histogram - expected) ** 2 / expected).sum() < 19 + 4 * 38**0.5
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
    permuted = np.random.default_rng(0).permutation(len(values))
    assert (uniforms(seeds[permuted], indices[permuted]) == values[permuted]).all()
