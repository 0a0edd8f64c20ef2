"""Presets and overrides: YAML into frozen structs, unknown keys refused with the nearest known one.

Every group of numbers (thresholds, curve rules, attribution) is a `msgspec.Struct` beside the code that uses it, with
its defaults in `configs/`; a user's file and `--set a.b=1` override single keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from forensics.errors import ConfigError, nearest
from forensics.files import read_text

S = TypeVar("S", bound=msgspec.Struct)


def parse_yaml(text: str, where: str) -> Any:
    """Plain YAML data; no tags are ever constructed.

    Raises:
        ConfigError: with line and column where it does not parse, or gives one key twice.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Refuses a key given twice, of which YAML's own reader silently takes the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[Any] = set()
            for key in (k for k, _ in node.value if isinstance(k, yaml.ScalarNode) and k.value != "<<"):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` is given twice", key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader=Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error


def preset(name: str) -> dict[str, Any]:
    """A shipped preset, e.g. `curves/default`.

    Raises:
        ConfigError: when there is none of that name.
    """
    root = resources.files("forensics.configs")
    file = root.joinpath(*f"{name}.yaml".split("/"))
    if not file.is_file():
        raise ConfigError(f"there is no preset `{name}`")
    found = parse_yaml(file.read_text(encoding="utf-8"), f"preset {name}")
    return found or {}


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping from a user's file.

    Raises:
        ConfigError: no mapping, or no YAML.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist", hint="give a YAML file; the presets and their keys lie in `configs/`")
    found = parse_yaml(read_text(path, 1 << 24), str(path))
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds a {type(found).__name__}, not a mapping of keys")
    return found


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `over` on top, mapping by mapping."""
    out = dict(base)
    for key, value in over.items():
        out[key] = merge(out[key], value) if isinstance(value, Mapping) and isinstance(out.get(key), Mapping) else value
    return out


def overrides(settings: Sequence[str]) -> dict[str, Any]:
    """`['a.b=1', 'c=[x, y]']` as a nested mapping; values are YAML.

    Raises:
        ConfigError: when one has no `=`.
    """
    out: dict[str, Any] = {}
    for setting in settings:
        key, equal, value = setting.partition("=")
        if not equal or not key.strip():
            raise ConfigError(f"`--set {setting}` has no `=`", hint="write --set key.sub=value")
        nested: Any = parse_yaml(value, f"--set {key}")
        for part in reversed(key.strip().split(".")):
            nested = {part: nested}
        out = merge(out, nested)
    return out


def build(struct: type[S], data: Mapping[str, Any], where: str) -> S:
    """A struct from plain data.

    Raises:
        ConfigError: unknown keys (with the nearest known one) and values of the wrong type, by their place.
    """
    _check_keys(struct, data, where, "")
    try:
        return msgspec.convert(dict(data), struct, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_keys(struct: Any, data: Mapping[str, Any], where: str, prefix: str) -> None:
    fields = {f.encode_name: f for f in msgspec.structs.fields(struct)}
    for key, value in data.items():
        if key not in fields:
            raise ConfigError(f"{where}: unknown key `{prefix}{key}`{nearest(str(key), fields)}")
        kind = fields[key].type
        if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            _check_keys(kind, value, where, f"{prefix}{key}.")
