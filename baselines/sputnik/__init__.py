"""SAMO's sparse baseline: AxoNN with linear layers that keep and multiply only unpruned weights.

What makes it different stands here alone: a weight as the values that stay under a shared structure (structure.py), the
products of it by torch's kernels on a CPU (cpu.py) and by Triton's on CUDA (cuda.py), the layer (linear.py), the engine
that trains with it (system.py), and the time of one layer's products (layer_timing.py).
"""

# of every record of this system, until a GPU has run them
UNTRIED = "the Triton kernels for CUDA have run in Triton's interpreter alone, on no GPU yet"
