"""MosaicML Streaming (Composer, LLM-Foundry): an edited loader state.

Nothing in streaming 0.13.0 skips a range; what can be moved is `sample_in_epoch` of `StreamingDataLoader.state_dict()`.
The state after the last step to drop is written as JSON, to be loaded with the model of the step before the first. It must
stand at a whole global batch, and never at the end of an epoch, where the library may refuse to load it: the start of
the next epoch is written there.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from forensics.errors import ForensicsError
from forensics.loaders.base import loader_of
from forensics.manifests.base import EXPORTERS, Manifest, Request, Start, Terms, cost, nothing, start_words, starts_of, steps_in_words

TERMS = Terms(
    numbering="a place in an epoch: samples of all ranks, from 0; epochs from 0",
    closure="reading goes on with the sample named",
    counters="step, time stamp and tokens do not advance: the next trained step takes the number of the first one dropped",
    schedule="goes on as if nothing had been dropped",
    later="move to earlier steps by as many as were dropped",
    restarts="Composer saves `sample_in_epoch` from its own time stamp, which does not know of the edit: before every later start in that epoch, add what was "
    "dropped to the state again (or edit the time stamp's sample_in_epoch too)",
    unchanged=(
        "the streams, their weights and shards", "shuffle, shuffle_algo, shuffle_seed and block size", "num_canonical_nodes", "global batch size",
        "batching, partition and sampling method", "the version of mosaicml-streaming (defaults changed)",
    ),
    unverified="the state is the library's own form and its order was compared with the library; an edited checkpoint of Composer was not loaded",
)  # fmt: skip


class StreamingExporter:
    """One state per start."""

    name = "streaming"

    def export(self, request: Request) -> Manifest:
        """The states and what they mean.

        Raises:
            ForensicsError: a place inside a global batch.
        """
        if not request.steps:
            return Manifest(self.name, request.version, {}, "", nothing(request, "Streaming"))
        order = order_of(request)
        starts = starts_of(request.steps)
        files = {f"streaming-state-step{s.after}.json": json.dumps(_state(order, s), indent=1) + "\n" for s in starts}
        says = (
            f"passes over the data of the logged steps {steps_in_words(request.steps)} ({len(request.steps)} steps)",
            cost(request),
            *start_words(starts, request.checkpoints),
            "load each state into the training loader in place of the one in that checkpoint: `loader.load_state_dict(json.load(open(FILE)))` before the first "
            "batch; in Composer it is `state.dataset_state.train` of the checkpoint",
            *TERMS.sentences(),
        )
        flags = f"load {next(iter(files))} into the training loader"
        return Manifest(self.name, request.version, files, flags, says, request.steps, TERMS)

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """Logged steps passed over: from where each start stood to where its state stands."""
        if not manifest.files:
            return []
        order = order_of(request)
        out: list[int] = []
        names = sorted(manifest.files, key=_loaded)
        for name in names:
            state = json.loads(manifest.files[name])
            if int(state["sample_in_epoch"]) % order.rows_per_step:
                raise ForensicsError(f"sample_in_epoch {state['sample_in_epoch']} lies inside a global batch of {order.rows_per_step}")
            at = _loaded(name) + len(out) + 1
            while _place(order, at) < (int(state["epoch"]), int(state["sample_in_epoch"])):
                out.append(at)
                at += 1
            if _place(order, at) != (int(state["epoch"]), int(state["sample_in_epoch"])):
                raise ForensicsError(f"no step of the run begins at sample {state['sample_in_epoch']} of epoch {state['epoch']}")
        return out


def order_of(request: Request) -> Any:
    """The order of the request's launch."""
    loader: Any = loader_of(request.run)
    return loader.opened(request.run).orders[request.launch.number]


def _loaded(name: str) -> int:
    return int(name.removeprefix("streaming-state-step").removesuffix(".json"))


def _place(order: Any, step: int) -> tuple[int, int]:
    """Epoch and sample with which a step begins, as a state names them."""
    epoch, _ = order.place(step)
    if step == order.launch.after_step + 1:
        return order.state.epoch, order.state.sample_in_epoch
    before = order.state_after(step - 1)
    return (epoch, before.sample_in_epoch) if before.epoch == epoch else (epoch, 0)


def _state(order: Any, start: Start) -> dict[str, Any]:
    """The state with which the step after the last one to drop begins."""
    epoch, sample = _place(order, start.last + 1)
    if sample % order.rows_per_step:
        raise ForensicsError(
            f"step {start.last + 1} begins with sample {sample} of epoch {epoch}, which is no multiple of the global batch of {order.rows_per_step}",
            hint="steps at the end of an epoch may be short; drop up to the end of the epoch, or use the plain list",
        )
    return {**asdict(order.state_after(start.last)), "epoch": epoch, "sample_in_epoch": sample}


EXPORTERS.add("streaming", StreamingExporter(), __name__)
