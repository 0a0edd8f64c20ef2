"""Make `report.png`, the picture in the README: the quickstart is replayed and its report opened in a headless Chromium.

    python configs/quickstart/screenshot.py

Needs chromium, chromedriver and selenium (the extra `test`). The picture stays under 300 kB.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT, MOST_BYTES = 1280, 1450, 300_000
FLAGS = ["headless=new", "no-sandbox", "disable-gpu", "no-first-run", "hide-scrollbars"]
QUIET = ["disable-background-networking", "disable-component-update", "disable-sync"]


def picture(page: Path, folder: str) -> bytes:
    """The top of a page as PNG."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for flag in [*FLAGS, *QUIET, f"user-data-dir={folder}"]:
        options.add_argument(f"--{flag}")
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False})
        driver.get(page.as_uri())
        driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])
    finally:
        driver.quit()


def main() -> None:
    """Replay, open, save."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        case = Path(folder) / "case"
        subprocess.run([sys.executable, "-m", "forensics", "replay", "--steps", "41200:41240", "-o", str(case)], cwd=HERE, check=True)
        image = picture(case / "report.html", f"{folder}/browser")
    if len(image) > MOST_BYTES:
        sys.exit(f"the picture takes {len(image):,} bytes, at most {MOST_BYTES:,} are wanted")
    (HERE / "report.png").write_bytes(image)
    print(f"{HERE / 'report.png'}: {len(image):,} bytes")


if __name__ == "__main__":
    main()
