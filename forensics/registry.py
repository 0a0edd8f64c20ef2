"""Components by name: one registry per kind (loaders, detectors, exporters, metric sources).

A component registers itself when its module is imported, so that adding one is adding a file. A look-up by name imports
only the module called after the component, if there is one; a list of names, or any other name, imports all modules of
the package. Foreign components come from an entry point in the group `forensics.<kind>` or a file given with `--plugin`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import traceback
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

from forensics.errors import ConfigError, ForensicsError, PluginError, UsageError, nearest

T = TypeVar("T")
REMEDY = "mend it there, or tell its authors; `forensics --debug ...` prints the traceback"
_PLUGINS: dict[str, str] = {}
"""What a plug-in is called, by its file's absolute path or its module's name."""
_FILES: list[Path] = []
"""Plug-ins given as files, in the order they were loaded."""


class Registry(Generic[T]):
    """Named components of one kind.

    Args:
        kind: what they are called, singular (`loader`).
        package: package whose modules register them.
        homes: modules of the package that register further names, by those names.
    """

    def __init__(self, kind: str, package: str, homes: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self.package = package
        self._homes = dict(homes or {})
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
        if name in self:
            return self._items[name][0]
        self._load()
        if name in self._failed:
            raise ConfigError(f"the {self.kind} `{name}` could not be loaded: {self._failed[name]}", hint=REMEDY)
        if name not in self._items:
            raise UsageError(f"there is no {self.kind} `{name}`{nearest(name, self._items)}", hint=f"known: {', '.join(sorted(self._items))}")
        return self._items[name][0]

    def __contains__(self, name: str) -> bool:
        """Whether there is one of that name; a module called after it is taken at its word, without asking the others."""
        if not self._loaded and not self._load_home(name):
            self._load()
        return name in self._items

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._items)

    def items(self) -> Iterator[tuple[str, T]]:
        """All components by name, sorted."""
        for name in self.names():
            yield name, self._items[name][0]

    def _load_home(self, name: str) -> bool:
        """Import the module called after a component; False where there is none."""
        module = self._homes.get(name, name.replace("-", "_"))
        path = f"{self.package}.{module}"
        if not module.isidentifier() or importlib.util.find_spec(path) is None:
            return False
        importlib.import_module(path)
        return True

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
            _PLUGINS[point.module] = _called(self.kind, point)
            try:
                point.load()
            except Exception as error:  # a foreign plugin must not take the tool down; it fails when asked for by name
                place = next((f"{_PLUGINS[point.module]}, {where}" for _, where in _places(error.__traceback__)), _PLUGINS[point.module])
                self._failed[point.name] = f"{type(error).__name__}: {error} ({place})"


def _called(kind: str, point: EntryPoint) -> str:
    """An entry point in words, with the distribution that it came with."""
    return f"the {kind} `{point.name}`" + (f" of {point.dist.name} {point.dist.version}" if point.dist else "")


def _places(trace: TracebackType | None) -> list[tuple[str, str]]:
    """Plug-ins in a traceback and `FILE line N` of each, the innermost first."""
    found = []
    for frame, line in traceback.walk_tb(trace):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        beside = (name for name in sorted(_PLUGINS, reverse=True) if module.partition(".")[0] == name.partition(".")[0])
        key = next((k for k in (file, module, *beside) if k in _PLUGINS), None)
        if key is not None:
            found.append((_PLUGINS[key], f"{file} line {line}"))
    return found[::-1]


def plugin_error(error: Exception) -> PluginError | None:
    """What to say of an error that came out of a plug-in while it was in use; None where no plug-in had a part in it."""
    for name, place in _places(error.__traceback__):
        return PluginError(f"{name} failed: {type(error).__name__}: {error}\n  at {place}", hint=REMEDY)
    return None


def plugin_files() -> list[Path]:
    """Files that were loaded as plug-ins, for processes that are to know the same components."""
    return list(_FILES)


def load_plugin(path: Path) -> None:
    """Import a Python file that registers components, once in a process.

    Raises:
        UsageError: when there is no such file, or it does not import.
    """
    if path.absolute() in _FILES:
        return
    if not path.is_file():
        raise UsageError(f"the plugin {path} {'is no file' if path.exists() else 'does not exist'}", hint="give a Python file that registers components")
    spec = importlib.util.spec_from_file_location(f"forensics_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the plugin {path} is no Python file")
    _PLUGINS[str(path.absolute())] = f"the plug-in {path}"
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except ForensicsError:
        raise
    except (Exception, SystemExit) as error:  # whatever a stranger's file does when it is run
        frames = reversed(traceback.extract_tb(error.__traceback__))
        line = next((f.lineno for f in frames if f.filename == str(path.absolute())), getattr(error, "lineno", None))
        raise UsageError(f"the plugin {path} does not import: {type(error).__name__}: {error}", hint=f"mend it, near line {line}") from error
    _FILES.append(path.absolute())
