"""Which probes run on this node, in which order, and which of them gate."""

import dataclasses
from collections.abc import Iterable

from agent.settings import Settings, SettingsError
from probes import contract


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The probes in order of their rungs.

    `broken` are those that could not be loaded, with the reason.
    """

    probes: tuple[contract.ProbeInfo, ...]
    rungs: tuple[str, ...]
    broken: tuple[tuple[str, str], ...] = ()

    def probe(self, name: str) -> contract.ProbeInfo | None:
        """The probe of that name, None where this version has none."""
        return next((one for one in self.probes if one.name == name), None)

    @property
    def gating(self) -> tuple[str, ...]:
        """Names of the probes that must stand, broken ones included."""
        names = [one.name for one in self.probes] + [name for name, _ in self.broken]
        return tuple(sorted((n for n in names if rung(n) in self.rungs), key=contract.by_rung))

    @property
    def movers(self) -> tuple[str, ...]:
        """Names of the probes that move data."""
        return tuple(one.name for one in self.probes if one.moves_data)

    def below(self, name: str) -> tuple[str, ...]:
        """Gating probes of lower rungs: while one of them does not stand, `name` means nothing."""
        return tuple(other for other in self.gating if _height(other) < _height(name))

    def movers_above(self, name: str) -> tuple[str, ...]:
        """Probes of higher rungs that move data: what they proved went over what `name` looks at."""
        return tuple(other for other in self.movers if _height(other) > _height(name))


def rung(name: str) -> str:
    """`driver` of `driver.ports`."""
    return name.split(".", 1)[0]


def _height(name: str) -> int:
    return contract.by_rung(name)[0]


def build(catalogue: contract.Catalogue, settings: Settings) -> Ladder:
    """The ladder that the settings ask for.

    Raises:
        SettingsError: a rung of `settings.rungs` has no probe that is not disabled.
    """
    enabled = tuple(one for one in catalogue.probes if one.name not in settings.disable)
    broken = tuple(
        (name, why)
        for name, why in sorted(catalogue.broken.items())
        if name not in settings.disable
    )
    ladder = Ladder(
        probes=tuple(sorted(enabled, key=lambda one: contract.by_rung(one.name))),
        rungs=settings.rungs,
        broken=broken,
    )
    there = {rung(name) for name in ladder.gating}
    for wanted in settings.rungs:
        if wanted not in there:
            there_are = f"there are: {_words(catalogue)}"
            disabled = any(rung(name) == wanted for name in settings.disable)
            why = "all its probes are in `disable`" if disabled else there_are
            raise SettingsError(f"{wanted!r} has no probe; {why}", ("rungs",))
    return ladder


def _words(catalogue: contract.Catalogue) -> str:
    rungs: Iterable[str] = {one.rung for one in catalogue.probes}
    return ", ".join(sorted(rungs, key=lambda one: contract.by_rung(f"{one}."))) or "none"
