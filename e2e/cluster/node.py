"""A node: containerd, kubelet and kube-proxy, and their configuration files."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.addresses import CONTROL_PLANE, DNS_SERVICE, PODS, REGISTRY_PORT, Node
from cluster.daemon import Daemon, flags
from cluster.files import write
from cluster.kubeconfig import write_kubeconfig
from cluster.layout import Layout
from cluster.machine import Machine
from cluster.packages import CNI_PLUGINS, program
from cluster.pki import Authority
from cluster.versions import PAUSE_IMAGE, REGISTRY

SOCKET = "/run/containerd/containerd.sock"


def node_machine(layout: Layout, node: Node) -> Machine:
    """Return the node's machine. Folders that grow (images, volumes, pod logs) are on disk, the others in memory."""
    home = layout.machines / node.name
    folders = {"/var/lib/containerd": "containerd", "/var/lib/kubelet": "kubelet", "/var/log/pods": "pods"}
    return Machine(layout, node.name, {target: home / name for target, name in folders.items()})


def containerd_config(etc: Path) -> str:
    """Return containerd's configuration.

    oom_score and restrict_oom_score_adj: root without CAP_SYS_RESOURCE cannot lower a process's score.
    discard_unpacked_layers: nodes push nothing, so the packed copy of a layer only takes disk space.
    """
    return f"""\
version = 2
oom_score = 0
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    discard_unpacked_layers = true
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{etc}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{etc}/certs.d"
"""


def registry_hosts() -> str:
    """Return containerd's configuration for the registry's name, which no DNS knows."""
    url = f"http://{CONTROL_PLANE}:{REGISTRY_PORT}"
    return f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'


def pod_network(node: Node) -> dict[str, object]:
    """Return the CNI configuration, in which each pod has its own routed link.

    With a bridge, a pod's answer to a neighbour on the same node would bypass the node's address translation, which
    breaks connections to services. The leases are in /run and end with the machine.
    """
    leases = {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": node.pods}]]}
    route = {"routes": [{"dst": "0.0.0.0/0"}]}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {"type": "ptp", "ipMasq": False, "ipam": {**leases, **route}},
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        ],
    }


def kubelet_config(node: Node, group: str, authority: Authority, etc: Path) -> dict[str, object]:
    """Return the kubelet's configuration: the defaults, except for settings that a shared host needs.

    The host's disk and memory are shared with other programs, so images are not collected by disk usage, and pods are
    evicted only when disk or memory is nearly exhausted.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(authority.certificate_of(f"node-{node.name}")),
        "tlsPrivateKeyFile": str(authority.key_of(f"node-{node.name}")),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group}",
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": str(etc / "resolv.conf"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"nodefs.available": "1Gi", "imagefs.available": "1Gi", "memory.available": "100Mi"},
        "nodeLeaseDurationSeconds": 20,
        "nodeStatusUpdateFrequency": "5s",
        "volumePluginDir": "/var/lib/kubelet/plugins-exec",
    }


def proxy_config(node: Node, kubeconfig: Path) -> dict[str, object]:
    """Return kube-proxy's configuration. It sets no conntrack limits, because these belong to the host."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": PODS,
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def configure(machine: Machine, node: Node, authority: Authority) -> Path:
    """Write every configuration file of the node's daemons, and return their folder."""
    etc = machine.home / "etc"
    write(etc / "resolv.conf", "")
    write(etc / "containerd.toml", containerd_config(etc))
    write(etc / "certs.d" / REGISTRY / "hosts.toml", registry_hosts())
    write(etc / "cni" / "pods.conflist", json.dumps(pod_network(node), indent=1))
    write(etc / "kubelet.json", json.dumps(kubelet_config(node, machine.group, authority, etc), indent=1))
    write_kubeconfig(etc / "kubelet.kubeconfig", authority, f"node-{node.name}")
    proxy = write_kubeconfig(etc / "proxy.kubeconfig", authority, "proxy")
    write(etc / "proxy.json", json.dumps(proxy_config(node, proxy), indent=1))
    return etc


def runtime(machine: Machine, etc: Path) -> Daemon:
    """Return the daemon containerd. It starts before the kubelet, because the images are imported in between."""
    argv = (program("containerd"), f"--config={etc / 'containerd.toml'}")
    return Daemon("containerd", argv, machine.log("containerd"))


def agents(machine: Machine, node: Node, kube: Path, etc: Path) -> list[Daemon]:
    """Return the daemons kubelet and kube-proxy."""
    kubelet = flags(
        config=str(etc / "kubelet.json"),
        kubeconfig=str(etc / "kubelet.kubeconfig"),
        hostname_override=node.name,
        node_ip=node.address,
        root_dir="/var/lib/kubelet",
    )
    return [
        Daemon("kubelet", (str(kube), "kubelet", *kubelet), machine.log("kubelet")),
        Daemon("kube-proxy", (str(kube), "kube-proxy", f"--config={etc / 'proxy.json'}"), machine.log("kube-proxy")),
    ]


def ctr(machine: Machine, *argv: str | Path) -> list[str]:
    """Return a command line of containerd's own client for the images that the kubelet uses."""
    return machine.enter(program("ctr"), "--address", SOCKET, "--namespace", "k8s.io", *argv, mounts=True)
