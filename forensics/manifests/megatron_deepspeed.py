"""BigScience's Megatron-DeepSpeed: `--skip-train-iteration-range A-B`.

Read in its `megatron/training.py` and `megatron/arguments.py`: ranges are of logged steps from 1, both ends included,
merged where they touch. On reaching A the loop draws items from the data iterator and goes on under number A. Two traps
follow. An item is one *micro* batch of every rank, so with gradient accumulation a step needs as many items as it has
micro batches. And neither iteration nor consumed samples move: every later start begins before the place where the data
really stand, and must pass over the same items again. How many items a range draws when it does not begin at the first
step after the checkpoint was read two ways; so ranges written here always begin there, where both agree.
"""

from __future__ import annotations

import re

from forensics.errors import ConfigError, ForensicsError
from forensics.manifests.base import EXPORTERS, Manifest, Request, Terms, cost, nothing, start_words, starts_of, steps_in_words

UNCHANGED = (
    "train_iters or train_samples", "global_batch_size, micro_batch_size and data-parallel size (they decide the items of a step)", "seed", "split",
    "data_path: files, weights and their order", "seq_length", "the data files themselves",
)  # fmt: skip
LINE = re.compile(r"after step (\d+): --skip-train-iteration-range (.+)")


class MegatronDeepSpeedExporter:
    """The flag of every start, in the numbers of the changed run."""

    name = "megatron-deepspeed"

    def export(self, request: Request) -> Manifest:
        """One line per start.

        Raises:
            ConfigError: the micro batches of a step are not known.
            ForensicsError: a batch that changes size.
        """
        if not request.steps:
            return Manifest(self.name, request.version, {}, "", nothing(request, "Megatron-DeepSpeed"))
        items = items_per_step(request)
        starts = starts_of(request.steps)
        flags = [f"--skip-train-iteration-range {s.after + 1}-{s.after + (s.before + s.count) * items}" for s in starts]
        text = "".join(f"after step {s.after}: {flag}\n" for s, flag in zip(starts, flags))
        removed = len(request.steps)
        terms = _terms(items)
        says = (
            f"passes over the data of the logged steps {steps_in_words(request.steps)} ({removed} steps)",
            cost(request),
            *start_words(starts, request.checkpoints),
            f"after them, every start from a checkpoint of step S needs `--skip-train-iteration-range S+1-S+{removed * items}`: consumed samples do not count "
            f"what was passed over, so a start without it trains {removed} steps of data again",
            *([f"a step has {items} micro batches and the flag draws one item each: the ranges are {items} times as long as the steps"] if items > 1 else []),
            *terms.sentences(),
        )
        return Manifest(self.name, request.version, {"megatron-deepspeed.txt": text}, flags[0], says, request.steps, terms)

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """Logged steps whose data are passed over: every start simulated item by item."""
        items = items_per_step(request) if request.steps else 1
        out: list[int] = []
        passed = 0  # items that earlier starts passed over
        for line in manifest.files.get("megatron-deepspeed.txt", "").splitlines():
            found = LINE.fullmatch(line)
            if not found:
                raise ForensicsError(f"`{line}` of the exported text is no start with its ranges")
            loaded = int(found[1])
            at = loaded * items  # the loader starts where consumed samples say
            for first, last in _ranges(found[2]):
                if first != loaded + 1:
                    raise ForensicsError(f"the range {first}-{last} does not begin with the step after the checkpoint, where its length is read two ways")
                drawn = last - loaded
                new = range(at + passed, at + drawn)
                if len(new) % items or (new and new[0] % items):
                    raise ForensicsError(f"the range {first}-{last} ends inside a step of {items} micro batches")
                out += [i // items + 1 for i in new[::items]]
                passed = drawn
        return sorted(out)


def _ranges(text: str) -> list[tuple[int, int]]:
    """Ranges as the trainer's argument check reads them: dashes, ascending, merged where they overlap or touch."""
    out: list[tuple[int, int]] = []
    for word in text.split():
        found = re.fullmatch(r"(\d+)-(\d+)", word)
        if not found or int(found[1]) > int(found[2]):
            raise ForensicsError(f"`{word}` is no range A-B")
        first, last = int(found[1]), int(found[2])
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return out


def items_per_step(request: Request) -> int:
    """Micro batches of a step.

    Raises:
        ConfigError: not known.
        ForensicsError: a ramp of the batch.
    """
    args = request.launch.args
    if args.get("rampup_batch_size"):
        raise ForensicsError("with `rampup_batch_size` the micro batches of a step change, and with them what the flag draws", hint="use the plain list")
    known = [args.get(name) for name in ("global_batch_size", "micro_batch_size", "data_parallel_size")]
    if not all(isinstance(v, int) and v > 0 for v in known):
        raise ConfigError(
            "the flag draws one micro batch per step it names, so the micro batches of a step must be known",
            hint="give global_batch_size, micro_batch_size and data_parallel_size: --set args.micro_batch_size=...",
        )
    whole, micro, ranks = (int(v) for v in known if v is not None)
    if whole % (micro * ranks):
        raise ConfigError(f"global_batch_size {whole} is no multiple of micro batch x ranks ({micro} x {ranks})")
    return whole // (micro * ranks)


def _terms(items: int) -> Terms:
    return Terms(
        numbering="steps as the changed run logs them, from 1" + (f", stretched {items} times: one micro batch is drawn for each" if items > 1 else ""),
        closure="both ends of a range are dropped; ranges that touch are merged",
        counters="neither iteration nor consumed samples advance: the next trained step takes the number of the first one dropped",
        schedule="goes on as if nothing had been dropped",
        later="move to earlier steps by as many as were dropped",
        restarts="a start without the flag goes back by all that was dropped so far: with 8401-8800 dropped, checkpoint 9000 goes on at batch 9001 "
        "and trains 400 batches twice",
        unchanged=UNCHANGED,
        unverified="read in the source, not run; Microsoft's fork has no such flag, Argonne's `--train-range-to-skip A B` was not read",
    )


EXPORTERS.add("megatron-deepspeed", MegatronDeepSpeedExporter(), __name__)
