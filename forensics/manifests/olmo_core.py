"""OLMo-core: `trainer.steps_to_skip`, a list of `StepSkipRange(start, stop)`.

Follows `train/trainer.py` and `train/common.py` of 3.0.0, tried with the real trainer: steps count from 1, `stop` is not
dropped; the batch is read, global step and tokens advance, callbacks run, forward, backward and optimizer do not; the
first step trained again uses the learning rate of its own number.
"""

from __future__ import annotations

import re

import yaml

from forensics.errors import ForensicsError
from forensics.manifests.base import EXPORTERS, Manifest, Request, Terms, cost, nothing, start_from, steps_in_words
from forensics.steps import ranges_of

UNCHANGED = (
    "data_loader.seed (the one in the checkpoint's state wins)", "global_batch_size and its schedule", "sequence_length and max_target_sequence_length",
    "paths and their order", "the data files themselves", "tokenizer and dtype", "the data set's kind and its mixture",
)  # fmt: skip
FILE = "olmo-core.yaml"
PYTHON = "olmo-core.py.txt"
TERMS = Terms(
    numbering="logged steps, from 1",
    closure="`stop` is not dropped",
    counters="global step and tokens advance, callbacks run",
    schedule="follows the global step: the first step trained again has the rate of its own number, none is lost",
    later="stay where they were",
    restarts="the list is configuration, not state: keep it for every start before its last step",
    unchanged=UNCHANGED,
)


class OlmoCoreExporter:
    """The list as YAML, as a command-line override and as Python."""

    name = "olmo-core"

    def export(self, request: Request) -> Manifest:
        """The list and what it means."""
        if not request.steps:
            return Manifest(self.name, request.version, {}, "", nothing(request, "OLMo-core"))
        ranges = ranges_of(request.steps)
        flag = "--trainer.steps_to_skip='[" + ", ".join(f"{{start: {r.start}, stop: {r.stop}}}" for r in ranges) + "]'"
        body = yaml.safe_dump({"trainer": {"steps_to_skip": [{"start": r.start, "stop": r.stop} for r in ranges]}}, sort_keys=False)
        python = "steps_to_skip=[" + ", ".join(f"StepSkipRange(start={r.start}, stop={r.stop})" for r in ranges) + "]\n"
        says = (
            f"drops the logged steps {steps_in_words(request.steps)} ({len(request.steps)} steps)",
            cost(request),
            start_from(request),
            *TERMS.sentences(),
        )
        return Manifest(self.name, request.version, {FILE: body, PYTHON: python}, flag, says, request.steps, TERMS)

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """Logged steps dropped, as the trainer tests `start <= step < stop`; YAML and Python must say the same."""
        if FILE not in manifest.files:
            return []
        listed = [(r["start"], r["stop"]) for r in yaml.safe_load(manifest.files[FILE])["trainer"]["steps_to_skip"]]
        called = [(int(a), int(b)) for a, b in re.findall(r"StepSkipRange\(start=(\d+), stop=(\d+)\)", manifest.files[PYTHON])]
        typed = [(int(a), int(b)) for a, b in re.findall(r"start: (\d+), stop: (\d+)", manifest.flags)]
        if not listed == called == typed:
            raise ForensicsError("the exported forms of `steps_to_skip` differ")
        return [step for step in range(min(a for a, _ in listed), max(b for _, b in listed)) if any(a <= step < b for a, b in listed)]


EXPORTERS.add("olmo-core", OlmoCoreExporter(), __name__)
