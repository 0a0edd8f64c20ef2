import numpy as np
import pytest

from forensics.errors import NotReplayable, RunError
from forensics.loaders.megatron.indices import epochs_of, samples_of, shuffle_index, split_bounds, split_range


def test_splits_are_read_as_the_trainer_reads_them():
    assert split_bounds("969, 30, 1") == [(0, 0.969), (0.969, 0.999), (0.999, 1.0)]
    assert split_bounds("100,0,0") == [(0, 1.0), None, None]
    assert split_bounds("98/2") == [(0, 0.98), (0.98, 1.0), None]
    assert split_bounds("1") == [(0, 1.0), None, None]


@pytest.mark.parametrize("text", ["", "0,0,0", "1,2,3,4", "1.2.3,1", "none"])
def test_splits_that_the_trainer_refuses_are_refused(text):
    with pytest.raises(RunError):
        split_bounds(text)


def test_bounds_round_half_to_even():
    assert split_range((0, 0.5), 5) == (0, 2)
    assert split_range((0, 0.5), 7) == (0, 4)
    assert split_range((0.969, 0.999), 700) == (678, 699)


def test_tokens_that_are_exactly_enough_are_one_pass():
    assert epochs_of(10, 641, 64, 1).epochs == 1
    assert epochs_of(10, 640, 64, 1).epochs == 2
    assert epochs_of(10, 640, 64, 0).epochs == 1
    assert epochs_of(2, 43, 64, 1).epochs == 3
    assert epochs_of(2, 42, 64, 1).epochs == 4


def test_the_last_pass_is_apart_below_eighty_per_cent_cut_to_a_whole():
    # 7 samples a pass: int(0.8 * 7) = 5 are the border; 4 wanted of the last pass are fewer, 5 are not
    tokens = 7 * 64 + 1
    first = (tokens - 1) // 64
    assert epochs_of(first + 4, tokens, 64, 1).separate
    assert not epochs_of(first + 5, tokens, 64, 1).separate
    assert epochs_of(first + 4, tokens, 64, 1).first == first


def test_one_pass_where_no_number_is_wanted():
    laid = epochs_of(None, 1000, 64, 1)
    assert (laid.epochs, laid.separate, laid.samples) == (1, False, 15)
    assert epochs_of(None, 0, 64, 1).samples == 0


def test_no_tokens_while_samples_are_wanted_would_run_for_ever():
    with pytest.raises(NotReplayable, match="never returns"):
        epochs_of(1, 0, 64, 1)


def test_a_partial_last_sample_is_counted_in_float32():
    assert samples_of(1000, 64, 1, drop_last=False) == 16
    assert samples_of(961, 64, 1, drop_last=False) == 15
    tokens = (1 << 25) + 3
    assert samples_of(tokens, 1, 1, drop_last=False) != tokens - 1


def test_the_shuffle_index_is_as_wide_as_the_library_makes_it():
    laid = epochs_of(5, 1000, 64, 1)
    assert shuffle_index(laid, np.random.RandomState(1)).dtype == np.uint32
