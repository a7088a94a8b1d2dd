"""A build hook for wheels and editable installs that compiles the CPU kernels if a C++ compiler is installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = Path("kernels")
FOLDER = PACKAGES / "plimsoll_kernels/cpu"


class CpuKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Compile the library next to its sources and add it to the wheel. Without a compiler, build without it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if self.target_name != "wheel" or not (Path(self.root) / FOLDER).is_dir():
            return
        sys.path.insert(0, str(Path(self.root) / PACKAGES))
        compiling = importlib.import_module("plimsoll_kernels.cpu.compile")
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
