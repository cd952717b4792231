"""Lowers whole training steps of JAX, optax, flax and haiku, and records what JAX computes for them.

`python tests/jax/models.py` writes `models.mlir` and `models.json` beside this file, in the form that README.md describes.
`python tests/jax/models.py FOLDER` writes each step as `FOLDER/NAME.mlir`, with the state donated and module names, its
inputs and the results of three steps in JAX as `FOLDER/NAME.npz`, and as `FOLDER/NAME.json` how exact they are and which
collectives XLA compiles. `fresh.py` compares them with what Partita computes.
"""

import json
import re
import sys
from pathlib import Path

import generate  # sets the platform and the number of devices
import flax.linen
import haiku
import jax
import jax.numpy as jnp
import numpy as np
import optax
from generate import Fill, attention, case, cross_entropy, layer_norm, write
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


class Step:
    """A training step `(state, *batch) -> (state, loss)` with the values it starts from."""

    def __init__(self, name, step, state, batch, shardings=None, tolerance=2e-4, mesh=None, noise=()):
        self.noise = noise  # parameters whose gradient is zero but for rounding, which Adam makes large
        self.name, self.batch, self.shardings, self.tolerance, self.mesh = name, batch, shardings, tolerance, mesh
        leaves, self.tree = jax.tree.flatten(state, is_leaf=lambda x: isinstance(x, Fill))
        paths = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda x: isinstance(x, Fill))[0]
        self.names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
        self.state = [filled(x, i) for i, x in enumerate(leaves)]

        def flat(*arguments):
            inner = jax.tree.unflatten(self.tree, arguments[:len(leaves)])
            new, loss = step(inner, *arguments[len(leaves):])
            return *jax.tree.leaves(new), loss

        self.flat = flat

    def case(self):
        names = self.names + [f"batch.{i}" for i in range(len(self.batch))]
        text, record = case(self.name, self.flat, self.state + self.batch, carry=len(self.state), steps=3, names=names,
                            shardings=self.shardings, tolerance=self.tolerance)
        for entry in record["outputs"]:  # many tensors: sixteen numbers each are enough
            if len(entry["data"]) > 16:
                k = len(entry["data"]) // 16
                entry["every"] = entry.get("every", 1) * k
                entry["data"] = entry["data"][::k]
        return text, record

    def files(self, folder):
        """The step as users lower it: a tree of parameters, donated."""
        arrays = [generate.concrete(x) for x in self.state + self.batch]
        state, batch = jax.tree.unflatten(self.tree, arrays[:len(self.state)]), arrays[len(self.state):]

        def step(state, *batch):
            *new, loss = self.flat(*jax.tree.leaves(state), *batch)
            return jax.tree.unflatten(self.tree, new), loss

        step.__name__ = self.name
        layouts = {}
        if self.shardings:
            of_state = jax.tree.unflatten(self.tree, self.shardings[:len(self.state)])
            layouts = {"in_shardings": (of_state, *self.shardings[len(self.state):]), "out_shardings": (of_state, None)}
        for donated, ending in (((0,), ""), ((), "_kept")):
            lowered = jax.jit(step, donate_argnums=donated, **layouts).lower(state, *batch)
            (folder / f"{self.name}{ending}.mlir").write_text(lowered.as_text(debug_info=True))
        run = lowered.compile()
        own = [f"state.{name}" for name in self.names]
        record = dict(zip(own, arrays)) | {f"batch.{i}": value for i, value in enumerate(batch)}
        losses, now = [], state
        for number in range(3):
            now, loss = run(now, *batch)
            losses.append(float(loss))
            if number == 0:
                record |= {"loss": loss} | {f"new.{name}": leaf for name, leaf in zip(own, jax.tree.leaves(now))
                                             if name not in self.noise}
        np.savez(folder / f"{self.name}.npz", **{key: plain(value) for key, value in record.items()})
        facts = {"tolerance": self.tolerance, "mesh": self.mesh, "losses": losses,
                 "collectives": collectives(run.as_text())}
        (folder / f"{self.name}.json").write_text(json.dumps(facts))
        print(self.name, facts, file=sys.stderr)


