"""Pictures of a page for the documentation: ten of them, small files, of the figures that are asked for."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from PIL import Image

from suite.report.tables.scorecard import PAPERS
from tests import pictures
from tests.support.tools import needs


def page(folder: Path, papers: list[str]) -> Path:
    """Two figures of each paper, the first without a picture, at the places where a page has them."""
    drawn = (
        '<section class="display"><h3 id="{0}-figure-2">b</h3><div style="height: 900px"><svg></svg></div></section>'
    )
    parts = [
        f'<section class="paper"><h2>{name}: published</h2><section class="display"><h3 id="{number}-figure-1">a</h3>'
        f"</section>{drawn.format(number)}</section>"
        for number, name in enumerate(papers)
    ]
    path = folder / "index.html"
    path.write_text(f"<!doctype html><body>{''.join(parts)}")
    return path


def test_pictures_have_the_size_of_the_window(tmp_path: Path) -> None:
    needs("chromium")
    files = pictures.take(page(tmp_path, list(PAPERS.values())), tmp_path / "pictures")
    assert sorted(path.name for path in files) == sorted(
        f"{name}_{size}.png" for name in ("top", *PAPERS) for size in ("desktop", "phone")
    )
    for path in files:
        assert Image.open(path).size == pictures.SIZES[path.stem.rpartition("_")[2]]


def test_page_without_a_drawn_figure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("chromium")
    assert pictures.main([str(page(tmp_path, ["AxoNN", "SAMO"])), str(tmp_path / "pictures")]) == 2
    assert "draws no figure of PipeOptim" in capsys.readouterr().err
    assert pictures.main([str(tmp_path / "none.html"), str(tmp_path / "pictures")]) == 2
    assert "none.html is no file" in capsys.readouterr().err


def png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    noise = random.Random(1).randbytes(3 * width * height)
    Image.frombytes("RGB", (width, height), noise).save(out, "PNG")
    return out.getvalue()


def test_picture_loses_colours_until_it_is_small() -> None:
    original = png(480, 600)
    assert len(original) > 3 * pictures.MOST_BYTES
    small = pictures.small(original)
    assert len(small) <= pictures.MOST_BYTES
    assert Image.open(io.BytesIO(small)).size == (480, 600)
    with pytest.raises(ValueError, match="in 16 colours"):
        pictures.small(png(1000, 1000))
