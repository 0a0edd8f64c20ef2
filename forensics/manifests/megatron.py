"""Megatron-LM: `--iterations-to-skip`.

Follows `megatron/training/training.py`, function `train`, in the tags core_v0.12.0 to core_v0.19.0: the microbatches of
a listed iteration are read from the loader and dropped; iteration, consumed and skipped samples advance; forward,
backward, optimizer and scheduler do not run. Up to 0.16 the list is compared with the number of finished steps, so
value k drops logged step k + 1; from 0.17 on with the logged step. core_v0.11.0 and earlier have no such option.
"""

from __future__ import annotations

import re

from forensics.errors import ConfigError, ForensicsError
from forensics.loaders.megatron.versions import unread
from forensics.manifests.base import EXPORTERS, Manifest, Request, Terms, start_from, steps_in_words, version_of

UNCHANGED = ("train_iters or train_samples", "global_batch_size and its schedule", "seed", "split", "data_path: files, weights and their order",
             "seq_length", "dataloader_type", "the data files themselves", "the megatron-core version")  # fmt: skip

ELSE = "without losing steps: swap their samples for spare ones in a copy of the index cache (`forensics apply`), or build a corpus without them"


class MegatronExporter:
    """`--iterations-to-skip` for the stated version."""

    name = "megatron"

    def export(self, request: Request) -> Manifest:
        """The flag and what it means.

        Raises:
            ConfigError: version not stated: the numbering differs by one between versions.
            ForensicsError: the version has no such flag.
        """
        text = request.version
        shift = _shift(text)
        values = [step - shift for step in request.steps]
        flag = "--iterations-to-skip " + " ".join(str(v) for v in values) if values else ""
        files = {"megatron.txt": flag + "\n"} if flag else {}
        return Manifest("megatron", text, files, flag, tuple(_says(request, text or "", shift)), request.steps, terms_of(shift, unread(text)))

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """Logged steps dropped, as argparse (nargs='+', int) and the loop of that version read the flag."""
        words = manifest.files.get("megatron.txt", "").split()
        if not words:
            return []
        if words[0] != "--iterations-to-skip" or not all(re.fullmatch(r"\d+", w) for w in words[1:]):
            raise ForensicsError("the exported text is no `--iterations-to-skip` list of integers")
        listed = {int(w) for w in words[1:]}
        minor = version_of(manifest.version)
        after = minor is not None and minor >= (0, 17)
        first, last = min(listed), max(listed)
        # The loop: `iteration` counts finished steps; up to 0.16 it is tested itself, from 0.17 on iteration + 1.
        return [iteration + 1 for iteration in range(max(0, first - 1), last + 1) if (iteration + 1 if after else iteration) in listed]


def _shift(version: str | None) -> int:
    minor = version_of(version)
    if minor is None:
        raise ConfigError(
            "the skip list needs the megatron-core version: value k drops logged step k + 1 up to 0.16 and step k from 0.17 on",
            hint="add `version: '0.16.1'` to forensics.yaml (pip show megatron-core, or the git tag of the training checkout)",
        )
    if minor < (0, 12):
        raise ForensicsError(
            f"megatron-core {version} has no `--iterations-to-skip` (it came with 0.12)",
            hint="use the plain list; or move to 0.12 or later, but from 0.10 or earlier the surplus rule differs and the order may change",
        )
    return 1 if minor <= (0, 16) else 0


def terms_of(shift: int, unverified: str = "") -> Terms:
    """What `--iterations-to-skip` does; shift 1 where values are finished steps; what was not read."""
    return Terms(
        numbering="finished steps, one less than the logged step" if shift else "logged steps, from 1",
        closure="a flat list, no ranges",
        counters="iteration, consumed and skipped samples advance",
        schedule="the scheduler does not run in dropped steps and lags by them",
        later="stay where they were",
        restarts="the list is not in checkpoints: give it to every launch that starts before its last step",
        unchanged=UNCHANGED,
        unverified=unverified,
    )


def _says(request: Request, version: str, shift: int) -> list[str]:
    if not request.steps:
        named = f"{len(request.documents):,} documents are named; " if request.documents else ""
        return [f"no step is to be dropped: {named}Megatron-LM leaves out whole steps only, and these hold mostly other documents", ELSE]
    first, last, n = request.steps[0], request.steps[-1], len(request.steps)
    batch = request.launch.args.get("global_batch_size")
    wasteful = request.ordinary_tokens > request.tokens / 2
    numbering = "the number of finished steps, one less than the logged step" if shift else "the logged step"
    lag = f"{n} steps" + (f" ({n * int(batch):,} samples)" if isinstance(batch, int) else "")
    later = unread(version)
    return [
        *([later.replace("its data order is", "its data order and skip list are")] if later else []),
        f"drops the logged steps {steps_in_words(request.steps)} ({n} steps); in megatron-core {version} the values are {numbering}",
        "the dropped steps' data are read and counted as consumed: later steps read what they would have read",
        f"{request.tokens:,} tokens are lost, {request.ordinary_tokens:,} of them in documents that are not suspected" + (f"; {ELSE}" if wasteful else ""),
        f"optimizer and learning-rate scheduler do not run in dropped steps: the schedule lags by {lag}",
        start_from(request),
        f"the list belongs to one launch and is not stored in checkpoints: keep the flag on every launch that starts before step {last + 1}",
        "it names steps, so it holds only while these stay as they are: " + "; ".join(UNCHANGED) + "; else locate the documents again (`forensics manifest`)",
        f"verify the next launch: its log must show step {first} without a loss, and `forensics verify` must agree with its data",
    ]


EXPORTERS.add("megatron", MegatronExporter(), __name__)
