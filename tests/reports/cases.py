"""A replay's case made of tables alone, of any size, with documents that try to break whatever shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from forensics.case import Case
from forensics.schemas import (
    BUCKETS,
    CLUSTERS,
    CONSUMED,
    DEDUP,
    DOCUMENTS,
    EVENTS,
    EXCERPTS,
    FAILURES,
    FINDINGS,
    IDENTITY,
    LAUNCHES,
    LENGTHS,
    METRICS,
    NOT_EVALUATED,
    PROOF,
    SKIPS,
    SOURCES,
    STEPS,
    SUSPECTS,
    TOKEN_LOSSES,
)
from forensics.text import visible

HOSTILE = [
    "<script>window.canary = 1</script>",
    "</script><script>window.canary = 2</script>",
    "<!--<script>--></textarea></title><img src=x onerror='window.canary=3'>",
    '"><svg onload=window.canary=4>',
    "'-alert(1)-' onmouseover=window.canary=5 x='",
    "javascript:window.canary=6",
    "\u202egnitirw desrever\u202c \u2066isolated\u2069 \u200f",
    "\x1b[2J\x1b[31mred\x1b[0m\x1b]0;title\x07\x9b1m",
    "nul \x00 and \x08\x7f\x85",
    "lone \ud800 surrogate \udfff",
    "line\u2028separator\u2029paragraph\ufeff",
    "👩‍👩‍👧‍👦 emoji 🏳️‍🌈 é\u0301\u0323\u0332" * 3,
    "x" * 4000,
    "&lt;b&gt; &amp; `code` **bold** | pipe [link](http://example.org) {{ }} ${1+1}",
]
MEGABYTE = "long line without an end " * 42_000


def hostile(n: int) -> str:
    """One of them, as a table can hold it: without unpaired surrogates."""
    return HOSTILE[n % len(HOSTILE)].encode("utf-8", "replace").decode()


def make_case(path: Path, *, steps: int = 60, rows: int = 16, documents: int = 400, suspects: int = 300, per_row: int = 3, losses: bool = True) -> Case:
    """Write the case of a window in the middle of `steps` steps.

    Args:
        path: folder to make.
        steps, rows: steps read and sequences of each.
        documents: distinct ones.
        suspects: rows of the ranked table.
        per_row: segments of a sequence.
        losses: whether losses per token are there.
    """
    rng = np.random.default_rng(7)
    case, first = Case(path), 1000
    window = (first + steps // 2, first + steps // 2 + max(2, steps // 10))
    n = steps * rows * per_row
    step = np.repeat(np.arange(first, first + steps), rows * per_row)
    sequence = np.tile(np.repeat(np.arange(rows), per_row), steps)
    seq_start = np.tile(np.arange(per_row) * 1000, steps * rows)
    doc = rng.integers(0, documents, n)
    case.put(
        CONSUMED,
        _table(
            launch=np.zeros(n, np.int16),
            step=step,
            sequence=sequence.astype(np.int32),
            seq_start=seq_start.astype(np.int32),
            doc_key=doc,
            doc_start=np.zeros(n, np.int64),
            doc_stop=np.full(n, 1000),
            sample=np.arange(n),
        ),
    )
    case.put(DOCUMENTS, _documents(documents, rng))
    case.put(STEPS, _steps(first, steps, rows, window, rng))
    case.put(METRICS, _metrics(first, steps, rng))
    count = min(suspects, documents)
    case.put(
        SUSPECTS,
        _table(
            rank=np.arange(1, count + 1),
            level=["document"] * count,
            key=np.arange(count),
            label=[hostile(i) if i < 2 * len(HOSTILE) else f"document {i} of web" for i in range(count)],
            tokens_window=rng.integers(1, 5000, count),
            tokens_baseline=rng.integers(0, 50, count),
            log_odds=rng.normal(2, 1, count),
            excess=np.sort(rng.gamma(2, 500, count))[::-1],
            share=np.full(count, 1 / count),
            q_value=rng.random(count),
            guilty=pa.array([i % 2 == 0 for i in range(count)]),
            reasons=[["mojibake", hostile(1)] if i % 3 else ["excess"] for i in range(count)],
        ),
    )
    _texts(case, min(300, documents))
    _summaries(case, documents)
    if losses:
        case.put(TOKEN_LOSSES, _token_losses(step, sequence, seq_start, doc))
    case.write_json("verdict.json", _verdict(window))
    case.write_json(
        "plan.json",
        [
            {
                "name": "removal",
                "change": hostile(0),
                "command": "forensics manifest CASE --for TRAINER",
                "predicts": {"data": "no event", "numerics": hostile(1)},
            }
        ],
    )
    case.close(
        command="replay",
        run=f"/data/{hostile(0)}/forensics.yaml",
        steps=f"{window[0]}:{window[1]}",
        launch=0,
        identity=hostile(1),
        ranges={"window": f"{window[0]}:{window[1]}", "lookback": f"{window[0] - 5}:{window[0]}", "baseline": f"{first}:{window[0] - 5}"},
        checkpoints=[first + 10, first + 20],
        assumed=[hostile(2)],
        config={"x": hostile(1)},
        arguments=[{"launch": 0, "argument": hostile(3), "value": [1], "origin": "args"}],
    )
    (path / "manifest").mkdir(exist_ok=True)
    (path / "manifest" / "skip.txt").write_text(f"--iterations-to-skip {window[0]}\n{hostile(0)}\n")
    (path / "manifest" / "README.txt").write_text(f"skip list\n\n- {hostile(0)}\n- numbering from 1\n")
    return case


def _table(**columns: Any) -> pa.Table:
    made: Any = {name: v if isinstance(v, (pa.Array, pa.ChunkedArray)) else pa.array(v) for name, v in columns.items()}
    return pa.table(made)


def _documents(n: int, rng: np.random.Generator) -> pa.Table:
    sources = ["web", "code", "books", hostile(0), hostile(6)]
    names = [hostile(i) if i < 40 else None for i in range(n)]
    return _table(
        doc_key=np.arange(n),
        corpus_id=np.zeros(n, np.int32),
        doc=np.arange(n),
        source=pa.array([sources[i % 5] for i in range(n)]),
        name=pa.array(names, pa.string()),
        tokens=rng.integers(10, 9000, n),
        used_window=rng.integers(0, 900, n),
        used_baseline=rng.integers(0, 900, n),
        first_step=np.full(n, 1000),
        last_step=np.full(n, 1010),
    )


def _steps(first: int, steps: int, rows: int, window: tuple[int, int], rng: np.random.Generator) -> pa.Table:
    at = np.arange(first, first + steps)
    inside = (at >= window[0]) & (at < window[1])
    tokens = np.full(steps, rows * 3000)
    return _table(
        launch=np.zeros(steps, np.int16),
        step=at,
        role=pa.array(np.where(inside, "window", "baseline").tolist()),
        trained=pa.array([True] * steps),
        sequences=np.full(steps, rows, np.int32),
        documents=np.full(steps, rows * 3, np.int32),
        tokens=tokens,
        length_p50=rng.integers(300, 700, steps),
        length_p95=rng.integers(2000, 4000, steps),
        length_max=rng.integers(5000, 9000, steps),
        odd_tokens=(tokens * np.where(inside, 0.4, 0.01)).astype(int),
        flagged_tokens=(tokens * np.where(inside, 0.35, 0.0)).astype(int),
        duplicate_tokens=np.zeros(steps, int),
        repeated_tokens=(tokens * 0.1).astype(int),
        scored_loss=2.5 + rng.normal(0, 0.02, steps),
        expected_loss=np.full(steps, 2.5),
        excess=rng.normal(0, 100, steps),
    )


def _metrics(first: int, steps: int, rng: np.random.Generator) -> pa.Table:
    at = np.arange(first, first + steps)
    loss = 2.5 + rng.normal(0, 0.03, steps)
    loss[steps // 2] = np.nan
    parts = {"train_loss": loss, "grad_norm": np.abs(rng.normal(0.3, 0.05, steps)), "learning_rate": np.full(steps, 3e-4)}
    time = pa.array((1_700_000_000 + 7 * at) * 1_000_000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.concat_tables(
        [
            _table(run=["run"] * steps, metric=[name] * steps, step=at, tokens=at * 4_000_000, time=time, value=v, launch=np.zeros(steps, np.int16))
            for name, v in parts.items()
        ]
    )


def _texts(case: Case, n: int) -> None:
    """Excerpts, findings with spans, a cluster of copies, a template with slots."""
    texts = [visible(HOSTILE[i % len(HOSTILE)]) if i else visible(MEGABYTE) for i in range(n)]
    case.put(
        EXCERPTS,
        _table(
            doc_key=np.repeat(np.arange(n), 2),
            doc_start=np.tile([0, 10], n),
            doc_stop=np.tile([10, 40], n),
            text=[t for text in texts for t in ("before ", text)],
            redacted=pa.array([i % 5 == 0 for i in range(2 * n)]),
        ),
    )
    span = pa.array([[{"start": 10, "stop": 40}]] * n, pa.list_(pa.struct([("start", pa.int32()), ("stop", pa.int32())])))
    causes = ["mojibake", "markup", "template"]
    detail = [f"Buy ⟨…⟩ at {hostile(i % 4)} for ⟨…⟩" for i in range(n)]
    case.put(
        FINDINGS,
        _table(
            doc_key=np.arange(n),
            detector=[causes[i % 3] for i in range(n)],
            measure=["share"] * n,
            cause=[causes[i % 3] for i in range(n)],
            primary=pa.array([True] * n),
            garbage=pa.array([i % 3 != 1 for i in range(n)]),
            version=np.ones(n, np.int16),
            value=np.linspace(0, 1, n).astype(np.float32),
            threshold=np.full(n, 0.1, np.float32),
            detail=detail,
            spans=span,
        ),
    )
    case.put(
        CLUSTERS,
        _table(
            kind=["near"] * 4 + ["template"] * 2,
            cluster=[0, 0, 1, 1, 0, 0],
            doc_key=[2, 3, 4, 5, 6, 7],
            representative=[2, 2, 4, 4, 6, 6],
            jaccard=[1.0, 0.9] * 3,
        ),
    )


def _summaries(case: Case, documents: int) -> None:
    case.put(
        DEDUP,
        _table(
            kind=["near", "exact"],
            cluster=[0, 1],
            members=[2, 2],
            representative=[2, 4],
            tokens=[2000, 300],
            tokens_saved=[1000, 150],
            sources=[["web"], [hostile(0), "code"]],
        ),
    )
    roles = ["window", "baseline"]
    case.put(
        SOURCES,
        _table(
            source=["web", "web", hostile(0), hostile(0)],
            role=roles * 2,
            documents=[10, 20, 5, 6],
            tokens=[1000, 2000, 500, 600],
            flagged_documents=[5, 0, 1, 0],
            flagged_tokens=[700, 0, 20, 0],
            duplicate_tokens=[0, 10, 0, 0],
            length_p05=[10] * 4,
            length_p50=[100] * 4,
            length_p95=[900] * 4,
            length_max=[4000] * 4,
        ),
    )
    case.put(
        LENGTHS,
        _table(
            source=["web"] * 4,
            role=["window", "baseline"] * 2,
            start=[64, 64, 1024, 1024],
            stop=[128, 128, 2048, 2048],
            documents=[5, 9, 3, 1],
            tokens=[500, 900, 4000, 1300],
        ),
    )
    case.put(
        BUCKETS,
        _table(
            scheme=["as_is", "buckets_2", "buckets_2"],
            bucket=[0, 0, 1],
            start=[1, 1, 512],
            stop=[4096, 512, 4096],
            documents=[9, 5, 4],
            tokens=[9000, 1000, 8000],
            batch=[1, 8, 1],
            padding_tokens=[4000, 20, 300],
            truncated_tokens=[0, 0, 0],
            waste=[0.3, 0.02, 0.03],
            recommended=pa.array([False, True, True]),
        ),
    )
    case.put(PROOF, _table(subject=["run"] * 3, lag=[-1, 0, 1], r=[0.02, 0.7, -0.01], standard_error=[0.05] * 3, steps=[200] * 3, answer=["proven"] * 3))
    case.put(IDENTITY, _table(check=["file_size"], subject=[hostile(2)], expected=["1"], found=[hostile(0)], answer=["agrees"]))
    case.put(NOT_EVALUATED, _table(what=["severity"], why=[hostile(0)]))
    case.put(FAILURES, _table(stage=["scan"], item=[hostile(1)], error=[hostile(7)], count=[1]))
    case.put(LAUNCHES, _table(launch=[0], first_step=[1], stop_step=[5000], trainer=["megatron"], origin=[hostile(0)], version=["0.16.1"]))
    case.put(SKIPS, _table(kind=["documents"], start=[0], stop=[2], recommended=pa.array([True]), reason=[hostile(0)], tokens=[1000]))
    event: Any = {"event_id": [0], "incident": [0], "metric": ["train_loss"], "shape": [hostile(0)], "level": ["alarm"], "start": [1030]}
    case.put(EVENTS, EVENTS.of(event))


def _token_losses(step: Any, sequence: Any, seq_start: Any, doc: Any) -> pa.Table:
    """Losses of the first segment of each of the first documents; of document 9 one label per token."""
    places = [int(np.flatnonzero(doc == k)[0]) for k in range(12) if (doc == k).any()]
    values = [[0.1 * (i % 70) for i in range(1000 - (seq_start[p] == 0))] for p in places]
    return _table(
        launch=np.zeros(len(places), np.int16),
        step=step[places],
        sequence=sequence[places].astype(np.int32),
        seq_start=seq_start[places].astype(np.int32),
        doc_key=doc[places],
        values=pa.array(values, pa.list_(pa.float32())),
        origin=["recorded"] * len(places),
    )


def _verdict(window: tuple[int, int]) -> dict[str, Any]:
    return {
        "window": list(window),
        "launch": 0,
        "severity": "level_shift",
        "cause": "data",
        "subcause": hostile(0),
        "confidence": "high",
        "onset": window[0],
        "sentence": f"It was the data: {hostile(1)}",
        "evidence_for": [hostile(i) for i in range(len(HOSTILE))],
        "evidence_against": [hostile(2)],
        "not_evaluated": [{"what": "severity on validation", "why": hostile(0)}],
        "action": f"skip {hostile(1)}",
        "rollback": {"checkpoint": hostile(0), "step": window[0] - 5},
        "skip": {"steps": [[window[0], window[0] + 2]], "documents": 12, "tokens": 3000},
        "secondary": [],
        "notes": [hostile(0)],
        "expected": {"excess_removed_nats": 12.5, "error_nats": 3.0, "ordinary_tokens_lost": 100, "dirty_tokens_covered": 0.97},
        "proof": {"answer": "proven"},
    }
