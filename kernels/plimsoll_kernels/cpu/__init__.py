"""Kernels for CPUs, in C++: a library with a plain C interface, and the Python code that calls it.

`source/` has the kernels, `compile.py` builds the library with a C++ compiler, `library.py` finds it and selects an
instruction set by the measurements of `speed.py`; `records.py` is the interface. Without the library, callers compute
with stock torch: the results are the same up to rounding.
"""
