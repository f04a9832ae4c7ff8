"""Graph partitioners behind one protocol.

Each partition is computed once and cached. name makes small seeds needs source block nothing: the order given no -
Section 4.1 random nothing: equal numbers of vertices yes - Section 5 metis edge cut yes pymetis Karypis, Kumar 1998
kahip edge cut yes kahip (extra gnn) Sanders, Schulz 2013 mtkahypar total volume: km1 of the column-net hypergraph no
mtkahypar (extra gnn) Gottesbueren 2021 gvb most rows sent by a part, then the total volume yes pymetis, numba as Acer
et al. 2016 external what another program did no its file -

The paper's partitioner for balanced volumes is Graph-VB. `gvb` is GVB-style: it has the same two goals and none of
Graph-VB's code; a partition that Graph-VB itself made comes in by `external`.
"""

from suite.gnn.partition.protocol import Partition, Partitioner, Quality, partition

__all__ = ["Partition", "Partitioner", "Quality", "partition"]