def plain(x):
    """An array of a type that NumPy files have."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def collectives(text):
    """The number of collectives of a compiled program, those that were combined as one, and the bytes of their results."""
    sizes = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "f64": 8, "pred": 1}
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    found = re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", text)
    tensors = [tensor for types in found for tensor in re.findall(r"(\w+)\[([\d,]*)\]", types)]
    return len(found), sum(sizes[ty] * int(np.prod([int(n) for n in dims.split(",") if n])) for ty, dims in tensors)


def filled(x, seed):
    """A float leaf as a formula, so that the record stays small; other leaves as they are."""
    if isinstance(x, Fill):
        return x
    x = np.asarray(x)
    if x.dtype != np.float32:
        return x
    if x.size and (x == x.flat[0]).all():
        return Fill(x.shape, constant=float(x.flat[0]))
    fan = x.shape[-2] if x.ndim > 1 else 16
    return Fill(x.shape, seed=1000 + seed, scale=2.0 ** -round(np.log2(fan) / 2))


def optax_step(loss, optimizer):
    """A step of the state `{"params": .., "optimizer": ..}`."""
    def step(state, *batch):
        value, grads = jax.value_and_grad(loss)(state["params"], *batch)
        updates, inner = optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": inner}, value
    return step


def with_optimizer(params, optimizer):
    return {"params": params, "optimizer": optimizer.init(params)}


def tokens(batch=4, length=8, vocabulary=32):
    return [Fill((batch, length), seed=7, below=vocabulary), Fill((batch, length), seed=8, below=vocabulary)]


def normal(*shape):
    """Something that is not constant: `filled` replaces it by a formula."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# ---- the models ---------------------------------------------------------------------------------------

def mlp_adam():
    params, optimizer = mlp_params(), optax.adam(1e-2)
    return Step("mlp_adam", optax_step(mlp_loss, optimizer), with_optimizer(params, optimizer),
                [Fill((8, 8), seed=1, scale=2.0), Fill((8, 4), seed=2, scale=2.0)])


def decoder_params(width=16, vocabulary=32, length=8, layers=1):
    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    params = {"embedding": normal(vocabulary, width), "position": normal(length, width), "gain": ones, "bias": zeros,
              "head": normal(width, vocabulary)}
    for i in range(layers):
        params |= {f"layers.{i}.{n}": normal(width, width) for n in "qkvo"}
        params |= {f"layers.{i}.up": normal(width, 4 * width), f"layers.{i}.down": normal(4 * width, width),
                   f"layers.{i}.gain": ones, f"layers.{i}.bias": zeros}
    return params


def decoder_loss(p, x, y, layers=1):
    h = p["embedding"][x] + p["position"]
    for i in range(layers):
        at = f"layers.{i}"
        h = h + attention(layer_norm(h, p[f"{at}.gain"], p[f"{at}.bias"]), p, at)
        h = h + jax.nn.gelu(h @ p[f"{at}.up"], approximate=True) @ p[f"{at}.down"]
    return cross_entropy(layer_norm(h, p["gain"], p["bias"]) @ p["head"], y)


def decoder_adamw_clipped():
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-3, weight_decay=0.1))
    params = decoder_params()
    return Step("decoder_adamw_clipped", optax_step(decoder_loss, optimizer), with_optimizer(params, optimizer), tokens(),
                tolerance=1e-3)


def decoder_bf16():
    def loss(params, x, y):
        low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        return decoder_loss(low, x, y).astype(jnp.float32)

    optimizer = optax.sgd(0.1)
    return Step("decoder_bf16", optax_step(loss, optimizer), with_optimizer(decoder_params(), optimizer), tokens(),
                tolerance=5e-2)


