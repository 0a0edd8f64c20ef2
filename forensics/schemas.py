"""Every table that crosses a package boundary: columns, types, units, version.

A stage takes tables and returns one. `TABLE.of(x)` makes an Arrow table carry exactly the promised columns in the
promised order and types, or raises; nothing else may travel between packages. Conventions: ranges are half-open
(`start`, `stop`); null = not known, NaN = the run logged NaN; sums are float64; strings that repeat are dictionary
encoded; `doc_key = corpus_id * 2**40 + document`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NewType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.errors import SchemaError, nearest

_pa: Any = pa  # its stubs know `nulls` only for literal types

DOC_BITS = 40
DOC_MASK = (1 << DOC_BITS) - 1

NAME = pa.dictionary(pa.int32(), pa.string())
TIME = pa.timestamp("us", tz="UTC")
SPANS = pa.list_(pa.struct([pa.field("start", pa.int32()), pa.field("stop", pa.int32())]))


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, unit, a sentence of meaning, and whether values may be unknown."""

    name: str
    type: pa.DataType
    unit: str
    doc: str
    null: bool = False


@dataclass(frozen=True)
class TableType:
    """A named table. `sort` names the columns that define the order of its rows."""

    name: str
    version: int
    doc: str
    columns: tuple[Column, ...]
    sort: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema with units and meanings as metadata."""
        fields = [pa.field(c.name, c.type, c.null, metadata={"unit": c.unit, "doc": c.doc}) for c in self.columns]
        return pa.schema(fields, metadata={"forensics.table": self.name, "forensics.version": str(self.version)})

    def of(self, table: pa.Table | pa.RecordBatch | Mapping[str, Any]) -> pa.Table:
        """The same rows with exactly this table's columns, cast to their types.

        Columns that may be null can be left out of a mapping or table; they become null.

        Raises:
            SchemaError: unknown or missing columns, nulls where none are allowed, values that do not fit the type.
        """
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        given: dict[str, Any] = dict(table) if isinstance(table, Mapping) else {name: table.column(name) for name in table.column_names}
        known = [c.name for c in self.columns]
        if unknown := [name for name in given if name not in known]:
            raise SchemaError(f"table `{self.name}` has no column `{unknown[0]}`{nearest(unknown[0], known)}")
        rows = max((len(v) for v in given.values()), default=0)
        arrays: list[Any] = []
        for c in self.columns:
            if c.name not in given:
                if not c.null:
                    raise SchemaError(f"table `{self.name}` lacks its column `{c.name}`")
                arrays.append(_pa.nulls(rows, c.type))
                continue
            arrays.append(self._cast(c, given[c.name]))
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _cast(self, c: Column, values: Any) -> Any:
        try:
            if not isinstance(values, (pa.Array, pa.ChunkedArray)):
                values = pa.array(values, type=None if isinstance(values, np.ndarray) else (pa.string() if c.type == NAME else c.type), from_pandas=False)
            if values.type != c.type:
                if c.type == NAME:
                    flat = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
                    values = flat.cast(pa.string()).dictionary_encode().cast(NAME)
                else:
                    values = values.cast(c.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"column `{c.name}` of table `{self.name}` cannot hold these values: {error}") from error
        if values.null_count and not c.null:
            raise SchemaError(f"column `{c.name}` of table `{self.name}` may not be null, {values.null_count} values are")
        return values

    def empty(self) -> pa.Table:
        """The table without rows."""
        return self.schema.empty_table()

    def concat(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Rows of several such tables, one after the other."""
        return pa.concat_tables(tables).unify_dictionaries() if tables else self.empty()

    def sorted(self, table: pa.Table) -> pa.Table:
        """The rows in this table's order."""
        if not self.sort:
            return table
        named = {name for name in self.sort if table.schema.field(name).type == NAME}
        keys: dict[str, Any] = {name: table.column(name).cast(pa.string()) if name in named else table.column(name) for name in self.sort}
        return table.take(pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in self.sort]))


def doc_key(corpus_id: int, document: int) -> int:
    """The run-wide number of a document."""
    return (corpus_id << DOC_BITS) | document


_i16, _i32, _i64, _f32, _f64, _bool, _str = pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string()

