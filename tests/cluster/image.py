"""The project's image, built from its Dockerfile with no engine or registry, on a disk for nodes.

buildah runs the build in a chroot. `FROM debian:trixie-slim` means a base that debootstrap makes
here. How this machine reaches its mirrors is mounted over the build, so nothing of the machine gets
into the image and the Dockerfile need not know of it.
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import tempfile
from collections.abc import Sequence

from tests.cluster import binaries, cache, disk, host, processes, waiting

AGENT = "localhost/fabric-readiness-agent:rig"
PAUSE = "localhost/pause:rig"
PLUGIN = "localhost/rig-plugin:rig"
_BASE = "docker.io/library/debian:trixie-slim"
_BASE_RELEASE = "trixie"
_KEY_LABEL = "fabric-readiness.dev/rig-base"
# Layers of old builds pile up; beyond this all are thrown away and the next build starts cold.
_STORE_LIMIT_MB = 3000
_CONTAINERD_SECONDS = 20

# As in the published slim images: what nobody reads in a container stays out, later packages' too.
_DPKG_SETTINGS = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
"""
_APT_SETTINGS = """\
APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin"; };
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin"; };
Acquire::Languages "none";
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A built image in buildah's store."""

    reference: str
    """What pods call it."""
    id: str
    archive: pathlib.Path
    """The image as a tar file, layers uncompressed."""

    @property
    def megabytes(self) -> float:
        """Its size, uncompressed."""
        return self.archive.stat().st_size / 1e6


def base() -> cache.Entry:
    """A folder with `root.tar`, the smallest Debian of the release that the Dockerfile names."""
    return cache.Entry(
        name="base-image",
        inputs={
            "release": _BASE_RELEASE,
            "settings": _DPKG_SETTINGS + _APT_SETTINGS,
            "recipe": cache.recipe(_build_base, disk.debootstrap),
        },
        build=_build_base,
        megabytes=700,
    )


def build_image(dockerfile: pathlib.Path, context: pathlib.Path, reference: str = AGENT) -> Image:
    """Builds an image; unchanged layers are taken from the last build.

    Raises:
        RigError: a step of the Dockerfile failed; the end of what it said is in the text.
    """
    if not dockerfile.exists():
        raise cache.RigError(f"there is no {dockerfile}: the image cannot be built")
    with _alone(), tempfile.TemporaryDirectory() as settings:
        _limit_store()
        _load_base()
        mounts = _write_machine_settings(pathlib.Path(settings))
        return _build(dockerfile, context, reference, mounts)


def build_pause() -> Image:
    """The image of sandbox and workload containers: one static program that waits."""
    return _build_static(binaries.pause().get() / "pause", PAUSE)


def build_plugin() -> Image:
    """The image of the rig's device plugin."""
    return _build_static(binaries.plugin().get() / "plugin", PLUGIN)


def _alone() -> contextlib.AbstractContextManager[None]:
    """Two builds in one store take each other's unfinished stages away."""
    return cache.locked(cache.folder() / ".buildah.lock")


def _build_static(program: pathlib.Path, reference: str) -> Image:
    """An image of one static program and nothing else."""
    with _alone(), tempfile.TemporaryDirectory() as folder:
        context = pathlib.Path(folder)
        shutil.copy(program, context)
        dockerfile = context / "Dockerfile"
        name = program.name
        dockerfile.write_text(f'FROM scratch\nCOPY {name} /{name}\nENTRYPOINT ["/{name}"]\n')
        return _build(dockerfile, context, reference, [])


def image_disk(images: Sequence[Image]) -> pathlib.Path:
    """A disk for `/var/lib/containerd` with the images unpacked: pods start with no pull."""
    entry = cache.Entry(
        name="image-disk",
        inputs={
            "containerd": binaries.containerd().path.name,
            "recipe": cache.recipe(_build_image_disk, disk.make_ext4),
            **{image.reference: image.id for image in images},
        },
        build=lambda target: _build_image_disk(target, images),
        megabytes=300 + round(4 * sum(image.megabytes for image in images)),
    )
    return entry.get() / "images.ext4"


def _build_base(target: pathlib.Path) -> None:
    root = target / "root"
    disk.debootstrap(_BASE_RELEASE, root)
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_DPKG_SETTINGS)
    (root / "etc/apt/apt.conf.d/slim").write_text(_APT_SETTINGS)
    # What debootstrap took from this machine.
    (root / "etc/apt/sources.list").write_text("")
    (root / "etc/hostname").write_text("")
    (root / "etc/resolv.conf").write_text("")
    for unused in ("usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian"):
        shutil.rmtree(root / unused, ignore_errors=True)
    for file in (root / "usr/share/doc").rglob("*"):
        if file.is_file() and file.name != "copyright":
            file.unlink()
    for cached in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
        for file in (root / cached).rglob("*"):
            if file.is_file():
                file.unlink()
    archive = target / "root.tar"
    processes.run(
        "tar", "--create", "--numeric-owner", "--exclude=./dev/*", "--exclude=./proc/*",
        "--exclude=./sys/*", "--file", archive, "--directory", root, ".",
    )  # fmt: skip
    shutil.rmtree(root)


