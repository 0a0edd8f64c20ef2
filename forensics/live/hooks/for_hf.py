"""The recorder in Hugging Face's Trainer.

    from forensics.live.hooks.for_hf import record_trainer

    trainer = Trainer(...)
    recorder = record_trainer(trainer, "records", eod=tokenizer.eos_token_id)
    trainer.train()

The training set is wrapped so that every row carries its number, the collator so that the number survives it, and
`compute_loss` so that the number never reaches the model. Losses of labels are worked out once more from the logits, row by row,
without a gradient; `per_token=False` takes the mean loss of the micro batch instead, which costs nothing.
Written for transformers 4.45 and later.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Optional, Tuple, Union

from forensics.live.recorder import Recorder

KEY = "forensics_sample"


class _Numbered:
    """Rows with their number."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Dict[str, Any]:
        return {**self.dataset[int(number)], KEY: int(number)}


def record_trainer(trainer: Any, folder: Union[str, "os.PathLike[str]"], eod: Optional[int] = None, per_token: bool = True, **options: Any) -> Recorder:
    """Make a trainer write down what it consumes; call it before `train()`.

    Args:
        trainer: a `transformers.Trainer` whose data set has numbered rows; of a stream only losses are recorded.
        folder: for the recorder.
        eod: token id that ends a document.
        per_token: losses of every document part; else the mean of each micro batch.
        options: for `Recorder`.

    Returns:
        The recorder; it closes itself at exit.
    """
    recorder = Recorder(folder, rank=trainer.args.process_index, world_size=trainer.args.world_size, **options)
    numbered = hasattr(trainer.train_dataset, "__getitem__") and hasattr(trainer.train_dataset, "__len__")
    if numbered:
        trainer._set_signature_columns_if_needed()
        trainer._signature_columns = [*(trainer._signature_columns or []), KEY]
        trainer.train_dataset = _Numbered(trainer.train_dataset)
        trainer.data_collator = _collate(trainer.data_collator)
    trainer.compute_loss = _compute_loss(trainer, trainer.compute_loss, recorder, eod, per_token)
    return recorder


def _collate(inner: Any) -> Any:
    def collate(rows: List[Any]) -> Any:
        numbers = [row.pop(KEY, None) if isinstance(row, dict) else None for row in rows]
        batch = inner(rows)
        if all(n is not None for n in numbers):
            batch[KEY] = sys.modules["torch"].tensor(numbers)
        return batch

    return collate


def _compute_loss(trainer: Any, inner: Any, recorder: Recorder, eod: Optional[int], per_token: bool) -> Any:
    at: Tuple[int, int] = (-1, 0)

    def compute_loss(model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        nonlocal at
        sample = inputs.pop(KEY, None)
        if not model.training:
            return inner(model, inputs, return_outputs=return_outputs, **more)
        labels, tokens = inputs.get("labels"), inputs.get("input_ids")
        loss, outputs = inner(model, inputs, return_outputs=True, **more)
        step = trainer.state.global_step + 1
        at = (step, at[1] + 1) if at[0] == step else (step, 0)
        try:
            logits = outputs["logits"] if isinstance(outputs, dict) else getattr(outputs, "logits", None)
            if per_token and logits is not None and labels is not None:
                losses, mask = _rows(logits, labels)
                recorder.record(step, sample=sample, microbatch=at[1], tokens=tokens, loss=losses, mask=mask, eod=eod)
            else:
                count = None if labels is None else (labels[:, 1:] != -100).sum()
                recorder.record(step, sample=sample, microbatch=at[1], tokens=tokens, loss=loss, predicted=count)
        except Exception as error:  # never into the training
            recorder._note(error)
        return (loss, outputs) if return_outputs else loss

    return compute_loss


def _rows(logits: Any, labels: Any) -> Tuple[Any, Any]:
    """Losses [rows, labels] and which of them count; a row at a time, so that no second copy of the logits is held."""
    torch = sys.modules["torch"]
    with torch.no_grad():
        shifted = labels[:, 1:]
        losses = [torch.nn.functional.cross_entropy(row[:-1].float(), label, reduction="none", ignore_index=-100) for row, label in zip(logits, shifted)]
        return torch.stack(losses), shifted != -100