CORPORA = TableType("corpora", 1, "what the run's data sets are", (
    Column("corpus_id", _i32, "", "run-wide number of a data file"),
    Column("name", _str, "", "last part of its path"),
    Column("path", _str, "", "path as configured, after `moved`"),
    Column("format", NAME, "", "store format: megatron, flat, mds, ..."),
    Column("source", NAME, "", "default source label"),
    Column("documents", _i64, "document", "number of documents"),
    Column("stored_seqs", _i64, "stored sequence", "entries of the file's index", null=True),
    Column("tokens", _i64, "token", "number of tokens", null=True),
    Column("unit", NAME, "", "what lengths are counted in: token, or byte where documents are text", null=True),
), ("corpus_id",))

LAUNCHES = TableType("launches", 1, "the run's history, one row per start of the trainer", (
    Column("launch", _i16, "", "number, from 0, in order of time"),
    Column("first_step", _i64, "step", "first step it executed"),
    Column("stop_step", _i64, "step", "one past the last step it executed or would execute"),
    Column("consumed", _i64, "sample", "the trainer's counter at its start", null=True),
    Column("trainer", NAME, "", "loader name"),
    Column("version", _str, "", "version of the library that ordered the data", null=True),
    Column("origin", _str, "", "where its arguments came from, in words"),
    Column("row_width", _i32, "token", "tokens read per sequence", null=True),
    Column("data_parallel_size", _i32, "rank", "data-parallel ranks", null=True),
    Column("micro_batch_size", _i32, "sequence", "sequences per rank and microbatch", null=True),
    Column("target_samples", _i64, "sample", "samples the index was built for", null=True),
    Column("order_hash", _str, "", "hash of everything that decides the order: equal hashes read equal data", null=True),
), ("launch",))

BLENDS = TableType("blends", 1, "what each launch mixed, as the trainer's own log prints it", (
    Column("launch", _i16, "", ""),
    Column("split", NAME, "", "train, valid or test"),
    Column("corpus_id", _i32, "", ""),
    Column("position", _i32, "", "place in the blend; a file may be named twice"),
    Column("weight", _f64, "1", "normalised weight", null=True),
    Column("wanted_samples", _i64, "sample", "samples asked of the corpus (N_i)", null=True),
    Column("tokens_per_epoch", _i64, "token", "tokens of one pass over the split (T)", null=True),
    Column("epochs", _i32, "epoch", "passes laid out (E)", null=True),
    Column("built_samples", _i64, "sample", "samples built (K)", null=True),
    Column("separate_last_epoch", _bool, "", "whether the last pass is shuffled apart", null=True),
    Column("origin", NAME, "", "recomputed or cached_index"),
), ("launch", "split", "position"))

METRICS = TableType("metrics", 1, "every logged number, long form", (
    Column("run", NAME, "", "which run; several may be compared"),
    Column("launch", _i16, "", "which launch logged it", null=True),
    Column("metric", NAME, "", "canonical name"),
    Column("step", _i64, "step", "as logged"),
    Column("rank", _i32, "rank", "null = global", null=True),
    Column("tokens", _i64, "token", "consumed up to and including the step", null=True),
    Column("time", TIME, "", "wall clock", null=True),
    Column("value", _f64, "by metric", "NaN and infinity as logged"),
    Column("file", NAME, "", "where it was read", null=True),
    Column("line", _i64, "line", "from 1", null=True),
), ("run", "metric", "launch", "step", "rank"))

EVENTS = TableType("events", 1, "shapes found on curves", (
    Column("event_id", _i32, "", ""),
    Column("incident", _i32, "", "events that move together share one incident"),
    Column("run", NAME, "", "", null=True),
    Column("metric", NAME, "", "canonical name"),
    Column("shape", NAME, "", "spike, outlier, dip, level_shift, ..."),
    Column("level", NAME, "", "notice or alarm"),
    Column("start", _i64, "step", "first step"),
    Column("peak", _i64, "step", "extreme step", null=True),
    Column("stop", _i64, "step", "one past the last step", null=True),
    Column("tokens", _i64, "token", "at the start", null=True),
    Column("time", TIME, "", "at the start", null=True),
    Column("checkpoint", _i64, "step", "nearest earlier checkpoint", null=True),
    Column("severity", NAME, "", "none, returned, slow, level_shift, diverging, unknown", null=True),
    Column("height", _f64, "unit of the metric", "over the trend at the peak", null=True),
    Column("sigma", _f64, "1", "height by the robust scale before", null=True),
    Column("residual", _f64, "unit of the metric", "level after recovery minus extrapolated trend", null=True),
    Column("recovery", _i64, "step", "steps until back in the band; null = never or not seen", null=True),
    Column("cost", _f64, "step", "steps of progress lost", null=True),
    Column("cause", NAME, "", "data, numerics, loader, composition, hardware, interaction, undetermined", null=True),
    Column("subcause", NAME, "", "", null=True),
    Column("action", _str, "", "what to do", null=True),
    Column("confidence", NAME, "", "low, medium, high", null=True),
    Column("evidence", pa.map_(pa.string(), _f64), "", "numbers the reading rests on", null=True),
), ("start", "event_id"))

