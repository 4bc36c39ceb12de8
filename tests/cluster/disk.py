"""The root disk, kernel and initial RAM disk that every emulated node boots from.

Debian 12 by debootstrap with its own kernel, which has `rdma_rxe`; the programs of Kubernetes and
containerd; and the Python libraries of the project, so that probes and their tests run inside a
node. Nothing of a run is in it: nodes share it, each writes to a snapshot that ends with it, and
what makes a node this node comes through a shared folder.
"""

import os
import pathlib
import shutil
import sys

from tests.cluster import binaries, cache, host, processes

RELEASE = "bookworm"
PYTHON_FOLDER = "/opt/python"
REPOSITORY = pathlib.Path(__file__).parents[2]
_REQUIREMENTS = REPOSITORY / "requirements" / "dev.txt"
_INITRAMFS = pathlib.Path(__file__).parent / "guest" / "initramfs.sh"

PACKAGES = (
    "busybox-static",  # the initial RAM disk
    "ca-certificates",
    "containernetworking-plugins",
    "ethtool",
    "ibverbs-providers",
    "ibverbs-utils",
    "infiniband-diags",
    "iproute2",
    "iptables",
    "iputils-ping",
    "kmod",
    "linux-image-amd64",
    "nftables",
    "openssh-server",
    "pciutils",
    "perftest",
    "procps",
    "python3",
    "python3-pyverbs",
    "rdma-core",
    "rdmacm-utils",
    "runc",
    "socat",
)
# What a node with software RDMA never loads, two thirds of the modules' size.
_UNUSED_MODULES = (
    "drivers/ata",
    "drivers/gpu",
    "drivers/hid",
    "drivers/iio",
    "drivers/media",
    "drivers/net/wireless",
    "drivers/scsi",
    "drivers/staging",
    "drivers/usb",
    "sound",
)
_UNUSED_FILES = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt")
_EARLY_MODULES = ("virtio_pci", "virtio_blk", "ext4", "virtio_net", "9pnet_virtio", "9p")


def tree() -> cache.Entry:
    """A folder `root` with an installed Debian, kernel included."""
    return cache.Entry(
        name="debian-tree",
        inputs={
            "release": RELEASE,
            "packages": " ".join(PACKAGES),
            "unused": " ".join(_UNUSED_MODULES + _UNUSED_FILES),
            "recipe": cache.recipe(_build_tree, debootstrap),
        },
        build=_build_tree,
        megabytes=2000,
    )


def disk() -> cache.Entry:
    """A folder with `root.ext4`, `vmlinuz` and `initrd`."""
    parts = (tree(), binaries.kube(), binaries.containerd())
    return cache.Entry(
        name="node-disk",
        inputs={
            **{part.name: part.path.name for part in parts},
            "requirements": _REQUIREMENTS.read_text(),
            "initramfs": _INITRAMFS.read_text(),
            "modules": " ".join(_EARLY_MODULES),
            "recipe": cache.recipe(_build_disk, _make_initrd, _install_python_libraries, make_ext4),
        },
        build=_build_disk,
        megabytes=2500,
    )


def debootstrap(release: str, target: pathlib.Path, packages: tuple[str, ...] = ()) -> None:
    """Installs a minimal Debian into a folder, from this machine's mirror."""
    include = [f"--include={','.join(packages)}"] if packages else []
    # INITRD=No: the kernel package must not make an initial RAM disk, we bring a smaller one.
    processes.run(
        "debootstrap",
        "--variant=minbase",
        *include,
        release,
        target,
        host.mirror(),
        env={"INITRD": "No", "DEBIAN_FRONTEND": "noninteractive"},
    )


