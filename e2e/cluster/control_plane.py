"""The control plane's machine: etcd, the API server, its controllers, and the scheduler."""

from __future__ import annotations

from pathlib import Path

from cluster.addresses import API_PORT, API_SERVICE, CONTROL_PLANE, NODES, SERVICES
from cluster.daemon import Daemon, flags
from cluster.kubeconfig import write_kubeconfig
from cluster.machine import Machine
from cluster.packages import program
from cluster.pki import Authority, Identity

ETCD = "http://127.0.0.1:2379"
# Seconds until a node counts as lost (Kubernetes' default). If the API server is away for longer, all nodes are lost
# when it is back, and the ingress has no endpoints until their kubelets report again.
NODE_GRACE = "50s"

API_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
IDENTITIES = (
    Identity(
        "apiserver",
        "/CN=kube-apiserver",
        [f"IP:{address}" for address in ("127.0.0.1", CONTROL_PLANE, API_SERVICE)] + [f"DNS:{n}" for n in API_NAMES],
    ),
    Identity("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
    Identity("admin", "/O=system:masters/CN=admin"),
    Identity("controller-manager", "/CN=system:kube-controller-manager"),
    Identity("scheduler", "/CN=system:kube-scheduler"),
    Identity("proxy", "/CN=system:kube-proxy"),
    *(
        Identity(f"node-{n.name}", f"/O=system:nodes/CN=system:node:{n.name}", [f"DNS:{n.name}", f"IP:{n.address}"])
        for n in NODES
    ),
)


def issue_all(authority: Authority) -> None:
    """Create the authority and all certificates."""
    authority.create()
    for identity in IDENTITIES:
        authority.issue(identity)


def storage_and_api(machine: Machine, kube: Path, authority: Authority) -> list[Daemon]:
    """Return the daemons that all others need: etcd and the API server."""
    etcd = flags(
        data_dir=str(machine.home / "etcd"),
        listen_client_urls=ETCD,
        advertise_client_urls=ETCD,
        listen_peer_urls="http://127.0.0.1:2380",
    )
    api = flags(
        etcd_servers=ETCD,
        bind_address="0.0.0.0",
        secure_port=str(API_PORT),
        advertise_address=CONTROL_PLANE,
        service_cluster_ip_range=SERVICES,
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction",
        allow_privileged="true",
        client_ca_file=str(authority.certificate),
        tls_cert_file=str(authority.certificate_of("apiserver")),
        tls_private_key_file=str(authority.key_of("apiserver")),
        service_account_issuer="https://kubernetes.default.svc.cluster.local",
        service_account_key_file=str(authority.folder / "service-accounts.pub"),
        service_account_signing_key_file=str(authority.key_of("service-accounts")),
        kubelet_certificate_authority=str(authority.certificate),
        kubelet_client_certificate=str(authority.certificate_of("kubelet-client")),
        kubelet_client_key=str(authority.key_of("kubelet-client")),
        # Use addresses, because exec and logs would look up node names, which no DNS knows.
        kubelet_preferred_address_types="InternalIP",
    )
    return [
        # Skip fsync, because the data is deleted with the cluster.
        Daemon("etcd", (program("etcd"), *etcd, "--unsafe-no-fsync"), machine.log("etcd")),
        Daemon("kube-apiserver", (str(kube), "kube-apiserver", *api), machine.log("kube-apiserver")),
    ]


def controllers(machine: Machine, kube: Path, authority: Authority) -> list[Daemon]:
    """Return the daemons controller manager and scheduler. There is one of each, so leader election is off."""
    etc = machine.home / "etc"
    daemons = []
    own = flags(
        service_account_private_key_file=str(authority.key_of("service-accounts")),
        root_ca_file=str(authority.certificate),
        cluster_signing_cert_file=str(authority.certificate),
        cluster_signing_key_file=str(authority.key),
        use_service_account_credentials="true",
        node_monitor_grace_period=NODE_GRACE,
    )
    for identity, extra in (("controller-manager", own), ("scheduler", ())):
        kubeconfig = str(write_kubeconfig(etc / f"{identity}.kubeconfig", authority, identity))
        shared = flags(
            kubeconfig=kubeconfig,
            authentication_kubeconfig=kubeconfig,
            authorization_kubeconfig=kubeconfig,
            leader_elect="false",
        )
        name = f"kube-{identity}"
        daemons.append(Daemon(name, (str(kube), name, *shared, *extra), machine.log(name)))
    return daemons