CONSUMED = TableType("consumed", 1, "what each step read, one row per segment of a document in a sequence", (
    Column("launch", _i16, "", "launch that ran the step"),
    Column("step", _i64, "step", "as that trainer's log prints it"),
    Column("sequence", _i32, "row", "row of the global batch"),
    Column("seq_start", _i32, "token", "where the segment begins in the sequence"),
    Column("sample", _i64, "sample", "the trainer's own sample number", null=True),
    Column("rank", _i32, "rank", "data-parallel rank", null=True),
    Column("microbatch", _i32, "", "microbatch within the step", null=True),
    Column("epoch", _i32, "epoch", "from 0; null where epochs are shuffled together", null=True),
    Column("doc_key", _i64, "", "document"),
    Column("stored_seq", _i64, "stored sequence", "number in the data file where a document is stored in several", null=True),
    Column("doc_start", _i64, "token", "first token of the document's part"),
    Column("doc_stop", _i64, "token", "one past its last token"),
), ("launch", "step", "sequence", "seq_start"))

DOCUMENTS = TableType("documents", 1, "each distinct document seen", (
    Column("doc_key", _i64, "", ""),
    Column("corpus_id", _i32, "", ""),
    Column("doc", _i64, "", "number in the file, from 0"),
    Column("source", NAME, "", "finest label known"),
    Column("name", _str, "", "url, path or id in the raw data", null=True),
    Column("crawl", NAME, "", "crawl or batch it came with", null=True),
    Column("language", NAME, "", "as the sidecar says", null=True),
    Column("tokens", _i64, "token", "length of the whole document"),
    Column("bytes", _i64, "byte", "length as text", null=True),
    Column("used_window", _i64, "token", "label positions consumed in the window", null=True),
    Column("used_lookback", _i64, "token", "label positions consumed in the look-back", null=True),
    Column("used_baseline", _i64, "token", "label positions consumed in the baseline", null=True),
    Column("used_after", _i64, "token", "label positions consumed after the window, as far as read", null=True),
    Column("first_step", _i64, "step", "first step seen that held it", null=True),
    Column("last_step", _i64, "step", "last step seen that held it", null=True),
    Column("content", pa.binary(16), "", "hash of the token ids or text", null=True),
), ("doc_key",))

LOSSES = TableType("losses", 1, "loss sums per segment", (
    Column("launch", _i16, "", ""),
    Column("step", _i64, "step", ""),
    Column("sequence", _i32, "row", "null where the record is per microbatch, rank or step", null=True),
    Column("seq_start", _i32, "token", "null where the record is per row or coarser", null=True),
    Column("doc_key", _i64, "", "null where the record is coarser than a document", null=True),
    Column("predicted", _i32, "token", "predictions in the sum"),
    Column("loss_sum", _f64, "nats", "NaN and infinity as recorded"),
    Column("origin", NAME, "", "recorded, checkpoint:<step> or reference:<model>"),
), ("origin", "launch", "step", "sequence", "seq_start"))

TOKEN_LOSSES = TableType("token_losses", 1, "losses per label where they were recorded or scored", (
    Column("launch", _i16, "", ""),
    Column("step", _i64, "step", ""),
    Column("sequence", _i32, "row", ""),
    Column("seq_start", _i32, "token", ""),
    Column("doc_key", _i64, "", "", null=True),
    Column("values", pa.list_(_f32), "nats", "per label"),
    Column("origin", NAME, "", ""),
), ("origin", "launch", "step", "sequence", "seq_start"))

