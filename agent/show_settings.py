"""`fabric-ready settings`: every setting and every probe's limit that is in force, and where it came from."""

import sys
from typing import Any

import msgspec
import yaml

from agent.node import probing
from agent.settings import Settings, SettingsError

_EXIT_USAGE = 64
_EXIT_UNKNOWN = 2


def run(settings: Settings) -> int:
    """Prints YAML that is a valid settings file, with the origin of each limit as a comment."""
    try:
        catalogue = probing.catalogue(settings)
    except (SettingsError, probing.ProbesUnusable) as error:
        print(f"fabric-ready: {error}", file=sys.stderr)
        return _EXIT_USAGE if isinstance(error, SettingsError) else _EXIT_UNKNOWN
    values: dict[str, Any] = msgspec.to_builtins(settings)
    for derived in ("limits", "profile"):
        values.pop(derived)
    print(yaml.safe_dump(values, sort_keys=False), end="")
    print("limits:")
    for name, defaults in catalogue.defaults.items():
        changed, origins = settings.limits_for(name)
        if defaults:
            print(f"  {name}:")
        for limit, default in defaults.items():
            value = msgspec.json.encode(changed.get(limit, default)).decode()
            print(f"    {limit}: {value}  # {origins.get(limit, 'default')}")
    return 0
