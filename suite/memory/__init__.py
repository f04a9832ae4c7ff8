"""Model states of a rank: form, place and bytes, without tensors. The names are layouts of conf/memory and systems."""

from suite.memory.layout import compressed, mixed, offloaded, pruned, resident, sparse

__all__ = ["compressed", "mixed", "offloaded", "pruned", "resident", "sparse"]
