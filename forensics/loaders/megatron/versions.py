"""Which rules a version of megatron-core follows, and which versions are out of reach.

Read in the release tags 0.4 to 0.19 of megatron-core and the head of August 2026. Between 0.5 and 0.19 the order
differs in one rule, how many samples a weighted corpus is asked for; step lists of `--iterations-to-skip` differ in
their numbering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forensics.errors import NotReplayable, RunError
from forensics.loaders.megatron.weights import Surplus

Version = tuple[int, int]
FIRST, LAST = (0, 5), (0, 19)
RECORD = "record what the run consumes (forensics.live.recorder) and describe it with `trainer: recorded`"
# option: first version that has it, last one (None = the newest read), what it does
OPTIONS: dict[str, tuple[Version, Version | None]] = {
    "iterations_to_skip": ((0, 12), None),
    "mid_level_dataset_surplus": ((0, 13), None),
    "rampup_batch_size": ((0, 5), (0, 17)),
    "step_batch_size_schedule": ((0, 18), None),
    "phase_transition_iterations": ((0, 16), None),
    "decrease_batch_size_if_needed": ((0, 9), None),
    "renormalize_blend_weights": ((0, 9), (0, 10)),
}


@dataclass(frozen=True)
class Rules:
    """What the version decides; a tuple or None where it is not known.

    Attributes:
        version: (major, minor), None where the run does not say.
        surplus: candidate rules for the samples asked of a weighted corpus; one where the version is known.
        unweighted: whether blends without weights exist; assumed where the version is not known.
    """

    version: Version | None
    surplus: tuple[Surplus, ...]
    unweighted: bool = True

    def skipped_step(self, value: int) -> int:
        """The logged step that a value of `--iterations-to-skip` drops.

        Up to 0.16 the list was compared with the number of finished steps, from 0.17 with the step about to run.

        Raises:
            RunError: when the version is not known.
        """
        if self.version is None:
            raise RunError(
                "`iterations_to_skip` means other steps before megatron-core 0.17 than since",
                hint="give `version`, or list the steps as logged under `skipped`",
            )
        return value if self.version >= (0, 17) else value + 1


def parse_version(text: str) -> Version:
    """(major, minor) of a version like `0.16.1`, `core_v0.16.0` or `0.17.0rc1`.

    Raises:
        RunError: when it is no version.
    """
    found = re.fullmatch(r"(?:megatron[-_]core[-=_ ]*|core_)?v?(\d+)\.(\d+)(?:[.\-+a-z]\w*)*", text.strip(), re.IGNORECASE)
    if not found:
        raise RunError(
            f"`version: {text}` is no version of megatron-core", hint="write it like '0.16.1'; `pip show megatron-core` prints it where the run was made"
        )
    return int(found[1]), int(found[2])


def rules_of(text: str | None) -> Rules:
    """The rules of a version; both where it is not known.

    Raises:
        NotReplayable: a version whose order is not known here.
    """
    if text is None:
        return Rules(None, ("once", "twice"))
    version = parse_version(text)
    if version < FIRST or version[0] >= 1:
        raise NotReplayable(
            f"the data order of version {text} is not known here, only megatron-core 0.5 to 0.19",
            hint=f"older Megatron-LM splits and blends otherwise; {RECORD}",
        )
    return Rules(version, ("once",) if version <= (0, 10) else ("twice",), version >= (0, 7))


def unread(text: str | None) -> str:
    """What to know of a version later than those read; empty for the others."""
    if text is None or parse_version(text) <= LAST:
        return ""
    return (
        f"unverified: megatron-core {text} was not read here, its data order is taken to be that of {LAST[0]}.{LAST[1]}; "
        "`forensics verify` with the logged loss tells whether it is, and the run's own index files (`cache:`) hold it whatever the version"
    )


def check_option(rules: Rules, name: str) -> None:
    """Refuse an option that the run's version does not have: one of the two is wrong.

    Raises:
        RunError: naming both.
    """
    first, last = OPTIONS[name]
    if rules.version is None or (first <= rules.version and (last is None or rules.version <= last)):
        return
    known = f"from {first[0]}.{first[1]}" + (f" to {last[0]}.{last[1]}" if last else " on")
    raise RunError(
        f"`{name}` exists in megatron-core {known}, the run says version {rules.version[0]}.{rules.version[1]}",
        hint="correct `version` or leave the option out",
    )
