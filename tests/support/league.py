"""A small content of league.json, made by hand."""

from __future__ import annotations

from suite.papers.public.league_file import (
    LeagueConstant,
    LeagueFile,
    LeagueGroup,
    LeagueMemory,
    LeagueRange,
    LeagueSchedule,
    LeagueSweep,
    LeagueTotals,
)

TOTALS = LeagueTotals(0.25, 0.5, 0.75, 12, (3, 4), (8, 9), 1)
GROUPS = (
    LeagueGroup("near", "Megatron-LM", "A100-80", 5, 0.04, 0.09, -0.02, 0.2, 0.06),
    LeagueGroup("far", "Composer", "H100-80", 3, 1.234, 2.5, 1.1, 0.3, 1.5),
    LeagueGroup("megatron_a100_recompute", "Megatron-LM", "A100-80", 8, 0.0714, 0.1109, 0.03, 0.05, 0.08),
)


def league_file(groups: tuple[LeagueGroup, ...] = GROUPS) -> LeagueFile:
    """A league with these groups; its numbers are made up."""
    constants = (
        LeagueConstant("a100", "flash", 0.7, "near.1", 0.6, 0.8, 0.24, 0.27, 3),
        LeagueConstant("h100", "fp8", 0.5, "far.1", 0.5, 0.5, 0.25, 0.25, 0),
    )
    sweeps = (LeagueSweep("near", 7, 2, 0.015, "near.1", "near.2"),)
    ranges = (LeagueRange("near", 5, 4, -0.1, 0.05, 0.004), LeagueRange("far", 3, 0, 0.25, 1.5, 0.5))
    memory = (
        LeagueMemory("far", 0, (3, 4), (5, 5)),
        LeagueMemory("near", 5, (0, 0), (3, 4), 0.125, 0.25, -0.0625),
        LeagueMemory("megatron_a100_recompute", 2, (0, 0), (2, 2), 0.375, 0.5, 0.25),
    )
    schedules = (LeagueSchedule("near", "zb_h1", 4, 0.0625, 0.125, -0.03, 0.25),)
    nulls = {"one share": 0.625, "bubble only": 0.375}
    blind = LeagueTotals(0.875, 0.9375, 0.5, 12, (1, 4), (7, 9), 0)
    return LeagueFile(TOTALS, blind, 0.125, 0.3125, nulls, groups, constants, sweeps, ranges, memory, schedules)
