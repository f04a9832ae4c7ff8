"""Draw which weight version each pass of PipeOptim reads, and count the versions that four systems keep (Table II)."""

from suite.cli.draw import draw

print(draw(["system=pipeoptim", "grid.inter=4", "draw.microbatches=6"]))
