"""The report of curves: incidents that are found on the charts, gaps that are named, two runs beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from forensics.pipelines.curves import curves

from forensics.case import Case
from forensics.curves.settings import settings
from forensics.reports.curves import ceiling, constant, joined
from forensics.reports.series import Curve

from .browser import Browser


def log(path: Path, seed: int, lost: float = 0.8) -> Path:
    step = np.arange(1, 1201)
    noise = np.random.default_rng(0).normal(0, 0.02, len(step)) + np.random.default_rng(seed).normal(0, 0.002, len(step))
    loss = 1.7 + 6 * (step + 20.0) ** -0.35 + noise
    loss[800:810] += lost
    rows = [{"step": int(s), "loss": float(v), "grad_norm": 0.3 + 0.01 * (i % 7), "batch_size": 64} for i, (s, v) in enumerate(zip(step, loss, strict=True))]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curves")
    name = "<img src=x onerror=window.canary=1>"
    curves(Case(folder / "case"), [log(folder / f"{name}.jsonl", 1)], settings([], []), against=[log(folder / "two.jsonl", 2, 0.0)])
    return folder / "case"


def test_incidents_gaps_and_the_other_run_are_there(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    found = ("alarm 0: spike of train_loss, steps 801", "forensics replay RUN --steps", "read the same batches", "difference of the training losses")
    for text in (*found, "loader queue", "batch size 64"):
        assert text in page
    assert page.count("<section") == 6


def test_it_opens_quietly_and_zooms_to_an_incident(browser: Browser, folder: Path) -> None:
    for width in (1280, 400):
        browser.open(folder / "report.html", width=width)
        assert browser.errors() == []
        assert browser.run("return window.canary") is None
        assert browser.run("return document.documentElement.scrollWidth") <= width
    browser.open(folder / "report.html")
    first = "return document.querySelector('[data-chart=chart-train_loss] .u-over').getBoundingClientRect().width"
    assert browser.run(first) > 600
    axis = "return document.documentElement.dataset.ready"
    assert browser.run(axis) == "yes"
    browser.run("document.querySelector('#incident-0 button[data-zoom]').click()")
    assert browser.run("return document.querySelector('#panels').getBoundingClientRect().top") < 60
    assert browser.errors() == []


def curve(value: list[float], first: int = 1) -> Curve:
    return Curve(np.arange(first, first + len(value)), np.array(value), None, None)


def test_several_curves_share_their_steps() -> None:
    axes, values = joined([curve([1.0, 2.0]), curve([5.0], 2), curve([7.0], 9)])
    assert axes["step"].tolist() == [1, 2, 9]
    np.testing.assert_array_equal(values, [[1, 2, np.nan], [np.nan, 5, np.nan], [np.nan, np.nan, 7]])


def test_what_never_changes_is_said_in_words() -> None:
    assert constant("nan_steps", {"a": curve([0.0, 0.0])}) == "nan steps 0"
    assert constant("nan_steps", {"a": curve([0.0, 1.0])}) == ""
    assert constant("eval_loss", {"a": curve([2.5])}) == "eval loss 2.5 (one record, step 1)"


def test_a_start_up_does_not_decide_the_height() -> None:
    loss = [10.0 * 0.5 ** (i / 5) + 2 for i in range(1000)]
    top = ceiling([curve(loss)])
    assert top is not None
    assert 2 < top < 3
    assert ceiling([curve([2.0 + 0.1 * (i % 5) for i in range(1000)])]) is None
    assert ceiling([curve([*([2.0] * 900), *([9.0] * 100)])]) is None
