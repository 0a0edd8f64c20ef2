"""MosaicML Streaming and LLM-Foundry: partitions, shuffles and batches recomputed from options and state."""

from forensics.loaders.base import LOADERS
from forensics.loaders.streaming.loader import LOADER

LOADERS.add("streaming", LOADER, __name__)
