import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.errors import StoreError
from forensics.stores.base import RunStore, open_file, read
from forensics.stores.megatron import HEADER_BYTES, MAGIC, MegatronStore, sniff


def write(prefix, documents, dtype="uint16", *, code=None, offsets=None, tokens=None, modes=b""):
    """A pair of files; `documents` lists each document's stored sequences as lists of ids."""
    flat = [np.array(s, dtype) for d in documents for s in d]
    lengths = np.array([len(s) for s in flat], np.int32)
    size = np.dtype(dtype).itemsize
    if offsets is None:
        offsets = np.concatenate([[0], np.cumsum(lengths[:-1].astype(np.int64) * size)]) if len(flat) else np.empty(0)
    bounds = np.cumsum([0, *(len(d) for d in documents)])
    code = code or {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}[dtype]
    head = MAGIC + struct.pack("<QBQQ", 1, code, len(flat), len(bounds))
    body = lengths.tobytes() + np.asarray(offsets, np.int64).tobytes() + bounds.astype(np.int64).tobytes()
    prefix.with_name(prefix.name + ".idx").write_bytes(head + body + modes)
    data = np.concatenate([*flat, np.empty(0, dtype)]).astype(dtype) if tokens is None else np.array(tokens, dtype)
    prefix.with_name(prefix.name + ".bin").write_bytes(data.tobytes())
    return prefix


def test_a_damaged_index_comes_with_a_remedy(tmp_path):
    path = write(tmp_path / "c", DOCUMENTS).with_suffix(".idx")
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(StoreError, match="truncated") as caught:
        MegatronStore(tmp_path / "c")
    assert "copy the .idx again" in caught.value.hint


DOCUMENTS = [[[1, 2, 3]], [[]], [[4], [5, 6], []], [], [[7, 8, 9, 10]]]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16"])
def test_every_token_type_reads_back(tmp_path, dtype):
    store = MegatronStore(write(tmp_path / "c", DOCUMENTS, dtype))
    assert [store[d].tolist() for d in range(5)] == [[1, 2, 3], [], [4, 5, 6], [], [7, 8, 9, 10]]
    assert (store.n_documents, store.n_sequences, store.n_tokens, store.one_each) == (5, 6, 10, False)
    assert store.document_lengths().tolist() == [3, 0, 3, 0, 4]


def test_either_file_or_the_prefix_opens_the_pair(tmp_path):
    prefix = write(tmp_path / "c.v1_text", [[[1, 2]]])
    for path in (prefix, tmp_path / "c.v1_text.idx", tmp_path / "c.v1_text.bin"):
        assert sniff(path)
        assert MegatronStore(path)[0].tolist() == [1, 2]
    assert open_file(prefix).format == "megatron"
    assert not sniff(tmp_path / "other")


def test_stored_offsets_are_trusted_not_the_running_sum(tmp_path):
    prefix = write(tmp_path / "c", [[[0, 0]], [[0, 0, 0]], [[0, 0]]], offsets=[8, 0, 8], tokens=[10, 11, 12, 99, 20, 21])
    store = MegatronStore(prefix)
    assert [store[d].tolist() for d in range(3)] == [[20, 21], [10, 11, 12], [20, 21]]


def test_documents_and_places_of_stored_sequences(tmp_path):
    store = MegatronStore(write(tmp_path / "c", DOCUMENTS))
    sequences = np.arange(6)
    documents = store.documents_of(sequences)
    assert documents.tolist() == [0, 1, 2, 2, 2, 4]
    assert store.starts_in_document(sequences, documents).tolist() == [0, 0, 0, 1, 3, 0]


def test_multimodal_files_have_a_mode_byte_per_sequence(tmp_path):
    store = MegatronStore(write(tmp_path / "c", DOCUMENTS, modes=b"\0" * 6))
    assert store.has_modes
    assert store[4].tolist() == [7, 8, 9, 10]


def test_an_empty_corpus_is_one(tmp_path):
    store = MegatronStore(write(tmp_path / "c", []))
    assert (store.n_documents, store.n_tokens) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.lists(st.integers(0, 60000), max_size=7), max_size=4), min_size=1, max_size=12), st.data())
def test_parts_of_documents_are_slices_of_them(tmp_path_factory, documents, data):
    store = MegatronStore(write(tmp_path_factory.mktemp("c") / "c", documents))
    whole = [[t for s in d for t in s] for d in documents]
    chosen = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=10))
    starts = [data.draw(st.integers(0, len(whole[d]))) for d in chosen]
    stops = [data.draw(st.integers(a, len(whole[d]))) for d, a in zip(chosen, starts)]
    tokens, offsets = read(store, np.array(chosen, np.int64), np.array(starts, np.int64), np.array(stops, np.int64))
    assert [tokens[a:b].tolist() for a, b in zip(offsets, offsets[1:])] == [whole[d][a:b] for d, a, b in zip(chosen, starts, stops)]


