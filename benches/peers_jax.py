"""A case of `partita bench` in JAX, jitted, donated buffers, layers in `lax.scan`; several ranks are host devices of one
process.

    python benches/peers_jax.py gpt/small
    python benches/peers_jax.py dist/small/fsdp=2
"""

import os

from measure import BETAS, GPT, LEARNING_RATE, MLP, SIZES, WEIGHT_DECAY, arguments, limit_threads, measure, tell


def adam(params, gradients, state, rate, betas, decay):
    """Adam with decoupled weight decay."""
    import jax
    import jax.numpy as jnp

    count, means, squares = state
    count = count + 1
    means = jax.tree.map(lambda m, g: betas[0] * m + (1 - betas[0]) * g, means, gradients)
    squares = jax.tree.map(lambda v, g: betas[1] * v + (1 - betas[1]) * g * g, squares, gradients)
    first, second = 1 - betas[0] ** count, 1 - betas[1] ** count

    def update(p, m, v):
        return p - rate * ((m / first) / (jnp.sqrt(v / second) + 1e-8) + decay * p)

    return jax.tree.map(update, params, means, squares), (count, means, squares)


def adam_state(params):
    import jax
    import jax.numpy as jnp

    zeros = lambda: jax.tree.map(jnp.zeros_like, params)
    return jnp.zeros((), jnp.float32), zeros(), zeros()


def trainer(loss, params, batch, rate, betas, decay, shardings=None):
    """A step that keeps its state; `shardings`: of the parameters."""
    import jax

    state = adam_state(params)

    def train(params, state, *batch):
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        params, state = adam(params, gradients, state, rate, betas, decay)
        return params, state, value

    out = None
    if shardings is not None:
        params, rest = jax.device_put(params, shardings), (shardings, shardings)
        state = (state[0], *jax.device_put(state[1:], rest))
        out = (shardings, (None, *rest), None)
    compiled = jax.jit(train, donate_argnums=(0, 1), out_shardings=out)
    kept = [params, state]

    def step():
        kept[0], kept[1], value = jax.block_until_ready(compiled(*kept, *batch))
        return float(value)

    return step


def product(sizes):
    import jax

    m, k, n = (int(size) for size in sizes.split("x"))
    key = jax.random.key(1)
    lhs, rhs = jax.random.uniform(key, (m, k)), jax.random.uniform(key, (k, n))
    compiled = jax.jit(lambda lhs, rhs: lhs @ rhs)

    def step():
        compiled(lhs, rhs).block_until_ready()

    return step


def mlp(name):
    import jax
    import jax.numpy as jnp

    features, rows = MLP[name]
    keys = jax.random.split(jax.random.key(1), len(features) + 2)

    def layer(key, inner, outer):
        # As PyTorch's linear layers.
        parts = zip(jax.random.split(key), ((inner, outer), (outer,)))
        return tuple(jax.random.uniform(part, shape, minval=-1, maxval=1) * inner**-0.5 for part, shape in parts)

    params = [layer(key, inner, outer) for key, inner, outer in zip(keys, features, features[1:])]
    batch = [jax.random.normal(key, (*rows, size)) for key, size in zip(keys[-2:], (features[0], features[-1]))]

    def loss(params, x, y):
        for index, (weight, bias) in enumerate(params):
            x = x @ weight + bias
            if name == "alpa":
                x = jax.nn.relu(x)
            elif index + 1 < len(params):
                x = jax.nn.gelu(x, approximate=False)
        return jnp.mean((x - y) ** 2)

    if LEARNING_RATE[name]:
        return trainer(loss, params, batch, LEARNING_RATE[name], (0.9, 0.999), 0.0)
    compiled = jax.jit(jax.value_and_grad(loss))

    def step():
        return float(jax.block_until_ready(compiled(params, *batch))[0])

    return step


def gpt_loss(size):
    import jax
    import jax.numpy as jnp

    _, dim, _, heads, positions, _ = GPT[size]

    def norm(x, scale, shift):
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift

    def loss(params, tokens, labels):
        rows = tokens.shape[0]
        causal = jnp.tril(jnp.ones((positions, positions), bool))

        def layer(x, p):
            h = norm(x, p["attn_norm"], p["attn_norm_b"])
            split = lambda name: (h @ p[name] + p[name + "_b"]).reshape(rows, positions, heads, dim // heads)
            q, k, v = split("q"), split("k"), split("v")
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (dim // heads) ** -0.5
            weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), -1)
            attended = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(rows, positions, dim)
            x = x + attended @ p["o"] + p["o_b"]
            h = norm(x, p["mlp_norm"], p["mlp_norm_b"])
            h = jax.nn.gelu(h @ p["up"] + p["up_b"], approximate=True)
            return x + h @ p["down"] + p["down_b"], None

        x = params["tokens"][tokens] + params["positions"]
        x, _ = jax.lax.scan(layer, x, params["layers"])
        logits = norm(x, params["norm"], params["norm_b"]) @ params["tokens"].T
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
        return -picked.mean()

    return loss


