"""Graph partitioners behind one protocol. Each partition is computed once and cached.

| name | minimises | seed | package | source |
|---|---|---|---|---|
| block | nothing: given vertex order | no | | Section 4.1 |
| random | nothing: equal numbers of vertices | yes | | Section 5 |
| metis | edge cut | yes | pymetis | Karypis, Kumar 1998 |
| gvb | maximum send volume of a part, then the total | yes | pymetis, numba | like Acer et al. 2016 |
| external | unknown: another program's partition | no | its file | |

The paper balances volumes with Graph-VB. `gvb` is GVB-style: it has the same two goals and none of Graph-VB's code.
`external` reads a partition that Graph-VB itself wrote.
"""

from suite.gnn.partition.protocol import Partition, Partitioner, partition

__all__ = ["Partition", "Partitioner", "partition"]
