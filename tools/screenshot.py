"""The README's picture of a report: docs/report.png, from a simulated run, in a real browser.

python tools/screenshot.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SCENARIO = "dead-loader-hang"
WIDTH, HEIGHT = 1280, 1725
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
"""Options of a Chromium without network access."""


def main() -> int:
    """Simulate, report, and take the top of the page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("tools/screenshot.py: no chromium here; install the Debian package chromium", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        trackside = [sys.executable, "-m", "trackside"]
        subprocess.run([*trackside, "simulate", SCENARIO, "-o", folder], check=True, stdout=subprocess.DEVNULL)
        page = f"{folder}/report.html"
        command = [*trackside, "diagnose", f"{folder}/run", "--price", "2.50", "--html", page]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with sync_playwright() as play:
            window = play.chromium.launch(executable_path=browser, args=FLAGS)
            tab = window.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            tab.goto(f"file://{page}")
            tab.wait_for_selector("html[data-ready]")  # every chart is drawn
            tab.screenshot(path=ROOT / "docs" / "report.png")
            window.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
