"""`forensics audit`: what is wrong with a corpus, without any run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forensics.cli.common import (
    AnswerFormat,
    AnswerFormatOption,
    CaseOption,
    ConfigOption,
    Progress,
    RuleOption,
    answer,
    compile_ahead,
    print_json,
    print_rows,
    say,
)

SHOWN = 8
DAMAGED = "bytes that are no UTF-8"  # read all the same
TORN = ("the compressed file ends too early", "damaged before")  # failures of a whole file: how much is missing is not known


def command(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="JSON Lines (.gz, .zst), Parquet, Arrow, Megatron .bin/.idx, raw token arrays, or folders of them.")],
    case: CaseOption = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer folder or file: gives token files their text.", show_default=False)] = None,
    text: Annotated[str | None, typer.Option(help="Key or column that holds the text; usual names otherwise.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Key or column with the record's id.", show_default=False)] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of the ids in a raw token array, e.g. uint16.", show_default=False)] = None,
    eos: Annotated[int | None, typer.Option(help="Id that ends a document in a raw token array.", show_default=False)] = None,
    config: ConfigOption = None,
    settings: RuleOption = None,
    form: AnswerFormatOption = AnswerFormat.table,
) -> None:
    """Measure, cluster and weigh every document of a corpus."""
    from forensics.case import case_for
    from forensics.config import read_yaml
    from forensics.engines.local import Processes, local_engine
    from forensics.pipelines.audit import audit, plan, read_settings
    from forensics.reports.summary import counted
    from forensics.stores.records import ReadOptions

    chosen = read_settings(settings or [], read_yaml(config) if config else None)
    case = case or Path("audit-case")
    written = case_for("audit", case, say)
    found = plan(files, case, ReadOptions(text, name, dtype, eos, tokenizer), chosen)
    kinds = ", ".join(sorted({f.format for f in found.corpus.files}))
    parts = f"{counted(len(found.corpus.files), 'file')} ({kinds}), {found.size_bytes / 1e6:,.1f} MB in {counted(len(found.tasks), 'shard')}"
    say(f"{parts}, {found.done:,} of them done before")
    texts = len(found.corpus.texts)
    ahead = compile_ahead(context, *["text"] * (texts > 0), *["ids"] * (texts < len(found.corpus.files)))
    engine = local_engine(chosen.engine, found.size_bytes, len(found.tasks))
    if isinstance(engine, Processes) and found.done < len(found.tasks):
        ahead.fill()
    result = audit(written, found, chosen, engine, Progress("shards", len(found.tasks)))
    if form is AnswerFormat.table:
        show(result, case, chosen.seq_length)
    else:
        print_json(summary(result))
    for line in result["assumed"]:
        say(f"assumed: {line}")
    say(f"case: {case}   report: {case / 'report.html'}   look in: forensics show {case}")
    wrong = incomplete(result, chosen.max_failed_share)
    if wrong:
        say(f"error: {wrong}" + ("; see the table `failures`" if result["failures"].num_rows else ""))
    for hint in remedies(result):
        say(f"hint: {hint}")
    if wrong:
        raise typer.Exit(1)


def remedies(result: dict[str, Any]) -> list[str]:
    """What can be done about what was not read or not evaluated."""
    errors = [row["error"] for row in result["failures"].to_pylist()]
    out = []
    if any(e.startswith("no text: the keys are") for e in errors):
        out.append("`--text KEY` names the key that holds the text")
    if not result["documents"].num_rows and any(e.startswith("no JSON") for e in errors):
        out.append("one JSON record a line is read; `jq -c . FILE` writes each record of a file on a line of its own")
    if any(e.startswith(DAMAGED) for e in errors):
        out.append("a file in another encoding is turned into UTF-8 by `iconv -f LATIN1 -t UTF-8 FILE`")
    if any(row["why"].startswith("no tokenizer") for row in result["not_evaluated"].to_pylist()):
        out.append("`--tokenizer FOLDER` gives token files their text")
    if any(row["answer"] == "contradicts" for row in result["identity"].to_pylist()):
        out.append("`--tokenizer FOLDER` must name the tokenizer that the ids were made with, and `--dtype` their type")
    return out


def incomplete(result: dict[str, Any], allowed: float) -> str:
    """What an audit that did not read everything has to say; empty where it read enough.

    Args:
        result: of the audit.
        allowed: share of records that may fail; from 1 on, anything may.
    """
    from forensics.reports.summary import counted

    failed, torn = failed_share(result), sorted({row["item"] for row in result["failures"].to_pylist() if row["error"].startswith(TORN)})
    if not result["documents"].num_rows and not result["failures"].num_rows:
        return "no document was found: the files hold none"
    if not result["documents"].num_rows:
        return "no document was found"
    if result["lost"] or failed > allowed:
        return f"{100 * failed:.1f} % of the records" + (f" and {counted(len(result['lost']), 'shard')}" if result["lost"] else "") + " could not be read"
    if torn and allowed < 1:
        return f"{torn[0]}{f' and {len(torn) - 1:,} more files' if len(torn) > 1 else ''} could be read in part only (`--set max_failed_share=1` allows it)"
    return ""


def failed_share(result: dict[str, Any]) -> float:
    """Records that could not be read, by all records."""
    lost = sum(row["count"] for row in result["failures"].to_pylist() if not row["error"].startswith(DAMAGED))
    return float(lost / max(1, lost + result["documents"].num_rows))


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the terminal's summary, as data."""
    import numpy as np
    import pyarrow.compute as pc

    from forensics.documents.buckets import cut_of, waste_of

    documents = result["documents"]
    tokens = documents.column("tokens").to_numpy()
    causes = [
        {"cause": cause, "documents": len(keys), "tokens": int(tokens[np.searchsorted(documents.column("doc_key").to_numpy(), keys)].sum()), "garbage": garbage}
        for (cause, garbage), keys in _primary(result["findings"]).items()
    ]
    weighed = result["buckets"]
    batched = weighed.to_pylist()
    schemes = sorted({r["scheme"] for r in batched}, key=lambda s: (s.startswith("buckets"), len(s), s))  # of 2 buckets before those of 16
    best = weighed.filter(weighed.column("recommended"))
    dedup = {}
    for kind in ("exact", "near"):
        rows = [row for row in result["dedup"].to_pylist() if row["kind"] == kind]
        dedup[kind] = {"clusters": len(rows), "documents": sum(r["members"] for r in rows), "tokens_saved": sum(r["tokens_saved"] for r in rows)}
    return {
        "documents": documents.num_rows, "tokens": int(tokens.sum()), "unit": result["unit"],
        "causes": sorted(causes, key=lambda c: (-c["garbage"], -c["tokens"], c["cause"])),
        "dedup": dedup,
        "batching": {
            "recommended": best.column("scheme").to_pylist()[0] if best.num_rows else None,
            "waste": {s: waste_of(batched, s) for s in schemes}, "cut": {s: cut_of(batched, s) for s in schemes},
        },
        "failures": pc.sum(result["failures"].column("count")).as_py() or 0, "not_evaluated": result["not_evaluated"].to_pylist(),
        "tokenizer": [row for row in result["identity"].to_pylist() if row["answer"] == "contradicts"],
    }  # fmt: skip


