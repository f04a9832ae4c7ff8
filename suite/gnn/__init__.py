"""Full-graph GNN training on many processes: vertex partitioning and exchange of boundary rows.

plan.py           rows that one sparse product moves, counted before any process starts (numpy, scipy)
rank_shard.py     one process's part of a plan, and the data of its vertices
partition/        partitioners, which assign vertices to processes
partition_data.py preparation of a run: graph, partition, plan and one shard per rank
exchange.py       messages of a distributed sparse product (torch)
train.py          graph convolution network on an exchange (torch)
memory.py         predicted bytes per process
volume_executor.py  volumes, memory and modelled times without ranks
"""