FINDINGS = TableType("findings", 1, "what detectors flagged", (
    Column("doc_key", _i64, "", ""),
    Column("detector", NAME, "", ""),
    Column("measure", NAME, "", ""),
    Column("cause", NAME, "", "mojibake, repetition, template, encoded, markup, placeholder, binary, log, table, language, truncated, length, duplicate"),
    Column("primary", _bool, "", "whether it is the document's one primary cause"),
    Column("garbage", _bool, "", "whether configuration calls the cause garbage"),
    Column("version", _i16, "", "of the detector"),
    Column("value", _f32, "of the measure", ""),
    Column("threshold", _f32, "of the measure", ""),
    Column("detail", _str, "", "what was found, in words: encoding chain, period, skeleton", null=True),
    Column("spans", SPANS, "token, or byte for text corpora", "evidence inside the document", null=True),
), ("doc_key", "detector", "measure"))

SIGNATURES = TableType("signatures", 1, "MinHash signatures of token shingles", (
    Column("doc_key", _i64, "", ""),
    Column("shingles", _i32, "shingle", "shingles in the document"),
    Column("minhash", pa.list_(pa.uint32(), 128), "", "128 permutations"),
), ("doc_key",))

SKELETONS = TableType("skeletons", 1, "a sample of each document's wording, to find what many share", (
    Column("doc_key", _i64, "", ""),
    Column("run", pa.uint64(), "", "hash of a run of words, numbers alike; each once per document"),
), ("doc_key",))

SCRIPTS = TableType("scripts", 1, "the script that a document is written in", (
    Column("doc_key", _i64, "", ""),
    Column("script", NAME, "", "of most of its letters: latin, greek, cyrillic, hebrew, arabic, indic, han (kana with it), hangul, other", null=True),
    Column("sample", pa.list_(pa.string()), "", "two places of the text, redacted, of documents by which their source's usual language is told", null=True),
), ("doc_key",))

CLUSTERS = TableType("clusters", 1, "groups of documents", (
    Column("kind", NAME, "", "source, crawl, host, idrange, exact, near, template"),
    Column("cluster", _i64, "", "number within the kind"),
    Column("label", NAME, "", "what people call it", null=True),
    Column("doc_key", _i64, "", ""),
    Column("representative", _i64, "", "doc_key of the cluster's representative", null=True),
    Column("jaccard", _f32, "1", "to the representative; of templates the share of the skeleton that both have", null=True),
), ("kind", "cluster", "doc_key"))

STEPS = TableType("steps", 1, "composition per step", (
    Column("launch", _i16, "", ""),
    Column("step", _i64, "step", ""),
    Column("role", NAME, "", "window, lookback, baseline or after"),
    Column("trained", _bool, "", "false: read and counted but dropped"),
    Column("consumed_after", _i64, "sample", "position after the step", null=True),
    Column("sequences", _i32, "sequence", ""),
    Column("documents", _i32, "document", ""),
    Column("tokens", _i64, "token", "label positions"),
    Column("length_p50", _i32, "token", "of the documents met", null=True),
    Column("length_p95", _i32, "token", "", null=True),
    Column("length_max", _i32, "token", "", null=True),
    Column("repeated_tokens", _i64, "token", "already trained on earlier in the run, as far as known", null=True),
    Column("train_loss", _f64, "nats/token", "as logged", null=True),
    Column("grad_norm", _f64, "1", "as logged", null=True),
    Column("learning_rate", _f64, "1", "as logged", null=True),
    Column("scored_loss", _f64, "nats/token", "mean over the step's recorded or scored documents", null=True),
    Column("expected_loss", _f64, "nats/token", "predicted from the baseline", null=True),
    Column("difficulty", _f64, "nats/token", "model-free code length", null=True),
    Column("excess", _f64, "nats", "sum over tokens", null=True),
    Column("shift", _f64, "nats/token", "common shift of ordinary documents", null=True),
    Column("odd_tokens", _i64, "token", "in documents that are odd against the baseline", null=True),
    Column("flagged_tokens", _i64, "token", "in documents with a garbage finding", null=True),
    Column("duplicate_tokens", _i64, "token", "in exact or near duplicates", null=True),
), ("launch", "step"))

