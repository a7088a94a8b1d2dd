"""Kernels for CPUs, in C++: a library with a plain C interface, and what Python needs to call it.

`source/` holds them, `compile.py` makes the library where a C++ compiler is, `library.py` finds it and takes one of its
instruction sets, by what `speed.py` measures; `records.py` is its interface.
Where there is none, callers compute with stock torch: the results are the same up to rounding.
"""
