"""A trained case as files, in the layout of a spike lab: what a trainer would have left, and `truth/` for scoring alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .cases import Case, Made
from .model import score

Array = np.ndarray


def write(made: Made, out: Path) -> None:
    """All files of one case."""
    c, w = made.case, made.case.w
    shutil.rmtree(out, ignore_errors=True)
    for name in ("data", "state", "truth"):
        (out / name).mkdir(parents=True)
    number = numbers(c)
    place = np.argsort(number)
    _corpus(out / "data", [c.docs[k] for k in place], [c.source[k] for k in place])
    w.tokenizer.save(str(out / "data/tokenizer.json"))
    _indices(c, number, out / "data")
    truth = made.truth | {"guilty_docs": sorted(int(number[k]) for k in made.truth["guilty_docs"])}
    (out / "truth/truth.json").write_text(json.dumps(truth, indent=1))
    if c.given.shape != c.order.shape or (c.given != c.order).any():
        np.save(out / "truth/consumed_samples.npy", c.given)
    recorded = w.lead_log.losses | made.log.losses
    _losses(c, number, recorded, out / "doc_loss.parquet")
    if not c.plan.no_checkpoint and w.before is not None:
        steps = [k for k in recorded if k > w.event - 40]
        each = score(w.before, np.concatenate([c.batch(k) for k in steps])).reshape(len(steps), -1, w.settings.seq)
        _losses(c, number, dict(zip(steps, each, strict=True)), out / "checkpoint_doc_loss.parquet")
    lines = [json.dumps(_line(c, x, recorded.get(x["step"]))) for x in (*w.base_log.lines, *w.lead_log.lines, *made.log.lines)]
    (out / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (out / "state/run.json").write_text(json.dumps(_run(c), indent=1))


def numbers(c: Case) -> Array:
    """Document id in the file of each document in nominal order."""
    return np.random.default_rng([c.w.seed, 9]).permutation(len(c.docs))


def _line(c: Case, line: dict[str, Any], losses: Array | None) -> dict[str, Any]:
    """A line of the log: by source where the case records it; without what this run does not log."""
    out = {k: v for k, v in line.items() if not (c.plan.no_norm and k in {"grad_norm", "clip_coef", "rms_emb"}) and not (c.plan.no_val and k == "val")}
    if losses is not None:
        of = np.array(c.source, dtype=object)[c.of_labels(line["step"])]
        out["src"] = {n: [int((of == n).sum()), round(float(losses[of == n].mean()), 4)] for n in sorted(set(of.ravel()))}
    return out


def _corpus(folder: Path, docs: list[Array], source: list[str]) -> None:
    """Megatron's .bin/.idx, uint16, one sequence a document."""
    lengths = np.array([len(d) for d in docs], dtype="<i4")
    np.concatenate(docs).astype("<u2").tofile(folder / "corpus_text_document.bin")
    offsets = np.concatenate([[0], np.cumsum(lengths.astype(np.int64))[:-1]]).astype("<i8") * 2
    head = b"MMIDIDX\x00\x00" + np.array([1], "<u8").tobytes() + bytes([8]) + np.array([len(docs), len(docs) + 1], "<u8").tobytes()
    (folder / "corpus_text_document.idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + np.arange(len(docs) + 1, dtype="<i8").tobytes())
    lines = [json.dumps({"doc": k, "source": name, "n_tokens": len(docs[k])}) for k, name in enumerate(source)]
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")


def _indices(c: Case, number: Array, folder: Path) -> None:
    """Megatron's cached indices."""
    ends = np.concatenate([[0], c.ends])
    starts = np.arange(c.order.size + 1) * c.w.settings.seq
    doc = np.searchsorted(c.ends, starts, side="right")
    np.save(folder / "document_index.npy", number.astype(np.int32))
    np.save(folder / "sample_index.npy", np.stack([doc, starts - ends[doc]], axis=1).astype(np.int32))
    np.save(folder / "shuffle_index.npy", c.order.reshape(-1).astype(np.uint32))


def _losses(c: Case, number: Array, losses: dict[int, Array], file: Path) -> None:
    """Mean loss of every document fragment, by step and row."""
    rows: list[tuple[int, int, int, int, float]] = []
    for step, each in losses.items():
        for r, of in enumerate(c.of_labels(step)):
            cut = np.concatenate([[0], np.flatnonzero(np.diff(of)) + 1, [len(of)]])
            rows += [(step, r, int(number[of[a]]), int(b - a), float(each[r, a:b].mean())) for a, b in zip(cut, cut[1:], strict=False)]
    step, row, doc, n, loss = zip(*rows, strict=True)
    table = pa.table({"step": step, "row": row, "doc": doc, "n_tok": n, "loss": pa.array(np.round(loss, 5))})
    pq.write_table(table, file, compression="zstd")


def _run(c: Case) -> dict[str, Any]:
    """How iterations map to samples, and the optimizer: what a run description holds."""
    s, plan, event, lead = c.w.settings, c.plan, c.w.event, c.w.lead
    starts = [(c.first, 0, 0)]
    if plan.resume is not None:
        at = event + plan.resume
        starts.append((at, (at - c.first) * s.batch, (at - c.first) * s.batch))
    if plan.loader in {"replay", "rewind"}:
        back = lead if plan.loader == "rewind" else min(plan.loader_steps, lead)
        starts.append((event, lead * s.batch, (lead - back) * s.batch))
    segments = [{"first_iteration": a, "trainer_consumed_samples_in_phase": b, "loader_position_in_phase": d} for a, b, d in sorted(starts)]
    out: dict[str, Any] = {
        "trainer": "megatron-like", "iteration": c.last, "seq_length": s.seq, "global_batch_size": s.batch, "data_parallel_size": plan.ranks,
        "dtype": "uint16", "eod": 0,
        "phase_start_iteration": c.w.base, "segments": segments, "checkpoint_scored": None if plan.no_checkpoint else event - 1,
        "optimizer": {"name": "adamw", "lr": s.lr, "betas": list(s.betas), "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "warmup": s.warmup,
                      "decay_steps": s.decay, "schedule": "cosine to 10%"},
    }  # fmt: skip
    if plan.declared:
        out["blend_schedule"] = [{"from_iteration": event, "weights": "changed"}]
    return out


def describe(c: Case, case: Path, out: Path) -> None:
    """A run description over a written case, as a user of this run would have it: nothing of the truth."""
    s, number, ends = c.w.settings, numbers(c), np.concatenate([[0], c.ends])
    shutil.copytree(case / "data", out / "data")
    shutil.copy(case / "metrics.jsonl", out)
    rows = []
    for k, given in enumerate(c.given):
        for r, sample in enumerate(given.tolist()):
            a, b = sample * s.seq, sample * s.seq + s.seq + 1
            for d in range(int(np.searchsorted(c.ends, a, "right")), int(np.searchsorted(c.ends, b - 1, "right")) + 1):
                lo, hi = max(a, int(ends[d])), min(b, int(ends[d + 1]))
                rows.append((c.first + k, r, lo - a, int(number[d]), lo - int(ends[d]), hi - int(ends[d]), sample))
    names = ("step", "sequence", "seq_start", "document", "doc_start", "doc_stop", "sample")
    table = pa.table(dict(zip(names, (list(x) for x in zip(*rows, strict=True)), strict=True)))
    pq.write_table(table.append_column("corpus", pa.array(["corpus_text_document"] * len(rows))), out / "consumed.parquet")
    source = pa.table({"corpus": ["corpus_text_document"] * len(number), "document": pa.array(number), "source": c.source})
    pq.write_table(source, out / "documents.parquet")
    for name, origin in (("doc_loss", "recorded"), ("checkpoint_doc_loss", f"checkpoint:{c.w.event - 1}")):
        t = pq.read_table(case / f"{name}.parquet").rename_columns(["step", "sequence", "document", "predicted", "loss"])
        pq.write_table(t.append_column("origin", pa.array([origin] * t.num_rows)), out / f"{name}.parquet")
    optimizer = _run(c)["optimizer"]
    text = {
        "run": "lab", "trainer": "recorded", "launches": [{"after_step": c.w.base}], "checkpoints": [c.w.base, c.w.event - 1], "optimizer": optimizer,
        "args": {"data_path": ["data/corpus_text_document"], "consumed": "consumed.parquet", "seq_length": s.seq, "global_batch_size": s.batch},
        "tokenizer": "data/tokenizer.json", "metrics": ["metrics.jsonl"], "losses": ["doc_loss.parquet", "checkpoint_doc_loss.parquet"],
        "documents": "documents.parquet",
    }  # fmt: skip
    (out / "forensics.yaml").write_text(json.dumps(text))
