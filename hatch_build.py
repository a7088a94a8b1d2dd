"""A step of building the wheel, and of an editable install: the CPU kernels, where a C++ compiler is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("kernels/plimsoll_kernels/cpu")


class CpuKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Compile the library beside its sources and make it a part of the wheel; without a compiler, go on without."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        folder = Path(self.root) / FOLDER
        if self.target_name != "wheel" or not folder.is_dir():
            return
        compiling = _load(folder / "compile.py")
        try:
            library = compiling.library_path()
            if not compiling.is_whole(library):
                library = compiling.compile_library()
        except (compiling.CompileError, OSError) as error:
            self.app.display_warning(f"the CPU kernels are left out, stock torch will compute instead: {error}")
            return
        build_data["artifacts"].append(f"/{FOLDER}/{library.name}")
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-linux_x86_64"


def _load(path: Path) -> ModuleType:
    """A module by its path: the package that it belongs to needs torch, which a build does not have."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
