"""GPT-NeoX cases of both layouts: beside the Megatron cases (options at the top level), and in a folder of their own (`neox_args`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

OWN = {"about", "framework", "launches", "start_iteration", "stop_iteration"}
ABOUT = {"note", "framework_version", "sources", "segments_reproduce_tokens", "dataset_len", "loader_len_microbatches", "cached_index_files", "steps_run"}


def describe(run: dict[str, Any], case: Path) -> dict[str, Any]:
    """What `forensics.yaml` of such a run says."""
    out: dict[str, Any] = {"run": case.name, "trainer": "neox"}
    given = run.get("neox_args", {})
    read = {k: v for k, v in {**run, **given}.items() if k not in OWN | ABOUT | {"neox_args", "resumed_from_iteration"} and v is not None}
    if given.get("train_data_paths"):
        read.pop("split", None)
    out["args"] = read
    if "steps_run" in run:
        out["launches"] = [{"after_step": run.get("resumed_from_iteration", 0), "last_step": run["steps_run"][1]}]
        return out
    out["launches"] = []
    for launch in run.get("launches") or [{}]:
        one: dict[str, Any] = {"after_step": launch.get("start_iteration", 0)}
        one |= {"last_step": launch["stop_iteration"]} if "stop_iteration" in launch else {}
        over = {k: v for k, v in launch.items() if k not in OWN}
        out["launches"].append(one | ({"args": over} if over else {}))
    return out
