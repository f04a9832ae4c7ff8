"""Count the rows that broadcasts and a sparsity-aware exchange send on a partitioned graph."""

import tempfile

from suite.cli.run import run

GRAPH = ["graph=amazon_like", "grid.data=16", "executor=volumes"]

with tempfile.TemporaryDirectory() as reports:
    for system in ("system=cagnet", "system=sparsity_aware", "system=sparsity_aware partitioner=metis"):
        (record,) = run([*system.split(), *GRAPH, f"reports={reports}"])
        print(f"{record.system:<21} {record.metrics['rows_sent'].values[0]:>8,.0f} rows sent per product")
