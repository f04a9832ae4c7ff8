"""Command `suite export-mask`: copy the pruning mask of a checkpoint into a file, for `pruning=saved`.

    suite export-mask reports/resume/RUN mask.safetensors
    suite run system=sputnik pruning=saved pruning.ticket.path=mask.safetensors pruning.sparsity=0.9

CHECKPOINT is a checkpoint, or a folder of checkpoints, of which the newest is read. The command prints the number of
remaining entries and weights.
"""

from __future__ import annotations

from pathlib import Path

from suite.cli import Arguments, argument, command
from suite.core.exit_codes import Exit
from suite.core.files import check_file


@command(
    "Copy the pruning mask of a checkpoint into a file, for pruning=saved.",
    "reports/resume/RUN mask.safetensors",
    argument(
        "checkpoint", metavar="CHECKPOINT", type=Path, help="a checkpoint, or a folder whose newest checkpoint is read"
    ),
    argument("file", metavar="FILE", type=Path, help="file of the mask, for pruning.ticket.path=FILE"),
)
def main(arguments: Arguments) -> int:
    from suite.engine.checkpoint import restore
    from suite.pruning.mask import density, save

    file = check_file(arguments.file, "FILE")
    indices, entries = restore.load_mask(arguments.checkpoint)
    save(file, indices, entries)
    remaining = sum(index.numel() for index in indices.values())
    sparsity = 1 - density(indices, entries)
    print(f"{file}: {remaining} entries of {len(indices)} weights remain, sparsity {sparsity:.4f}")
    return Exit.OK
