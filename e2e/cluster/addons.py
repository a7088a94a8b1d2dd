"""Add-ons of every cluster: DNS, and Contour with Envoy for Ingresses and a Gateway."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.addresses import DNS_SERVICE, NODES
from cluster.kubectl import Client
from cluster.layout import SOURCE
from cluster.versions import COREDNS_IMAGE

MANIFESTS = SOURCE / "manifests"
INGRESS = "projectcontour"
ROLLOUTS = (
    ("kube-system", "deployment/coredns"),
    (INGRESS, "deployment/contour"),
    (INGRESS, "daemonset/envoy"),
)
READY_SECONDS = 180
GATEWAY_KINDS = tuple(f"crd/{plural}.gateway.networking.k8s.io" for plural in ("gatewayclasses", "gateways"))


def dns_manifest() -> str:
    text = (MANIFESTS / "coredns.yaml").read_text()
    return text.replace("image: IMAGE", f"image: {COREDNS_IMAGE}").replace(
        "clusterIP: ADDRESS", f"clusterIP: {DNS_SERVICE}"
    )


def install(client: Client, contour: Path) -> None:
    """Apply all manifests; repeated calls change nothing."""
    apply = ("apply", "--server-side", "--force-conflicts", "-f")
    client.kubectl(*apply, "-", stdin=dns_manifest())
    client.kubectl(*apply, contour)
    client.kubectl(*apply, MANIFESTS / "ingress-class.yaml")
    client.kubectl("wait", "--for=condition=Established", *GATEWAY_KINDS, f"--timeout={READY_SECONDS}s")
    client.kubectl(*apply, MANIFESTS / "gateway.yaml")
    publish_addresses(client)


def publish_addresses(client: Client) -> None:
    """Write the nodes' addresses into the status of Envoy's Service, like a load balancer: Contour copies them to each
    Ingress. Mode Proxy tells kube-proxy to leave them alone, because Envoy already listens on the nodes' own ports.
    """
    ingress = [{"ip": node.address, "ipMode": "Proxy"} for node in NODES]
    patch = json.dumps({"status": {"loadBalancer": {"ingress": ingress}}})
    client.kubectl("patch", "service/envoy", "-n", INGRESS, "--subresource=status", "--type=merge", "-p", patch)


def wait_ready(client: Client) -> None:
    """Wait until all add-ons run. Raises ClusterError with kubectl's output if they do not."""
    for namespace, workload in ROLLOUTS:
        client.kubectl("rollout", "status", workload, "-n", namespace, f"--timeout={READY_SECONDS}s")
    programmed = ("wait", "--for=condition=Programmed", "gateway/contour", "-n", INGRESS)
    client.kubectl(*programmed, f"--timeout={READY_SECONDS}s")
