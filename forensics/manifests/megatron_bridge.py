"""Megatron Bridge (and NeMo 2 on top of Megatron-core): `train.iterations_to_skip` in its configuration.

The loop is that of Megatron-LM and so is its change of numbering: Bridge checkouts from 2026-04-06 on (its pull request
3104) compare the list with the logged step, earlier ones with the number of finished steps. Release 0.3.1 is of
2026-03-20, 0.6.0 of August 2026; which of the releases between have the change was not read, so for those the date of the
checkout is asked for.
"""

from __future__ import annotations

import datetime as dt
import re

import yaml

from forensics.errors import ConfigError, ForensicsError
from forensics.manifests.base import EXPORTERS, Manifest, Request, Terms, cost, nothing, start_from, steps_in_words, version_of
from forensics.manifests.megatron import UNCHANGED

FLIP = dt.date(2026, 4, 6)
LAST_OLD, FIRST_NEW = (0, 3), (0, 6)
HOW = "`forensics manifest --for megatron-bridge --version 2026-05-01` (git log -1 --format=%cs in the Bridge checkout), or its release, as in 0.3.1"


class BridgeExporter:
    """`train: {iterations_to_skip: [...]}` for a checkout of the stated date or release.

    Args:
        name: of the trainer.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def export(self, request: Request) -> Manifest:
        """The YAML block and what it means.

        Raises:
            ConfigError: neither date nor release says which numbering holds.
        """
        text = request.target or str(request.launch.args.get("bridge_version") or "") or None
        if not request.steps:
            return Manifest(self.name, text, {}, "", nothing(request, self.name))
        shift = shift_of(text)
        values = [step - shift for step in request.steps]
        body = yaml.safe_dump({"train": {"iterations_to_skip": values}}, default_flow_style=None, width=150)
        terms = _terms(shift)
        says = (
            f"drops the logged steps {steps_in_words(request.steps)} ({len(values)} steps) under {self.name} {text}",
            cost(request),
            start_from(request),
            *terms.sentences(),
        )
        flags = "train.iterations_to_skip=[" + ",".join(str(v) for v in values) + "]"
        return Manifest(self.name, text, {"megatron-bridge.yaml": body}, flags, says, request.steps, terms)

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """Logged steps dropped: the YAML read as Bridge's configuration is, and its loop run over the steps."""
        if "megatron-bridge.yaml" not in manifest.files:
            return []
        listed = yaml.safe_load(manifest.files["megatron-bridge.yaml"])["train"]["iterations_to_skip"]
        if not isinstance(listed, list) or not all(type(v) is int and v >= 0 for v in listed):
            raise ForensicsError("`train.iterations_to_skip` of the exported text is no list of integers")
        late = shift_of(manifest.version) == 0
        out = []
        for finished in range(max(0, min(listed) - 1), max(listed) + 1):
            if (finished + 1 if late else finished) in listed:
                out.append(finished + 1)
        return out


def shift_of(text: str | None) -> int:
    """1 where values are finished steps, 0 where they are logged steps.

    Raises:
        ConfigError: not known.
    """
    if text is None:
        raise ConfigError(
            "Megatron Bridge changed what `iterations_to_skip` means on 2026-04-06: value k dropped logged step k + 1 before and drops step k since; "
            "which Bridge will read the list is not known (the run's version is that of megatron-core)",
            hint=HOW,
        )
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        try:
            return 1 if dt.date.fromisoformat(text) < FLIP else 0
        except ValueError as error:
            raise ConfigError(f"`{text}` is no date", hint=HOW) from error
    release = version_of(text)
    if release is None:
        raise ConfigError(f"`{text}` is neither a date nor a release of Megatron Bridge", hint=HOW)
    if release <= LAST_OLD:
        return 1
    if release >= FIRST_NEW:
        return 0
    raise ConfigError(f"whether release {text} has the change of 2026-04-06 was not read", hint=HOW)


def _terms(shift: int) -> Terms:
    return Terms(
        numbering="finished steps, one less than the logged step" if shift else "logged steps, from 1",
        closure="a flat list, no ranges",
        counters="step, consumed and skipped samples advance",
        schedule="not stepped in dropped steps, so it lags by them, as in Megatron-LM",
        later="stay where they were",
        restarts="the list is configuration, not state: keep it for every start before its last step",
        unchanged=(*UNCHANGED[:-1], "the Bridge checkout (its numbering changed once)"),
        unverified="counters and learning rate are taken to be Megatron-LM's; NeMo 2 itself was not read",
    )


for _name in ("megatron-bridge", "nemo"):
    EXPORTERS.add(_name, BridgeExporter(_name), __name__)
