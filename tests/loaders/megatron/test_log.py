"""Training logs of all ages: arguments, launches, counters and index sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forensics.loaders.megatron.log import read_logs, value_of

ARGS = {
    "data_path": ["0.7", "data/web text", "0.3", "data/code"], "global_batch_size": 8, "split": "969, 30, 1", "lr": 0.0003, "train_samples": None,
    "sequence_parallel": True,
    "rampup_batch_size": None, "log_interval": 1, "an_option_whose_name_is_longer_than_forty_eight_letters_all": 3,
}  # fmt: skip


def block(args: dict[str, Any], prefix: str = "", width: int = 48) -> str:
    """An arguments block as `_print_args` prints it."""
    inner = [f"  {k} {'.' * (width - len(k))} {v}" for k, v in sorted(args.items())]
    return "".join(
        f"{prefix}{x}\n"
        for x in ["------------------------ arguments ------------------------", *inner, "-------------------- end of arguments ---------------------"]
    )


def steps(first: int, last: int, batch: int = 8, every: int = 1, start: str = " ", planned: int = 100, consumed: int = 0) -> str:
    """Iteration lines; `consumed` is the counter before step 1."""
    return "".join(
        f"{start}iteration {s:8d}/{planned:8d} | consumed samples: {consumed + s * batch:12d} | elapsed time per iteration (ms): 100.0 | "
        f"learning rate: 1.0E-4 | global batch size: {batch:5d} | lm loss: 2.5E+00 |\n"
        for s in range(first, last + 1)
        if s % every == 0
    )


def read(tmp_path: Path, *texts: str) -> list[Any]:
    paths = []
    for i, text in enumerate(texts):
        paths.append(tmp_path / f"{i}.log")
        paths[-1].write_text(text)
    return read_logs(paths)


@pytest.mark.parametrize("prefix", ["", "[default0]:", "0: ", "[2026-05-28 22:26:20] ", "INFO:root:"])
@pytest.mark.parametrize("width", [29, 48])
def test_arguments_blocks_of_all_ages(prefix: str, width: int, tmp_path: Path) -> None:
    (one,) = read(tmp_path, "noise ... more\n" + block(ARGS, prefix, width) + "after ..... 3\n")
    assert one.args == ARGS
    assert one.args_line == 2
    assert one.origin == "log 0.log:2"


def test_values_keep_their_types_and_text_stays_text() -> None:
    given = [
        "12",
        "-3",
        "1e-05",
        "0.9",
        "inf",
        "None",
        "True",
        "['1', 'a b']",
        "949,50,1",
        "100",
        "0.16.1",
        "torch.bfloat16",
        "[not a list",
        "[1] + [2]",
        "",
        "12,30",
    ]
    want = [12, -3, 1e-05, 0.9, float("inf"), None, True, ["1", "a b"], "949,50,1", 100, "0.16.1", "torch.bfloat16", "[not a list", "[1] + [2]", "", "12,30"]
    assert [value_of(x) for x in given] == want
    assert value_of("[" * 100_000) == "[" * 100_000


def test_a_restart_a_rollback_and_a_crash_before_the_first_step(tmp_path: Path) -> None:
    text = (
        block(ARGS) + "WARNING: could not find the metadata file x\n    will not load any checkpoints and will start from random\n" + steps(1, 34)
        + "  successfully saved checkpoint from iteration      24 to ckpt [ t 1/1, p 1/1 ]\n"
        + block(ARGS) + " loading distributed checkpoint from ckpt at iteration 24\n"
        + block({**ARGS, "global_batch_size": 16}) + " loading distributed checkpoint from ckpt at iteration 24\n"
        + "  successfully loaded checkpoint from ckpt [ t 1/1, p 1/1 ] at iteration 24\n"
        + steps(25, 42, 16, consumed=-192) + "[exiting program at iteration 42] datetime: 2026\n"
    )  # fmt: skip
    first, crashed, second = read(tmp_path, text)
    assert (first.loaded, first.first, first.last, first.saved, first.consumed()) == (0, 1, 34, [24], 0)
    assert (crashed.loaded, crashed.first) == (24, None)
    assert (second.loaded, second.first, second.last, second.stopped, second.args["global_batch_size"]) == (24, 25, 42, 42, 16)
    assert second.after_step() == (24, True)
    assert second.consumed() == 192
    assert second.points.consumed[0] == 208


@pytest.mark.parametrize(
    ("lines", "start", "said", "consumed"),
    [
        (steps(1, 5), 0, True, 0),
        (steps(10, 40, every=10), 0, True, 0),
        (steps(50, 80, every=10), 40, False, None),
        (steps(41, 41) + steps(50, 80, every=10), 40, False, 320),
        (steps(41, 45), 40, False, 320),
    ],
)
def test_where_a_launch_starts_is_read_or_said_to_be_implied(lines: str, start: int, said: bool, consumed: int | None, tmp_path: Path) -> None:
    (one,) = read(tmp_path, lines)
    assert one.after_step() == (start, said)
    assert one.consumed() == consumed


def test_a_constant_batch_gives_the_counter_at_the_start_and_a_ramp_does_not(tmp_path: Path) -> None:
    (constant,) = read(tmp_path, block(ARGS) + " loading checkpoint from c at iteration 40\n" + steps(50, 80, every=10))
    assert constant.consumed() == 320
    (ramp,) = read(tmp_path, block({**ARGS, "rampup_batch_size": [4, 4, 96]}) + " loading checkpoint from c at iteration 40\n" + steps(50, 80, every=10))
    assert ramp.consumed() is None


def test_rotated_files_are_one_launch_and_time_stamps_order_them(tmp_path: Path) -> None:
    later, earlier = steps(6, 9, start=" [2026-05-02 00:00:00] "), block(ARGS) + steps(1, 5, start=" [2026-05-01 23:00:00] ")
    (one,) = read(tmp_path, later, earlier)
    assert one.points.step == list(range(1, 10))
    assert one.points.file[0].name == "1.log"
    assert one.points.file[-1].name == "0.log"


def test_ranks_that_print_the_same_line_make_no_launch(tmp_path: Path) -> None:
    line = steps(7, 7)
    (one,) = read(tmp_path, "".join(f"[default{r}]:{x}\n" for s in (5, 6, 7) for r in (6, 7) for x in steps(s, s).splitlines()) + line)
    assert one.points.step == [5, 6, 7]


def test_a_record_wrapped_over_lines_is_read(tmp_path: Path) -> None:
    text = " iteration    31214/  115311 |\nconsumed samples:     47768496 | consumed tokens: 1 |\n global batch size:  2048 | lm loss: 2.1 |\n"
    text += " iteration 31215/ 115311 | consumed samples: 47770544 | global batch size: 2048 |\n"
    (one,) = read(tmp_path, text)
    assert one.points.step == [31214, 31215]
    assert one.points.consumed == [47768496, 47770544]


def test_a_log_from_before_samples_were_counted_has_steps_alone(tmp_path: Path) -> None:
    text = " iteration       10/    1000 | elapsed time per iteration (ms): 3171.3 | learning rate: 1.0E-4 | lm loss: 2.0 |\n" + block(ARGS)
    first, second = read(tmp_path, text)
    assert (first.points.step, first.points.consumed, first.points.batch) == ([10], [None], [None])
    assert second.args == ARGS


def test_sizes_that_data_sets_print_new(tmp_path: Path) -> None:
    text = (
        block(ARGS) + "> building train, validation, and test datasets ...\n"
        " > datasets target sizes (minimum size):\n    train:      480\n    validation: 64\n    test:       16\n"
        "INFO:m.indexed_dataset:Load the _IndexReader from data/web text.idx\nINFO:m.indexed_dataset:> total number of sequences: 105\n"
        "INFO:m.gpt_dataset:Build and save the GPTDataset train indices\nINFO:m.gpt_dataset:> total number of samples: 530\n"
        "INFO:m.gpt_dataset:> total number of epochs: 2\n"
        "INFO:m.gpt_dataset:Load the GPTDataset valid indices\n"
        "INFO:m.gpt_dataset:\tLoad the document index from ab12-GPTDataset-valid-document_index.npy\n"
        "INFO:m.gpt_dataset:> total number of samples: 30\n" + steps(1, 3)
    )
    (one,) = read(tmp_path, text)
    assert one.targets == {"train": 480, "validation": 64, "test": 16}
    assert [(b.split, b.prefix, b.samples, b.epochs, b.file) for b in one.built] == [
        ("train", "data/web text", 530, 2, None),
        ("valid", "data/web text", 30, None, "ab12-GPTDataset-valid-document_index.npy"),
    ]


def test_sizes_that_data_sets_print_old(tmp_path: Path) -> None:
    """Before megatron-core the number of rows of the sample index was printed, one more than there are samples."""
    text = (
        " > dataset split:\n    train:\n     document indices in [0, 949) total of 949 documents\n"
        " > loading doc-idx mapping from /d/web_text_document_train_indexmap_480ns_64sl_1234s_doc_idx.npy\n"
        " > loading sample-idx mapping from /d/web_text_document_train_indexmap_480ns_64sl_1234s_sample_idx.npy\n"
        "    loaded indexed file in 0.003 seconds\n    total number of samples: 531\n    total number of epochs: 2\n" + steps(1, 2)
    )
    (one,) = read(tmp_path, text)
    assert [(b.split, b.prefix, b.samples, b.epochs) for b in one.built] == [("train", "/d/web_text_document", 530, 2)]


@pytest.mark.parametrize(
    "text", ["", "\x00\xff\xfe junk\n" * 50, "iteration 3/ 5\n", block(ARGS)[:200], " iteration 99999999999999999999/1 | consumed samples: 1 |\n"]
)
def test_junk_torn_and_empty_files_are_no_failure(text: str, tmp_path: Path) -> None:
    assert len(read(tmp_path, text)) <= 1
