"""The four minimal panels of a training dashboard: what is logged, what is missing, and why it would matter (rule 32)."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.curves.series import Curves


@dataclass(frozen=True)
class Panel:
    """A panel with its gaps.

    Attributes:
        name: quality, stability, performance, resources.
        present: metrics that were logged.
        missing: what was not, with the reason why it matters.
    """

    name: str
    present: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]


_WANTED: dict[str, tuple[tuple[str, tuple[str, ...], str], ...]] = {
    "quality": (
        ("train loss", ("train_loss",), "without it nothing here can be judged"),
        ("validation loss", ("eval_loss", "eval_ppl"), "the only scale on which 0.02 nats of lasting damage show; train loss is blind under about 0.04"),
        ("loss by source", ("train_loss/",), "tells one source that spikes from all of them"),
        ("learning rate", ("learning_rate",), "a clock that jumps at a resume does lasting damage that the train loss hides"),
    ),
    "stability": (
        ("gradient norm", ("grad_norm",), "rises one to three steps before the loss does"),
        ("overflow or loss scale", ("loss_scale", "skipped_steps", "nan_steps"), "fp16 runs collapse here tens of steps before the loss explodes"),
        ("clip share", ("clip_ratio", "clip_share"), "shows clipping that does nothing, or everything"),
        ("update size", ("update_norm", "update_rms"), "moves before the gradient norm when optimizer state is damaged"),
    ),
    "performance": (
        (
            "throughput",
            ("tokens_per_second", "tokens_per_second_per_device", "samples_per_second", "steps_per_second"),
            "a slow node costs five per cent for weeks without touching the loss",
        ),
        ("step time", ("step_time",), "its median and ninth decile tell stragglers from slowness"),
        ("data time", ("data_time",), "tells a starving loader from slow compute"),
    ),
    "resources": (
        ("peak device memory", ("memory_peak", "memory_peak_reserved", "memory_share"), "how far the run is from running out"),
        ("allocated and reserved memory", ("memory_allocated", "memory_reserved"), "tells a leak from fragmentation"),
        ("CPU memory", ("cpu_memory",), "loader workers that leak end a run as surely as device memory"),
        ("loader queue", ("loader_queue",), "an empty queue explains slow steps"),
    ),
}


def panels(curves: Curves) -> list[Panel]:
    """The four panels of a run, in order."""
    names = list(curves.global_)
    found = []
    for panel, wanted in _WANTED.items():
        present, missing = [], []
        for label, metrics, why in wanted:
            hit = [n for n in names if any(n.startswith(m) if m.endswith("/") else n == m or n.startswith(m + "/") for m in metrics)]
            if hit:
                present.append(label)
            else:
                missing.append((label, why))
        found.append(Panel(panel, tuple(present), tuple(missing)))
    return found
