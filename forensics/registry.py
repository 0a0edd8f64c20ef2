"""Components by name: one registry per kind (loaders, detectors, exporters, metric sources).

A component registers itself when its module is imported; the registry imports the modules of its package at the first
look-up, so that adding one is adding a file. Foreign components come from an entry point in the group
`forensics.<kind>` or a file given with `--plugin`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Generic, TypeVar

from forensics.errors import ConfigError, UsageError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Named components of one kind.

    Args:
        kind: what they are called, singular (`loader`).
        package: package whose modules are imported at the first look-up.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._items: dict[str, tuple[T, str]] = {}
        self._failed: dict[str, str] = {}
        self._loaded = False

    def add(self, name: str, item: T, origin: str) -> None:
        """Register a component.

        Raises:
            ConfigError: when another module registered the same name.
        """
        if name in self._items and self._items[name][1] != origin:
            raise ConfigError(f"two modules register the {self.kind} `{name}`: {self._items[name][1]} and {origin}")
        self._items[name] = (item, origin)

    def get(self, name: str) -> T:
        """The component of that name.

        Raises:
            UsageError: unknown name, with the nearest known one.
        """
        self._load()
        if name in self._failed:
            raise ConfigError(f"the {self.kind} `{name}` could not be loaded: {self._failed[name]}")
        if name not in self._items:
            raise UsageError(f"there is no {self.kind} `{name}`{nearest(name, self._items)}", hint=f"known: {', '.join(sorted(self._items))}")
        return self._items[name][0]

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._items)

    def items(self) -> Iterator[tuple[str, T]]:
        """All components by name, sorted."""
        for name in self.names():
            yield name, self._items[name][0]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        root = importlib.import_module(self.package)
        try:
            for module in pkgutil.iter_modules(root.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        except BaseException:
            self._loaded = False  # half a registry would deny components that exist
            raise
        for point in entry_points(group=self.package):
            try:
                point.load()
            except Exception as error:  # a foreign plugin must not take the tool down; it fails when asked for by name
                self._failed[point.name] = f"{type(error).__name__}: {error}"


def load_plugin(path: Path) -> None:
    """Import a Python file that registers components.

    Raises:
        UsageError: when there is no such file.
    """
    if not path.is_file():
        raise UsageError(f"the plugin {path} does not exist")
    spec = importlib.util.spec_from_file_location(f"forensics_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the plugin {path} is no Python file")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