def _primary(findings: Any) -> dict[tuple[str, bool], list[int]]:
    out: dict[tuple[str, bool], list[int]] = {}
    chosen = findings.filter(findings.column("primary"))
    for cause, garbage, key in zip(chosen.column("cause").to_pylist(), chosen.column("garbage").to_pylist(), chosen.column("doc_key").to_pylist()):
        out.setdefault((cause, garbage), []).append(key)
    return out


def show(result: dict[str, Any], case: Path, seq_length: int) -> None:
    """The summary for people, of the audit in a case folder, which was asked to weigh rows of so many tokens."""
    from forensics.text import one_line

    found = summary(result)
    unit = found["unit"]
    answer(f"{found['documents']:,} documents, {found['tokens']:,} {unit}" + ("" if unit == "tokens" else " of text"))
    if found["causes"]:
        answer()
        print_rows(
            ["primary cause", "", "documents", unit],
            [[c["cause"], "garbage" if c["garbage"] else "reported", c["documents"], c["tokens"]] for c in found["causes"]],
        )
    answer()
    print_rows(
        ["copies", "clusters", "documents", f"{unit} to save"], [[k, v["clusters"], v["documents"], v["tokens_saved"]] for k, v in found["dedup"].items()]
    )
    names = ["source", "documents", "tokens", "flagged_tokens", "duplicate_tokens", "length_p50", "length_max"]
    rows = sorted(result["sources"].select(names).to_pylist(), key=lambda r: -r["tokens"])
    answer()
    print_rows([n.replace("_", " ").replace("tokens", unit) for n in names], [list(r.values()) for r in rows[:SHOWN]])
    if len(rows) > SHOWN:
        answer(f"(and {len(rows) - SHOWN:,} more sources: forensics show {case} sources)")
    batching = found["batching"]
    if batching["recommended"]:
        answer()
        print_rows(
            [f"batching at {seq_length:,} tokens", "padding %", "cut off or dropped %", ""],
            [
                [scheme, round(100 * w, 2), round(100 * batching["cut"][scheme], 2), "recommended" if scheme == batching["recommended"] else ""]
                for scheme, w in batching["waste"].items()
            ],
        )
    for row in found["tokenizer"]:
        answer(f"{row['subject']}: {row['check']}: expected {row['expected']}, found {row['found']}: what is said of the text may mean nothing")
    reasons: dict[str, list[str]] = {}
    for row in found["not_evaluated"]:
        reasons.setdefault(row["why"], []).append(row["what"])
    for why, names in sorted(reasons.items()):
        detectors = [name.removeprefix("detector ") for name in names if name.startswith("detector ")]
        grouped = [f"detector{'s' if len(detectors) > 1 else ''} {', '.join(detectors)}"] if detectors else []
        answer(f"not evaluated: {', '.join(grouped + [name for name in names if not name.startswith('detector ')])}: {why}")
    failures = result["failures"].to_pylist()
    for row in failures[:SHOWN]:
        label = "read in part" if row["error"].startswith((DAMAGED, *TORN)) else "not read"
        answer(f"{label}: {one_line(row['item'], 80)}: {one_line(row['error'], 120)}" + (f" ({row['count']:,} times)" if row["count"] > 1 else ""))
    if len(failures) > SHOWN:
        answer(f"(and {sum(row['count'] for row in failures[SHOWN:]):,} more: forensics show {case} failures)")
