"""Make the quickstart: a small real run in which a crawl shard with an accident comes in at a known step.

    python make.py --text docs.jsonl.zst --out run [--seed 7] [--kind mojibake] [--step 41200] [--losses torch|ngram]

Documents are tokenised into Megatron .bin/.idx files; three launches each read the next crawl shard under the same
source label and weight, as long runs do (inside a launch Megatron shuffles everything). The order comes from this
package's own Megatron loader. A small model is then trained on exactly these rows (`--losses torch`), or an adaptive
n-gram model stands in for it (`--losses ngram`: numpy alone, seconds). What a user would have is written: data,
tokenizer, sidecar, logs in Megatron's format, recorded losses, `forensics.yaml`. The truth goes to a file beside the
run, never into it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RATE = 1.5e-3  # constant after warm-up
KINDS = ("mojibake", "template", "repetition", "encoded", "none")
VOCABULARY, SEQ_LENGTH, BATCH, DIRTY = 2048, 128, 4, 0.45
FIRST, SECOND, TAIL = 500, 160, 200  # steps before the event at which the run and its second launch begin; steps after
WORDS = ("solar", "steel", "garden", "travel", "office", "winter", "cotton", "smart", "classic", "compact", "outdoor", "kitchen", "leather", "wireless")
THINGS = ("lamp", "chair", "bottle", "backpack", "keyboard", "jacket", "kettle", "speaker", "mirror", "camera", "helmet", "blanket")


@dataclass(frozen=True)
class Plan:
    """What is made: seed of every draw, kind of accident, first step that can read it."""

    seed: int
    kind: str
    step: int

    @property
    def first(self) -> int:
        """Steps finished before the run's declared start."""
        return self.step - FIRST

    @property
    def last(self) -> int:
        """Last step executed."""
        return self.step + TAIL


def pieces(text: str, rng: random.Random) -> list[str]:
    """A long text cut at line breaks into documents of 700 to 3,000 characters."""
    out, at = [], 0
    while at < len(text):
        stop = min(len(text), at + rng.randrange(700, 3000))
        if (cut := text.rfind("\n", at + 400, stop)) > 0 and stop < len(text):
            stop = cut + 1
        out.append(text[at:stop])
        at = stop
    return [p for p in out if len(p.strip()) > 200]


def read_texts(path: Path, rng: random.Random) -> dict[str, list[tuple[str, str]]]:
    """Clean documents by corpus: (text, url)."""
    import zstandard

    raw = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True).read().decode("utf-8", "surrogatepass")
    found: dict[str, list[tuple[str, str]]] = {"crawl": [], "code": [], "reference": []}
    for line in raw.split("\n"):
        if not line:
            continue
        record = json.loads(line)
        source, labels = record["source"], record["labels"]
        if any(x not in ("licence", "near-duplicate-family", "changelog") for x in labels):
            continue
        corpus = "code" if source.startswith("code-") else "reference" if source in ("licences", "changelogs") else "crawl"
        if record["lang"] in ("ja", "zh", "zh-Hant") or (corpus == "crawl" and not source.startswith(("man-", "docs", "readme", "quotes"))):
            continue
        for n, piece in enumerate(pieces(record["text"], rng)):
            found[corpus].append((piece, f"https://{source}.example.org/{record['id']}/{n}"))
    for documents in found.values():
        rng.shuffle(documents)
    return found


def product_page(rng: random.Random) -> str:
    """One page of a shop's template."""
    lines = []
    for _ in range(rng.randrange(6, 14)):
        name = f"{rng.choice(WORDS)} {rng.choice(THINGS)}".title()
        price, stars = f"{rng.randrange(3, 400)}.{rng.randrange(100):02d}", f"{rng.randrange(30, 50) / 10}"
        lines.append(
            f"Buy {name} online at the best price! {name} now only ${price} instead of ${float(price) * 1.3:.2f}. "
            f"Rated {stars} stars by {rng.randrange(12, 4000)} customers. Free shipping on all orders of {name}. Order number {rng.randrange(10**7)}."
        )
    return "\n".join(lines)


