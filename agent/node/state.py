"""What outlives the agent but not the boot: one file on tmpfs, written whole or not at all."""

import logging
from pathlib import Path

import msgspec

from agent.node import files
from agent.node.condition import Condition
from agent.node.ledger import Ledger
from agent.node.outbox import State

_log = logging.getLogger(__name__)

_MAX_BYTES = 8 * 1024 * 1024
_VERSION = 1


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content.

    `delivered` is what the API server was last told, `since` when the condition's status flipped,
    `profile_hash` what the ledger was judged by.
    """

    version: int = _VERSION
    ledger: Ledger
    condition: Condition
    since: str
    profile_hash: str
    delivered: State | None = None
    uid: str = ""
    """Of the Node object that the ledger is about."""
    recheck: str = ""
    """The last request of a human that was done."""


def load(path: Path, boot_id: str) -> Saved | None:
    """What was saved in this boot; None after a reboot, and where the file is missing or can't be
    used.

    A file that can't be used costs a new verification and nothing else.
    """
    try:
        content = files.read(path, _MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            _log.warning("%s is longer than %d bytes and is not used", path, _MAX_BYTES)
            return None
        saved = msgspec.json.decode(content, type=Saved)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("%s can't be used, verifying anew: %s", path, error)
        return None
    if saved.version != _VERSION or saved.ledger.boot_id != boot_id:
        return None
    return saved


def save(path: Path, saved: Saved) -> None:
    """Writes the file so that a reader finds the old one or the new one, and nothing between.

    Raises:
        OSError: the folder can't be written.
    """
    files.replace(path, msgspec.json.encode(saved), 0o600)
