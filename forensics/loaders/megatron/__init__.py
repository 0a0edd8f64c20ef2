"""Megatron-LM, Megatron Bridge and NeMo."""

from __future__ import annotations

from forensics.loaders.base import LOADERS, deferred
from forensics.loaders.megatron.describe import Reader
from forensics.run import READERS

LOADERS.add("megatron", deferred("megatron", "forensics.loaders.megatron.loader", "MegatronLoader"), __name__)
READERS.add("megatron", Reader(), __name__)
