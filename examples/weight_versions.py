"""Draw which weight version each pass of PipeOptim reads, and count the versions that each stage keeps."""

from suite.cli.draw import draw

print(draw(["system=pipeoptim", "grid.inter=4"]))
