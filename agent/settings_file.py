"""A YAML file read so strictly that every mistake is one line with file, line and key.

YAML forgives much: a key that stands twice, `on` for true, lines that unfold into gigabytes. Each of
these would change settings silently or not at all, so each is refused.
"""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml

MAX_FILE_BYTES = 1024 * 1024

# YAML's name for text: 1, true, 2026-01-01 and << are something else.
_TEXT = "tag:yaml.org,2002:str"


class SettingsError(Exception):
    """Why the settings can't be used, in one line.

    `where` are the keys, from the top, of what is wrong, while the line does not say it already.
    """

    def __init__(self, text: str, where: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(where)}: {text}" if where else text)
        self.text = text
        self.where = where


class Document:
    """Parsed YAML that remembers on which line each key stands."""

    def __init__(
        self, values: dict[str, Any], lines: dict[tuple[str, ...], int], path: Path | None
    ) -> None:
        self.values = values
        self._lines = lines
        self._path = path

    def at(self, where: tuple[str, ...], problem: str) -> str:
        """`FILE:LINE: key.path: problem`, with the line of the nearest key that is in the file."""
        nearest = (where[:end] for end in range(len(where), 0, -1))
        line = next((f":{self._lines[keys]}" for keys in nearest if keys in self._lines), "")
        return f"{self._path or 'settings'}{line}: {'.'.join(where)}: {problem}"

    def explain(self, error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
        """msgspec's message on converting to `kind`, with file, line, and what would be allowed."""
        problem, _, where = str(error).partition(" - at `$")
        # Only the dotted prefix of msgspec's path is ours: `.probes[...]` means some key or value
        # inside a mapping.
        keys = tuple(
            key for key in re.split(r"[.\[]", where.rstrip("`")) if key and key[0].isalpha()
        )
        unknown = re.fullmatch(r"Object contains unknown field `(.+)`", problem)
        if unknown:
            allowed = ", ".join(_annotation(kind, keys).__struct_fields__)
            return self.at((*keys, unknown[1]), f"unknown key; allowed here: {allowed}")
        choice = re.fullmatch(r"Invalid enum value (.+)", problem)
        if choice:
            allowed = ", ".join(get_args(_annotation(kind, keys)))
            return self.at(keys, f"{choice[1]} is not allowed; allowed here: {allowed}")
        return self.at(keys, problem)


def read(path: Path | None) -> Document:
    """The file's values; none where there is no file.

    Raises:
        SettingsError: with the one line to show.
    """
    return parse("" if path is None else _text(path), path)


def _text(path: Path) -> str:
    """The file's text, refused with one line when it can't be it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise SettingsError(f"{path}: settings may have {MAX_FILE_BYTES} bytes at most")
        return data.decode("utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def _annotation(kind: type[msgspec.Struct], keys: tuple[str, ...]) -> Any:
    """The type of the setting at that path."""
    found: Any = kind
    for key in keys:
        found = found.__annotations__[key]
    return found


def parse(text: str, path: Path | None) -> Document:
    """YAML to values and lines; a duplicate key is refused, since the loser would be ignored silently.

    Raises:
        SettingsError: with the one line to show.
    """
    lines: dict[tuple[str, ...], int] = {}
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        _note_lines(root, (), lines, path)
        values = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        raise SettingsError(f"{path}{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise SettingsError(f"{path}: nested too deeply") from error
    except (ValueError, OverflowError, AttributeError, KeyError, TypeError) as error:
        # What PyYAML's constructors of dates, numbers and tagged values raise.
        raise SettingsError(f"{path}: not valid YAML: a value can't be read ({error})") from error
    if values is None:
        return Document({}, {}, path)
    if not isinstance(values, dict):
        raise SettingsError(f"{path}:1: settings are a mapping of keys to values")
    return Document(values, lines, path)


class _Loader(yaml.SafeLoader):
    """Refuses aliases: a few lines of nested ones unfold into more than fits into memory, or never end."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            problem = "aliases (*name) are not taken here, repeat the value"
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)


def _note_lines(
    node: yaml.Node | None,
    where: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    path: Path | None,
) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here = (*where, str(key.value))
        line = key.start_mark.line + 1
        if key.tag != _TEXT:
            raise SettingsError(f"{path}:{line}: {'.'.join(here)}: a key is text, and this is not")
        if here in lines:
            raise SettingsError(
                f"{path}:{line}: {'.'.join(here)}: stands twice (first on line {lines[here]})"
            )
        lines[here] = line
        _note_lines(value, here, lines, path)
