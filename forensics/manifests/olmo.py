"""Old OLMo (allenai/OLMo): `--fast_forward_batches` at a start.

Follows `scripts/train.py` and `olmo/train.py` at 59a53e3f: the start of the loader moves by k global batches, the step
counter, token counter and learning rate do not; the examples passed over are counted in the state of later checkpoints.
It acts only where the trainer starts and not beyond the end of an epoch, for which `--epoch` begins a later one.
"""

from __future__ import annotations

import re
from typing import Any

from forensics.errors import ForensicsError
from forensics.loaders.base import loader_of
from forensics.manifests.base import EXPORTERS, Manifest, Request, Start, Terms, cost, nothing, start_words, starts_of, steps_in_words

FILE = "olmo.txt"
TERMS = Terms(
    numbering="a count of global batches from where the start stands",
    closure="exactly that many batches",
    counters="step and tokens do not advance: the next trained step takes the number of the first one dropped; examples seen do, in later checkpoints too",
    schedule="goes on as if nothing had been dropped",
    later="move to earlier steps by as many as were dropped",
    restarts="give it once, at the start named: a later start that repeats it passes over as many batches again",
    unchanged=(
        "data.seed or seed", "data.drop_last", "data.paths and their order", "the data files themselves", "model.max_sequence_length",
        "global_train_batch_size", "world_size (it decides the length of an epoch)",
    ),
)  # fmt: skip


class OlmoExporter:
    """One line of options per start."""

    name = "olmo"

    def export(self, request: Request) -> Manifest:
        """The starts and what they mean.

        Raises:
            RunError: the run's order cannot be worked out.
        """
        if not request.steps:
            return Manifest(self.name, request.version, {}, "", nothing(request, "OLMo"))
        order = order_of(request)
        starts = starts_of(request.steps)
        lines = [_line(order, s) for s in starts]
        says = (
            f"passes over the data of the logged steps {steps_in_words(request.steps)} ({len(request.steps)} steps)",
            cost(request),
            *start_words(starts, request.checkpoints),
            "the numbers of `--load_path` are those of the changed run: every start before took steps out",
            *TERMS.sentences(),
        )
        return Manifest(self.name, request.version, {FILE: "".join(x + "\n" for x in lines)}, lines[0], says, request.steps, TERMS)

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """Logged steps whose data are passed over: every start placed in the order the trainer would see."""
        lines = manifest.files.get(FILE, "").splitlines()
        if not lines:
            return []
        order = order_of(request)
        out: list[int] = []
        for line in lines:
            given = dict(re.findall(r"--(\w+)=(\S+)", line))
            found = re.fullmatch(r"\S*step(\d+)", given.get("load_path", ""))
            if not found or not given.get("fast_forward_batches", "").isdigit():
                raise ForensicsError(f"`{line}` of the exported text names no checkpoint and count of batches")
            stands = int(found[1]) + len(out)  # steps whose data are behind, in the old numbers
            epoch, count = order.place(stands + 1)[0], int(given["fast_forward_batches"])
            at = stands + 1
            while "epoch" in given and order.place(at)[0] < int(given["epoch"]):
                out.append(at)  # a later epoch is begun: the rest of this one is left
                at += 1
            epoch = int(given.get("epoch", epoch))
            for step in range(at, at + count):
                if order.place(step)[0] != epoch:
                    raise ForensicsError(f"fast-forwarding {count} batches runs beyond the end of epoch {epoch}, where the trainer starts the next one from 0")
                out.append(step)
        return sorted(out)


def order_of(request: Request) -> Any:
    """The order of the request's launch."""
    loader: Any = loader_of(request.run)
    return loader.opened(request.run).orders[request.launch.number]


def _line(order: Any, start: Start) -> str:
    """Options of one start; a later epoch is begun where its end lies beyond the border."""
    first, last = order.place(start.first), order.place(start.last)
    if first[0] == last[0]:
        return f"--load_path=CHECKPOINTS/step{start.after} --fast_forward_batches={start.count}"
    count = last[1] // order.batch + 1
    return f"--load_path=CHECKPOINTS/step{start.after} --epoch={last[0]} --fast_forward_batches={count}"


EXPORTERS.add("olmo", OlmoExporter(), __name__)
