"""The plain list: logged steps, sample ranges and documents as JSON, for trainers without a skip option and for scripts."""

from __future__ import annotations

import json

from forensics.manifests.base import EXPORTERS, Manifest, Request, steps_in_words
from forensics.schemas import DOC_BITS, DOC_MASK
from forensics.steps import ranges_of


class PlainExporter:
    """Steps and documents, half-open ranges, logged numbering."""

    name = "plain"

    def export(self, request: Request) -> Manifest:
        """`plain.json`: steps (logged, half-open) and documents by corpus number and document number."""
        body = {
            "numbering": "logged steps, half-open",
            "launch": request.launch.number,
            "steps": [[r.start, r.stop] for r in ranges_of(request.steps)],
            "documents": [{"corpus": int(k) >> DOC_BITS, "document": int(k) & DOC_MASK} for k in request.documents],
        }
        says = (
            f"names the logged steps {steps_in_words(request.steps)} and {len(request.documents):,} documents; the trainer does nothing with it by itself",
            f"dropping whole steps loses {request.tokens:,} tokens, {request.ordinary_tokens:,} of them not suspected",
        )
        return Manifest("plain", None, {"plain.json": json.dumps(body, indent=1) + "\n"}, "", says, request.steps)

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """The steps of `plain.json`."""
        body = json.loads(manifest.files["plain.json"])
        return [step for start, stop in body["steps"] for step in range(start, stop)]


EXPORTERS.add("plain", PlainExporter(), __name__)
