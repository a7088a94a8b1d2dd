"""Interprets Triton's kernels in less time."""

from __future__ import annotations

import inspect
from typing import Any


def quicken_interpreter() -> None:
    """Make Triton's interpreter replace built-in functions once a launch, not in each call of a function of a kernel,
    and search for them once.

    Both take half of the time of interpreted kernels.
    """
    from triton import language
    from triton.runtime import interpreter

    core = language.core
    found: dict[Any, list[str]] = {}
    for module in (language, core, core.tensor, language.math, core.tensor_descriptor_base):
        members: Any = inspect.getmembers(module)
        found[module] = [name for name, member in members if core.is_builtin(member)]
    replace_all: Any = interpreter._patch_lang

    def replace_builtins(module: Any, builder: Any, scope: Any) -> None:
        for name in found[module]:
            member = getattr(module, name)
            if core.is_builtin(member):
                interpreter._patch_attr(module, name, member, builder, scope)

    def replace_once(function: Any) -> Any:
        modules = [value for value in function.__globals__.values() if value is language or value is core]
        if modules and not any(core.is_builtin(module.load) for module in modules):
            return interpreter._LangPatchScope()
        return replace_all(function)

    interpreter._patch_builtin = replace_builtins
    interpreter._patch_lang = replace_once