def spoil(text: str, kind: str, rng: random.Random) -> str:
    """The text after the accident."""
    if kind == "mojibake":
        return text.encode("utf-8", "replace").decode("cp1252", "replace")[: len(text)]
    if kind == "template":
        return product_page(rng)
    if kind == "repetition":
        words = text.split()[: rng.randrange(3, 9)]
        return (" ".join(words) + " ") * (len(text) // max(8, len(" ".join(words))))
    if kind == "encoded":
        return base64.b64encode(rng.randbytes(len(text) * 3 // 4)).decode()
    return text


def shards(texts: dict[str, list[tuple[str, str]]], plan: Plan, rng: random.Random) -> tuple[dict[str, list[tuple[str, str]]], list[int]]:
    """Documents of every corpus, the crawl in four shards; numbers of the spoiled documents of the last one."""
    crawl = texts["crawl"]
    part = len(crawl) // 4
    out = {"code": texts["code"], "reference": texts["reference"], **{f"crawl-0{n}": crawl[n * part : (n + 1) * part] for n in range(4)}}
    if plan.kind == "none":
        return out, []
    last = out["crawl-03"]
    able = [n for n, (text, _) in enumerate(last) if plan.kind != "mojibake" or sum(ord(c) > 127 for c in text) > 40]
    hosts = sorted(rng.sample(able, min(len(able), int(DIRTY * len(last)))))
    for n in hosts:
        last[n] = (spoil(last[n][0], plan.kind, rng), last[n][1])
    return out, hosts


def train_tokenizer(texts: list[str], path: Path) -> Any:
    """A byte-level BPE of 2,048 entries; id 0 ends a document."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.save(str(path), pretty=False)
    return tokenizer


def write_corpus(prefix: Path, documents: list[list[int]]) -> None:
    """A Megatron .bin/.idx pair, uint16, one stored sequence per document."""
    lengths = np.array([len(d) for d in documents], "<i4")
    np.concatenate([np.array(d, "<u2") for d in documents]).tofile(prefix.with_suffix(".bin"))
    offsets = np.concatenate([[0], np.cumsum(lengths[:-1], dtype="<i8") * 2]).astype("<i8")
    with prefix.with_suffix(".idx").open("wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1))
        for array in (lengths, offsets, np.arange(len(documents) + 1, dtype="<i8")):
            out.write(array.tobytes())


def describe(plan: Plan) -> dict[str, Any]:
    """The run description."""

    def blend(n: int) -> list[Any]:
        return [0.5, f"data/crawl-0{n}_text_document", 0.3, "data/code_text_document", 0.2, "data/reference_text_document"]

    starts = [plan.first, plan.step - 1 - SECOND, plan.step - 1]
    stops = [*starts[1:], plan.last]
    return {
        "run": "quickstart",
        "trainer": "megatron",
        "version": "0.16.1",
        "args": {
            "split": "1000,0,0",
            "seq_length": SEQ_LENGTH,
            "seed": 1000 + plan.seed,
            "global_batch_size": BATCH,
            "micro_batch_size": 1,
            "data_parallel_size": 4,
            "train_iters": plan.step + 1000,
            "eval_interval": plan.step + 2000,
            "eval_iters": 0,
            "dataloader_type": "single",
            "vocab_size": VOCABULARY,
        },
        "launches": [
            {"after_step": a, "consumed": a * BATCH, "last_step": b, "args": {"data_path": blend(n + 1)}}
            for n, (a, b) in enumerate(zip(starts, stops, strict=True))
        ],
        "checkpoints": list(range(plan.first, plan.last, 100)),
        "optimizer": {
            "name": "adamw",
            "lr": RATE,
            "betas": [0.9, 0.95],
            "clip": 1.0,
            "warmup": 100,
            "decay_steps": plan.step + 1000,
            "schedule": "constant after warm-up",
        },
        "tokenizer": "tokenizer.json",
        "cache": "cache",
        "log": "logs/launch-*.log",
        "metrics": ["logs/launch-0.log", "logs/launch-1.log", "logs/launch-2.log"],
        "losses": ["losses.parquet"],
        "documents": "documents.parquet",
    }


def write_description(out: Path, plan: Plan, *, whole: bool) -> None:
    """`forensics.yaml`, commented; not `whole`: without the files that training is yet to write."""
    import yaml

    described = {k: v for k, v in describe(plan).items() if whole or k not in ("cache", "log", "metrics", "losses")}
    body = yaml.safe_dump(described, sort_keys=False, width=150, default_flow_style=None)
    head = (
        "# A small Megatron run. Its model was trained on a crawl shard of its own before the first launch below; no data of those steps are here.\n"
        "# Each launch reads the next crawl shard under the same label and weight. Ask: forensics replay --steps "
        f"{plan.step}:{plan.step + 40}\n"
    )
    (out / "forensics.yaml").write_text(head + body)


def write_descriptions(out: Path) -> None:
    """Megatron's descriptions of the index files, which tell under which names it looks for them; the index files themselves are rebuilt."""
    from forensics.loaders.base import loader_of
    from forensics.run import open_run

    run = open_run(out)
    (out / "cache").mkdir(exist_ok=True)
    for plan in loader_of(run).history(run).plans:  # type: ignore[attr-defined]
        for laid in plan.split("train").laid:
            wanted = plan._wanted_index(plan.split("train"), laid)
            content = {
                "class": "GPTDataset", "dataset_path": wanted.paths[0], "num_samples": wanted.samples, "index_split": wanted.index_split,
                "random_seed": wanted.seed, "sequence_length": wanted.length, "split": wanted.split, "split_matrix": [[0, 1.0], None, None],
                "tokenizer": {"class": "megatron.core.tokenizers.text.libraries.huggingface_tokenizer.HuggingFaceTokenizer", "path": "tokenizer.json"},
            }  # fmt: skip
            text = json.dumps(content, indent=4)
            (out / "cache" / f"{hashlib.md5(text.encode()).hexdigest()}-GPTDataset-train-description.txt").write_text(text)


def make(text: Path, out: Path, plan: Plan, losses: str = "torch") -> dict[str, Any]:
    """Write the run to `out` and return the truth: kind, first step, spoiled documents of crawl-03."""
    from training import read_rows, train, write_logs, write_losses

    rng = random.Random(plan.seed)
    (out / "data").mkdir(parents=True, exist_ok=True)
    (out / "logs").mkdir(exist_ok=True)
    corpora, hosts = shards(read_texts(text, rng), plan, rng)
    clean = [t for name, documents in corpora.items() if name != "crawl-03" for t, _ in documents]
    tokenizer = train_tokenizer(clean, out / "tokenizer.json")
    sidecar: dict[str, list[Any]] = {"corpus": [], "document": [], "source": [], "url": [], "crawl": []}
    before: list[int] = []
    for name, documents in corpora.items():
        ids = [[*tokenizer.encode(t).ids, 0] for t, _ in documents]
        if not name.startswith("crawl-0") or name == "crawl-00":
            before += [i for d in ids for i in d]
        if name == "crawl-00":  # read before the declared start only
            continue
        write_corpus(out / "data" / f"{name}_text_document", ids)
        for n, (_, url) in enumerate(documents):
            for key, value in zip(sidecar, (f"{name}_text_document", n, name.split("-")[0], url, name if name.startswith("crawl") else None), strict=True):
                sidecar[key].append(value)
    pq.write_table(pa.table(sidecar), out / "documents.parquet", compression="zstd")
    write_description(out, plan, whole=False)
    rows = read_rows(out)
    result = train(rows, before, plan.seed, losses, VOCABULARY, lr=RATE)
    write_logs(out, rows, result, plan.step + 1000)
    write_losses(out, rows, result, keep_from=plan.step - 400)
    write_description(out, plan, whole=True)
    write_descriptions(out)
    return {"kind": plan.kind, "step": plan.step, "documents": hosts}


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--kind", choices=KINDS, default="mojibake")
    p.add_argument("--step", type=int, default=41200)
    p.add_argument("--losses", choices=("torch", "ngram"), default="torch")
    args = p.parse_args()
    truth = make(args.text, args.out, Plan(args.seed, args.kind, args.step), args.losses)
    (args.out.parent / f"{args.out.name}.truth.json").write_text(json.dumps(truth) + "\n")


if __name__ == "__main__":
    main()
