"""Megatron cases: `run.json` as the README beside the cases describes it -> a run description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

OWN = {"about", "framework", "mcore_version", "launches", "data_moved", "data_cache_path", "start_iteration", "stop_iteration", "consumed_train_samples"}
RENAMED = {"start_iteration": "after_step", "consumed_train_samples": "consumed", "stop_iteration": "last_step"}


def describe(run: dict[str, Any], case: Path) -> dict[str, Any]:
    """What `forensics.yaml` of such a run says."""
    out: dict[str, Any] = {"run": case.name, "trainer": "megatron", "args": {k: v for k, v in run.items() if k not in OWN}}
    out |= {"version": str(run["mcore_version"])} if "mcore_version" in run else {}
    out |= {"cache": run["data_cache_path"]} if "data_cache_path" in run else {}
    out |= {"moved": run["data_moved"]} if run.get("data_moved") else {}
    out["launches"] = []
    for launch in run.get("launches") or [{}]:
        one = {"after_step": 0} | {RENAMED[k]: v for k, v in launch.items() if k in RENAMED}
        over = {k: v for k, v in launch.items() if k not in OWN}
        out["launches"].append(one | ({"args": over} if over else {}))
    return out
