"""A real two-node Kubernetes on one machine, built only from package registries.

Each node is a set of namespaces (process, mount, network) with its own containerd, kubelet and kube-proxy; the control
plane is a third. README.md in this folder says how it works and what it needs. Only the standard library is used, so
that it runs before any virtual environment exists.
"""