SUSPECTS = TableType("suspects", 1, "ranked explanation", (
    Column("rank", _i32, "", "from 1"),
    Column("level", NAME, "", "document, cluster, source, crawl, idrange, language, steps"),
    Column("key", _i64, "", "doc_key, cluster number or first step", null=True),
    Column("label", _str, "", ""),
    Column("tokens_window", _i64, "token", "in window and look-back"),
    Column("tokens_baseline", _i64, "token", ""),
    Column("log_odds", _f64, "nats", "window against baseline", null=True),
    Column("excess", _f64, "nats", "", null=True),
    Column("share", _f64, "1", "of the whole excess", null=True),
    Column("p_value", _f64, "1", "", null=True),
    Column("q_value", _f64, "1", "after false discovery control", null=True),
    Column("guilty", _bool, "", "whether the verdict names it", null=True),
    Column("reasons", pa.list_(pa.string()), "", "detectors and tests concerned"),
), ("rank",))

SKIPS = TableType("skips", 1, "trainer-neutral skip manifest", (
    Column("launch", _i16, "", "", null=True),
    Column("kind", NAME, "", "steps, samples or documents"),
    Column("start", _i64, "step, sample or doc_key", ""),
    Column("stop", _i64, "step, sample or doc_key", "half-open"),
    Column("recommended", _bool, "", "whether this is the advised action"),
    Column("reason", _str, "", ""),
    Column("tokens", _i64, "token", "label positions concerned"),
    Column("excess", _f64, "nats", "explained", null=True),
), ("kind", "start"))

EXCERPTS = TableType("excerpts", 1, "text shown in reports, of suspects only", (
    Column("doc_key", _i64, "", ""),
    Column("doc_start", _i64, "token", ""),
    Column("doc_stop", _i64, "token", ""),
    Column("text", _str, "", "control characters visible"),
    Column("redacted", _bool, "", "whether personal data were masked"),
), ("doc_key", "doc_start"))

DIFFICULTY = TableType("difficulty", 1, "model-free code length per sequence", (
    Column("launch", _i16, "", ""),
    Column("step", _i64, "step", ""),
    Column("sequence", _i32, "row", "", null=True),
    Column("predicted", _i32, "token", ""),
    Column("code_length", _f64, "nats", "sum"),
), ("launch", "step", "sequence"))

PROOF = TableType("proof", 1, "does the logged loss follow the reconstructed steps", (
    Column("subject", NAME, "", "this description or a candidate"),
    Column("lag", _i32, "step", "reconstructed minus logged"),
    Column("r", _f64, "1", "correlation of residuals", null=True),
    Column("standard_error", _f64, "1", "", null=True),
    Column("steps", _i32, "step", "used"),
    Column("answer", NAME, "", "proven, contradicted, off_by_k, inconclusive"),
), ("subject", "lag"))

DEDUP = TableType("dedup", 2, "duplicate clusters and what removing them saves", (
    Column("kind", NAME, "", "exact or near"),
    Column("cluster", _i64, "", ""),
    Column("members", _i32, "document", ""),
    Column("representative", _i64, "", "doc_key; the longest, then the lowest number"),
    Column("tokens", _i64, "token", "of all members"),
    Column("tokens_saved", _i64, "token", "when only the representative stays"),
    Column("sources", pa.list_(pa.string()), "", "sources concerned"),
    Column("window_documents", _i32, "document", "members met in the window", null=True),
    Column("baseline_documents", _i32, "document", "members met in the baseline", null=True),
    Column("times_window", _i64, "", "how often its members were consumed in the window", null=True),
    Column("times_so_far", _i64, "", "the same from the run's start to the end of the window", null=True),
    Column("times_seen", _i64, "", "the same in the whole run as far as its order is known, steps to come included", null=True),
), ("kind", "cluster"))

SEEN = TableType("seen", 1, "how often documents that have copies were consumed: their tokens read by their length, rounded up", (
    Column("doc_key", _i64, "", ""),
    Column("window", _i64, "", "in the window"),
    Column("so_far", _i64, "", "from the run's start to the end of the window"),
    Column("run", _i64, "", "in the whole run as far as its order is known, steps to come included"),
), ("doc_key",))

