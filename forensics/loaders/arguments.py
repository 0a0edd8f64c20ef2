"""A trainer's options as a run description gives them: typed, with unknown names refused.

An option that nobody looks at could change the order unnoticed. Each loader therefore lists the names it models and
those that provably do not matter; any other name stops with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forensics.errors import ConfigError, NotReplayable, nearest


class Missing:
    """Stands for an option without a default."""


REQUIRED = Missing()


class Arguments:
    """Options of one launch, or of one block of them.

    Args:
        owner: whose options they are, for messages (`streaming`).
        given: name -> value.
        known: names that the loader models.
        harmless: names that do not change the order or the data.

    Raises:
        ConfigError: any other name.
    """

    def __init__(self, owner: str, given: Mapping[str, Any], known: Iterable[str], harmless: Iterable[str] = ()) -> None:
        self.owner, self.given = owner, dict(given)
        names = {*known, *harmless}
        for name in self.given:
            if name not in names:
                raise ConfigError(
                    f"`{name}` is no option of {owner} that this tool models{nearest(str(name), names)}",
                    hint="an option that changes the order must not be left out silently; if it surely does not, take it out of the description",
                )

    def __contains__(self, name: str) -> bool:
        return self.given.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """The value as given; null counts as not given."""
        value = self.given.get(name)
        return default if value is None else value

    def _typed(self, name: str, default: Any, kinds: tuple[type, ...], word: str) -> Any:
        value = self.given.get(name)
        if value is None:
            if isinstance(default, Missing):
                raise ConfigError(f"{self.owner} needs `{name}`, which the description does not give", hint=f"--set args.{name}=...")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ConfigError(f"`{name}` of {self.owner} is {value!r}, {word} was expected")
        return value

    def integer(self, name: str, default: int | Missing = REQUIRED, *, least: int | None = None) -> int:
        """A whole number."""
        value = self._typed(name, default, (int, float), "a whole number")
        if value != int(value):
            raise ConfigError(f"`{name}` of {self.owner} is {value!r}, a whole number was expected")
        if least is not None and value < least:
            raise ConfigError(f"`{name}` of {self.owner} is {value}, at least {least} was expected")
        return int(value)

    def optional(self, name: str, *, least: int | None = None) -> int | None:
        """A whole number, or None where it is not given."""
        return self.integer(name, least=least) if name in self else None

    def number(self, name: str, default: float | Missing = REQUIRED) -> float:
        """A number."""
        return float(self._typed(name, default, (int, float), "a number"))

    def flag(self, name: str, default: bool | Missing = REQUIRED) -> bool:
        """True or false."""
        return bool(self._typed(name, default, (bool,), "true or false"))

    def text(self, name: str, default: str | Missing = REQUIRED) -> str:
        """A text."""
        return str(self._typed(name, default, (str,), "a text"))

    def choice(self, name: str, among: Sequence[str], default: str | Missing = REQUIRED) -> str:
        """One of several words.

        Raises:
            NotReplayable: a word that is not modelled.
        """
        value = self.text(name, default)
        if value not in among:
            raise NotReplayable(f"`{name}: {value}` of {self.owner} is not modelled{nearest(value, among)}", hint=f"known: {', '.join(among)}")
        return value

    def listed(self, name: str) -> list[Any]:
        """A list, empty where it is not given; a single value counts as one."""
        value = self.given.get(name)
        if value is None:
            return []
        return list(value) if isinstance(value, (list, tuple)) else [value]

    def mapping(self, name: str) -> dict[str, Any]:
        """A block of options, empty where it is not given."""
        return dict(self._typed(name, {}, (Mapping,), "a block of options"))

    def refuse(self, name: str, unless: object, why: str) -> None:
        """Stop where an option has a value whose effect is not modelled.

        Args:
            name: the option.
            unless: the value without effect.
            why: what it would change.

        Raises:
            NotReplayable: another value is given.
        """
        value = self.given.get(name)
        if value is not None and value != unless:
            raise NotReplayable(f"`{name}: {value!r}` of {self.owner} is not modelled: {why}", hint="record what the run consumes instead (trainer: recorded)")
