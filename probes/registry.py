"""Finds the probes: every module in a rung's folder that assigns `PROBE`.

Adding a probe is adding a file.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, get_args

import msgspec

import probes
from probes import contract

# Folders of this package that hold no probes.
_NOT_RUNGS = frozenset({"readers"})


class UnknownProbe(LookupError):  # noqa: N818  (says what it is)
    """No probe has that name."""


class BadLimits(ValueError):  # noqa: N818
    """Settings for a probe that it does not take: which key, where it is one, and what it allows."""

    def __init__(self, text: str, *, key: str = "") -> None:
        super().__init__(f"{key}: {text}" if key else text)
        self.text = text
        self.key = key


def names() -> tuple[str, ...]:
    """Names of all probes (`loopback.bandwidth`), in the order in which the ladder is climbed.

    Imports none of them.
    """
    found = [
        f"{rung.name}.{module.name}"
        for rung in pkgutil.iter_modules(probes.__path__)
        if rung.ispkg and rung.name not in _NOT_RUNGS
        for module in pkgutil.iter_modules([f"{path}/{rung.name}" for path in probes.__path__])
        if not module.name.startswith("_")
    ]
    return tuple(sorted(found, key=contract.by_rung))


def _module(name: str) -> ModuleType:
    if name not in names():
        raise UnknownProbe(f"no probe is called {name!r}; there are: {', '.join(names())}")
    return importlib.import_module(f"probes.{name}")


def load(name: str) -> contract.Probe[Any, Any]:
    """The probe of that name.

    Raises:
        UnknownProbe: there is none.
        ImportError: its module can't be imported; the caller turns that into a verdict on this
            probe alone.
    """
    probe = _module(name).PROBE
    if not isinstance(probe, contract.Probe):
        raise TypeError(f"probes.{name}.PROBE is not a Probe")
    return probe


def info(name: str) -> contract.ProbeInfo:
    """What a scheduler needs to know about a probe."""
    probe = load(name)
    return contract.ProbeInfo(
        name=name,
        rung=name.split(".", 1)[0],
        every=probe.every,
        deadline=probe.deadline,
        moves_data=probe.moves_data,
        summary=" ".join((_module(name).__doc__ or "").strip().split("\n\n", 1)[0].split()),
    )


def limits(name: str, changes: Mapping[str, object], origins: Mapping[str, str]) -> Any:
    """The limits of a probe: its defaults with `changes`.

    Raises:
        BadLimits: a key that the probe does not have, or a value of the wrong type.
    """
    kind = load(name).limits
    allowed = [field for field in kind.__struct_fields__ if field != "origins"]
    for key in changes:
        if key not in allowed:
            listed = ", ".join(allowed) or "none"
            raise BadLimits(f"not a limit of {name}; allowed: {listed}", key=key)
    try:
        return msgspec.convert({**changes, "origins": dict(origins)}, kind)
    except msgspec.ValidationError as error:
        raise _explained(error, kind) from error


def _explained(error: msgspec.ValidationError, kind: type[contract.Limits]) -> BadLimits:
    """msgspec's message, by key, and with the values that a choice allows."""
    problem, _, where = str(error).partition(" - at `$.")
    key = re.split(r"[.\[`]", where, maxsplit=1)[0]
    if problem.startswith("Invalid enum value"):
        allowed = ", ".join(map(str, _choices(kind.__annotations__[key])))
        problem = (
            f"{problem.removeprefix('Invalid enum value ')} is not allowed; allowed here: {allowed}"
        )
    return BadLimits(problem, key=key)


def _choices(annotation: Any) -> list[object]:
    """The values of a `Literal`, also of one inside a union."""
    found: list[object] = []
    for one in get_args(annotation):
        found += _choices(one) if get_args(one) else [one] if isinstance(one, str) else []
    return found


def defaults(name: str) -> dict[str, object]:
    """Every limit of a probe with its default value, for documentation and for `fabric-ready settings`."""
    values: dict[str, object] = msgspec.to_builtins(load(name).limits())
    values.pop("origins", None)
    return values


def catalogue(settings: Mapping[str, Mapping[str, Mapping[str, object]]]) -> contract.Catalogue:
    """Loads every probe, and judges limits: {part of the settings: {probe: {limit: value}}}.

    One that can't be imported is listed as broken and takes no other with it.
    """
    good: list[contract.ProbeInfo] = []
    broken: dict[str, str] = {}
    values: dict[str, dict[str, object]] = {}
    for name in names():
        try:
            good.append(info(name))
            values[name] = defaults(name)
        except (ImportError, SyntaxError, AttributeError, TypeError) as error:
            broken[name] = f"{type(error).__name__}: {error}"
    problems = tuple(
        contract.Problem(where=(*where.split("."), name, *key), text=text)
        for where, changes in settings.items()
        for name, changed in changes.items()
        for key, text in _problem(name, changed)
    )
    return contract.Catalogue(probes=tuple(good), broken=broken, defaults=values, problems=problems)


def _problem(name: str, changes: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong, if anything: the key, where it is one, and the text."""
    try:
        limits(name, changes, {})
    except UnknownProbe as error:
        yield (), str(error)
    except BadLimits as error:
        yield (error.key,) if error.key else (), error.text
    except (ImportError, SyntaxError, AttributeError, TypeError) as error:
        yield (), f"can't be loaded: {error}"
