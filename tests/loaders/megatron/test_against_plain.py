"""The loader against a slow, plain form of the same rules: token by token, walking documents one by one as the C++ code does.

Random small runs are drawn: blends with and without weights, several passes, empty and split documents, no extra token,
both surplus rules, ramps, phases, both samplers on any number of ranks.
"""

import math
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.errors import ForensicsError
from forensics.loaders.base import loader_of
from forensics.loaders.rows import rows_of
from forensics.run import open_run
from forensics.schemas import DOC_BITS, DOC_MASK
from forensics.steps import StepRange
from forensics.stores.megatron import MegatronStore

# ---- the plain form ----


def plain_split(text, n):
    parts = [float(p) for p in text.split(",")]
    parts = np.array(parts) / np.sum(parts)
    ends = [0.0]
    for p in parts.tolist():
        ends.append(ends[-1] + p)
    return [(round(a * n), round(b * n)) if b > a else None for a, b in zip(ends, ends[1:])]


def plain_corpus(lengths, wanted, S, x, seed):
    """Samples in sample-number order, each a list of (sequence, start, stop)."""
    numbers, sizes = [n for n, _ in lengths], dict(lengths)
    T, E = sum(sizes.values()), 1
    while wanted is not None and wanted * S + x > E * T:
        E += 1
    separate = False
    if E > 1:
        before = ((E - 1) * T - x) // S
        separate = wanted - before < int(0.8 * ((T - x) // S))
    rng = np.random.RandomState(seed)

    def shuffled(passes):
        a = np.array(numbers * passes, np.int32)
        rng.shuffle(a)
        return a.tolist()

    order = shuffled(E - 1) + shuffled(1) if separate else shuffled(E)
    flat = [(s, i) for s in order for i in range(sizes[s])]
    K = (E * T - x) // S
    first = np.arange(((E - 1) * T - x) // S if separate else K)
    last = np.arange(len(first), K)
    rng.shuffle(first)
    if len(last):
        rng.shuffle(last)
    samples = []
    for k in [*first.tolist(), *last.tolist()]:
        samples.append(flat[k * S : k * S + S + x])
    return samples


def plain_blend(weights, n):
    counts, out = [0] * len(weights), []
    for i in range(n):
        errors = [w * max(i, 1) - c for w, c in zip(weights, counts)]
        best = errors.index(max(errors))
        out.append((best, counts[best]))
        counts[best] += 1
    return out


def normal(weights):
    w = np.array(weights, np.float64)
    return (w / np.sum(w)).tolist()


def plain_data(stores, run):
    """Every sample of the training set, each a list of (corpus, sequence, token in it)."""
    x, S, N = run["x"], run["seq_length"], run["N"]
    parts = [plain_split(run["split"], s.n_sequences)[0] for s in stores]
    lengths = [[(q, int(s.lengths[q])) for q in range(*p)] for s, p in zip(stores, parts)]
    if len(stores) == 1 and run["weights"] is None:
        return [[(0, s, i) for s, i in sample] for sample in plain_corpus(lengths[0], N, S, x, run["seed"])]
    if run["weights"] is None:
        built = [plain_corpus(x_, None, S, x, run["seed"]) for x_ in lengths]
        order = plain_blend(normal([len(b) for b in built]), min(N, sum(map(len, built))))
    else:
        weights = normal(run["weights"])
        once = run["version"] in ("0.5.0", "0.10.1")
        wanted = [math.ceil(N * w * 1.005) if once else math.ceil(math.ceil(N * w) * 1.005) for w in weights]
        built = [plain_corpus(x_, n, S, x, run["seed"]) for x_, n in zip(lengths, wanted)]
        order = plain_blend(normal(weights), sum(wanted) if once else sum(math.ceil(N * w) for w in weights))
    return [[(c, s, i) for s, i in built[c][j]] for c, j in order]


def plain_rows(run, data, steps):
    """Rows in order of step, microbatch, rank, position, each (step, microbatch, rank, sample)."""
    b, dp = run["micro_batch_size"], run["data_parallel_size"]
    q, out = b * dp, []
    consumed = 0
    readers = [plain_cyclic(len(data), 0, b, dp, r, run["data_sharding"]) for r in range(dp)] if run["dataloader_type"] == "cyclic" else None
    for step in range(1, steps + 1):
        batch = plain_batch(run, consumed)
        for m in range(batch // q):
            for r in range(dp):
                for i in range(b):
                    sample = next(readers[r]) if readers else consumed + m * q + r * b + i
                    out.append((step, m, r, sample))
        consumed += batch
    return out, consumed


def plain_batch(run, consumed):
    if run["rampup_batch_size"] is None:
        return run["global_batch_size"]
    start, increment, samples = run["rampup_batch_size"]
    if consumed > samples:
        return run["global_batch_size"]
    return start + int(consumed / (samples / ((run["global_batch_size"] - start) // increment))) * increment


def plain_cyclic(total, consumed, b, dp, rank, sharding):
    """What one rank reads, batch by batch, for ever."""
    q = b * dp
    active = total - total % q
    while True:
        epoch, position = divmod(consumed, active)
        if sharding:
            bucket = total // q * b
            indices = [rank * bucket + k for k in plain_randperm(bucket, epoch)[position // dp :]]
        else:
            indices = plain_randperm(total // b * b, epoch)[position:][rank::dp]
        for k in range(0, len(indices) - b + 1, b):
            consumed += q
            yield from indices[k : k + b]


def plain_randperm(n, seed):
    a, rng = list(range(n)), np.random.RandomState(seed)
    for i in range(n - 1):
        j = i + int(rng.randint(0, 2**32, dtype=np.uint32)) % (n - i)
        a[i], a[j] = a[j], a[i]
    return a


# ---- random runs ----


@st.composite
def runs(draw):
    n = draw(st.integers(1, 4))
    S = draw(st.sampled_from([4, 7, 16]))
    documents = [draw(st.lists(st.lists(st.integers(0, 3 * S), min_size=1, max_size=draw(st.integers(1, 3))), min_size=8, max_size=40)) for _ in range(n)]
    b, dp = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    q = b * dp
    batch = q * draw(st.integers(1, 4))
    ramp = None
    if batch > q and draw(st.booleans()):
        ramp = [q, q, draw(st.integers(1, 6 * batch))]
    weights = draw(st.one_of(st.none(), st.lists(st.integers(1, 99), min_size=n, max_size=n)))
    return {
        "documents": documents, "seq_length": S, "seed": draw(st.integers(0, 2**32 - 1)),
        "split": draw(st.sampled_from(["100,0,0", "97,3,0", "969,30,1", "60,20,20"])),
        "weights": weights, "x": draw(st.sampled_from([1, 1, 1, 0])), "version": draw(st.sampled_from(["0.10.1", "0.14.0", "0.16.1"])),
        "micro_batch_size": b, "data_parallel_size": dp, "global_batch_size": batch, "rampup_batch_size": ramp, "train_iters": draw(st.integers(1, 12)),
        "dataloader_type": draw(st.sampled_from(["single", "single", "cyclic"])), "data_sharding": draw(st.booleans()), "file_seed": draw(st.integers(0, 99)),
    }  # fmt: skip


def build(run, folder, write):
    items = []
    for i, documents in enumerate(run["documents"]):
        write(folder / "data" / f"c{i}", documents, seed=run["file_seed"] + i)
        items += [*([str(run["weights"][i])] if run["weights"] else []), f"data/c{i}"]
    if run["weights"] is None and len(items) % 2 == 0:
        items.append("data/c0")  # an even list without weights would still be one, but reads better odd
    args = {
        k: run[k]
        for k in (
            "seq_length",
            "seed",
            "split",
            "micro_batch_size",
            "data_parallel_size",
            "global_batch_size",
            "train_iters",
            "dataloader_type",
            "data_sharding",
        )
    }
    args |= {"data_path": items, "eval_iters": 0, "eval_interval": 100, "add_extra_token_to_sequence": bool(run["x"])}
    args |= {"rampup_batch_size": run["rampup_batch_size"]} if run["rampup_batch_size"] else {}
    (folder / "forensics.yaml").write_text(yaml.safe_dump({"trainer": "megatron", "version": run["version"], "args": args}))
    prefixes = [p for p in items if not p.replace(".", "").isdigit()]
    return [MegatronStore(folder / p) for p in prefixes]


def load_writer():
    import importlib.util

    spec = importlib.util.spec_from_file_location("loader_fixtures", Path(__file__).parents[1] / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_corpus


WRITE = load_writer()


@settings(max_examples=40, deadline=None)
@given(runs())
def test_rows_tokens_and_segments_are_those_of_the_plain_form(run):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stores = build(run, folder, WRITE)
        spec = open_run(folder)
        loader = loader_of(spec)
        run["N"] = run["train_iters"] * run["global_batch_size"]
        if any(plain_split(run["split"], s.n_sequences)[0] is None for s in stores):
            return
        tokens = [sum(int(s.lengths[q]) for q in range(*plain_split(run["split"], s.n_sequences)[0])) for s in stores]
        lone = len(stores) == 1 and run["weights"] is None
        if min(tokens) == 0 or (not lone and run["weights"] is None and min((t - run["x"]) // run["seq_length"] for t in tokens) <= 0):
            return  # refused: tested beside
        data = plain_data(stores, run)
        if run["dataloader_type"] == "cyclic" and len(data) < run["micro_batch_size"] * run["data_parallel_size"]:
            return
        steps = run["train_iters"]
        want, consumed = plain_rows(run, data, steps)
        if run["dataloader_type"] == "single":
            while consumed > len(data):  # the data end the run
                steps -= 1
                if not steps:
                    return
                want, consumed = plain_rows(run, data, steps)
        try:
            tables = list(loader.consumed(spec, StepRange(1, steps + 1)))
        except ForensicsError as error:
            assert "draws" in error.message  # a blend that oversamples: the library refuses it too
            return
        table = pa.concat_tables(tables)
        store = loader.store(spec)
        width = run["seq_length"] + run["x"]
        blocks = list(rows_of(table, store, width))
        got = {k: np.concatenate([getattr(b, k) for b in blocks]).tolist() for k in ("step", "microbatch", "rank", "sample")}
        assert list(zip(*got.values())) == want
        read = np.concatenate([b.tokens for b in blocks])
        expected = [[int(stores[c].tokens[int(stores[c]._offsets[s]) // 4 + i]) for c, s, i in data[k]] for *_, k in want]
        assert read.tolist() == expected
        check_segments(table, store, stores, data, want)


def check_segments(table, store, stores, data, want):
    """Every token of a row belongs to exactly one segment, with the document that the index says."""
    numbers = dict(zip(store.corpora["path"].to_pylist(), store.corpora["corpus_id"].to_pylist()))
    mine = {}
    for r in table.to_pylist():
        corpus, document = r["doc_key"] >> DOC_BITS, r["doc_key"] & DOC_MASK
        for i in range(r["doc_stop"] - r["doc_start"]):
            place = (r["step"], r["sequence"], r["seq_start"] + i)
            assert place not in mine
            mine[place] = (corpus, r["stored_seq"], document, r["doc_start"] + i)
    row_of = {}
    for step, _, _, k in want:
        row = row_of.get(step, 0)
        row_of[step] = row + 1
        for i, (c, s, t) in enumerate(data[k]):
            corpus = numbers[str(stores[c].path)]
            file = store.file(corpus)
            document = int(np.searchsorted(file.bounds, s, side="right")) - 1
            before = int(file.lengths[file.bounds[document] : s].sum())
            assert mine.pop((step, row, i)) == (corpus, s, document, before + t)
    assert not mine


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=5, max_size=60), st.integers(1, 60), st.integers(0, 2**31), st.booleans())
def test_a_document_index_holds_every_sequence_once_a_pass_and_a_shuffle_index_is_a_permutation(lengths, wanted, seed, extra):
    from forensics.loaders.megatron.indices import document_index, epochs_of, shuffle_index

    tokens = sum(lengths)
    if not tokens:
        return
    laid = epochs_of(wanted, tokens, 8, int(extra))
    state = np.random.RandomState(seed)
    order = document_index(0, len(lengths), laid, state)
    np.testing.assert_array_equal(np.bincount(order, minlength=len(lengths)), laid.epochs)
    if laid.separate:
        np.testing.assert_array_equal(np.sort(order[-len(lengths) :]), np.arange(len(lengths)))
    np.testing.assert_array_equal(np.sort(shuffle_index(laid, state)), np.arange(laid.samples))
    assert laid.samples >= min(wanted, laid.samples) and laid.epochs * tokens >= wanted * 8 + int(extra)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 40))
def test_a_cyclic_pass_reads_no_sample_twice(total, b, dp, sharding, steps):
    from forensics.errors import NotReplayable
    from forensics.loaders.megatron.sampler import Cyclic

    q = b * dp
    if total < q:
        try:
            Cyclic(total, 0, b=b, dp=dp, sharding=sharding)
        except NotReplayable:
            return
        raise AssertionError("a set that feeds no rank must be refused")
    per_pass = total // q
    rows = Cyclic(total, 0, b=b, dp=dp, sharding=sharding).rows(1, np.arange(0, min(per_pass, steps + 1) * q + 1, q))
    assert len(np.unique(rows.sample)) == len(rows.sample)
    assert rows.sample.max(initial=0) < total


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.integers(1, 400), st.data())
def test_a_blend_is_the_greedy_order_whatever_part_is_asked_for(weights, length, data):
    from forensics.loaders.megatron.blend import BlendOrder

    want = plain_blend(normal(weights), length)
    order = BlendOrder(weights, length)
    at = np.array(data.draw(st.lists(st.integers(0, length - 1), max_size=30)), np.int64)
    for _ in range(2):
        corpus, sample = order.pick(at)
        assert list(zip(corpus.tolist(), sample.tolist())) == [want[i] for i in at]
    wanted = sorted({want[i] for i in at} | {(0, 10**6)})
    found = order.seek(np.array([c for c, _ in wanted]), np.array([s for _, s in wanted]))
    assert [want[i] if i >= 0 else (0, 10**6) for i in found] == wanted
    np.testing.assert_array_equal(order.counts(), np.bincount([c for c, _ in want], minlength=len(weights)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_the_exhaustive_form_reads_every_sample_once(sizes):
    from forensics.loaders.megatron.blend import BlendOrder

    order = BlendOrder([float(s) for s in sizes], sum(sizes), sizes)
    corpus, sample = order.pick(np.arange(sum(sizes)))
    assert sorted(zip(corpus.tolist(), sample.tolist())) == [(c, i) for c, n in enumerate(sizes) for i in range(n)]
    counts, want = [0] * len(sizes), []
    for i in range(sum(sizes)):
        open_ = [c for c in range(len(sizes)) if counts[c] < sizes[c]]
        errors = [np.float64(sizes[c]) / sum(sizes) * max(i, 1) - counts[c] for c in open_]
        best = open_[errors.index(max(errors))]
        want.append(best)
        counts[best] += 1
    assert corpus.tolist() == want


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2000), st.integers(0, 2**31))
def test_randperm_is_the_plain_fisher_yates_in_any_block_size(n, seed):
    from forensics.loaders.megatron.randperm import randperm

    want = plain_randperm(n, seed)
    assert randperm(n, seed).tolist() == want == randperm(n, seed, block=7).tolist()


def test_shards_of_ranks_are_cut_to_whole_global_batches() -> None:
    """23 samples, 2 x 2 read at once: five global batches, so rank 1's shard begins at sample 10, not at half of the data."""
    from forensics.loaders.megatron.sampler import Cyclic

    rows = Cyclic(23, 0, b=2, dp=2, sharding=True).rows(1, np.arange(0, 5 * 4 + 1, 4))
    ranks, samples = np.asarray(rows.rank), np.asarray(rows.sample)
    assert sorted(samples[ranks == 0].tolist()) == list(range(10))
    assert sorted(samples[ranks == 1].tolist()) == list(range(10, 20))


def test_without_shards_ranks_deal_one_deck_card_by_card() -> None:
    from forensics.loaders.megatron.randperm import randperm
    from forensics.loaders.megatron.sampler import Cyclic

    deck = randperm(22, 0)
    rows = Cyclic(23, 0, b=2, dp=2, sharding=False).rows(1, np.arange(0, 2 * 4 + 1, 4))
    ranks, samples = np.asarray(rows.rank), np.asarray(rows.sample)
    assert samples[ranks == 0].tolist() == deck[0:8:2].tolist()
    assert samples[ranks == 1].tolist() == deck[1:8:2].tolist()
