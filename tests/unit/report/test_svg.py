"""Reduced SVG: curves keep their ends, ids stay unique."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from suite.report.plots import figure, svg

LONG = [5.0 * 0.999**step + (1.5 if step == 700 else 0.0) for step in range(5000)]
LONG[-1] *= 1.01  # neither the least nor the greatest of the last few


def test_thinned_curve_keeps_ends_peak_and_gaps():
    broken = [math.nan if 2000 <= step < 2100 else height for step, height in enumerate(LONG)]
    x, y = figure.outline(broken, 400)
    assert len(x) <= 3 * 400
    assert (x[0], x[-1]) == (1, 5000)
    assert x == sorted(set(x))
    assert y[x.index(701)] == LONG[700]
    assert any(math.isnan(height) for height in y)
    assert all(height == broken[place - 1] for place, height in zip(x, y, strict=True) if math.isfinite(height))


def test_many_samples_are_drawn_from_the_least_to_the_greatest():
    values = [float((7 * place) % 1000) for place in range(1000)]
    thinned = figure.thinned(values, 11)
    assert len(thinned) == 11
    assert (thinned[0], thinned[5], thinned[-1]) == (0.0, 500.0, 999.0)
    assert figure.thinned(values, 1000) == values


def test_svg_keeps_only_needed_markup_with_unique_ids():
    drawn = [figure.losses({"a": LONG, "b": LONG[:30]}, {}, {"a": "#2f74b5", "b": "#e0912f"}, salt) for salt in "pq"]
    for text, salt in zip(drawn, "pq", strict=True):
        root = ElementTree.fromstring(text)
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        assert all(name.startswith(f"{salt}-") for name in ids)
        references = re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', text)
        assert {one or other for one, other in references} <= set(ids)
        assert not re.search(r"font-family|<metadata|#010203", text)
        assert not re.search(r'(?: d| x| y)="[^"]*\d\.\d{3}', text)
        assert all(f".{name} " in svg.SHEET for name in re.findall(r'class="([^"]*)"', text))
    assert drawn[0] == drawn[1].replace('"q-', '"p-').replace("#q-", "#p-")
    assert len(drawn[0]) < 40_000
