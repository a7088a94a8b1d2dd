"""The names of activations, in a module that does not import torch, because processes that only read configs never load
torch.
"""

from __future__ import annotations

from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""`gelu` by the error function (Hendrycks and Gimpel, 2016), `gelu_tanh` by tanh; `relu2` is relu squared (So,
2021).
"""
