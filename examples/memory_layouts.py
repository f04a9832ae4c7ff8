"""Compare the bytes of model states per parameter: dense, offloaded, and compressed after pruning (SAMO)."""

from suite.memory.layout import dense, mixed_precision, offloaded, samo

PARAMETERS, SPARSITY = 1_000_000, 0.9
MOMENTS = ["first_moment", "second_moment"]
KEPT = round(PARAMETERS * (1 - SPARSITY))

states = mixed_precision(dense(PARAMETERS, MOMENTS))
layouts = {
    "dense": states,
    "offloaded": offloaded(PARAMETERS, MOMENTS, half="float16", bucket=PARAMETERS // 10),
    "compressed": samo(KEPT)(states),
}
for name, layout in layouts.items():
    device, host = (layout.bytes(home=home, life="always") / PARAMETERS for home in ("device", "host"))
    print(f"{name:<11} {device:5.1f} bytes per parameter on the device, {host:5.1f} on the host")
