"""Thresholds as configuration: which measure of which detector counts from where, and which causes are garbage.

The numbers and their origin live in `configs/thresholds/*.yaml`; here is only their shape and the look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from forensics.config import build, merge, overrides, preset, read_yaml


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measure's thresholds.

    Attributes:
        report: from here on there is a finding.
        garbage: from here on the finding is garbage; null = never by this measure.
        floor: other measures of the detector that must reach their own values besides, `measure: value`.
        garbage_floor: the same, for garbage alone.
        origin: where the numbers come from.
    """

    report: float
    garbage: float | None = None
    floor: dict[str, float] = {}
    garbage_floor: dict[str, float] = {}
    origin: str = ""


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that `flag` needs.

    Attributes:
        precedence: causes, the first that a document has is its primary one.
        garbage: causes that may be garbage at all.
        rules: detector -> measure -> rule; a detector without rules is measured only.
    """

    precedence: tuple[str, ...]
    garbage: tuple[str, ...]
    rules: dict[str, dict[str, Rule]]

    @property
    def fingerprint(self) -> str:
        """For stored results."""
        return repr(msgspec.json.encode(self, order="sorted"))


def read_thresholds(name: str | Path = "default", settings: Sequence[str] = (), over: Mapping[str, object] | None = None) -> Thresholds:
    """A preset (`default`, `strict`, `code`) or a file of thresholds (a path, or a name that ends in .yaml), with `a.b=1` settings on top.

    Raises:
        ConfigError: unknown preset, keys or values.
    """
    base = preset("thresholds/default")
    where = f"thresholds {name}"
    if isinstance(name, Path) or name.endswith((".yaml", ".yml")):
        base = merge(base, read_yaml(Path(name)))
    elif name != "default":
        base = merge(base, preset(f"thresholds/{name}"))
    return build(Thresholds, merge(merge(base, over or {}), overrides(settings)), where)