def cnn_batch_norm():
    params = {"conv1": normal(3, 3, 1, 4), "gain": np.ones(4, np.float32), "bias": np.zeros(4, np.float32),
              "conv2": normal(3, 3, 4, 8), "head": normal(32, 10)}
    stats = {"mean": np.zeros(4, np.float32), "variance": np.ones(4, np.float32)}

    def conv(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def pooled(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def loss(params, stats, x, y):
        h = conv(x, params["conv1"])
        mean, variance = jnp.mean(h, (0, 1, 2)), jnp.var(h, (0, 1, 2))
        stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "variance": 0.9 * stats["variance"] + 0.1 * variance}
        h = (h - mean) * lax.rsqrt(variance + 1e-5) * params["gain"] + params["bias"]
        h = pooled(jax.nn.relu(h))
        h = pooled(jax.nn.relu(conv(h, params["conv2"])))
        return cross_entropy(h.reshape(h.shape[0], -1) @ params["head"], y), stats

    def step(state, x, y):
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], state["stats"], x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        return {"params": params, "stats": stats}, value

    return Step("cnn_batch_norm", step, {"params": params, "stats": stats},
                [Fill((4, 8, 8, 1), seed=3, scale=2.0), Fill((4,), seed=4, below=10)])


def scan_remat_dropout():
    """Layers with stacked weights, a scan over them, each rematerialised and with dropout."""
    params = {"up": normal(3, 8, 16), "down": normal(3, 16, 8)}

    def loss(params, key, x, y):
        @jax.checkpoint
        def layer(carried, weights):
            h, key = carried
            key, own = jax.random.split(key)
            u = jnp.tanh(h @ weights["up"])
            u = jnp.where(jax.random.bernoulli(own, 0.75, u.shape), u / 0.75, 0.0)
            return (h + u @ weights["down"], key), None
        (h, _), _ = lax.scan(layer, (x, key), params)
        return jnp.mean((h - y) ** 2)

    def step(state, x, y):
        key, own = jax.random.split(state["key"])
        value, grads = jax.value_and_grad(loss)(state["params"], own, x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        return {"params": params, "key": key}, value

    return Step("scan_remat_dropout", step, {"params": params, "key": np.array([0, 5], np.uint32)},
                [Fill((4, 8), seed=5, scale=2.0), Fill((4, 8), seed=6, scale=2.0)])


def mixture_of_experts():
    """Two of four experts for each token, by top_k; tokens are scattered to the slots of experts and gathered again."""
    experts, slots, width = 4, 16, 8
    params = {"router": normal(width, experts), "up": normal(experts, width, 16), "down": normal(experts, 16, width)}

    def loss(params, x, y):
        weights, chosen = lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
        weights = weights / weights.sum(-1, keepdims=True)
        flat = chosen.reshape(-1)
        place = jnp.cumsum(jax.nn.one_hot(flat, experts, dtype=jnp.int32), 0)[jnp.arange(flat.size), flat] - 1
        sent = jnp.zeros((experts, slots, width)).at[flat, place].add(jnp.repeat(x, 2, 0), mode="drop")
        h = jax.nn.relu(jnp.einsum("esd,edh->esh", sent, params["up"]))
        back = jnp.einsum("esh,ehd->esd", h, params["down"])[flat, place].reshape(-1, 2, width)
        return jnp.mean((x + jnp.sum(back * weights[..., None], 1) - y) ** 2)

    optimizer = optax.sgd(0.1)
    return Step("mixture_of_experts", optax_step(loss, optimizer), with_optimizer(params, optimizer),
                [Fill((8, width), seed=9, scale=2.0), Fill((8, width), seed=10, scale=2.0)])


class FlaxBlock(flax.linen.Module):
    """A classifier with layer norm and dropout-free attention."""

    @flax.linen.compact
    def __call__(self, x):
        h = flax.linen.LayerNorm()(x)
        x = x + flax.linen.MultiHeadDotProductAttention(num_heads=2)(h, h)
        x = x + flax.linen.Dense(8)(flax.linen.gelu(flax.linen.Dense(16)(x)))
        return flax.linen.Dense(4)(x.mean(1))


def flax_module():
    module = FlaxBlock()
    params = module.init(jax.random.key(0), jnp.zeros((4, 6, 8)))

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(module.apply(params, x), y).mean()

    optimizer = optax.adam(1e-3)
    return Step("flax_module", optax_step(loss, optimizer), with_optimizer(params, optimizer),
                [Fill((4, 6, 8), seed=11, scale=2.0), Fill((4,), seed=12, below=4)], tolerance=5e-4,
                noise=["state.params.params.MultiHeadDotProductAttention_0.key.bias"])


def haiku_module():
    def forward(x):
        return haiku.nets.MLP([16, 16, 4], name="net")(haiku.LayerNorm(-1, True, True)(x))

    module = haiku.without_apply_rng(haiku.transform(forward))
    params = module.init(jax.random.key(0), jnp.zeros((8, 8)))

    def loss(params, x, y):
        return jnp.mean((module.apply(params, x) - y) ** 2)

    optimizer = optax.rmsprop(1e-3)
    return Step("haiku_module", optax_step(loss, optimizer), with_optimizer(params, optimizer),
                [Fill((8, 8), seed=13, scale=2.0), Fill((8, 4), seed=14, scale=2.0)], tolerance=5e-4)


STEPS = [mlp_adam, decoder_adamw_clipped, decoder_bf16, cnn_batch_norm, scan_remat_dropout, mixture_of_experts, flax_module,
         haiku_module]


def sharded_decoder():
    """A decoder whose layouts are JAX's: heads and features over `tp`, the batch over `dp`; 8 devices."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("dp", "tp"))
    params = decoder_params()

    def layout(name):
        leaf = name.rsplit(".")[-1]
        spec = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "up": P(None, "tp"), "o": P("tp", None),
                "down": P("tp", None), "embedding": P("tp", None), "head": P(None, "tp")}.get(leaf, P())
        return NamedSharding(mesh, spec)

    def step(state, x, y):
        value, grads = jax.value_and_grad(decoder_loss)(state, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    found = Step("sharded_decoder", step, params, tokens(), mesh="dp=2,tp=4")
    data = NamedSharding(mesh, P("dp"))
    found.shardings = [layout(name) for name in found.names] + [data, data]
    return found


def mlp_loss(params, x, y):
    for i in range(3):
        x = x @ params[f"layer{i}"]["w"] + params[f"layer{i}"]["b"]
        x = jax.nn.relu(x) if i < 2 else x
    return jnp.mean((x - y) ** 2)


def mlp_params():
    return {f"layer{i}": {"w": normal(a, b), "b": np.zeros(b, np.float32)}
            for i, (a, b) in enumerate([(8, 16), (16, 16), (16, 4)])}


def explicit(name, mesh, axes, layout):
    """Data parallelism written out: each rank of `dp` has its rows, and the gradients are averaged by hand."""
    def step(state, x, y):
        def body(state, x, y):
            value, grads = jax.value_and_grad(mlp_loss)(state, x, y)
            value, grads = lax.pmean((value, grads), "dp")
            return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value
        rows = P("dp")
        return jax.shard_map(body, mesh=mesh, in_specs=(P(), rows, rows), out_specs=P(), axis_names=axes,
                             check_vma=False)(state, x, y)

    found = Step(name, step, mlp_params(), [Fill((8, 8), seed=1, scale=2.0), Fill((8, 4), seed=2, scale=2.0)],
                 mesh=",".join(f"{axis}={size}" for axis, size in mesh.shape.items()))
    data = NamedSharding(mesh, P("dp"))
    found.shardings = [NamedSharding(mesh, layout(name)) for name in found.names] + [data, data]
    return found


def manual_mlp():
    """Everything inside `shard_map`, over 8 ranks."""
    return explicit("manual_mlp", Mesh(np.array(jax.devices()), ("dp",)), {"dp"}, lambda name: P())


def explicit_dp_with_tp():
    """`dp` by hand; the weights are laid out over `tp`, and what follows from that is left to the partitioner."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("dp", "tp"))
    layouts = {"layer0.w": P(None, "tp"), "layer0.b": P("tp"), "layer1.w": P("tp", None)}
    return explicit("explicit_dp_with_tp", mesh, {"dp"}, lambda name: layouts.get(name, P()))


# Steps with layouts of their own.
SHARDED = [sharded_decoder, manual_mlp, explicit_dp_with_tp]


def main():
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        for make in STEPS + SHARDED:
            make().files(folder)
        return
    write("models", [make().case() for make in STEPS])
    write("sharded_decoder", [sharded_decoder().case()])


if __name__ == "__main__":
    main()
