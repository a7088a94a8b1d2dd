"""Pinned versions, and the names of the images.

Kubernetes stays on 1.34, because later kubelets refuse cgroup v1 by default. Envoy's wheel is the newest on the package
index with the minor version in Contour's manifest; the image built from it has the name in that manifest. Modules of
our own pin their versions in their go.mod: Kubernetes in kube/, CoreDNS in dns/.
"""

HELM = "v3.22.0"
CONTOUR = "v1.33.8"
KEDA = "v2.20.2"
JAEGER = "v1.76.0"
ZIPKIN = "3.4.4"
PROMETHEUS = "2.42"
ALERTMANAGER = "0.25"
ENVOY_WHEEL = "1.38.3"
DEBIAN = "bookworm"

PAUSE_IMAGE = "plimsoll.test/pause:1"
COREDNS_IMAGE = "plimsoll.test/coredns:1"
CONTOUR_IMAGE = f"ghcr.io/projectcontour/contour:{CONTOUR}"
PYTHON_IMAGE = "docker.io/library/python:3.11-slim-bookworm"

REGISTRY = "registry.plimsoll.test"
