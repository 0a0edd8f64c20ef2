"""A headless Chromium for tests: what the page did, what it said, what it asked of the network."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MISSING = "Chromium and its driver are not installed (Debian: apt-get install chromium chromium-driver; pip install selenium): pages are not opened"


FLAGS = (
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
)


class Browser:
    """One window; every page is opened afresh."""

    def __init__(self, folder: str) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        options.binary_location = binary() or ""
        for flag in [*FLAGS, f"user-data-dir={folder}"]:
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def open(self, path: Path, width: int = 1280, dark: bool = False) -> None:
        """Show a file; what the logs held before is forgotten."""
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}, {"name": "prefers-reduced-motion", "value": "reduce"}]},
        )
        self.driver.get("about:blank")
        self.errors()
        self.requests()
        self.driver.get(path.resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script's `return`."""
        return self.driver.execute_script(script, *arguments)

    def errors(self) -> list[str]:
        """Messages of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def shot(self) -> bytes:
        """The whole window as PNG."""
        return self.driver.get_screenshot_as_png()


def binary() -> str | None:
    """Path of Chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser for the whole run; where none is installed its tests say so, and fail where FORENSICS_BROWSER asks for one."""
    try:
        import selenium  # noqa: F401

        there = binary() is not None and shutil.which("chromedriver") is not None
    except ImportError:
        there = False
    if not there:
        if os.environ.get("FORENSICS_BROWSER"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = Browser(folder)
        yield found
        found.driver.quit()
