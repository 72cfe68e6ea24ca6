"""Pages in headless Chromium: pictures, and checks for faults."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), "")
WHY_NOT = "no Chromium here (Debian's package is `chromium`)"

# The faults that are looked for: clipped text, horizontal scrolling, text too small to read, loaded resources.
_LOOK = """<script>
addEventListener("load", () => {
  const bad = [], root = document.documentElement;
  if (root.scrollWidth > innerWidth) bad.push(`the page is ${root.scrollWidth} wide, the window ${innerWidth}`);
  for (const e of document.querySelectorAll("main *")) {
    if (e.closest("svg") || e.closest(".scroll") || e.closest("details:not([open])")) continue;
    if (getComputedStyle(e).display !== "inline" && e.clientWidth && e.scrollWidth > e.clientWidth + 1)
      bad.push(`clipped: ${e.tagName} ${e.textContent.slice(0, 60)}`);
  }
  for (const t of document.querySelectorAll("svg text")) {
    const b = t.getBoundingClientRect(), f = t.closest("svg").getBoundingClientRect();
    if (b.left < f.left - 1 || b.right > f.right + 1 || b.top < f.top - 1 || b.bottom > f.bottom + 1)
      bad.push(`outside of its plot: ${t.textContent}`);
    if (b.height < 7) bad.push(`too small to read: ${t.textContent}`);
  }
  const loaded = performance.getEntriesByType("resource").map(r => r.name);
  const paper = getComputedStyle(document.body).backgroundColor, plots = document.querySelectorAll("svg").length;
  document.body.dataset.seen = JSON.stringify({bad, loaded, paper, plots});
});
</script>"""


def _run(page: Path, width: int, height: int, dark: bool, *more: str) -> str:
    scheme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *scheme]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={page.parent / 'profile'}"]
    size = [f"--window-size={width},{height}"]
    done = subprocess.run(
        [*command, *offline, *size, *more, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def look(page: Path, width: int, dark: bool = False) -> dict[str, Any]:
    """Returns the findings of a browser on a page: the faults `bad`, the `loaded` resources, the `paper`, and the
    number of `plots`."""
    watched = page.with_suffix(".watched.html")
    watched.write_text(page.read_text(encoding="utf-8").replace("</body>", _LOOK + "</body>"), encoding="utf-8")
    found = re.search(r'data-seen="([^"]*)"', _run(watched, width, 1000, dark, "--dump-dom"))
    assert found is not None
    return json.loads(unescape(found[1]))


def screenshot(page: Path, width: int, height: int, dark: bool = False) -> Path:
    """A picture of a page."""
    picture = page.with_suffix(f".{width}{'.dark' if dark else ''}.png")
    _run(page, width, height, dark, f"--screenshot={picture}")
    return picture


def printed(page: Path) -> Path:
    """A page on paper, as PDF."""
    pdf = page.with_suffix(".pdf")
    _run(page, 1000, 1000, False, "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    return pdf
