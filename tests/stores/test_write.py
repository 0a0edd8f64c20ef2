import numpy as np
import pytest

from forensics.errors import ForensicsError
from forensics.stores.megatron import MegatronStore
from forensics.stores.write import MegatronWriter, NpzWriter


def test_an_archive_grows_by_rows_and_reads_with_numpy(tmp_path):
    with NpzWriter(tmp_path / "a.npz") as archive:
        archive.add(x=np.arange(3, dtype=np.int32), y=np.ones((3, 4), np.uint8))
        archive.add(x=np.arange(2, dtype=np.int64), y=np.zeros((2, 4), np.uint8))
        archive.add(once=np.array([1.5]))
    got = np.load(tmp_path / "a.npz", allow_pickle=False)
    assert got["x"].tolist() == [0, 1, 2, 0, 1]
    assert got["x"].dtype == np.int32
    assert got["y"].shape == (5, 4)
    assert got["once"].tolist() == [1.5]
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_an_archive_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="column x"), NpzWriter(tmp_path / "a.npz") as archive:
        archive.add(x=np.zeros((2, 3)))
        archive.add(x=np.zeros((2, 4)))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ForensicsError, match="cannot be written"), NpzWriter(tmp_path / "file" / "a.npz"):
        pass


def test_a_corpus_written_is_a_corpus_read(tmp_path):
    with MegatronWriter(tmp_path / "c", np.dtype(np.int32)) as writer:
        writer.add(np.array([1, 2, 3]), np.array([1, 2]))
        writer.add(np.array([4]), np.array([0, 1]))
    store = MegatronStore(tmp_path / "c")
    assert [store[d].tolist() for d in range(4)] == [[1], [2, 3], [], [4]]


def test_an_empty_corpus_can_be_written(tmp_path):
    with MegatronWriter(tmp_path / "c", np.dtype(np.uint16)):
        pass
    assert MegatronStore(tmp_path / "c").n_documents == 0