def broken(tmp_path, change, name="idx"):
    prefix = write(tmp_path / "c", DOCUMENTS, "int32")
    path = prefix.with_name(f"c.{name}")
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        MegatronStore(prefix)
    return caught.value.message


def put(at, value):
    def change(content):
        content[at : at + len(value)] = value

    return change


def cut(n):
    def change(content):
        del content[-n:]

    return change


def test_a_file_of_another_kind_is_named_so(tmp_path):
    assert "starts with" in broken(tmp_path, put(0, b"PAR1"))
    assert "TNTIDX" in broken(tmp_path, put(0, b"TNTIDX\0\0"))
    assert "version 2" in broken(tmp_path, put(9, b"\2"))
    assert "token type 77" in broken(tmp_path, put(17, b"\x4d"))
    assert "floating-point" in broken(tmp_path, put(17, b"\6"))


def test_a_truncated_index_says_how_long_it_should_be(tmp_path):
    full = HEADER_BYTES + 12 * 6 + 8 * 6
    assert f"{full - 3} bytes, {full} expected" in broken(tmp_path, cut(3))
    assert "ends inside its header" in broken(tmp_path, cut(full - 20))
    assert "longer than its header says" in broken(tmp_path, lambda c: c.extend(b"xx"))


def test_a_bin_shorter_than_its_index_names_the_sequence(tmp_path):
    assert "sequence 5 ends at byte 40" in broken(tmp_path, cut(4), "bin")


def test_an_index_that_contradicts_itself_is_refused(tmp_path):
    assert "negative length" in broken(tmp_path, put(HEADER_BYTES, struct.pack("<i", -1)))
    assert "no multiple of 4" in broken(tmp_path, put(HEADER_BYTES + 24, struct.pack("<q", 3)))
    assert "from (0, 7), expected from 0 to 6" in broken(tmp_path, put(HEADER_BYTES + 72 + 40, struct.pack("<q", 7)))
    assert "not ascending" in broken(tmp_path, put(HEADER_BYTES + 72 + 8, struct.pack("<q", 5)))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"none\.idx does not exist"):
        MegatronStore(tmp_path / "none")
    prefix = write(tmp_path / "c", DOCUMENTS)
    prefix.with_name("c.bin").unlink()
    with pytest.raises(StoreError, match=r"c\.bin does not exist"):
        MegatronStore(prefix)


def test_documents_beyond_the_file_are_refused(tmp_path):
    store = MegatronStore(write(tmp_path / "c", DOCUMENTS))
    with pytest.raises(StoreError, match="5 documents, number 5"):
        store.document_lengths(np.array([5]))
    with pytest.raises(StoreError, match="beyond its end"):
        read(store, np.array([0]), np.array([0]), np.array([4]))


def test_a_run_store_joins_files_of_different_types(tmp_path):
    a, b = MegatronStore(write(tmp_path / "a", [[[1]], [[2, 3]]], "uint16")), MegatronStore(write(tmp_path / "b", [[[70000, 4]], [[5]]], "int32"))
    store = RunStore({0: a, 3: b}, names={0: "data/a", 3: "data/b"})
    keys = np.array([(3 << 40) | 0, 1, (3 << 40) | 1, 0])
    assert store.document_lengths(keys).tolist() == [2, 2, 1, 1]
    batch = store.documents(keys)
    assert batch.tokens.tolist() == [70000, 4, 2, 3, 5, 1]
    assert batch.offsets.tolist() == [0, 2, 4, 5, 6]
    assert store.corpora.column("corpus_id").to_pylist() == [0, 3]
    assert store.corpora.column("name").to_pylist() == ["a", "b"]
    assert [d.doc_key.tolist() for d in store.batches(0, 2)] == [[0], [1]]
    assert [d.tokens.tolist() for d in store.batches(3, 100)] == [[70000, 4, 5]]
    with pytest.raises(StoreError, match="no corpus 1"):
        store.lengths(1)


def test_the_fingerprint_follows_the_files(tmp_path):
    prefix = write(tmp_path / "c", DOCUMENTS)
    first = MegatronStore(prefix).fingerprint
    assert MegatronStore(prefix).fingerprint == first
    write(tmp_path / "c", [*DOCUMENTS, [[1]]])
    assert MegatronStore(prefix).fingerprint != first


def test_no_format_fits_a_text_file(tmp_path):
    (tmp_path / "notes.xyz").write_text("hello")
    with pytest.raises(StoreError, match="of no known format"):
        open_file(tmp_path / "notes.xyz")
