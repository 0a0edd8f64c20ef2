"""The recorder in Megatron-LM's pretraining scripts (`pretrain_gpt.py`), two lines.

    from forensics.live.hooks.for_megatron import MegatronRecorder
    recorder = MegatronRecorder("records")

    def loss_func(loss_mask, output_tensor, model=None):
        recorder.loss(loss_mask, output_tensor)                      # first line
        ...
    def forward_step(data_iterator, model):
        tokens, labels, loss_mask, attention_mask, position_ids = get_batch(data_iterator)
        recorder.batch(tokens)                                       # after get_batch
        ...

It runs on the last pipeline stage of tensor rank 0 and stays silent elsewhere and in evaluations. Steps and rows are those
of the `single` loader; for the others only step, rank and microbatch are written. Under context parallelism a rank
holds pieces of rows: their sums are written per row and add up over ranks. Follows `megatron/training/training.py`,
core 0.5 to 0.19: `args.curr_iteration` where there is one, else the change of consumed samples tells steps apart.
"""

from __future__ import annotations

import importlib
import os
from collections import deque
from typing import Any, Deque, Optional, Tuple, Union

from forensics.live.recorder import Recorder


class MegatronRecorder:
    """One per process; what it needs of Megatron is looked up at the first loss.

    Args:
        folder: for the recorder.
        eod: token id that ends a document; by default the run's tokenizer's own.
        options: for `Recorder`.
    """

    def __init__(self, folder: Union[str, "os.PathLike[str]"], eod: Optional[int] = None, **options: Any) -> None:
        self.folder, self.eod, self.options = folder, eod, options
        self.recorder: Optional[Recorder] = None
        self.error = ""
        self._tokens: Deque[Any] = deque(maxlen=64)
        self._at: Tuple[Any, int, int] = (None, 0, 0)

    def batch(self, tokens: Any) -> None:
        """Remember the tokens of the micro batch whose loss comes next."""
        try:
            if tokens is not None and self._here():
                self._tokens.append(tokens)
        except Exception as error:  # never into the training
            self.error = f"{type(error).__name__}: {error}"

    def loss(self, loss_mask: Any, output_tensor: Any) -> None:
        """Record the losses [rows, labels] of a micro batch."""
        try:
            tokens = self._tokens.popleft() if self._tokens else None
            if getattr(output_tensor, "requires_grad", True) and self._here():
                self._record(loss_mask, output_tensor, tokens)
        except Exception as error:  # never into the training
            self.error = f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """Write what is left."""
        if self.recorder is not None:
            self.recorder.close()

    def _here(self) -> bool:
        state = importlib.import_module("megatron.core.parallel_state")
        return bool(state.get_tensor_model_parallel_rank() == 0 and state.is_pipeline_last_stage())

    def _record(self, loss_mask: Any, output_tensor: Any, tokens: Any) -> None:
        state = importlib.import_module("megatron.core.parallel_state")
        args = _global("get_args")()
        ranks, rank = state.get_data_parallel_world_size(), state.get_data_parallel_rank()
        whole = state.get_context_parallel_world_size() == 1 if hasattr(state, "get_context_parallel_world_size") else True
        if self.recorder is None:
            name = rank if whole else rank * state.get_context_parallel_world_size() + state.get_context_parallel_rank()
            self.recorder = Recorder(self.folder, rank=name, world_size=ranks, **self.options)
            if self.eod is None:
                self.eod = _eod()
        step, microbatch = self._place(args)
        rows = output_tensor.shape[0]
        sequence = [(microbatch * ranks + rank) * rows + i for i in range(rows)]
        single = getattr(args, "dataloader_type", "single") == "single" and not getattr(args, "phase_transition_iterations", None)
        sample = [args.consumed_train_samples + n for n in sequence] if single else None
        mask = loss_mask.reshape(output_tensor.shape)
        eod = self.eod if whole and tokens is not None else None
        self.recorder.record(
            step, sample=sample, microbatch=microbatch, tokens=tokens if whole else None, loss=output_tensor, mask=mask, eod=eod, sequence=sequence
        )

    def _place(self, args: Any) -> Tuple[int, int]:
        """(step as logged, microbatch) of this call."""
        current = getattr(args, "curr_iteration", None)
        key = (current, args.consumed_train_samples)
        before, step, microbatch = self._at
        if key == before:
            self._at = (key, step, microbatch + 1)
        elif current is not None:
            self._at = (key, int(current) + 1, 0)
        else:
            self._at = (key, int(args.iteration) + 1 if before is None else step + 1, 0)
        return self._at[1], self._at[2]


def _global(name: str) -> Any:
    """`get_args` or `get_tokenizer`, which moved from `megatron` to `megatron.training`."""
    for module in ("megatron.training", "megatron"):
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise RuntimeError("no Megatron-LM is importable here")


def _eod() -> Optional[int]:
    try:
        return int(_global("get_tokenizer")().eod)
    except (RuntimeError, AttributeError, TypeError, AssertionError, NotImplementedError):
        return None