def _load_base() -> None:
    """Puts the base into buildah's store under the name that the Dockerfile uses."""
    path = base().get()
    if _label(_BASE) == path.name:
        return
    with tempfile.TemporaryDirectory() as folder:
        dockerfile = pathlib.Path(folder) / "Dockerfile"
        dockerfile.write_text(
            f'FROM scratch\nADD root.tar /\nCMD ["bash"]\nLABEL {_KEY_LABEL}={path.name}\n'
        )
        _buildah("build", "--quiet", "--tag", _BASE, "--file", dockerfile, path)


def _label(reference: str) -> str:
    listed = json.loads(_buildah("images", "--json") or "[]")
    if not any(reference in (image.get("names") or []) for image in listed):
        return ""
    inspected = json.loads(_buildah("inspect", "--type", "image", reference))
    labels = inspected["OCIv1"]["config"].get("Labels") or {}
    return str(labels.get(_KEY_LABEL, ""))


def _build(
    dockerfile: pathlib.Path, context: pathlib.Path, reference: str, mounts: Sequence[str]
) -> Image:
    volumes = [flag for mount in mounts for flag in ("--volume", mount)]
    with tempfile.NamedTemporaryFile() as id_file:
        _buildah(
            "build", "--quiet", "--isolation", "chroot", "--layers", "--pull-never",
            "--iidfile", id_file.name, "--tag", reference, "--file", dockerfile, *volumes, context,
        )  # fmt: skip
        built = pathlib.Path(id_file.name).read_text().strip().removeprefix("sha256:")
    entry = cache.Entry(
        name=f"image-{pathlib.PurePath(reference).name.split(':', 1)[0]}",
        inputs={"id": built, "reference": reference},
        build=lambda target: _save(built, reference, target / "image.tar"),
        megabytes=400,
    )
    return Image(reference=reference, id=built, archive=entry.get() / "image.tar")


def _save(built: str, reference: str, archive: pathlib.Path) -> None:
    _buildah("push", "--quiet", built, f"docker-archive:{archive}:{reference}")


def _write_machine_settings(folder: pathlib.Path) -> list[str]:
    """How this machine reaches its mirrors, as mounts over places that the base has anyway."""
    sources, settings, shared = (folder / name for name in ("sources", "settings", "shared"))
    for path in (sources, settings, shared):
        path.mkdir()
    (sources / "machine.list").write_text(
        f"deb {host.mirror()} {_BASE_RELEASE} main\n"
        f"deb {host.mirror()} {_BASE_RELEASE}-updates main\n"
        f"deb {host.security_mirror()} {_BASE_RELEASE}-security main\n"
    )
    (settings / "slim").write_text(_APT_SETTINGS)
    (settings / "machine").write_text(host.apt_settings())
    shutil.copy(host.certificate_bundle(), shared / "certificates.crt")
    (folder / "pip.conf").write_text("[global]\ncert = /mnt/certificates.crt\n" + host.pip_index())
    return [
        f"{sources}:/etc/apt/sources.list.d:ro",
        f"{settings}:/etc/apt/apt.conf.d:ro",
        f"{shared}:/mnt:ro",
        f"{folder / 'pip.conf'}:/etc/pip.conf:ro",
    ]


def _limit_store() -> None:
    used = int(processes.run("du", "--summarize", "--block-size=1M", _store()).split()[0])
    if used > _STORE_LIMIT_MB:
        cache.say(f"the layers of old image builds take {used} MB: removing them")
        _buildah("rmi", "--all", "--force")


def _store() -> pathlib.Path:
    path = cache.folder() / "buildah"
    path.mkdir(exist_ok=True)
    return path


def _buildah(command: str, *arguments: str | pathlib.Path) -> str:
    store = _store()
    # Short names mean Docker Hub's here as everywhere, and none is ever pulled.
    registries = store / "registries.conf"
    registries.write_text('unqualified-search-registries = ["docker.io"]\n')
    return processes.run(
        "buildah",
        "--root",
        store / "root",
        "--runroot",
        store / "run",
        "--storage-driver",
        "overlay",
        command,
        *arguments,
        env={"CONTAINERS_REGISTRIES_CONF": str(registries)},
    )


def _build_image_disk(target: pathlib.Path, images: Sequence[Image]) -> None:
    """Imports the images with a containerd of its own: in a guest this would take minutes."""
    programs = binaries.containerd().get()
    content = target / "content"
    config = target / "containerd.toml"
    config.write_text('version = 3\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
    with tempfile.TemporaryDirectory() as state:
        socket = pathlib.Path(state) / "containerd.sock"
        daemon = processes.Program.start(
            "containerd",
            [
                programs / "containerd", "--config", config, "--root", content,
                "--state", pathlib.Path(state) / "state", "--address", socket,
            ],
            folder=target,
        )  # fmt: skip
        ctr = [str(programs / "ctr"), "--address", str(socket), "--namespace", "k8s.io"]

        def answers() -> str:
            daemon.require_running()
            return processes.run(*ctr, "version")

        try:
            waiting.until("containerd", answers, seconds=_CONTAINERD_SECONDS, detail=daemon.tail)
            for image in images:
                processes.run(*ctr, "images", "import", "--snapshotter", "overlayfs", image.archive)
        finally:
            daemon.stop()
    disk.make_ext4(content, target / "images.ext4", megabytes=4096)
    shutil.rmtree(content)
