"""Training steps of JAX on a mesh, in the words of Alpa.

    from partita import alpa

    @alpa.parallelize(method=alpa.PipeshardParallel(num_micro_batches=16))
    def train_step(state, batch):
        @alpa.manual_layer_construction
        def loss_func(params):
            out = state.apply_fn(params, batch["x"])       # calls alpa.mark_pipeline_boundary() between its layers
            return jnp.mean((out - batch["y"]) ** 2)

        grads = alpa.grad(loss_func)(state.params)
        return state.apply_gradients(grads=grads)

    state = train_step(state, batch)

The function is traced once and lowered to StableHLO. Partita splits it into microbatches and stages, shards it over the
ranks, and keeps the state there from call to call. Needs JAX; trees of any kind work: flax, optax, haiku.
``docs/alpa.md`` says what differs from Alpa.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("partita.alpa needs JAX: pip install jax") from error

from partita.alpa import testing
from partita.alpa._cluster import init, shutdown
from partita.alpa._layers import (
    AutoLayerOption,
    ManualLayerOption,
    automatic_layer_construction,
    grad,
    manual_layer_construction,
    value_and_grad,
)
from partita.alpa._marks import mark_pipeline_boundary
from partita.alpa._methods import (
    AutoShardingOption,
    AutoStageOption,
    DataParallel,
    ManualStageOption,
    PipeshardParallel,
    ShardParallel,
    UniformStageOption,
    Zero2Parallel,
)
from partita.alpa._parallelize import DistributedArray, Executable, ParallelizedFunction, fetch, parallelize

__all__ = [
    "AutoLayerOption",
    "AutoShardingOption",
    "AutoStageOption",
    "DataParallel",
    "DistributedArray",
    "Executable",
    "ManualLayerOption",
    "ManualStageOption",
    "ParallelizedFunction",
    "PipeshardParallel",
    "ShardParallel",
    "UniformStageOption",
    "Zero2Parallel",
    "automatic_layer_construction",
    "fetch",
    "grad",
    "init",
    "manual_layer_construction",
    "mark_pipeline_boundary",
    "parallelize",
    "shutdown",
    "testing",
    "value_and_grad",
]
