"""File of the league, league.json, and published errors of other simulators.

The page reads these classes without the simulator, so this module imports `suite.core` alone. Errors are shares of the
measured throughput; `PublishedError` holds percent, as its sources print them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.core.plain_data import read_dataclass
from suite.core.words import for_reports

LEAGUE, ANSWERS = "league.json", "league.csv"  # names in a reports folder
OTHERS = Path(__file__).with_name("others.yaml")
FIRST = 3  # choices among which the measured best of a sweep counts as found
MAX_BYTES = 1 << 18  # of a file that is read; 36 groups take 11 kB


@dataclass(frozen=True, slots=True)
class LeagueTotals:
    """Errors over all groups.

    Attributes:
        mean: Mean over groups of the mean absolute error.
        percentile_90: 90th percentile over cells of the absolute error.
        orders: Share of pairs within a group whose order is right.
        pairs: Number of these pairs.
        oom: Rows that did not fit and are predicted not to fit, and all rows that did not fit.
        fit: Rows that ran and are predicted to fit, and all rows that ran.
        refused: Cells without an answer.
    """

    mean: float
    percentile_90: float
    orders: float
    pairs: int
    oom: tuple[int, int]
    fit: tuple[int, int]
    refused: int


@dataclass(frozen=True, slots=True)
class LeagueGroup:
    """Errors of one group: one table or series of one source.

    Attributes:
        family: Family of the source's software.
        cells: Scored cells.
        mean: Mean absolute error.
        largest: Largest absolute error.
        bias: Median signed error.
        null: Smallest mean error of the null models.
        left_out: Mean error with constants that were fitted without the group's family.
    """

    group: str
    family: str
    device: str
    cells: int
    mean: float
    largest: float
    bias: float
    null: float
    left_out: float

    def __post_init__(self) -> None:
        for name, value in (("mean", self.mean), ("largest", self.largest), ("null", self.null)):
            if value < 0:
                raise InvalidRequest(f"league.groups.{self.group}.{name}", value, rule="an absolute error, at least 0")


@dataclass(frozen=True, slots=True)
class LeagueConstant:
    """Constant of large products for a family of devices and a software generation, and the cell of its fit.

    Attributes:
        low, high: Least and largest constant to which other cells of the group would have led.
        best, worst: Least and largest mean error over groups with these constants.
        turning: Cells whose error crosses 10 % between the two constants.
    """

    family: str
    generation: str
    share: float
    cell: str
    low: float
    high: float
    best: float
    worst: float
    turning: int


@dataclass(frozen=True, slots=True)
class LeagueSweep:
    """One sweep of layouts: whether the simulator finds what its source measured to be quickest.

    Attributes:
        cells: Layouts that were measured.
        place: Place of the measured best among the simulator's choices, from 1; 0 if it is predicted not to fit.
        lost: Share of the best throughput that is lost by taking the simulator's first choice.
        first, best: Cells of the first choice and of the measured best.
    """

    group: str
    cells: int
    place: int
    lost: float
    first: str
    best: str

    @property
    def found(self) -> bool:
        """Whether the measured best is among the first choices."""
        return 0 < self.place <= FIRST


@dataclass(frozen=True, slots=True)
class LeagueRange:
    """Ranges of the answers of one group over plausible values of settings that its source does not tell.

    Attributes:
        cells: Scored cells that have a range.
        inside: Cells whose measured throughput lies in the range.
        low, high: Median over cells of the signed error of the least and of the largest answer.
        distance: Mean over cells of the relative distance of the measured throughput from the nearer end; 0 inside.
    """

    group: str
    cells: int
    inside: int
    low: float
    high: float
    distance: float


@dataclass(frozen=True, slots=True)
class LeagueMemory:
    """Errors of predicted memory of one group.

    Attributes:
        cells: Cells whose source prints memory.
        oom: Rows that did not fit and are predicted not to fit, and all rows that did not fit.
        fit: Rows that ran and are predicted to fit, and all rows that ran.
        mean, largest: Absolute errors of the bytes of the fullest device; None without printed memory.
        bias: Median signed error.
    """

    group: str
    cells: int
    oom: tuple[int, int]
    fit: tuple[int, int]
    mean: float | None = None
    largest: float | None = None
    bias: float | None = None


@dataclass(frozen=True, slots=True)
class LeagueSchedule:
    """Errors of throughput with printed pass times in place of the cost model, for one group and schedule.

    Attributes:
        schedule: Schedule of conf/schedule.
        cells: Scored cells with printed pass times.
        mean, largest: Absolute errors.
        bias: Median signed error.
        modelled: Mean absolute error of the cost model on the same cells.
    """

    group: str
    schedule: str
    cells: int
    mean: float
    largest: float
    bias: float
    modelled: float


@dataclass(frozen=True, slots=True)
class LeagueFile:
    """Content of league.json.

    Attributes:
        score: Totals with the fitted constants, without the cells to which they are fitted.
        blind: Totals of the first comparison, before anything was fitted.
        known: Mean error over groups of the cells whose decisive settings are all told.
        left_out: Mean error over groups, each with constants fitted without its family.
        nulls: Mean error over groups of each null model.
        ranges: Ranges of answers, for the groups with a cell whose settings are not all told.
        memory: Errors of memory, for the groups that print memory or have rows that did not fit.
        schedules: Errors with printed pass times, by group and schedule.
    """

    score: LeagueTotals
    blind: LeagueTotals
    known: float
    left_out: float
    nulls: Mapping[str, float]
    groups: tuple[LeagueGroup, ...]
    constants: tuple[LeagueConstant, ...]
    sweeps: tuple[LeagueSweep, ...] = ()
    ranges: tuple[LeagueRange, ...] = ()
    memory: tuple[LeagueMemory, ...] = ()
    schedules: tuple[LeagueSchedule, ...] = ()

    def write(self, folder: Path) -> Path:
        """Write `folder`/league.json atomically. Returns its path.

        Raises:
            OSError: The file cannot be written.
            InvalidRequest: The file would lie outside `folder`.
        """
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        return write_atomically(folder / LEAGUE, text.encode(), inside=folder)


def read_league(folder: Path) -> LeagueFile | None:
    """Content of `folder`/league.json; None where there is no such file.

    Raises:
        InvalidRequest: The file cannot be read, has no group, or a field is missing or has a value of another type.
    """
    path, legal = folder / LEAGUE, f"`{for_reports('league', folder)}` writes the file again"
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise InvalidRequest(f"size of {path}", f"more than {MAX_BYTES} B", rule=f"at most {MAX_BYTES} B")
        content: LeagueFile = read_dataclass(LeagueFile, json.loads(text), "league")
        if not content.groups:
            raise InvalidRequest("league.groups", [], rule="at least one group")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", rule="the JSON of a league", legal=legal) from error
    except InvalidRequest as error:
        raise InvalidRequest(error.key, error.value, rule=error.rule, legal=legal) from error
    return content


@dataclass(frozen=True, slots=True)
class PublishedError:
    """Error of another simulator against measurements, in percent, as its source prints it.

    Attributes:
        name: Name of the simulator.
        cells: Measurements that its authors compare with.
        mean: Mean absolute error.
        largest: Largest absolute error; None if it is not printed.
        group: Group of the league with the same cells; empty for none.
        note: Fitted or measured inputs of the simulator.
    """

    name: str
    cells: str
    mean: float
    source: str
    largest: float | None = None
    group: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class PublishedErrors:
    """Content of others.yaml."""

    simulators: tuple[PublishedError, ...]


def published_errors(path: Path = OTHERS) -> tuple[PublishedError, ...]:
    """Rows of others.yaml, in order. Raises InvalidRequest for a file that cannot be read or lacks a field."""
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", rule="a YAML file") from error
    return read_dataclass(PublishedErrors, rows, "others").simulators
