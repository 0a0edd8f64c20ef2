"""GPT-NeoX: no option leaves steps out; the refusal names what does.

Read in its training loop of May 2026: the position follows from `iteration` alone, and nothing skips a range.
"""

from __future__ import annotations

from typing import NoReturn

from forensics.errors import ForensicsError
from forensics.manifests.base import EXPORTERS, Manifest, Request


class NeoxExporter:
    """Refuses, so that the plain list is written in its place."""

    name = "neox"

    def export(self, request: Request) -> Manifest:
        """Refused.

        Raises:
            ForensicsError: always.
        """
        self._refuse()

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ForensicsError(
            "GPT-NeoX has no option that leaves steps out",
            hint="swap the samples for spare ones in a copy of its index files (`forensics apply CASE --surgical DIR`); a changed `iteration` would pass over "
            "data too, but moves the learning rate, and it must stay the same at every later start",
        )


EXPORTERS.add("neox", NeoxExporter(), __name__)
