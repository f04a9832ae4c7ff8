"""Panel functions of the sources on pipeline schedules, by figure."""

from __future__ import annotations

from collections.abc import Mapping

from suite.claims.panel import Panels
from suite.papers.schedules import rates

FIGURES: Mapping[str, Panels] = {"schedules_rates": rates.rates_panels}
