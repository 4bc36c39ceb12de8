"""The rig: a real Kubernetes cluster on emulated nodes with software RDMA.

Nothing in it pretends: etcd, API server, scheduler and kubelets are the release's own, the nodes
are virtual machines that run a Debian kernel with `rdma_rxe`, and the image is built from the
project's Dockerfile. It needs root, two cores and no KVM.
"""
