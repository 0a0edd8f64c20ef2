"""How often copies were read: in the window, so far, and in the whole run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from forensics.pipelines.plan import Plan
from numpy.typing import NDArray

from forensics.documents.dedup import KINDS, count_seen
from forensics.errors import ForensicsError
from forensics.loaders.base import OPEN_END, path_of
from forensics.schemas import Clusters, Documents, Launches, Seen
from forensics.steps import StepRange
from forensics.stores.base import TokenStore

MOST_DOCUMENTS = 1 << 18  # of the largest clusters first
MOST_ROWS = 1 << 26  # rows of a run whose order has to be read through: some seconds


def seen(plan: Plan, documents: Documents, clusters: Clusters, store: TokenStore) -> tuple[Seen | None, str]:
    """Counts for the members of copies' clusters, and why there are none.

    Args:
        plan: of the replay.
        documents, clusters: all that was met.
        store: the run's data files.
    """
    keys = members(documents, clusters)
    if not len(keys):
        return None, ""
    if why := too_long(plan):
        return None, f"{why}: forensics locate"
    try:
        return count_seen(plan.loader.locate(plan.run, keys), store, plan.window, whole_path(plan.launches, plan.launch)), ""
    except ForensicsError as error:
        return None, error.message


def members(documents: Documents, clusters: Clusters) -> NDArray[np.int64]:
    """Documents of clusters of copies, ascending; where they are many, those of clusters that the window met, then of the largest."""
    copies = clusters.filter(pc.is_in(clusters["kind"].cast(pa.string()), value_set=pa.array(KINDS)))
    key = copies["doc_key"].to_numpy()
    used: Any = pc.coalesce(documents["used_window"], pa.scalar(0, pa.int64()))
    kinds = copies["kind"].cast(pa.string()).to_pylist()
    number = copies["cluster"].to_numpy() * len(KINDS) + np.array([KINDS.index(k) for k in kinds], np.int64)
    _, at, size = np.unique(number, return_inverse=True, return_counts=True)
    met = np.bincount(at, np.isin(key, documents["doc_key"].to_numpy()[used.to_numpy() > 0]), len(size)) > 0
    order = np.lexsort((at, -size[at], ~met[at]))
    return np.unique(key[order[:MOST_DOCUMENTS]])


def too_long(plan: Plan) -> str:
    """Why a run is not searched for documents unasked; empty where it is."""
    if int(plan.launches["stop_step"].to_numpy().max()) >= OPEN_END:
        return "the run has no known end"
    rows = sum(len(steps) for _, steps in whole_path(plan.launches, plan.launch)) * int(plan.facts.sequences.max(initial=1))
    if rows > MOST_ROWS and plan.run.trainer != "megatron":  # which finds documents by its index; others read the order through from the first step
        return f"the order of {rows:,} rows would have to be read through"
    return ""


def whole_path(launches: Launches, launch: int) -> list[tuple[int, StepRange]]:
    """Which launch ran, or will run, each step of the run, seen from one launch."""
    first, stop = launches["first_step"].to_numpy(), launches["stop_step"].to_numpy()
    return path_of(launches, StepRange(int(first.min()), int(stop.max())), launch)
