"""Everything that needs the outside world, done before a run closes the door behind itself.

A run lives in a network namespace with no way out. So packages, programs, disks and images are made
here first, in the order in which a broken step is found soonest, and the disk is checked for all of
it before the first byte.
"""

import pathlib
import time

from tests.cluster import binaries, cache, disk, host, image

DOCKERFILE = disk.REPOSITORY / "Dockerfile"
# Images and their disk are made anew for every change of the product; their size is not known
# before.
_IMAGES_MB = 2500


def everything() -> pathlib.Path:
    """Makes what is missing for a cluster, and gives the disk with the images.

    Raises:
        RigError: this machine cannot run the rig, or a step failed.
    """
    started = time.monotonic()
    host.require_root()
    _require_disk()
    host.install_missing()
    programs = (binaries.pause(), binaries.plugin(), binaries.containerd(), binaries.kube())
    for entry in (*programs, disk.tree(), disk.disk()):
        entry.get()
    images = [image.build_pause(), image.build_plugin()]
    if DOCKERFILE.exists():
        images.append(_agent())
    made = image.image_disk(images)
    cache.say(f"everything is ready ({time.monotonic() - started:.0f} s)")
    return made


def agent_image() -> pathlib.Path:
    """Builds the project's image alone, and gives it as an archive that container tools load.

    Raises:
        RigError: this machine cannot build it, or a step failed.
    """
    host.require_root()
    host.install_missing()
    return _agent().archive


def control_plane() -> pathlib.Path:
    """Makes what is missing for an API server alone, and gives the folder of programs."""
    return binaries.kube_programs()


def _agent() -> image.Image:
    built = image.build_image(DOCKERFILE, disk.REPOSITORY)
    cache.say(f"image {built.reference}: {built.megabytes:.0f} MB")
    return built


def _require_disk() -> None:
    entries = [binaries.containerd(), binaries.kube(), disk.tree(), disk.disk(), image.base()]
    images = cache.Entry(name="images", inputs={}, build=lambda _target: None, megabytes=_IMAGES_MB)
    cache.require_disk([*entries, images] if any(not e.path.exists() for e in entries) else [])
