"""`fabric-ready settings`: every setting and every probe's limit that is in force, and where it came from."""

import sys
from typing import Any

import msgspec
import yaml

from agent.node import ladder, probing
from agent.settings import Settings

_EXIT_UNKNOWN = 2


def run(settings: Settings) -> int:
    """Prints YAML that is a valid settings file, with the origin of each limit as a comment.

    Raises:
        SettingsError: the settings ask for what does not exist.
    """
    try:
        catalogue = probing.catalogue(settings)
    except probing.ProbesUnusable as error:
        print(f"fabric-ready: {error}", file=sys.stderr)
        return _EXIT_UNKNOWN
    ladder.build(catalogue, settings)
    values: dict[str, Any] = msgspec.to_builtins(settings)
    values.pop("limits")
    values["profile"] = {"name": settings.profile.name}  # its limits are among those below
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
