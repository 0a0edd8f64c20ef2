"""Write down, inside a training loop, what each step consumed and what it lost on it.

A single file to copy or import: standard library and numpy, Python 3.9, no other module of this project. It makes three
kinds of files in one folder, as numpy archives that appear whole or not at all:

    consumed-*.npz   which part of which document lay where in which row
    losses-*.npz     loss sums and counts per document part, or per row where documents are not known
    alarm-*.npz      the tokens of a batch that set off an alarm, and of the batches before it

    recorder = Recorder("records", rank=rank, world_size=world_size)
    recorder.record(step, sample=ids, tokens=tokens, loss=token_losses, eod=50256)

`record` puts arrays on a bounded queue and returns; a thread adds up, compresses and writes. It never raises into the
training and never waits for a disk: what does not fit the queue is dropped and counted. `trainer: recorded` and `losses:`
of a run description read the folder back.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import queue
import re
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

VERSION = 1
CONSUMED = ("step", "sequence", "seq_start", "corpus", "document", "doc_start", "doc_stop", "sample", "rank", "microbatch", "launch")
LOSSES = ("step", "sequence", "seq_start", "document", "predicted", "loss_sum", "sample", "rank", "microbatch", "launch", "corpus")
_NARROW = {"seq_start": np.int32, "corpus": np.int32, "rank": np.int32, "microbatch": np.int32, "launch": np.int16, "sequence": np.int32, "predicted": np.int32}
Array = Any  # a numpy array, anything numpy makes one of, or a function without arguments that gives one
Row = Dict[str, "np.ndarray[Any, Any]"]


class Spike:
    """The built-in alarm: a loss that is not finite, or far above the last ones.

    Args:
        window: losses it looks back on.
        sigmas: robust standard deviations above their median.
        least: nats above the median that are always allowed, so that a quiet run does not cry over noise.
    """

    def __init__(self, window: int = 128, sigmas: float = 6.0, least: float = 0.1) -> None:
        self.sigmas, self.least = sigmas, least
        self._seen: Deque[float] = deque(maxlen=window)

    def __call__(self, step: int, loss: float) -> Optional[str]:
        """A reason, or None."""
        if not math.isfinite(loss):
            return "loss is not finite"
        seen = np.array(self._seen)
        self._seen.append(loss)
        if len(seen) < 16:
            return None
        middle = float(np.median(seen))
        limit = middle + max(self.least, self.sigmas * 1.4826 * float(np.median(np.abs(seen - middle))))
        return f"loss {loss:.4g} over {limit:.4g}" if loss > limit else None


def host(value: Array) -> Array:
    """A value that the training may overwrite next: arrays copied, tensors copied off their device.

    A copy from an accelerator is only started; the function given back waits for it, in the writing thread.
    """
    if value is None or callable(value):
        return value
    if not hasattr(value, "detach"):
        return np.array(value)
    tensor = value.detach()
    if str(tensor.dtype) in ("torch.bfloat16", "torch.float16"):
        tensor = tensor.float()
    if not getattr(tensor, "is_cuda", False):
        return np.array(tensor.numpy())
    torch = sys.modules["torch"]
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    there.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> Array:
        done.synchronize()
        return there.numpy()

    return wait


class Recorder:
    """One per process.

    Args:
        folder: where to write; several ranks and launches share it.
        rank, world_size: data-parallel rank and how many there are.
        launch: number of this start of the program, from 0; by default one more than the folder knows for this rank.
        corpora: names of the data files, in the order that `corpus` numbers them.
        alarm: called with (step, mean loss of this rank's batch) once a step is over; a text that it gives keeps the batch.
            True is `Spike()`, False none.
        keep: steps whose tokens are held for an alarm, the last ones.
        seconds, rows: a shard is written after so long, or with so many rows.
        pending: batches that may wait; more are dropped and counted.
    """

    def __init__(
        self,
        folder: Union[str, "os.PathLike[str]"],
        rank: int = 0,
        world_size: int = 1,
        launch: Optional[int] = None,
        corpora: Sequence[str] = (),
        alarm: Union[bool, Callable[[int, float], Optional[str]]] = True,
        keep: int = 2,
        seconds: float = 60.0,
        rows: int = 1 << 17,
        pending: int = 256,
    ) -> None:
        self.folder, self.rank, self.world_size = Path(folder), int(rank), int(world_size)
        self.corpora = [str(c) for c in corpora]
        self.alarm: Optional[Callable[[int, float], Optional[str]]] = None
        if alarm:
            self.alarm = Spike() if isinstance(alarm, bool) else alarm
        self.dropped = 0
        self.errors = 0
        self.last_error = ""
        self.launch = 0
        self._seconds, self._rows, self._keep_steps = seconds, rows, max(1, keep)
        self._queue: "queue.Queue[Optional[Dict[str, Any]]]" = queue.Queue(maxsize=max(1, pending))
        self._kept: Deque[Tuple[int, List[Dict[str, Any]]]] = deque(maxlen=self._keep_steps + 1)  # the alarm of a step comes with the next
        self._parts: Dict[str, List[Row]] = {"consumed": [], "losses": []}
        self._held = 0
        self._shards = 0
        self._written = time.monotonic()
        self._step_loss: Tuple[int, float, int] = (-1, 0.0, 0)
        self._closed = False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.launch = self._next_launch() if launch is None else int(launch)
            self._shards = sum(1 for _ in self.folder.glob(f"*-{self.launch}-{self.rank}-*.npz"))
            self._write_json(f"start-{self.launch}-{self.rank}.info", self._facts())
        except Exception as error:  # a folder that cannot be written must not stop a training
            self._note(error)
        self._thread = threading.Thread(target=self._work, name="forensics-recorder", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # ---- called by the training

    def record(
        self,
        step: int,
        sample: Optional[Array] = None,
        microbatch: int = 0,
        tokens: Optional[Array] = None,
        loss: Optional[Array] = None,
        mask: Optional[Array] = None,
        predicted: Optional[Array] = None,
        documents: Optional[Dict[str, Array]] = None,
        eod: Optional[int] = None,
        sequence: Optional[Array] = None,
    ) -> None:
        """Note one micro batch. Arrays are copied; tensors on an accelerator are copied without waiting for them.

        Args:
            step: as the trainer's log numbers it.
            sample: the trainer's own number of each row [rows].
            microbatch: which one of the step, from 0.
            tokens: token ids [rows, width]; kept in memory for an alarm, split at `eod` where `documents` is not given.
            loss: loss in nats of each label [rows, labels], label j being token j + 1 of the row; or the sum of each row [rows]; or
                one number, the mean over the `predicted` labels of the micro batch.
            mask: weight of each label [rows, labels]; 0 where it does not count.
            predicted: labels in each row's sum [rows], or in the micro batch, where `loss` holds sums or a mean.
            documents: arrays of one length: row, seq_start, document, doc_start, doc_stop, and corpus where there are several
                (a number into `corpora`): the part [doc_start, doc_stop) of a document begins at token seq_start of a row.
            eod: token id that ends a document.
            sequence: row of the global batch for each row [rows]; by default (microbatch * world_size + rank) * rows + i.
        """
        try:
            if self._closed:
                return
            if self._queue.full():
                raise queue.Full
            arrays = {"sample": sample, "tokens": tokens, "loss": loss, "mask": mask, "predicted": predicted, "sequence": sequence}
            item = {name: host(value) for name, value in arrays.items()}
            item["documents"] = None if documents is None else {name: host(value) for name, value in documents.items()}
            self._queue.put_nowait({**item, "step": int(step), "microbatch": int(microbatch), "eod": eod})
        except queue.Full:
            self.dropped += 1
        except Exception as error:  # never into the training
            self._note(error)

    def keep_batch(self, step: int, reason: str = "asked for") -> None:
        """Keep the tokens of the last batches up to this step: an alarm from outside. It is served after what waits before it."""
        try:
            self._queue.put_nowait({"keep": (int(step), str(reason))})
        except queue.Full:
            self.dropped += 1

    def flush(self, timeout: float = 60.0) -> bool:
        """Wait until everything recorded so far is on disk; False after `timeout` seconds."""
        done = threading.Event()
        try:
            self._queue.put({"flush": done}, timeout=timeout)
        except queue.Full:
            return False
        return done.wait(timeout)

    def close(self, timeout: float = 60.0) -> None:
        """Write what is left and end the thread; called at exit too."""
        if self._closed:
            return
        self._closed = True
        try:
            self._queue.put(None, timeout=timeout)
            self._thread.join(timeout)
            atexit.unregister(self.close)
        except Exception as error:  # the interpreter may be going down
            self._note(error)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the writing thread

    def _work(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=1.0)
            except queue.Empty:
                self._due()
                continue
            try:
                if item is None:
                    self._write()
                    return
                if "flush" in item:
                    self._write()
                    item["flush"].set()
                elif "keep" in item:
                    self._keep(*item["keep"])
                else:
                    self._take(item)
                    self._due()
            except Exception as error:  # one bad batch must not end the recording
                self._note(error)
                if item is None:
                    return

    def _take(self, item: Dict[str, Any]) -> None:
        item = {k: v() if callable(v) else v for k, v in item.items()}
        loss = None if item["loss"] is None else np.asarray(item["loss"], np.float64)
        rows = next((len(x) for x in (loss, item["tokens"], item["sample"]) if x is not None and np.ndim(x)), 0)
        if item["documents"] is not None and not rows:
            rows = int(np.max(np.asarray(item["documents"]["row"]))) + 1
        base = self._base(item, rows)
        parts = self._documents(item, rows)
        if parts is not None and "document" in parts:
            self._add("consumed", {**_pick(base, parts["row"]), **{k: v for k, v in parts.items() if k != "row"}})
        if loss is not None and loss.ndim:
            self._losses(item, base, parts, loss)
        elif parts is None or "document" not in parts:
            self._add("consumed", base)
        if loss is not None and not loss.ndim:
            self._mean(item, float(loss))
        if item["tokens"] is not None:
            if not self._kept or self._kept[-1][0] != item["step"]:
                self._kept.append((item["step"], []))
            self._kept[-1][1].append({**base, "tokens": np.asarray(item["tokens"]), **({} if loss is None else {"loss": loss.astype(np.float32)})})

    def _base(self, item: Dict[str, Any], rows: int) -> Row:
        place = np.arange(rows, dtype=np.int64)
        given = item["sequence"]
        sequence = (item["microbatch"] * self.world_size + self.rank) * rows + place if given is None else np.asarray(given).astype(np.int64).reshape(rows)
        out = {"step": np.full(rows, item["step"], np.int64), "sequence": sequence}
        if item["sample"] is not None:
            out["sample"] = np.asarray(item["sample"], np.int64).reshape(rows)
        for name, value in (("rank", self.rank), ("microbatch", item["microbatch"]), ("launch", self.launch)):
            out[name] = np.full(rows, value, np.int64)
        return out

    def _documents(self, item: Dict[str, Any], rows: int) -> Optional[Row]:
        """Parts of documents: row, seq_start, length, and the document itself where it is known."""
        given = item["documents"]
        if given is not None:
            out = {k: np.asarray(v() if callable(v) else v).astype(np.int64) for k, v in given.items()}
            if self.corpora and "corpus" in out and len(out["corpus"]) and not 0 <= out["corpus"].min() <= out["corpus"].max() < len(self.corpora):
                raise ValueError(f"corpus {out['corpus'].max()} of {len(self.corpora)}")
            order = np.lexsort((out["seq_start"], out["row"]))
            return {k: v[order] for k, v in out.items()}
        if item["eod"] is None or item["tokens"] is None:
            return None
        ends = np.asarray(item["tokens"]) == item["eod"]
        starts = np.zeros(ends.shape, bool)
        starts[:, 0] = True
        starts[:, 1:] = ends[:, :-1]
        row, place = np.nonzero(starts)
        return {"row": row, "seq_start": place}

    def _losses(self, item: Dict[str, Any], base: Row, parts: Optional[Row], loss: "np.ndarray[Any, Any]") -> None:
        if loss.ndim == 1:
            counts = np.ones(len(loss)) if item["predicted"] is None else np.asarray(item["predicted"], np.float64)
            self._add("losses", {**base, "predicted": counts, "loss_sum": loss})
        else:
            weight = np.ones(loss.shape) if item["mask"] is None else np.asarray(item["mask"], np.float64).reshape(loss.shape)
            # a masked label may hold anything, infinity too
            loss = np.where(weight != 0, loss, 0.0) * weight
            if parts is None:
                self._add("losses", {**base, "predicted": (weight != 0).sum(1), "loss_sum": loss.sum(1)})
            else:
                self._add("losses", self._by_document(base, parts, loss, weight != 0))
            loss, counts = loss.sum(1), (weight != 0).sum(1)
        self._watch(item["step"], float(loss.sum()), int(counts.sum()))

    def _mean(self, item: Dict[str, Any], loss: float) -> None:
        """One number for the whole micro batch: its sum and count, without a row."""
        count = 1 if item["predicted"] is None else int(np.sum(item["predicted"]))
        facts = {"step": item["step"], "predicted": count, "rank": self.rank, "microbatch": item["microbatch"], "launch": self.launch}
        self._add("losses", {**{k: np.array([v]) for k, v in facts.items()}, "loss_sum": np.array([loss * count])})
        self._watch(item["step"], loss * count, count)

    def _by_document(self, base: Row, parts: Row, loss: "np.ndarray[Any, Any]", counted: "np.ndarray[Any, Any]") -> Row:
        """Sums over the labels that lie in each part: label j is token j + 1, so a row's first token is no one's label."""
        width = loss.shape[1]
        row, first = parts["row"], np.clip(parts["seq_start"] - 1, 0, width)
        last_of_row = np.r_[row[1:] != row[:-1], True]
        if "doc_stop" in parts:
            last = np.clip(parts["seq_start"] + parts["doc_stop"] - parts["doc_start"] - 1, 0, width)
        else:
            last = np.where(last_of_row, width, np.r_[first[1:], width])
        start, stop = row * width + first, row * width + np.maximum(first, last)
        out = {**_pick(base, row), "seq_start": parts["seq_start"], "predicted": _sums(counted, start, stop), "loss_sum": _sums(loss, start, stop)}
        for name in ("document", "corpus"):
            if name in parts:
                out[name] = parts[name]
        keep = out["predicted"] > 0
        return {k: v[keep] for k, v in out.items()}

    def _watch(self, step: int, total: float, counted: int) -> None:
        """Give the alarm the mean loss of a step once the step is over."""
        at, before, n = self._step_loss
        if step == at:
            self._step_loss = (step, before + total, n + counted)
            return
        self._step_loss = (step, total, counted)
        if at >= 0 and n:
            reason = self.alarm(at, before / n) if self.alarm else None
            if reason:
                self._keep(at, reason)

    def _keep(self, step: int, reason: str) -> None:
        """Write the tokens of a step and of those held from before it."""
        for at, batches in [x for x in self._kept if x[0] <= step][-self._keep_steps :]:
            why = reason if at == step else f"step {step}: {reason}"
            for number, batch in enumerate(batches):
                self._write_arrays(f"alarm-{self.launch}-{self.rank}-{at}-{number}.npz", {**batch, "reason": np.array(why)})

    # ---- shards

    def _add(self, kind: str, part: Row) -> None:
        if len(part["step"]):
            self._parts[kind].append(part)
            self._held += len(part["step"])

    def _due(self) -> None:
        if self._held >= self._rows or (self._held and time.monotonic() - self._written >= self._seconds):
            self._write()

    def _write(self) -> None:
        for kind, columns in (("consumed", CONSUMED), ("losses", LOSSES)):
            parts, self._parts[kind] = self._parts[kind], []
            for names in sorted({tuple(sorted(p)) for p in parts}):
                same = [p for p in parts if tuple(sorted(p)) == names]
                arrays = {n: np.concatenate([np.asarray(p[n]) for p in same]) for n in columns if n in names}
                arrays = {n: a.astype(_NARROW.get(n, a.dtype)) for n, a in arrays.items()}
                if "corpus" in arrays and self.corpora:
                    arrays["corpus"] = np.array(self.corpora)[arrays["corpus"]]
                steps = arrays["step"]
                self._write_arrays(f"{kind}-{self.launch}-{self.rank}-{self._shards}-{steps.min()}-{steps.max()}.npz", arrays)
                self._shards += 1
        self._held, self._written = 0, time.monotonic()
        if self.dropped or self.errors:
            self._write_json(f"start-{self.launch}-{self.rank}.info", self._facts())

    def _write_arrays(self, name: str, arrays: Dict[str, Any]) -> None:
        with self._whole(name) as file:
            np.savez_compressed(file, **arrays)

    def _write_json(self, name: str, value: Dict[str, Any]) -> None:
        with self._whole(name) as file:
            file.write(json.dumps(value).encode())

    @contextlib.contextmanager
    def _whole(self, name: str) -> Iterator[Any]:
        """A file that appears under its name only when it is complete."""
        handle, part = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            Path(part).replace(self.folder / name)
        finally:
            if Path(part).exists():
                Path(part).unlink()

    def _facts(self) -> Dict[str, Any]:
        return {
            "version": VERSION, "launch": self.launch, "rank": self.rank, "world_size": self.world_size, "corpora": self.corpora,
            "dropped_batches": self.dropped, "errors": self.errors, "last_error": self.last_error,
        }  # fmt: skip

    def _next_launch(self) -> int:
        known = [int(m.group(1)) for p in self.folder.iterdir() if (m := re.match(rf"start-(\d+)-{self.rank}\.info$", p.name))]
        return max(known) + 1 if known else 0

    def _note(self, error: BaseException) -> None:
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"


def _sums(values: "np.ndarray[Any, Any]", start: "np.ndarray[Any, Any]", stop: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Sums over [start, stop) of the flattened values, each by itself: a NaN stays in the part that holds it."""
    flat = np.append(values.ravel().astype(np.float64), 0.0)
    edges = np.empty(2 * len(start), np.int64)
    edges[::2], edges[1::2] = start, stop
    return np.where(stop > start, np.add.reduceat(flat, edges)[::2] if len(edges) else 0.0, 0.0)


def _pick(base: Row, row: "np.ndarray[Any, Any]") -> Row:
    return {k: v[row] for k, v in base.items()}
