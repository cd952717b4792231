"""What names of mesh axes mean, as the library has it."""

from partita._partita import built_in_axes

_EXPERTS = "ep"

BATCH_AXES = tuple(axis for axis, shards_batch in built_in_axes() if shards_batch)
"""The axes that shard dimension 0 of the batch."""

DENSE_BATCH_AXES = tuple(axis for axis in BATCH_AXES if axis != _EXPERTS)
"""Those of models without experts, which PyTorch's own modules have no form for."""
