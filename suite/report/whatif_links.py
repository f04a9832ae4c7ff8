"""Links from the report to the what-if page of the same folder, at the points of runs and of claims.

The page is made before the report (suite.whatif.site), with `choices.json` and `evidence.json` next to it. Without a
page, or with damaged files of one, there is no link.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from suite.core.values import Json
from suite.report.tables.claim_tables import anchor
from suite.whatif.catalogue import Catalogue
from suite.whatif.points import plain, point_words

FOLDER, PAGE = "whatif", "index.html"


@dataclass(frozen=True, slots=True)
class WhatIfLinks:
    """Words of points on the what-if page.

    Attributes:
        catalogue: Choices of the page; empty without a page.
        claims: Words of claims by the anchor of their row.
    """

    catalogue: Catalogue = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> WhatIfLinks:
        """Links of the reports folder `folder`."""
        page = folder / FOLDER
        if not (page / PAGE).is_file():
            return cls()
        try:
            choices, evidence = (json.loads((page / f"{name}.json").read_bytes()) for name in ("choices", "evidence"))
            rows = [(row["href"].partition("#")[2], row["words"]) for row in evidence["claims"] if "words" in row]
            return cls(choices, dict(rows))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def of_runs(self, configs: Iterable[Mapping[str, Json]]) -> list[str]:
        """Words of the first of these configurations that has a point."""
        if not self.catalogue:
            return []
        try:
            return next(filter(None, (point_words(config, self.catalogue) for config in configs)), [])
        except (KeyError, TypeError, AttributeError):  # choices of another shape, as a folder may come from elsewhere
            return []

    def of_claims(self, ids: Iterable[str]) -> list[str]:
        """Words of the claim that states most of its point."""
        found = [plain(str(self.claims[name]).split()) for name in map(anchor, ids) if name in self.claims]
        return max(found, key=len, default=[])
