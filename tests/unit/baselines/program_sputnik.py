"""Program of test_sputnik_cuda.py in a separate process: sparse layers by Triton's interpreter, on a CPU.

Arguments are pairs of a case and a type. Prints the errors by case, type and product as JSON. Triton reads
TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import json
import sys

import torch

from baselines.sputnik import cuda, linear
from tests.support.sparse_products import CASES, errors_of

if __name__ == "__main__":
    linear.kernels_of = lambda device: cuda  # type: ignore[assignment]
    pairs = zip(sys.argv[1::2], sys.argv[2::2], strict=True)
    json.dump({f"{name} {kind}": errors_of(CASES[name], getattr(torch, kind)) for name, kind in pairs}, sys.stdout)
