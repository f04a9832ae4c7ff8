"""Decides what `python -m suite.ticket` does: takes the ticket out of a checkpoint, for `pruning=saved`.

    python -m suite.ticket reports/resume/RUN ticket.safetensors
    python -m suite system=sputnik pruning=saved pruning.ticket.path=ticket.safetensors pruning.sparsity=0.9

The newest checkpoint of a folder, or the one that is named. Says how many places of how many weights stay.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from suite.core.errors import SuiteError


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print("python -m suite.ticket CHECKPOINT FILE", file=sys.stderr)
        return 2
    from suite.engine.restore import ticket
    from suite.pruning.ticket import density, save

    try:
        indices, entries = ticket(Path(arguments[0]))
        save(Path(arguments[1]), indices, entries)
    except (SuiteError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    kept = sum(index.numel() for index in indices.values())
    print(f"{arguments[1]}: {kept} places of {len(indices)} weights stay, sparsity {1 - density(indices, entries):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
