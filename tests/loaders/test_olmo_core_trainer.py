"""The trainer block of OLMo-core: callbacks that change a batch are modelled or refused by name."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from forensics.errors import ForensicsError
from forensics.loaders.base import LOADERS
from forensics.loaders.olmo_core.trainer import LengthWarmup
from forensics.run import RunFile, RunSpec, resolve
from forensics.steps import StepRange

LOADER: Any = LOADERS.get("olmo-core")
CORE = "olmo_core.train.callbacks"


def described(folder: Path, trainer: dict[str, Any], launches: list[dict[str, Any]] | None = None) -> RunSpec:
    np.arange(1, 401, dtype="<u2").tofile(folder / "part.npy")
    dataset = {"type": "fsl", "paths": ["part.npy"], "sequence_length": 16, "dtype": "uint16", "eos_token_id": 0, "pad_token_id": 0}
    args = {"dataset": dataset, "data_loader": {"global_batch_size": 32, "seed": 3}, "trainer": trainer}
    return resolve(msgspec.convert({"trainer": "olmo-core", "args": args, **({"launches": launches} if launches else {})}, RunFile), None, folder)


def tokens(run: RunSpec, first: int, last: int) -> list[np.ndarray]:
    return [t for _, block in LOADER.sequences(run, StepRange(first, last + 1)) for t in block]


def test_a_length_warm_up_cuts_instances_until_its_last_step(tmp_path: Path) -> None:
    block = {"_CLASS_": f"{CORE}.sequence_length_scheduler.SequenceLengthSchedulerCallback", "min_sequence_length": 4, "warmup_steps": 4, "truncate": True}
    run = described(tmp_path, {"callbacks": {"mine": {**block, "keep_multiple_of": 4}}})
    whole = tokens(described(tmp_path, {}), 1, 6)
    for i, (cut, full) in enumerate(zip(tokens(run, 1, 6), whole)):
        width = [4, 8, 12, 16, 16, 16][i // 2]  # 7, 10, 13, 16 down to a multiple of 4
        np.testing.assert_array_equal(cut[:width], full[:width])
        assert (cut[width:] == -1).all()
    assert len(whole) == 12


def test_split_instances_are_shown_whole_and_said_so(tmp_path: Path) -> None:
    run = described(tmp_path, {"callbacks": {"sequence_length_scheduler": {"min_sequence_length": 4, "warmup_steps": 4}}})
    for mine, full in zip(tokens(run, 1, 2), tokens(described(tmp_path, {}), 1, 2)):
        np.testing.assert_array_equal(mine, full)
    assert "split every instance" in str(LOADER.launches(run)["origin"].to_pylist())


@pytest.mark.parametrize(
    ("trainer", "word"),
    [
        ({"max_durations": {"value": 3, "unit": "steps"}}, "max_durations"),
        ({"callbacks": {"mine": {"_CLASS_": "my.code.DocumentShufflerCallback"}}}, "DocumentShufflerCallback"),
        ({"callbacks": {"reorder": {"every": 3}}}, "reorder"),
        ({"callbacks": {"x": {"_CLASS_": f"{CORE}.batch_size_scheduler.BatchSizeSchedulerCallback", "sizes": [3]}}}, "sizes"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, trainer: dict[str, Any], word: str) -> None:
    with pytest.raises(ForensicsError, match=word):
        LOADER.launches(described(tmp_path, trainer))


def test_the_library_s_own_callbacks_pass(tmp_path: Path) -> None:
    names = (
        "checkpointer.CheckpointerCallback", "config_saver.ConfigSaverCallback", "evaluator_callback.LMEvaluatorCallbackConfig", "wandb.WandBCallback",
        "evaluator_callback.DownstreamEvaluatorCallbackConfig", "gap_monitor.GAPMonitorCallback", "gpu_memory_monitor.GPUMemoryMonitorCallback",
        "hf_converter.HFConverterCallback", "profiler.NvidiaProfilerCallback", "profiler.TorchMemoryHistoryCallback", "model_merger.ModelMergeCallback",
        "monkey_patcher.MonkeyPatcherCallback", "speed_monitor.SpeedMonitorCallback", "stability_monitor.StabilityMonitorCallback",
        "beaker.BeakerCallback", "comet.CometCallback", "garbage_collector.GarbageCollectorCallback", "slack_notifier.SlackNotifierCallback",
        "checkpoint_ready_notifier.CheckpointReadyNotifierCallback", "console_logger.ConsoleLoggerCallback", "list_checkpointer.ListCheckpointerCallback",
        "metric_saver.MetricSaverCallback", "profiler.ProfilerCallback", "evaluator_callback.EvaluatorCallback",
    )  # fmt: skip
    run = described(tmp_path, {"save_folder": "x", "callbacks": {f"c{i}": {"_CLASS_": f"{CORE}.{n}"} for i, n in enumerate(names)}})
    assert len(LOADER.launches(run)) == 1


def test_a_resumed_launch_that_loaded_no_trainer_state_contradicts_itself(tmp_path: Path) -> None:
    run = described(tmp_path, {"load_trainer_state": False}, [{"after_step": 0}, {"after_step": 3}])
    with pytest.raises(ForensicsError, match="load_trainer_state"):
        LOADER.launches(run)


def test_the_warm_up_s_widths_are_those_of_the_library() -> None:
    """Printed by `_get_truncated_sequence_length(128, 2048, step, 100, 128)` of OLMo-core 3.0.0."""
    warmup = LengthWarmup(128, 100, True, 128)
    assert [warmup.width(step, 2048) for step in (1, 2, 7, 50, 93, 99, 100, 101)] == [128, 128, 256, 1024, 1792, 2048 - 128, 2048, 2048]