BUCKETS = TableType("buckets", 1, "waste of ways to batch these lengths", (
    Column("scheme", NAME, "", "as_is, concat_and_cut, best_fit, buckets_k"),
    Column("bucket", _i32, "", "number within the scheme"),
    Column("start", _i64, "token", "shortest length", null=True),
    Column("stop", _i64, "token", "one past the longest length", null=True),
    Column("documents", _i64, "document", ""),
    Column("tokens", _i64, "token", ""),
    Column("batch", _i32, "sequence", "sequences per batch at equal tokens", null=True),
    Column("padding_tokens", _i64, "token", ""),
    Column("truncated_tokens", _i64, "token", ""),
    Column("waste", _f64, "1", "padding by padded size"),
    Column("recommended", _bool, "", ""),
), ("scheme", "bucket"))

LENGTHS = TableType("lengths", 1, "document lengths per source", (
    Column("source", NAME, "", ""),
    Column("role", NAME, "", "window, baseline or corpus"),
    Column("start", _i64, "token", "bin"),
    Column("stop", _i64, "token", ""),
    Column("documents", _i64, "document", ""),
    Column("tokens", _i64, "token", ""),
), ("source", "role", "start"))

SOURCES = TableType("sources", 1, "summary per source", (
    Column("source", NAME, "", ""),
    Column("role", NAME, "", "window, baseline or corpus"),
    Column("documents", _i64, "document", ""),
    Column("tokens", _i64, "token", ""),
    Column("bytes", _i64, "byte", "", null=True),
    Column("flagged_documents", _i64, "document", "with a garbage finding"),
    Column("flagged_tokens", _i64, "token", ""),
    Column("duplicate_tokens", _i64, "token", ""),
    Column("length_p05", _i64, "token", "", null=True),
    Column("length_p50", _i64, "token", "", null=True),
    Column("length_p95", _i64, "token", "", null=True),
    Column("length_max", _i64, "token", "", null=True),
), ("source", "role"))

IDENTITY = TableType("identity", 1, "checks that the description fits the run's own files", (
    Column("check", NAME, "", ""),
    Column("subject", _str, "", "file or launch"),
    Column("expected", _str, "", "what the description implies"),
    Column("found", _str, "", "what the file says"),
    Column("answer", NAME, "", "agrees, contradicts, not_evaluated"),
), ())

FAILURES = TableType("failures", 1, "what could not be read", (
    Column("stage", NAME, "", ""),
    Column("item", _str, "", "file, place"),
    Column("error", _str, "", ""),
    Column("count", _i64, "", ""),
), ())

NOT_EVALUATED = TableType("not_evaluated", 1, "rules that had no inputs", (
    Column("what", _str, "", ""),
    Column("why", _str, "", ""),
), ())

ANNOTATIONS = TableType("annotations", 1, "what people know happened", (
    Column("step", _i64, "step", "", null=True),
    Column("time", TIME, "", "", null=True),
    Column("kind", NAME, "", "mix, lr, restart, hardware, config or other"),
    Column("text", _str, "", ""),
), ())

ALL = {t.name: t for t in list(globals().values()) if isinstance(t, TableType)}

Corpora = NewType("Corpora", pa.Table)
Launches = NewType("Launches", pa.Table)
Blends = NewType("Blends", pa.Table)
Metrics = NewType("Metrics", pa.Table)
Events = NewType("Events", pa.Table)
Consumed = NewType("Consumed", pa.Table)
Documents = NewType("Documents", pa.Table)
Losses = NewType("Losses", pa.Table)
TokenLosses = NewType("TokenLosses", pa.Table)
Findings = NewType("Findings", pa.Table)
Signatures = NewType("Signatures", pa.Table)
Skeletons = NewType("Skeletons", pa.Table)
Scripts = NewType("Scripts", pa.Table)
Clusters = NewType("Clusters", pa.Table)
Steps = NewType("Steps", pa.Table)
Suspects = NewType("Suspects", pa.Table)
Skips = NewType("Skips", pa.Table)
Excerpts = NewType("Excerpts", pa.Table)
Difficulty = NewType("Difficulty", pa.Table)
Proof = NewType("Proof", pa.Table)
Seen = NewType("Seen", pa.Table)
Dedup = NewType("Dedup", pa.Table)
Buckets = NewType("Buckets", pa.Table)
Lengths = NewType("Lengths", pa.Table)
Sources = NewType("Sources", pa.Table)
Identity = NewType("Identity", pa.Table)
Failures = NewType("Failures", pa.Table)
Annotations = NewType("Annotations", pa.Table)
