"""Public measurements of training throughput and memory by others, and the simulator's error on them."""
