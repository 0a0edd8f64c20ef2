"""Who else belongs to a guilty group: copies of one guilty document, and groups that are guilty nearly throughout."""

from __future__ import annotations

import numpy as np

from forensics.attribution.carry import copies, fellows
from forensics.schemas import CLUSTERS, Clusters

PAGES = np.arange(100, 130)
TABLE = Clusters(CLUSTERS.of({"kind": ["near"] * 3 + ["template"] * 30, "cluster": [0] * 33, "doc_key": [1, 2, 3, *PAGES.tolist()]}))


def test_a_copy_of_a_guilty_document_is_guilty_and_a_page_of_the_same_template_is_not() -> None:
    assert copies(TABLE, np.array([2])).tolist() == [1, 2, 3]
    assert copies(TABLE, np.array([104])).tolist() == []


def test_a_template_is_guilty_where_nearly_all_of_its_sampled_pages_are() -> None:
    assert fellows(TABLE, PAGES[:1], PAGES[:10]).tolist() == []
    assert fellows(TABLE, PAGES[:10], PAGES[:10]).tolist() == PAGES.tolist()
    assert fellows(TABLE, PAGES[:4], PAGES[:4]).tolist() == []  # too few to say
