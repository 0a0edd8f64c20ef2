"""The recorder in a plain PyTorch loop.

    from forensics.live.recorder import Recorder
    from forensics.live.hooks.for_pytorch import Numbered, token_losses

    recorder = Recorder("records", rank=rank, world_size=world_size)
    loader = DataLoader(Numbered(dataset), sampler=sampler, batch_size=8)
    for step, (sample, tokens) in enumerate(loader, 1):
        losses = token_losses(model(tokens[:, :-1]), tokens[:, 1:])
        recorder.record(step, sample=sample, tokens=tokens, loss=losses, eod=eod)
        losses.mean().backward()

With accumulation give `microbatch=`. Tensors are passed as they are: the recorder copies them off the device without
waiting. Only the standard library is imported here; torch is the caller's own.
"""

from __future__ import annotations

import sys
from typing import Any, Tuple


class Numbered:
    """A map-style dataset whose items come with their number: (number, item).

    Args:
        dataset: anything with `__len__` and `__getitem__`.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Tuple[int, Any]:
        return number, self.dataset[number]


def token_losses(logits: Any, labels: Any, ignore: int = -100) -> Any:
    """Cross entropy of each label [rows, labels] in nats, in float32, with its gradient; 0 where the label is `ignore`.

    Args:
        logits: [rows, labels, vocabulary].
        labels: [rows, labels].
    """
    functional = sys.modules["torch"].nn.functional
    flat = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none", ignore_index=ignore)
    return flat.view(labels.shape)
