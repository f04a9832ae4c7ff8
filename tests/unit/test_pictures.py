"""Pictures of a page for the documentation: ten of them, small files, of the figures that are asked for."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from PIL import Image

from suite.claims import load
from suite.report.panels import published_figures
from tests import pictures
from tests.support.tools import needs


def page(folder: Path, papers: list[str]) -> Path:
    """A front page, and a page of each paper with two figures, the first without a picture."""
    drawn = '<section class="display"><h3 id="x-figure-2">b</h3><div style="height: 900px"><svg></svg></div></section>'
    first = '<!doctype html><body><section class="display"><h3 id="x-figure-1">a</h3></section>'
    folder.mkdir()
    for name in papers:
        (folder / published_figures.page_of(name)).write_text(first + drawn)
    (folder / "index.html").write_text(first)
    return folder / "index.html"


@pytest.mark.slow("a browser is photographed")
def test_pictures_have_the_size_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("chromium")
    monkeypatch.setattr(pictures, "SIZES", {"phone": (390, 844)})
    files = pictures.take(page(tmp_path / "all", list(load.titles().values())), tmp_path / "pictures")
    assert [path.name for path in files] == [f"{name}_phone.png" for name in ("top", *load.titles())]
    assert {Image.open(path).size for path in files} == {(390, 844)}
    assert pictures.main([str(page(tmp_path / "two", ["AxoNN", "SAMO"])), str(tmp_path / "pictures")]) == 2
    assert "PipeOptim" in capsys.readouterr().err
    assert pictures.main([str(tmp_path / "none.html"), str(tmp_path / "pictures")]) == 2
    assert "none.html" in capsys.readouterr().err


def png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    noise = random.Random(1).randbytes(3 * width * height)
    Image.frombytes("RGB", (width, height), noise).save(out, "PNG")
    return out.getvalue()
