"""Orders of torch's loaders against what torch 2.14.1 and torchdata 0.11.0 yielded: 7 examples, generator of seed 5."""

import pytest

from forensics.loaders.pytorch_order import LoaderEpochs, StatefulEpochs, TorchGenerator

PLAIN = [[2, 4, 3, 5, 0, 6, 1], [4, 1, 0, 2, 3, 6, 5], [3, 0, 2, 5, 1, 6, 4], [2, 5, 6, 1, 3, 4, 0]]
PLAIN_LASTING = [[2, 4, 3, 5, 0, 6, 1], [3, 1, 5, 0, 6, 4, 2], [1, 4, 5, 2, 0, 3, 6], [4, 2, 3, 0, 1, 6, 5]]
STATEFUL = [[1, 0, 4, 2, 6, 5, 3], [5, 0, 6, 1, 2, 3, 4], [4, 1, 0, 2, 3, 6, 5], [1, 2, 3, 4, 6, 5, 0]]
STATEFUL_WORKERS = [[5, 0, 6, 1, 2, 3, 4], [0, 4, 6, 1, 5, 2, 3], [5, 3, 2, 4, 0, 6, 1], [6, 3, 1, 4, 0, 2, 5]]
STATEFUL_LASTING = [[5, 0, 6, 1, 2, 3, 4], [3, 1, 5, 0, 6, 4, 2], [3, 4, 1, 6, 0, 2, 5], [1, 4, 5, 2, 0, 3, 6]]


@pytest.mark.parametrize(("persistent", "want"), [(False, PLAIN), (True, PLAIN_LASTING)])
def test_workers_that_persist_change_a_plain_loader_s_later_epochs(persistent: bool, want: list[list[int]]) -> None:
    epochs = LoaderEpochs(TorchGenerator(5), 7, persistent)
    assert [epochs.order(i).tolist() for i in range(4)] == want


@pytest.mark.parametrize(
    ("workers", "persistent", "want"),
    [(0, False, STATEFUL), (0, True, STATEFUL), (1, False, STATEFUL_WORKERS), (1, True, STATEFUL_LASTING), (2, True, STATEFUL_LASTING)],
)
def test_workers_that_persist_change_a_stateful_loader_s_later_epochs(workers: int, persistent: bool, want: list[list[int]]) -> None:
    epochs = StatefulEpochs(TorchGenerator(5), 7, workers=workers, resumed=False, persistent=persistent)
    assert [epochs.order(i).tolist() for i in range(4)] == want
