"""Reports in a real browser: quiet, closed, usable by mouse and keys, at every width, whatever the documents hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.reports.replay import write_replay

from .browser import Browser
from .cases import HOSTILE, make_case, visible


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = make_case(tmp_path_factory.mktemp("case"))
    return write_replay(case)


def test_it_opens_without_errors_requests_or_foreign_scripts(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert browser.run("return document.documentElement.dataset.ready") == "yes"
    assert browser.run("return window.canary") is None
    assert browser.errors() == []
    assert browser.requests() == [report.resolve().as_uri()]
    assert browser.run("return document.querySelectorAll('main script, main img, main iframe, main object').length") == 0


def test_the_policy_stops_what_would_be_loaded(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.run(
        "const i = new Image(); i.src = 'https://example.org/x.png';"
        "const s = document.createElement('script'); s.textContent = 'window.canary = 9'; document.body.append(i, s)"
    )
    assert browser.run("return window.canary") is None
    stopped = [e for e in browser.errors() if "Content Security Policy" in e]
    assert any("example.org" in e for e in stopped)
    assert any("inline script" in e for e in stopped)


def test_every_hostile_document_is_shown_as_text(browser: Browser, report: Path) -> None:
    browser.open(report)
    for key in range(1, len(HOSTILE)):
        browser.run("page.openDocument(arguments[0])", key)
        text = browser.run("return document.querySelector('#document .doc').textContent")
        assert text.endswith(visible(HOSTILE[key])), key
        assert browser.run("return document.querySelector('#document mark') !== null || document.querySelector('#document .heat') !== null")
    assert browser.run("return window.canary") is None


def test_a_line_of_a_megabyte_is_cut_and_wrapped(browser: Browser, report: Path) -> None:
    browser.open(report, width=400)
    browser.run("page.openDocument(0)")
    assert browser.run("return document.querySelector('#document .doc').textContent.length") < 10_000
    assert browser.run("return document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_never_scrolls_sideways(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width=width)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    out = "return [...document.querySelectorAll('main canvas')].filter(c => c.getBoundingClientRect().right > arguments[0]).length"
    assert browser.run(out, width) == 0
    assert browser.run("return document.querySelectorAll('main canvas').length") >= 6


def rows(browser: Browser) -> list[str]:
    found: list[str] = browser.run("return [...document.querySelectorAll('[data-table=suspects] tbody tr')].map(r => r.children[0].textContent)")
    return found


def click(browser: Browser, selector: str, text: str) -> None:
    browser.run("[...document.querySelectorAll(arguments[0])].find(b => b.textContent.includes(arguments[1])).click()", selector, text)


def test_tables_sort_filter_and_page(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert rows(browser)[:3] == ["1", "2", "3"]
    click(browser, "[data-table=suspects] button", "next")
    assert rows(browser)[0] == "13"
    click(browser, "[data-table=suspects] th button", "excess")
    assert rows(browser)[0] == "1"
    click(browser, "[data-table=suspects] th button", "excess")
    assert rows(browser)[0] == "300"
    assert browser.run("return document.querySelector('[data-table=suspects] th[aria-sort=ascending]').textContent").startswith("excess")
    script = "const e = document.querySelector('[data-table=suspects] input'); e.value = arguments[0]; e.dispatchEvent(new Event('input'))"
    browser.run(script, "document 123 of")
    assert rows(browser) == ["124"]
    browser.run(script, "no such words")
    assert rows(browser) == []
    browser.run(script, "")
    pick = "const s = document.querySelector('[data-table=suspects] select[aria-label=reasons]'); s.value = 'excess';"
    browser.run(pick + "s.dispatchEvent(new Event('change'))")
    assert browser.run("return document.querySelector('[data-table=suspects] [aria-live]').textContent").endswith("100 (300 in all)")


def test_rows_are_opened_by_keys(browser: Browser, report: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(report)
    browser.run("document.querySelectorAll('[data-table=suspects] tbody tr')[2].focus()")
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.run("return document.querySelector('#document h3').textContent") == "document 3 of corpus 0"
    assert browser.run("return document.querySelector('tr[aria-selected=true]').children[0].textContent") == "4"


def test_keys_move_the_cursor_of_a_chart(browser: Browser, report: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(report)
    browser.run("document.querySelector('[data-chart=chart-train_loss]').focus()")
    browser.driver.switch_to.active_element.send_keys(Keys.HOME)
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert browser.run("return document.querySelector('[data-chart=chart-train_loss] .u-value').textContent") == "1,001"


def test_tab_reaches_the_content_first(browser: Browser, report: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(report)
    browser.run("return document.body").send_keys(Keys.TAB)
    assert browser.driver.switch_to.active_element.text == "to the content"


def test_axes_switch_between_steps_tokens_and_time(browser: Browser, report: Path) -> None:
    browser.open(report)
    for axis, expected in (("tokens", "G"), ("time", None)):
        browser.run("document.querySelector(`button[data-axis=${arguments[0]}]`).click()", axis)
        pressed = browser.run("return document.querySelector('button[data-axis][aria-pressed=true]').textContent")
        assert pressed == axis
        label = browser.run("return document.querySelector('[data-chart=chart-train_loss] .u-legend .u-label').textContent")
        assert label.startswith(axis), expected
    assert browser.errors() == []


def test_dark_follows_the_system_and_the_button(browser: Browser, report: Path) -> None:
    back = "return getComputedStyle(document.body).backgroundColor"
    browser.open(report, dark=True)
    dark = browser.run(back)
    browser.run("document.querySelector('#theme').click()")
    light = browser.run(back)
    assert dark == "rgb(20, 22, 26)"
    assert light == "rgb(250, 250, 248)"
    assert browser.run("return document.querySelector('#theme').textContent") == "Dark"
    assert browser.errors() == []


CONTRAST = """
const part = x => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; };
const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(part); return .2126 * r + .7152 * g + .0722 * b; };
const solid = e => {
  for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (/^rgb\\(/.test(c)) return c; }
  return 'rgb(255, 255, 255)';
};
const bad = [];
for (const e of document.querySelectorAll('main *, header *, nav *')) {
  if (!e.checkVisibility() || e.closest('svg, .u-wrap, .in, :disabled')) continue;
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
  const a = light(getComputedStyle(e).color), b = light(solid(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) bad.push([e.tagName, e.className, e.textContent.slice(0, 30), ratio]);
}
return bad.slice(0, 5);
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_enough_contrast(browser: Browser, report: Path, dark: bool) -> None:
    browser.open(report, dark=dark)
    assert browser.run(CONTRAST) == []


def test_it_prints(browser: Browser, report: Path) -> None:
    browser.open(report, dark=True)
    made = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(made["data"]) > 50_000
    assert browser.run("return document.documentElement.dataset.theme") == "dark"
    assert browser.errors() == []


def test_heat_of_token_losses_is_shown(browser: Browser, report: Path) -> None:
    browser.open(report)
    data = browser.run("return JSON.parse(document.getElementById('data-documents').textContent)")
    assert "range" in data["9"]["parts"][0]
