"""Command `suite accuracy`: score the simulator on public measurements of others.

    suite accuracy
    suite accuracy cells=FILE reports=FOLDER

The command prints the errors of each group and the totals, and writes accuracy.csv with a row for each measurement, and
accuracy_constants.csv, which the page of the folder shows. A measurement that the simulator refuses counts as an error
of 100 %; the exit status then is 1.
"""

from __future__ import annotations

from pathlib import Path

from suite.cli import Arguments, command
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.files import check_folder
from suite.core.words import format_count


@command(
    "Score the simulator on public measurements of training steps.",
    "reports=FOLDER",
    keys={
        "cells": "FILE       measurements, as suite/simulate/validation/cells.yaml (default: that file)",
        "reports": "FOLDER   folder of accuracy.csv (default: reports)",
    },
)
def main(arguments: Arguments) -> int:
    from suite.simulate.validation.accuracy import scorable_cells, score
    from suite.simulate.validation.cells import CELLS
    from suite.simulate.validation.tables import ACCURACY, shown, tables

    path = arguments.value("cells", str(CELLS))
    if not path:
        raise InvalidRequest("cells=", rule="a file of measurements", legal=f"cells={CELLS.name}")
    folder = check_folder(arguments.reports, "reports")
    cells = scorable_cells(Path(path))
    print(f"scoring {format_count(cells, 'cell')}; all public cells take about a minute on two cores", flush=True)
    accuracy = score(cells)
    accuracy.write(folder)
    for title, table in tables(*accuracy).items():
        text = table.apply(lambda column: column.map(lambda value: shown(value, str(column.name)))).reset_index()
        print(f"\n{title}\n{text.drop(columns='source', errors='ignore').to_string(index=False)}")
    refused = accuracy.steps[accuracy.steps["refusal"] != ""]
    for row in refused.itertuples():
        print(f"refused: {row.id}: {row.refusal}")
    print(f"\n{folder / ACCURACY}")
    if len(refused) == len(cells):
        return Exit.NOTHING
    return Exit.SOME_FAILED if len(refused) else Exit.OK
