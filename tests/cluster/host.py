"""The machine that the rig runs on: Debian 12 or 13, root, and packages that the rig installs.

What this machine's administrator configured for its package clients (mirror, proxy, certificates)
is used for guests and image builds too, and ends up in none of them: the rig names no mirror of its
own.
"""

import functools
import os
import pathlib
import platform
import subprocess
import sys

from tests.cluster import cache, processes

# Package -> what the rig uses of it.
PACKAGES = {
    "buildah": "builds images without a daemon",
    "cpio": "initial RAM disk of the guests",
    "debootstrap": "root tree of guests and of the base image",
    "e2fsprogs": "disks from folders, without loop mounts",
    "gzip": "initial RAM disk of the guests",
    "iproute2": "bridges and taps",
    "kmod": "which modules the guests load, in which order",
    "openssh-client": "commands in guests",
    "python3-pyverbs": "verbs from Python, as in the image",
    "qemu-system-x86": "guests",
    "tar": "base image",
}


def require_root() -> None:
    """Stops with one line where the rig cannot work at all."""
    if os.geteuid() != 0:
        raise cache.RigError(
            "the rig needs root (network namespace, debootstrap): run it with sudo"
        )
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian" or release.get("VERSION_ID") not in {"12", "13"}:
        name = release.get("PRETTY_NAME", "this system")
        raise cache.RigError(f"the rig runs on Debian 12 or 13, and this is {name}")


def install_missing() -> None:
    """Installs the packages that are not there, and says so."""
    states = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    installed = {line.split()[0] for line in states if line.endswith(" installed")}
    missing = sorted(PACKAGES.keys() - installed)
    if not missing:
        return
    cache.say(f"installing {' '.join(missing)}")
    noninteractive = {"DEBIAN_FRONTEND": "noninteractive"}
    processes.run("apt-get", "update", env=noninteractive)
    processes.run(
        "apt-get", "install", "--yes", "--no-install-recommends", *missing, env=noninteractive
    )


@functools.cache
def mirror() -> str:
    """Where this machine gets Debian itself from.

    Raises:
        RigError: apt knows no repository for its own release.
    """
    return _repository(platform.freedesktop_os_release()["VERSION_CODENAME"])


@functools.cache
def security_mirror() -> str:
    """Where this machine gets Debian's security updates from."""
    return _repository(platform.freedesktop_os_release()["VERSION_CODENAME"] + "-security")


def _repository(codename: str) -> str:
    listing = processes.run(
        "apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)"
    )
    for line in listing.splitlines():
        found, component, uri = line.split(" ", 2)
        if (found, component) == (codename, "main"):
            return uri.rstrip("/")
    raise cache.RigError(
        f"apt knows no repository for {codename} main: add Debian's own to /etc/apt/sources.list",
    )


def apt_settings() -> str:
    """This machine's apt settings for reaching mirrors (proxy, certificates), as a file's text."""
    dump = processes.run("apt-config", "dump", "Acquire")
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::Check")
    return "".join(f"{line}\n" for line in dump.splitlines() if line.startswith(wanted))


def certificate_bundle() -> pathlib.Path:
    """The certificate authorities that this machine trusts, as one file."""
    named = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    return pathlib.Path(named or "/etc/ssl/certs/ca-certificates.crt")


def pip_index() -> str:
    """This machine's package index for pip, as lines of a pip.conf; none for the usual one."""
    said = processes.run(sys.executable, "-m", "pip", "config", "list")
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return "".join(
        f"{key} = {value.strip(chr(39))}\n"
        for key in ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")
        for name, value in found.items()
        if name in {f"global.{key}", f":env:.{key}"}
    )
