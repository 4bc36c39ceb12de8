"""QEMU's monitor: what a hand at the machine would do (pull a cable, press reset)."""

import dataclasses
import json
import pathlib
import socket
from typing import TextIO

from tests.cluster import cache

_TIMEOUT_SECONDS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Monitor:
    """The monitor socket of one guest; each command is a connection of its own."""

    path: pathlib.Path

    def execute(self, command: str, **arguments: object) -> object:
        """What QEMU returns for a command.

        Raises:
            RigError: QEMU refused the command or is not there.
        """
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_TIMEOUT_SECONDS)
                connection.connect(str(self.path))
                with connection.makefile("rw") as stream:
                    json.loads(stream.readline())  # QEMU greets first
                    _ask(stream, "qmp_capabilities", {})
                    return _ask(stream, command, arguments)
        except OSError as error:
            raise cache.RigError(f"no answer from the monitor at {self.path}: {error}") from error


def _ask(stream: TextIO, command: str, arguments: dict[str, object]) -> object:
    stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    stream.flush()
    while line := stream.readline():
        answer = json.loads(line)
        if "error" in answer:
            raise cache.RigError(f"QEMU refused {command}: {answer['error']['desc']}")
        if "return" in answer:  # anything else is an event
            return answer["return"]
    raise cache.RigError(f"QEMU hung up on {command}")
