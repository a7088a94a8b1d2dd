"""KEDA from its Go module: operator, metrics adapter and CRDs.

The cluster does not need it, and it takes some minutes to build, so it is built only on request.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from cluster.binaries import BUILD, STATIC, Binary, build_missing, module_folder
from cluster.files import installing
from cluster.layout import Layout
from cluster.progress import Progress
from cluster.shell import family, run
from cluster.versions import KEDA

MODULE = "github.com/kedacore/keda/v2"


def package(name: str) -> Callable[[Path, Path], None]:
    """Return a `Binary.build` that builds one of KEDA's programs in its module's folder: its go.mod replaces modules,
    which `go install` refuses.
    """

    def build(target: Path, log: Path) -> None:
        argv = family("go", "build", *BUILD, "-ldflags", "-s -w", "-o", target, f"./cmd/{name}")
        run(argv, env=STATIC, cwd=module_folder(MODULE, KEDA), log=log)

    return build


OPERATOR = Binary("keda-operator", KEDA, package("operator"))
ADAPTER = Binary("keda-adapter", KEDA, package("adapter"))


def definitions(layout: Layout) -> Path:
    """Return the path of the cache's folder with KEDA's CustomResourceDefinitions. `build_keda` creates it."""
    return layout.cache / "manifests" / f"keda-{KEDA}"


def build_keda(layout: Layout, progress: Progress) -> None:
    """Build the programs and definitions that the cache lacks."""
    build_missing(layout, progress, (OPERATOR, ADAPTER))
    target = definitions(layout)
    if not target.exists():
        with installing(target) as scratch:
            shutil.copytree(module_folder(MODULE, KEDA) / "config" / "crd" / "bases", scratch)
