"""The configuration files of a node's daemons."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from cluster.addons import dns_manifest
from cluster.addresses import CONTROL_PLANE, NODES
from cluster.binaries import pinned, source_key, version_flags, without_gateways
from cluster.errors import ClusterError
from cluster.images import envoy_reference
from cluster.layout import SOURCE, Layout, find_layout
from cluster.node import containerd_config, kubelet_config, node_machine, pod_network, registry_hosts
from cluster.pki import Authority
from cluster.versions import PAUSE_IMAGE, REGISTRY


def test_containerd_is_given_valid_toml() -> None:
    cri = tomllib.loads(containerd_config(Path("/etc/n1")))["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == PAUSE_IMAGE
    assert cri["restrict_oom_score_adj"] is True
    assert cri["registry"]["config_path"] == "/etc/n1/certs.d"


def test_the_registrys_name_leads_into_the_control_plane() -> None:
    hosts = tomllib.loads(registry_hosts())
    assert hosts["server"] == f"http://{CONTROL_PLANE}:5000"
    assert list(hosts["host"]) == [hosts["server"]]


def test_pods_get_addresses_of_their_own_node() -> None:
    for node in NODES:
        assert json.dumps(pod_network(node)).count(node.pods) == 1


def test_images_are_never_collected_because_the_disk_is_full_of_other_things(tmp_path: Path) -> None:
    config = kubelet_config(NODES[0], "plimsoll-1/n1", Authority(tmp_path), tmp_path)
    assert config["imageGCHighThresholdPercent"] == 100
    assert config["cgroupRoot"] == "/plimsoll-1/n1"
    json.dumps(config)


def test_what_grows_lies_on_the_disk(tmp_path: Path) -> None:
    machine = node_machine(Layout(tmp_path / "state", tmp_path / "cache"), NODES[0])
    assert set(machine.binds) == {"/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"}
    assert all(source.is_relative_to(tmp_path / "state") for source in machine.binds.values())


def test_the_dns_manifest_is_filled_in() -> None:
    text = dns_manifest()
    assert "image: IMAGE" not in text
    assert "clusterIP: 198.19.0.10" in text


def test_envoy_gets_the_name_that_contour_asks_for() -> None:
    manifest = "        image: ghcr.io/x/contour:v1\n        image: docker.io/envoyproxy/envoy:distroless-v1.2\n"
    assert envoy_reference(manifest) == "docker.io/envoyproxy/envoy:distroless-v1.2"
    with pytest.raises(ClusterError, match="names no Envoy image"):
        envoy_reference("image: other")


def test_a_gateway_is_applied_after_its_kind() -> None:
    kind = "kind: CustomResourceDefinition\nspec:\n  names:\n    kind: Gateway\n"
    manifest = f"# Generated\n\n---\n{kind}---\nkind: GatewayClass\nname: a\n---\nkind: Gateway\n---\nkind: ConfigMap\n"
    assert without_gateways(manifest) == f"# Generated\n\n---\n{kind}---\nkind: ConfigMap\n"


def test_a_changed_source_is_another_binary(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text("package main")
    before = source_key(tmp_path)
    assert before == source_key(tmp_path)
    (tmp_path / "main.go").write_text("package other")
    assert source_key(tmp_path) != before


def test_the_version_is_stamped_as_releases_do() -> None:
    stamped = version_flags("v1.34.3")
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.3" in stamped
    assert "-X k8s.io/client-go/pkg/version.gitMinor=34" in stamped


def test_every_module_of_kubernetes_is_of_the_one_release() -> None:
    """The release's other modules are replaced one by one, with v0.X.Y for v1.X.Y."""
    release = pinned(SOURCE / "kube" / "go.mod", "k8s.io/kubernetes")
    text = (SOURCE / "kube" / "go.mod").read_text()
    replaced = re.findall(r"^\s*(k8s\.io/\S+) => (\S+) (\S+)$", text, re.MULTILINE)
    assert len(replaced) > 25
    assert all(old == new and "v1" + version.removeprefix("v0") == release for old, new, version in replaced)
    with pytest.raises(ClusterError, match=r"does not require example\.test/absent"):
        pinned(SOURCE / "kube" / "go.mod", "example.test/absent")


def test_the_cache_is_where_the_user_says() -> None:
    home = Path("/home/u")
    assert find_layout({}, home).cache == Path("/home/u/.cache/plimsoll/cluster")
    assert find_layout({"XDG_CACHE_HOME": "/x"}, home).cache == Path("/x/plimsoll/cluster")
    assert find_layout({"XDG_CACHE_HOME": "/x", "PLIMSOLL_CLUSTER_CACHE": "/y"}, home).cache == Path("/y")
    assert find_layout({}, home).state.name == ".cluster"
    assert REGISTRY.count(".") >= 1, "a name without a dot would be a path on Docker Hub"
