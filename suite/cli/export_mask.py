"""Command `suite export-mask`: copy the pruning mask of a checkpoint into a file, for `pruning=saved`.

    suite export-mask reports/resume/RUN ticket.safetensors
    suite run system=sputnik pruning=saved pruning.ticket.path=ticket.safetensors pruning.sparsity=0.9

The newest checkpoint of a folder, or the one that is named. Says how many places of how many weights stay.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from suite.cli import Arguments, Command
from suite.core.exit_codes import Exit
from suite.core.files import check_file


def ticket(arguments: Arguments) -> int:
    from suite.engine.checkpoint import restore
    from suite.pruning.mask import density, save

    options = arguments.options
    file = check_file(options.file, "FILE")
    indices, entries = restore.load_mask(options.checkpoint)
    save(file, indices, entries)
    kept_entries = sum(index.numel() for index in indices.values())
    print(f"{file}: {kept_entries} places of {len(indices)} weights stay, sparsity {1 - density(indices, entries):.4f}")
    return Exit.OK


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=Path, help="a checkpoint, or a folder of them: its newest"
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the ticket, for pruning.ticket.path=FILE")


COMMAND = Command(
    "export-mask",
    "Copy the ticket out of a checkpoint into a file, for pruning=saved.",
    ticket,
    "reports/resume/RUN ticket.safetensors",
    options=options,
)
main = COMMAND.main
