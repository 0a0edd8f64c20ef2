import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.errors import RunError
from forensics.loaders.base import loader_of
from forensics.loaders.rows import View, loss_mask, position_ids, rows_of, view_of
from forensics.steps import StepRange

EOD = 9


def plain_masks(row, view):
    """The trainer's own loop, for one row."""
    tokens, labels = (row[:-1], row[1:]) if view.extra else (row, [*row[1:], -1])
    mask = [int(label not in (-1, view.pad)) for label in labels]
    if view.eod_mask_loss:
        mask = [0 if t == view.eod else m for t, m in zip(tokens, mask)]
    positions, begin = list(range(len(tokens))), 0
    if view.reset_position_ids:
        for i, t in enumerate(tokens):
            if t == view.eod:
                for j in range(i + 1, len(tokens)):
                    positions[j] -= i + 1 - begin
                begin = i + 1
    return mask, positions


@given(
    st.lists(st.lists(st.integers(-1, 9), min_size=6, max_size=6), min_size=1, max_size=5),
    st.booleans(), st.booleans(), st.integers(0, 1), st.sampled_from([-1, 3]),
)  # fmt: skip
def test_masks_and_positions_are_those_of_the_trainer(rows, mask_loss, reset, extra, pad):
    view = View(6, extra, EOD, pad, mask_loss, reset)
    tokens = np.array(rows, np.int32)
    want = [plain_masks(row, view) for row in rows]
    assert loss_mask(tokens, view).tolist() == [w[0] for w in want]
    assert position_ids(tokens, view).tolist() == [w[1] for w in want]


def test_what_depends_on_an_unknown_end_of_document_is_left_out():
    tokens = np.zeros((1, 4), np.int32)
    assert loss_mask(tokens, View(4, eod_mask_loss=True)) is None
    assert position_ids(tokens, View(4, eod_mask_loss=True)).tolist() == [[0, 1, 2]]
    assert position_ids(tokens, View(4, reset_position_ids=True)) is None
    assert position_ids(tokens, View(4, other_positions=True)) is None


@pytest.fixture
def small(corpus, describe, base):
    corpus("web", [[30], [5, 0, 7], [], [0], [60]], seed=3)
    return describe(base | {"train_iters": 2, "global_batch_size": 4, "micro_batch_size": 1, "eod_mask_loss": True, "eod_token_id": 5, "split": "1"})


def test_the_view_follows_the_arguments(small):
    view = view_of(small, 0, loader_of(small).store(small), 17)
    assert view == View(17, 1, 5, eod_mask_loss=True)
    with pytest.raises(RunError, match="length of a sequence"):
        view_of(type(small)("x", "t", small.folder, (type(small.launches[0])(0),)), 0, loader_of(small).store(small), None)


def test_blocks_hold_whole_rows(small, monkeypatch):
    loader = loader_of(small)
    table = pa.concat_tables(loader.consumed(small, StepRange(1, 3)))
    whole = list(rows_of(table, loader.store(small), 17))
    assert [len(b) for b in whole] == [8]
    monkeypatch.setattr("forensics.loaders.rows.TOKENS_AT_ONCE", 17 * 3)
    pieces = list(rows_of(table, loader.store(small), 17))
    assert [len(b) for b in pieces] == [3, 3, 2]
    np.testing.assert_array_equal(np.concatenate([b.tokens for b in pieces]), whole[0].tokens)
    np.testing.assert_array_equal(np.concatenate([b.step for b in pieces]), [1] * 4 + [2] * 4)
    assert sum(b.segments.num_rows for b in pieces) == table.num_rows


def test_a_row_that_is_too_long_is_refused(small):
    loader = loader_of(small)
    table = pa.concat_tables(loader.consumed(small, StepRange(1, 3)))
    with pytest.raises(RunError, match="a row has 16"):
        list(rows_of(table, loader.store(small), 16))
