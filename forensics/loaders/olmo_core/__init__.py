"""OLMo-core: fixed, padded, packed, interleaved and variable lengths, mixtures and composed sources."""

from forensics.loaders.base import LOADERS
from forensics.loaders.olmo_core.loader import CORE

LOADERS.add("olmo-core", CORE, __name__)
