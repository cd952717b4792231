"""A training step of JAX in 16 microbatches: in the two stages that a mark makes, and in those that costs choose.

Needs jax, flax and optax. The first argument is the width of the model, 256 by default.
"""

import copy
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from partita import alpa
from partita.alpa.testing import assert_allclose

WIDTH = int(sys.argv[1]) if len(sys.argv) > 1 else 256


class Network(nn.Module):
    """Four dense layers; with ``marked``, a stage ends in the middle."""

    width: int
    marked: bool = False

    @nn.compact
    def __call__(self, x):
        for number, features in enumerate([4 * self.width, self.width] * 2):
            x = nn.relu(nn.Dense(features)(x))
            if self.marked and number == 1:
                alpa.mark_pipeline_boundary()
        return x


def data(width):
    """A noisy linear function of random inputs, as many rows as columns."""
    weight, bias, inputs, noise = jax.random.split(jax.random.PRNGKey(0), 4)
    x = jax.random.normal(inputs, (width, width))
    y = x @ jax.random.normal(weight, (width, width)) + jax.random.normal(bias, (width,))
    return {"x": x, "y": y + 0.1 * jax.random.normal(noise, y.shape)}


def mean_square(state, batch):
    return lambda params: jnp.mean((state.apply_fn(params, batch["x"]) - batch["y"]) ** 2)


def plain_step(state, batch):
    return state.apply_gradients(grads=jax.grad(mean_square(state, batch))(state.params))


alpa.init(cluster="local", num_devices_per_node=2)


@alpa.parallelize(method=alpa.PipeshardParallel(num_micro_batches=16))
def marked_step(state, batch):
    loss = alpa.manual_layer_construction(mean_square(state, batch))
    return state.apply_gradients(grads=alpa.grad(loss)(state.params))


@alpa.parallelize(method=alpa.PipeshardParallel(num_micro_batches=16, stage_mode="auto"))
def automatic_step(state, batch):
    loss = alpa.automatic_layer_construction(layer_num=2)(mean_square(state, batch))
    return state.apply_gradients(grads=alpa.grad(loss)(state.params))


def largest_difference(tree, other):
    differences = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(), tree, other)
    return max(map(float, jax.tree.leaves(differences)))


batch, model = data(WIDTH), Network(WIDTH)
params, optimizer = model.init(jax.random.PRNGKey(1), batch["x"]), optax.adam(1e-3)
state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
marked = TrainState.create(apply_fn=Network(WIDTH, marked=True).apply, params=copy.deepcopy(params), tx=optimizer)

expected = jax.jit(plain_step)(state, batch)
for name, step, before in [("marked", marked_step, marked), ("automatic", automatic_step, state)]:
    after = step(before, batch)
    assert_allclose(expected.params, after.params, atol=5e-3)
    planned = step.get_last_executable()
    print(f"{name}: {planned.mesh}, {planned.verify(before, batch)}")
    print(f"  parameters differ from JAX by at most {largest_difference(expected.params, after.params):.0e}")
    for stage, counts in planned.stages().items():
        print(f"  stage {stage}: {counts['forward']} forward, {counts['input_grad'] + counts['weight_grad']} backward ops")

for _ in range(9):
    after, expected = automatic_step(after, batch), jax.jit(plain_step)(expected, batch)
loss = mean_square(state, batch)
print(f"loss {loss(state.params):.3f}; after ten steps {loss(alpa.fetch(after.params)):.3f}, with JAX {loss(expected.params):.3f}")
alpa.shutdown()