def gpt(size, kind="dp", ranks=1):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    vocab, dim, layers, _, positions, rows = GPT[size]
    random = np.random.default_rng(1)
    normal = lambda *shape, std=0.02: jnp.asarray(std * random.standard_normal(shape, dtype=np.float32))
    shapes = {"q": (dim, dim), "k": (dim, dim), "v": (dim, dim), "o": (dim, dim)}
    shapes |= {"up": (dim, 4 * dim), "down": (4 * dim, dim)}
    # As GPT-2: what writes to the residual stream starts smaller.
    spread = lambda name: 0.02 / (2 * layers) ** 0.5 if name in ("o", "down") else 0.02
    stacked = {name: normal(layers, *shape, std=spread(name)) for name, shape in shapes.items()}
    stacked |= {name + "_b": jnp.zeros((layers, shape[1])) for name, shape in shapes.items()}
    for name in ("attn_norm", "mlp_norm"):
        stacked |= {name: jnp.ones((layers, dim)), name + "_b": jnp.zeros((layers, dim))}
    params = {"tokens": normal(vocab, dim), "positions": normal(positions, dim), "layers": stacked}
    params |= {"norm": jnp.ones(dim), "norm_b": jnp.zeros(dim)}
    batch = [jnp.asarray(random.integers(0, vocab, (rows, positions), dtype=np.int32)) for _ in range(2)]
    shardings = None
    if ranks > 1:
        mesh = Mesh(np.array(jax.devices()), ("x",))
        column, row = {"q", "k", "v", "up", "q_b", "k_b", "v_b", "up_b"}, {"o", "down"}

        def place(path, leaf):
            # Layers are stacked along dimension 0, which is never cut.
            first = 1 if path[0].key == "layers" else 0
            axes = [None] * leaf.ndim
            if kind == "tp" and path[-1].key in column:
                axes[-1] = "x"
            elif kind == "tp" and path[-1].key in row:
                axes[first] = "x"
            elif kind == "fsdp" and leaf.shape[first] % ranks == 0:
                axes[first] = "x"
            return NamedSharding(mesh, PartitionSpec(*axes))

        shardings = jax.tree_util.tree_map_with_path(place, params)
        data = PartitionSpec() if kind == "tp" else PartitionSpec("x")
        batch = [jax.device_put(part, NamedSharding(mesh, data)) for part in batch]
    return trainer(gpt_loss(size), params, batch, LEARNING_RATE["gpt"], BETAS, WEIGHT_DECAY, shardings)


def collective(name, size, ranks):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("x",))
    elements = SIZES[size] // 4
    split, whole = PartitionSpec("x"), PartitionSpec()
    body, length, out = {
        "all_reduce": (lambda v: jax.lax.psum(v, "x"), elements * ranks, split),
        "all_gather": (lambda v: jax.lax.all_gather(v, "x", tiled=True), elements, whole),
        "reduce_scatter": (lambda v: jax.lax.psum_scatter(v, "x", tiled=True), elements * ranks, split),
    }[name]
    value = jax.device_put(jnp.ones(length), NamedSharding(mesh, split))
    compiled = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=split, out_specs=out, check_vma=False))

    def step():
        compiled(value).block_until_ready()

    return step


def main():
    options = arguments(__doc__, ["jit"])
    suite, *rest = options.case.split("/")
    ranks, kind = 1, "dp"
    if suite == "gemm":
        options.threads = int(rest[1])
    elif suite == "dist":
        kind, ranks = rest[1].split("=")
    elif suite == "collectives":
        ranks = rest[2]
    limit_threads(options.threads)
    if int(ranks) > 1:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks}"
    if suite == "gemm":
        step = product(rest[0])
    elif suite == "mlp":
        step = mlp(rest[0])
    elif suite == "collectives":
        step = collective(rest[0], rest[1], int(ranks))
    else:
        step = gpt(rest[0], kind, int(ranks))
    import jax

    tell(options, "jax", jax.__version__, measure(step, options))


if __name__ == "__main__":
    main()
