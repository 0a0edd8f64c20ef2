"""Plain torch loops, Accelerate and the Hugging Face Trainer: an index file for the batch sampler that ships with this package.

None of them leaves out a range by itself; `skipping.SkippingBatchSampler` does, reading the file written here. It reads
clean batches again in place of the listed ones, so nothing else moves.
"""

from __future__ import annotations

import json
from typing import Any

from forensics.errors import ForensicsError
from forensics.loaders.base import loader_of
from forensics.manifests.base import EXPORTERS, Manifest, Request, Terms, cost, nothing, start_from, steps_in_words
from forensics.manifests.skipping import FORMAT, SkippingBatchSampler
from forensics.steps import ranges_of

FILE = "skip.json"
TERMS = Terms(
    numbering="batches of an epoch as the wrapped batch sampler yields them, from 0; epochs from 0",
    closure="half-open ranges",
    counters="steps and epochs advance as before: a clean batch of the same epoch is read again in place of a listed one",
    schedule="unchanged",
    later="stay where they were",
    restarts="keep the wrapper and its file for every start; a resume passes over batches behind the wrapper and finds its place",
    unchanged=(
        "seed and data_seed", "batch size, gradient accumulation and number of processes", "the data set and its length",
        "split_batches, drop_last, even_batches",
        "the library's version, for epochs resumed in their middle",
    ),
    unverified="StatefulDataLoader and group_by_length were not tried with the wrapper",
)  # fmt: skip


class TorchExporter:
    """`skip.json`.

    Args:
        name: of the trainer.
        loader: the loop that is meant where the run does not say.
    """

    def __init__(self, name: str, loader: str | None) -> None:
        self.name = name
        self._loader = loader

    def export(self, request: Request) -> Manifest:
        """The index file and what it means."""
        if not request.steps:
            return Manifest(self.name, request.version, {}, "", nothing(request, "the batch sampler"))
        order = order_of(request)
        each = self._dealt(request)
        listed: dict[int, set[int]] = {}
        for step in request.steps:
            for epoch, micro in micro_batches(order, step):
                listed.setdefault(epoch, set()).update(range(micro * each, (micro + 1) * each))
        body = {
            "format": FORMAT,
            "in_place": "repeat",
            "batches_per_epoch": [(order.micros - 1) * each + 1, order.micros * each + each - 1],
            "epochs": {str(e): [[r.start, r.stop] for r in ranges_of(b)] for e, b in sorted(listed.items())},
        }
        says = (
            f"drops the data of the logged steps {steps_in_words(request.steps)} ({len(request.steps)} steps); in their place "
            'as many clean batches of the same epoch are read twice ("in_place": "drop" leaves them out instead and moves what follows)',
            cost(request),
            start_from(request),
            "wrap the training loader: `from forensics.manifests.skipping import skipping; loader = skipping(loader, 'skip.json')`; "
            "for the Trainer in `get_train_dataloader`, for Accelerate before or after `prepare`; the module needs nothing else and may be copied",
            *(
                [f"batches are counted before they are dealt to the {each} processes: wrap the loader that deals them, not one rank's part"]
                if each > 1
                else ["with a DistributedSampler every rank wraps its own loader with the same file"]
            ),
            *TERMS.sentences(),
        )
        return Manifest(
            self.name, request.version, {FILE: json.dumps(body, indent=1) + "\n"}, "loader = skipping(loader, 'skip.json')", says, request.steps, TERMS
        )

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """Logged steps all of whose batches the wrapper replaces, found by running it over the numbers of the batches."""
        if FILE not in manifest.files:
            return []
        listed = json.loads(manifest.files[FILE])
        order, each = order_of(request), self._dealt(request)
        out: list[int] = []
        replaced: dict[int, set[int]] = {}
        for step in range(order.launch.after_step + 1, request.steps[-1] + order.micros + 1):
            places = micro_batches(order, step)
            for epoch, _ in places:
                if epoch not in replaced:
                    replaced[epoch] = _replaced(order.micros * each, listed, epoch)
            gone = [all(b in replaced[e] for b in range(m * each, (m + 1) * each)) for e, m in places]
            if any(gone) and not all(gone):
                raise ForensicsError(f"the exported text leaves out a part of step {step} only")
            if all(gone):
                out.append(step)
        return out

    def _dealt(self, request: Request) -> int:
        """Batches of the sampler that one micro batch of all processes takes."""
        args = request.launch.args
        name = str(args.get("loader") or self._loader or "").split("+")[0].rpartition(".")[2]
        config = args.get("accelerator_config") or {}
        split = bool(args.get("split_batches") or (isinstance(config, dict) and config.get("split_batches")))
        return 1 if name not in ("Accelerate", "Trainer") or split else int(args.get("world_size") or 1)


def _replaced(n: int, listed: dict[str, Any], epoch: int) -> set[int]:
    """Numbers of the batches of an epoch that the wrapper does not read."""
    inner = [[i] for i in range(n)]
    read = list(SkippingBatchSampler(inner, listed, epoch))
    if listed["in_place"] == "drop":
        return set(range(n)) - {i for (i,) in read}
    return {i for i, (found,) in enumerate(read) if found != i}


def order_of(request: Request) -> Any:
    """The order of the request's launch."""
    loader: Any = loader_of(request.run)
    return loader.opened(request.run).orders[request.launch.number]


def micro_batches(order: Any, step: int) -> list[tuple[int, int]]:
    """(epoch, micro batch) of a step, in order."""
    at, count = order.place(step)
    out, epoch, micro = [], at.epoch, at.micro
    for _ in range(count):
        out.append((epoch, micro))
        epoch, micro = (epoch, micro + 1) if micro + 1 < order.micros else (epoch + 1, 0)
    return out


EXPORTERS.add("pytorch", TorchExporter("pytorch", None), __name__)
EXPORTERS.add("hf", TorchExporter("hf", "Trainer"), __name__)