def _build_tree(target: pathlib.Path) -> None:
    root = target / "root"
    debootstrap(RELEASE, root, PACKAGES)
    kernel = _kernel_release(root)
    for unused in _UNUSED_MODULES:
        shutil.rmtree(root / "lib/modules" / kernel / "kernel" / unused, ignore_errors=True)
    for unused in _UNUSED_FILES:
        shutil.rmtree(root / unused, ignore_errors=True)
    processes.run("depmod", "--basedir", root, kernel)
    (root / "etc/resolv.conf").write_text("")  # debootstrap copies this machine's
    for mount_point in ("config", "src", "var/lib/containerd", "opt/cni", "etc/cni/net.d"):
        (root / mount_point).mkdir(parents=True, exist_ok=True)


def _build_disk(target: pathlib.Path) -> None:
    source = tree().get() / "root"
    root = target / "root"
    # Hard links: only new files are added below, none of the tree's is written to.
    processes.run("cp", "--archive", "--link", source, root)
    kernel = _kernel_release(root)
    shutil.copy(root / f"boot/vmlinuz-{kernel}", target / "vmlinuz")
    _make_initrd(root, kernel, target)
    for folder in (binaries.kube().get(), binaries.containerd().get()):
        for program in ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr"):
            if (folder / program).exists():
                shutil.copy(folder / program, root / "usr/local/bin" / program)
    _install_python_libraries(root)
    make_ext4(root, target / "root.ext4", megabytes=4096)
    shutil.rmtree(root)


def make_ext4(source: pathlib.Path, image: pathlib.Path, *, megabytes: int) -> None:
    """Writes a sparse ext4 image with what a folder holds."""
    # The journal is small but must be there: a guest that is reset comes back with the same disk.
    processes.run(
        "mke2fs", "-q", "-t", "ext4", "-J", "size=16", "-d", source, image, f"{megabytes}M"
    )


def _kernel_release(root: pathlib.Path) -> str:
    (modules,) = (root / "lib/modules").iterdir()
    return modules.name


def _make_initrd(root: pathlib.Path, kernel: str, target: pathlib.Path) -> None:
    """An initial RAM disk with busybox and the modules in the order in which they load."""
    content = target / "initrd.tree"
    for folder in ("bin", "modules", "proc", "sys", "dev", "disk"):
        (content / folder).mkdir(parents=True)
    shutil.copy(root / "bin/busybox", content / "bin/busybox")
    shutil.copy(_INITRAMFS, content / "init")
    (content / "init").chmod(0o755)
    order = dict.fromkeys(
        module for name in _EARLY_MODULES for module in _load_order(root, kernel, name)
    )
    for module in order:
        shutil.copy(module, content / "modules")
    (content / "modules/order").write_text("".join(f"{module.name}\n" for module in order))
    names = "".join(f"{path.relative_to(content)}\n" for path in sorted(content.rglob("*")))
    archive = target / "initrd"
    processes.run(
        "cpio", "--create", "--quiet", "--format=newc", "--file", archive, cwd=content, stdin=names
    )
    shutil.rmtree(content)


def _load_order(root: pathlib.Path, kernel: str, module: str) -> list[pathlib.Path]:
    """The files of a module and of what it needs; none for what is built into the kernel."""
    said = processes.run(
        "modprobe", "--dirname", root, "--set-version", kernel, "--show-depends", module
    )
    return [
        pathlib.Path(os.path.realpath(line.split()[1]))
        for line in said.splitlines()
        if line.startswith("insmod ")
    ]


def _install_python_libraries(root: pathlib.Path) -> None:
    """The project's pinned requirements, for the guest's Python (3.11), not this machine's."""
    processes.run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", root /
        PYTHON_FOLDER.lstrip("/"), "--require-hashes", "--requirement", _REQUIREMENTS,
        "--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11", "--platform",
        "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64", "--platform",
        "manylinux_2_34_x86_64",
    )  # fmt: skip
    # By the guest's own Python, at this machine's speed: emulated, it would compile for a minute.
    processes.run("chroot", root, "python3", "-m", "compileall", "-q", PYTHON_FOLDER)
