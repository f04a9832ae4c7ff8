"""Screenshots for docs/pictures: the front page, and a published figure of each paper, at a desk and on a phone.

    python -m tests.pictures reports/index.html docs/pictures

Needs Chromium. A picture is reduced to few colours, so it stays below 250 kB.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from suite.claims import load
from suite.doctor.checks import find_chromium
from suite.report.panels import published_figures
from tests.support.browser import Tab, started

SIZES = {"desktop": (1440, 1000), "phone": (390, 844)}
FIGURES = {
    "axonn": "figure-9",
    "samo": "figure-7",
    "pipeoptim": "figure-5",
    "sparse_gnn": "figure-5",
    "schedules": "table-5",
}
MOST_BYTES = 250_000
# the figure with this anchor if it is drawn, else the first drawn figure of the paper
_FIND = """((wanted) => {
    const displays = [...document.querySelectorAll(".display")];
    const names = displays.filter((one) => one.querySelector("svg")).map((one) => one.querySelector("h3").id);
    return names.find((name) => name.endsWith(wanted)) ?? names[0] ?? "";
})"""


def take(page: Path, folder: Path) -> list[Path]:
    """Write the pictures below `folder`. Returns their paths.

    Raises:
        OSError: There is no Chromium or no page, or a file cannot be written.
        ValueError: The page draws no figure of a paper.
    """
    if not page.is_file():
        raise FileNotFoundError(f"{page} is no file. make reproduce writes a page.")
    program = find_chromium()
    if program is None:
        raise FileNotFoundError("no Chromium on the PATH")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with tempfile.TemporaryDirectory(prefix="pictures-") as profile, started(program, Path(profile)) as browser:
        for size, (width, height) in SIZES.items():
            tab = Tab(browser, page.resolve().as_uri()).open(width, height)
            files.append(shot(tab, folder / f"top_{size}.png"))
            tab.close()
            for paper, name in load.titles().items():
                own = page.with_name(published_figures.page_of(name))
                tab = Tab(browser, own.resolve().as_uri()).open(width, height)
                anchor = tab.evaluate(f"{_FIND}({json.dumps(FIGURES[paper])})") if own.is_file() else ""
                if not anchor:
                    raise ValueError(f"{own} draws no figure of {name}. Make it with make reproduce.")
                tab.evaluate(f"document.getElementById({json.dumps(anchor)}).scrollIntoView()")
                tab.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100)))")
                files.append(shot(tab, folder / f"{paper}_{size}.png"))
                tab.close()
    return files


def shot(tab: Tab, path: Path) -> Path:
    """Write the visible window as a PNG of at most MOST_BYTES."""
    tab.screenshot(path)
    path.write_bytes(small(path.read_bytes()))
    return path


def small(data: bytes) -> bytes:
    """A PNG with the most colours, up to 256, that MOST_BYTES allows. Raises ValueError if 16 are too many."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    for colours in (256, 128, 64, 32, 16):
        out = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if out.tell() <= MOST_BYTES:
            return out.getvalue()
    raise ValueError(f"a picture of {picture.width} x {picture.height} in 16 colours has more than {MOST_BYTES} bytes")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.pictures", description="Takes the pictures of docs/pictures."
    )
    parser.add_argument("page", type=Path, nargs="?", default=Path("reports/index.html"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    try:
        files = take(options.page, options.folder)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for path in files:
        print(f"{path}  {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
