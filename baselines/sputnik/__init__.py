"""SAMO's sparse baseline: AxoNN with linear layers that store and multiply only unpruned weights.

The package holds all parts that differ from AxoNN: a weight as kept values under a shared structure (structure.py), its
products by torch's kernels on a CPU (cpu.py) and by Triton kernels on CUDA (cuda.py), the layer (linear.py), the engine
that trains with it (system.py), and the time of one layer's products (layer_timing.py).
"""

# note in every record of this system, until a GPU has run the kernels
UNTRIED = "the Triton kernels for CUDA have run in Triton's interpreter alone, on no GPU yet"
