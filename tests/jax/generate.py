"""Lowers small JAX programs to StableHLO text and records what JAX computes for them.

Run with JAX on CPU: `python tests/jax/generate.py`. README.md says what comes out.
"""

import json
import os
from functools import partial
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

HERE = Path(__file__).parent
FULL_UP_TO = 512  # longer outputs are recorded as every k-th element
DTYPES = {"bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
          "uint16": "u16", "uint32": "u32", "uint64": "u64", "float16": "f16", "bfloat16": "bf16",
          "float32": "f32", "float64": "f64"}


# ---- values -------------------------------------------------------------------------------------------

class Fill:
    """An input described by a formula instead of a list; README.md has the formula."""

    def __init__(self, shape, seed=0, scale=0.0, constant=None, below=None):
        self.shape, self.seed, self.scale, self.constant, self.below = shape, seed, scale, constant, below

    def array(self):
        count = int(np.prod(self.shape))
        if self.constant is not None:
            return np.full(self.shape, self.constant, np.float32)
        state, values = self.seed, []
        for _ in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            top = state >> 40
            values.append(top % self.below if self.below else (top / 2**24 - 0.5) * self.scale)
        return np.array(values, np.int32 if self.below else np.float32).reshape(self.shape)

    def json(self):
        kind = "i32" if self.below else "f32"
        if self.constant is not None:
            fill = {"constant": self.constant}
        elif self.below:
            fill = {"seed": self.seed, "below": self.below}
        else:
            fill = {"seed": self.seed, "scale": self.scale}
        return {"dtype": kind, "shape": list(self.shape), "fill": fill}


def number(x):
    """A JSON number that reads back to the same bits; what JSON cannot say is a string."""
    if isinstance(x, (bool, np.bool_)):
        return int(x)
    if isinstance(x, np.integer):
        return int(x)
    if x.dtype.name == "bfloat16":
        x = np.float32(x)
    if not np.isfinite(x):
        return "nan" if np.isnan(x) else ("inf" if x > 0 else "-inf")
    text = np.format_float_positional(x, unique=True, trim="0")
    return float(text) if len(text) < 24 else float(np.format_float_scientific(x, unique=True))


def value(x, name=None, whole=False):
    if isinstance(x, Fill):
        return x.json()
    x = np.asarray(x)
    flat = x.reshape(-1)
    entry = {"dtype": DTYPES[x.dtype.name], "shape": list(x.shape)}
    if name:
        entry = {"name": name, **entry}
    if not whole and flat.size > FULL_UP_TO:
        entry["every"] = int(flat.size // 256) | 1
        flat = flat[:: entry["every"]]
    entry["data"] = [number(v) for v in flat]
    return entry


def concrete(x):
    return x.array() if isinstance(x, Fill) else np.asarray(x)


# ---- cases --------------------------------------------------------------------------------------------

def case(name, function, inputs, carry=0, steps=1, shardings=None, names=None, tolerance=1e-5, jit=None):
    """Lowers `function`, runs it and returns (text, record).

    With carry = n, the first n outputs are the first n inputs of the next step; the outputs recorded are
    those of the first step, and `scalars` holds the last output of each step.
    """
    arrays = [concrete(x) for x in inputs]
    function.__name__ = name
    jitted = jit(function) if jit else jax.jit(function)
    if shardings:
        arrays = [jax.device_put(a, s) if s is not None else a for a, s in zip(arrays, shardings)]
    else:
        arrays = [jnp.asarray(a) for a in arrays]
    text = jitted.lower(*arrays).as_text()
    record = {"name": name, "tolerance": tolerance,
              "inputs": [value(x, whole=True) for x in inputs]}
    scalars, state = [], arrays
    for step in range(steps):
        result = jax.tree.leaves(jitted(*state))
        if step == 0:
            record["outputs"] = [value(r) for r in result]
        scalars.append(result[-1])
        state = list(result[:carry]) + list(state[carry:])
    if names:
        for entry, path in zip(record["inputs"], names):
            entry["name"] = path
    if carry:
        record["carry"] = carry
        record["scalars"] = [number(np.asarray(s)[()]) for s in scalars]
    return text, record


def write(stem, cases):
    texts, records = zip(*cases)
    (HERE / f"{stem}.mlir").write_text("// -----\n".join(texts))
    rows = ",\n".join(json.dumps(r, separators=(",", ":")) for r in records)
    (HERE / f"{stem}.json").write_text('{"cases":[\n' + rows + "\n]}\n")
    print(f"{stem}: {len(cases)} modules, {sum(len(t) for t in texts)} + {len(rows)} bytes")


# ---- (a) a multi-layer perceptron with Adam -----------------------------------------------------------

def adam(params, grads, m, v, step, rate=1e-2, b1=0.9, b2=0.999, eps=1e-8):
    step = step + 1
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, grads)
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, grads)
    t = step.astype(jnp.float32)
    scale = rate * jnp.sqrt(1 - b2**t) / (1 - b1**t)
    params = jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + eps), params, m, v)
    return params, m, v, step


def mlp_adam_step():
    sizes = [16, 32, 32, 4]
    shapes = {}
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        shapes[f"layers.{i}.weight"], shapes[f"layers.{i}.bias"] = (a, b), (b,)
    paths, n = list(shapes), len(shapes)

    def loss(params, x, y):
        for i in range(3):
            x = x @ params[f"layers.{i}.weight"] + params[f"layers.{i}.bias"]
            if i < 2:
                x = jax.nn.relu(x)
        return jnp.mean((x - y) ** 2)

    def step(*args):
        p, m, v = (dict(zip(paths, args[i * n:(i + 1) * n])) for i in range(3))
        count, x, y = args[3 * n:]
        value, grads = jax.value_and_grad(loss)(p, x, y)
        p, m, v, count = adam(p, grads, m, v, count)
        return *[p[k] for k in paths], *[m[k] for k in paths], *[v[k] for k in paths], count, value

    inputs = [Fill(shapes[k], seed=i + 1, scale=0.5) if k.endswith("weight") else Fill(shapes[k], constant=0.0)
              for i, k in enumerate(paths)]
    inputs += [Fill(shapes[k], constant=0.0) for k in paths * 2]
    inputs += [np.int32(0), Fill((24, 16), seed=50, scale=4.0), Fill((24, 4), seed=51, scale=2.0)]
    names = paths + [f"m.{k}" for k in paths] + [f"v.{k}" for k in paths] + ["step", "x", "y"]
    return case("mlp_adam_step", step, inputs, carry=3 * n + 1, steps=3, names=names, tolerance=1e-4)


# ---- (b) a decoder transformer ------------------------------------------------------------------------

WIDTH, HEADS, LAYERS, SEQUENCE, VOCABULARY, BATCH = 32, 4, 2, 16, 64, 4


def layer_norm(x, gain, bias):
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain + bias


def attention(x, p, prefix):
    b, s, d = x.shape
    q, k, v = (jnp.reshape(x @ p[f"{prefix}.{n}"], (b, s, HEADS, d // HEADS)) for n in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(d // HEADS).astype(np.float32)
    mask = jnp.tril(jnp.ones((s, s), bool))
    scores = jnp.where(mask, scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return jnp.reshape(mixed, (b, s, d)) @ p[f"{prefix}.o"]


def transformer_logits(p, tokens):
    x = p["embedding"][tokens] + p["position"]
    for i in range(LAYERS):
        at = f"layers.{i}"
        x = x + attention(layer_norm(x, p[f"{at}.norm1.gain"], p[f"{at}.norm1.bias"]), p, at)
        h = layer_norm(x, p[f"{at}.norm2.gain"], p[f"{at}.norm2.bias"])
        x = x + jax.nn.gelu(h @ p[f"{at}.up"], approximate=True) @ p[f"{at}.down"]
    return layer_norm(x, p["norm.gain"], p["norm.bias"]) @ p["head"]


def cross_entropy(logits, labels):
    log_p = jax.nn.log_softmax(logits, -1)
    return -jnp.mean(jnp.take_along_axis(log_p, labels[..., None], -1))


def transformer_shapes():
    d, shapes = WIDTH, {"embedding": (VOCABULARY, WIDTH), "position": (SEQUENCE, WIDTH)}
    for i in range(LAYERS):
        at = f"layers.{i}"
        shapes |= {f"{at}.norm1.gain": (d,), f"{at}.norm1.bias": (d,), f"{at}.q": (d, d), f"{at}.k": (d, d),
                   f"{at}.v": (d, d), f"{at}.o": (d, d), f"{at}.norm2.gain": (d,), f"{at}.norm2.bias": (d,),
                   f"{at}.up": (d, 4 * d), f"{at}.down": (4 * d, d)}
    return shapes | {"norm.gain": (d,), "norm.bias": (d,), "head": (d, VOCABULARY)}


def transformer_inputs(shapes):
    def one(i, path):
        if path.endswith("gain"):
            return Fill(shapes[path], constant=1.0)
        if path.endswith("bias"):
            return Fill(shapes[path], constant=0.0)
        return Fill(shapes[path], seed=100 + i, scale=0.25)
    return [one(i, k) for i, k in enumerate(shapes)]


def batch_inputs():
    return [Fill((BATCH, SEQUENCE), seed=7, below=VOCABULARY), Fill((BATCH, SEQUENCE), seed=8, below=VOCABULARY)]


def transformer_step():
    shapes = transformer_shapes()
    paths = list(shapes)

    def step(*args):
        p, (tokens, labels) = dict(zip(paths, args)), args[len(paths):]
        value, grads = jax.value_and_grad(lambda p: cross_entropy(transformer_logits(p, tokens), labels))(p)
        return *[p[k] - 0.1 * grads[k] for k in paths], value

    return case("transformer_step", step, transformer_inputs(shapes) + batch_inputs(), carry=len(paths),
                steps=3, names=paths + ["tokens", "labels"], tolerance=2e-4)


def transformer_adam_step():
    shapes = transformer_shapes()
    paths, n = list(shapes), len(shapes)

    def step(*args):
        p, m, v = (dict(zip(paths, args[i * n:(i + 1) * n])) for i in range(3))
        count, tokens, labels = args[3 * n:]
        value, grads = jax.value_and_grad(lambda p: cross_entropy(transformer_logits(p, tokens), labels))(p)
        p, m, v, count = adam(p, grads, m, v, count, rate=1e-3)
        return *[p[k] for k in paths], *[m[k] for k in paths], *[v[k] for k in paths], count, value

    zeros = [Fill(shapes[k], constant=0.0) for k in paths * 2]
    names = paths + [f"m.{k}" for k in paths] + [f"v.{k}" for k in paths] + ["step", "tokens", "labels"]
    text, record = case("transformer_adam_step", step, transformer_inputs(shapes) + zeros + [np.int32(0)]
                        + batch_inputs(), carry=3 * n + 1, steps=3, names=names, tolerance=5e-4)
    for entry in record["outputs"]:  # 100 tensors: sixteen numbers each are enough
        if len(entry["data"]) > 16:
            k = len(entry["data"]) // 16
            entry["every"] = entry.get("every", 1) * k
            entry["data"] = entry["data"][::k]
    return text, record


# ---- (c) random numbers -------------------------------------------------------------------------------

def threefry_cases():
    key = np.array([0, 42], np.uint32)

    def dropout(key, x):
        keep = jax.random.bernoulli(key, 0.75, x.shape)
        return jnp.where(keep, x / 0.75, 0.0), keep

    def normal(key):
        return jax.random.normal(key, (5, 7))

    def uniform(key):
        return jax.random.uniform(key, (9,), minval=-1.0, maxval=3.0)

    def bits(key):
        return jax.random.bits(key, (11,), jnp.uint32)

    def split_fold(key):
        a, b = jax.random.split(key)
        return a, jax.random.fold_in(b, 17)

    def randint(key):
        return jax.random.randint(key, (6,), -5, 20)

    def dropout_grad(key, x, w):
        def loss(w):
            h = jnp.tanh(x @ w)
            h = jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h / 0.5, 0.0)
            return jnp.sum(h * h)
        return jax.value_and_grad(loss)(w)

    x = Fill((6, 8), seed=3, scale=2.0)
    w = Fill((8, 5), seed=4, scale=1.0)
    cases = [case("dropout", dropout, [key, x]), case("normal", normal, [key]), case("uniform", uniform, [key]),
             case("bits", bits, [key], tolerance=0), case("split_fold", split_fold, [key], tolerance=0),
             case("randint", randint, [key], tolerance=0), case("dropout_grad", dropout_grad, [key, x, w])]
    jax.config.update("jax_threefry_partitionable", False)
    jax.clear_caches()

    def dropout_split_counter(key, x):  # the older, still common, way of counting
        keep = jax.random.bernoulli(key, 0.75, x.shape)
        return jnp.where(keep, x / 0.75, 0.0), keep

    cases.append(case("dropout_split_counter", dropout_split_counter, [key, x]))
    jax.config.update("jax_threefry_partitionable", True)
    jax.clear_caches()
    return cases


# ---- (d) one small function per op family --------------------------------------------------------------

A = np.array([[0.5, -1.25, 2.0, 3.5], [-0.75, 0.0, 1.5, -2.5], [4.0, 0.25, -3.0, 1.0]], np.float32)  # 3x4
B = np.array([[1.5, 2.0, -0.5, 1.0], [0.25, -4.0, 3.0, 2.0], [-1.0, 0.75, 2.5, -2.0]], np.float32)
POSITIVE = (np.abs(A) + 0.5).astype(np.float32)
UNIT = (A / 5).astype(np.float32)
I = np.array([7, -8, 3, 0, -5, 12], np.int32)
J = np.array([2, 3, -2, 5, -3, 7], np.int32)
U = np.array([7, 4000000000, 3, 0, 5, 12], np.uint32)
V = np.array([1, 4, 31, 5, 32, 7], np.uint32)
EDGE = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 0.5], np.float32)


def tier1_cases():
    out = []

    def add(name, function, *inputs, **options):
        out.append(case(name, function, list(inputs), **options))

    add("elementwise_binary", lambda a, b: (a + b, a - b, a * b, a / b, jnp.maximum(a, b), jnp.minimum(a, b)), A, B)
    add("elementwise_unary", lambda a: (-a, jnp.exp(a), jnp.tanh(a), jnp.abs(a), jnp.sign(a), jnp.square(a)), A)
    add("roots_and_logs", lambda a: (jnp.sqrt(a), lax.rsqrt(a), jnp.log(a), jnp.log1p(a), jnp.expm1(a)), POSITIVE)
    add("power", lambda a, b: (a**b, a**3, a**-2, lax.pow(a, jnp.float32(0.5))), POSITIVE, B)
    add("integer_power", lambda i: (i**3, i * i), I, tolerance=0)
    add("logistic", lambda a: (jax.nn.sigmoid(a), lax.logistic(a), jax.nn.silu(a)), A)
    add("edge_values", lambda e: (jnp.isfinite(e), jnp.sign(e), jnp.abs(e), jnp.maximum(e, 0.0), jnp.exp(e), e != e), EDGE)
    add("nan_and_infinite_constants", lambda a: (jnp.where(a > 0, a, jnp.nan), jnp.where(a > 0, a, -jnp.inf)), A)
    add("integer_binary", lambda i, j: (i + j, i - j, i * j, lax.div(i, j), lax.rem(i, j), jnp.maximum(i, j)), I, J, tolerance=0)
    add("integer_floor_divide", lambda i, j: (i // j, i % j), I, J, tolerance=0)
    add("unsigned_binary", lambda u, v: (u + v, u * v, lax.rem(u, v), u & v, u | v, u ^ v, ~u), U, V, tolerance=0)
    add("shifts", lambda u, v: (u << v, u >> v, lax.shift_right_logical(u, v)), U, V, tolerance=0)
    add("arithmetic_shift", lambda i: (i >> 1, lax.shift_right_logical(i, jnp.int32(28)), i << 3), I, tolerance=0)
    add("compare_all", lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != b), A, np.where(A > 0, A, B))
    add("compare_integers", lambda i, j, u, v: (i < j, u < v, i == j, u >= v), I, J, U, V, tolerance=0)
    add("logical", lambda a, b: ((a > 0) & (b > 0), (a > 0) | (b > 0), ~(a > 0), (a > 0) ^ (b > 0)), A, B, tolerance=0)
    add("select", lambda a, b: (jnp.where(a > b, a, b), lax.select(a > b, a, -b)), A, B)
    add("select_scalar_predicate", lambda a, b: lax.select(a[0, 0] > 0, a, b), A, B)
    add("convert", lambda a, i: (a.astype(jnp.int32), a.astype(jnp.bfloat16), a.astype(jnp.float16).astype(jnp.float32),
                                 i.astype(jnp.float32), a.astype(bool), i.astype(jnp.uint8), (i > 0).astype(jnp.float32)), A, I)
    add("bf16_matmul", lambda a, b: (a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16).T,
                                     lax.dot_general(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), (((1,), (1,)), ((), ())),
                                                     preferred_element_type=jnp.float32)), A, B, tolerance=2e-2)
    add("reshape_transpose", lambda a: (a.reshape(2, 6), a.T, a.reshape(3, 2, 2).transpose(2, 0, 1), a.reshape(-1), a[:, None, :]), A)
    add("broadcast", lambda a, r: (a + r, jnp.broadcast_to(r, (2, 3, 4)), jnp.broadcast_to(a[:, :1], (3, 4)), jnp.full((2, 2), 7.0)), A, A[0])
    add("iota", lambda a: (lax.broadcasted_iota(jnp.int32, (3, 4), 0), lax.broadcasted_iota(jnp.float32, (3, 4), 1), jnp.arange(5), a), A)
    add("constants", lambda a: a + np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 1e-20, 1e20, -0.1]], np.float32), A)
    add("slice", lambda a: (a[1:3, 0:4:2], a[:, 1], a[0], lax.slice(a, (0, 1), (3, 4), (2, 1)), a[-1:, :-1]), A)
    add("slice_empty", lambda a: a[1:1], A)
    add("concatenate", lambda a, b: (jnp.concatenate([a, b], 0), jnp.concatenate([a, b, a[:, :1]], 1), jnp.stack([a, b], 1)), A, B)
    add("reduce_simple", lambda a: (jnp.sum(a), a.sum(0), a.max(1), a.min(1), jnp.prod(a, 0), jnp.mean(a, 1, keepdims=True)), A)
    add("reduce_logical", lambda a: (jnp.any(a > 3, 1), jnp.all(a > -2, 0)), A, tolerance=0)
    add("reduce_integer", lambda i: (i.sum(), i.max(), i.min()), I, tolerance=0)
    add("reduce_several_dims", lambda x: (x.sum((0, 2)), x.max((1, 2)), x.sum()), Fill((3, 4, 5), seed=11, scale=2.0))
    add("argmax_argmin", lambda a: (jnp.argmax(a, 1), jnp.argmin(a, 0), jnp.argmax(a)), A, tolerance=0)
    add("logsumexp_softmax", lambda a: (jax.nn.logsumexp(a, 1), jax.nn.softmax(a, 1), jax.nn.log_softmax(a, 0)), A)
    add("dot_plain", lambda a, b: (a @ b.T, a.T @ b, jnp.dot(a[0], b[0]), a @ b[0]), A, B)
    add("dot_batched", lambda x, y: (jnp.einsum("bij,bjk->bik", x, y), jnp.einsum("bij,bjk->kbi", x, y), jnp.einsum("bij,bjk->b", x, y)),
        Fill((3, 4, 5), seed=11, scale=2.0), Fill((3, 5, 2), seed=12, scale=2.0))
    add("dot_highest_precision", lambda a, b: jnp.dot(a, b.T, precision="highest"), A, B)
    add("outer_and_tensordot", lambda a, b: (jnp.outer(a[0], b[1]), jnp.tensordot(a, b, ((0, 1), (0, 1)))), A, B)

    @jax.jit
    def helper(x, y):
        return jax.nn.relu(x) * y

    add("calls", lambda a, b: helper(a, b) + helper(b, a), A, B)
    add("donated", lambda a, b: (a + b, b), A, B, jit=lambda f: jax.jit(f, donate_argnums=0))
    add("unused_argument", lambda a, b: a + 1, A, B, jit=lambda f: jax.jit(f, keep_unused=True))
    add("scalar_arguments", lambda x, n: x * n.astype(jnp.float32), np.float32(2.5), np.int32(3))
    return out


def tier2_cases():
    out = []

    def add(name, function, *inputs, **options):
        out.append(case(name, function, list(inputs), **options))

    index = np.array([2, 0, 1, 2], np.int32)
    add("dynamic_slice", lambda a, i: (lax.dynamic_slice(a, (i, 1), (2, 3)), lax.dynamic_index_in_dim(a, i, 0)), A, np.int32(2))
    add("dynamic_slice_clamped", lambda a, i: lax.dynamic_slice(a, (i, -i), (2, 2)), A, np.int32(9))
    add("dynamic_update_slice", lambda a, u, i: lax.dynamic_update_slice(a, u, (i, 3)), A, np.ones((2, 2), np.float32), np.int32(1))
    add("pad", lambda a: (jnp.pad(a, ((1, 2), (0, 3))), lax.pad(a, jnp.float32(9), ((1, 0, 1), (0, 2, 2)))), A)
    add("pad_negative", lambda a: lax.pad(a, jnp.float32(0), ((-1, 2, 0), (1, -2, 1))), A)
    add("slice_gradient", lambda a: jax.grad(lambda a: jnp.sum(a[1:, ::2] ** 2))(a), A)
    add("gather_rows", lambda a, i: (a[i], jnp.take(a, i, axis=1, mode="clip")), A, index)
    add("gather_out_of_bounds", lambda a, i: (jnp.take(a, i, axis=0), a.at[i].get(mode="clip"), a.at[i].get(mode="fill", fill_value=-1)),
        A, np.array([0, 5, -1, -9], np.int32))
    add("gather_points", lambda a, i, j: a[i, j], A, index, np.array([3, 1, 0, 2], np.int32))
    add("gather_batched", lambda a, i: jnp.take_along_axis(a, i, 1), A, np.array([[3, 0], [1, 1], [2, 3]], np.int32))
    add("gather_leading", lambda x, i: (x[i], x[:, i], x[:, :, i[0]]), Fill((3, 4, 5), seed=11, scale=2.0), np.array([[0, 2], [1, 1]], np.int32))
    add("gather_gradient", lambda a, i: jax.grad(lambda a: jnp.sum(a[i] ** 2))(a), A, index)
    add("gather_batched_gradient", lambda a, i: jax.grad(lambda a: jnp.sum(jnp.take_along_axis(a, i, 1) ** 2))(a), A,
        np.array([[3, 0], [1, 1], [2, 3]], np.int32))
    add("scatter_add", lambda a, i, u: a.at[i].add(u), A, index, np.arange(16, dtype=np.float32).reshape(4, 4))
    add("scatter_set", lambda a, i, u: a.at[i].set(u), A, np.array([2, 0], np.int32), np.arange(8, dtype=np.float32).reshape(2, 4))
    add("scatter_max_min_mul", lambda a, i, u: (a.at[i].max(u), a.at[i].min(u), a.at[i].mul(u)), A, index,
        np.linspace(-3, 3, 16).astype(np.float32).reshape(4, 4))
    add("scatter_dropped", lambda a, i: a.at[i].add(1.0, mode="drop"), A, np.array([0, 7, 0, -9], np.int32))
    add("scatter_points", lambda a, i, j, u: a.at[i, j].add(u), A, index, np.array([3, 1, 0, 3], np.int32), np.array([1, 2, 3, 4], np.float32))
    add("scatter_column", lambda a, i: a.at[:, i].set(0.0), A, np.int32(2))
    add("scatter_window", lambda a, u: a.at[1:3, 1:3].add(u), A, np.ones((2, 2), np.float32))
    add("segment_sum", lambda a, i: jax.ops.segment_sum(a, i, num_segments=4), A, np.array([1, 3, 1], np.int32))
    add("one_hot", lambda i: jax.nn.one_hot(i, 5), index)
    add("while_counter", lambda n: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.5), (0, jnp.float32(1)))[1], np.int32(7))
    add("fori_static", lambda a: lax.fori_loop(0, 5, lambda i, x: x * 0.5 + i, a), A)
    add("scan", lambda a, h: lax.scan(lambda h, x: (jnp.tanh(h + x), h * x), h, a), A, A[0])
    add("scan_gradient", lambda a, h: jax.grad(lambda h: jnp.sum(lax.scan(lambda h, x: (jnp.tanh(h * x), h), h, a)[0]))(h), A, A[0])
    add("cond", lambda a, p: lax.cond(p > 0, lambda x: x * 2, lambda x: x - 1, a), A, np.int32(1))
    add("switch", lambda a, i: lax.switch(i, [lambda x: x, lambda x: -x, lambda x: x * x], a), A, np.int32(5))
    add("clamp", lambda a: (jnp.clip(a, -1, 1), lax.clamp(jnp.float32(-2), a, jnp.float32(0.5))), A)
    add("rounding", lambda a: (jnp.floor(a), jnp.ceil(a), jnp.round(a), lax.round(a), jnp.trunc(a)), (A * 1.3).astype(np.float32))
    add("remainder", lambda a, b: (lax.rem(a, b), a % b, a // b, jnp.fmod(a, b)), A, B)
    add("erf_family", lambda a: (lax.erf(a), lax.erfc(a), lax.erf_inv(a / 5), jax.nn.gelu(a, approximate=False)), A)
    add("trigonometry", lambda a: (jnp.sin(a), jnp.cos(a), jnp.arctan2(a, a + 0.3), jnp.cbrt(a)), A)
    add("tan", lambda a: jnp.tan(a), UNIT)
    add("inverse_and_hyperbolic", lambda a: (jnp.arcsin(a), jnp.arctan(a), jnp.sinh(a), jnp.cosh(a), jnp.arctanh(a)), UNIT)
    add("softplus", lambda a: (jax.nn.softplus(a), jnp.logaddexp(a, 1.0)), A)
    add("cumulative", lambda a: (jnp.cumsum(a, 1), jnp.cumsum(a, 0), jnp.cumprod(a, 1), lax.cummax(a, 1), jnp.cumsum(a, 1)[:, ::-1]), A)
    add("cumsum_reverse", lambda a: lax.cumsum(a, 1, reverse=True), A)
    add("reduce_window", lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 1), "VALID"),
                                    lax.reduce_window(x, jnp.float32(0), lax.add, (1, 3, 3), (1, 1, 2), "SAME")),
        Fill((3, 4, 5), seed=11, scale=2.0))
    add("reduce_window_dilated", lambda x: lax.reduce_window(x, jnp.float32(0), lax.add, (2, 2), (1, 1), ((1, 0), (0, 2)), (2, 1), (1, 2)), A)
    add("checkpointed_gradient", lambda a: jax.grad(jax.checkpoint(lambda a: jnp.sum(jnp.sin(jnp.tanh(a)))))(a), A)
    add("optimization_barrier", lambda a, b: lax.optimization_barrier((a + 1, b)), A, B)
    add("stop_gradient", lambda a: jax.grad(lambda a: jnp.sum(lax.stop_gradient(a) * a))(a), A)
    add("custom_reduce", lambda a: lax.reduce(a, jnp.float32(1), lambda x, y: x * y + 0 * x, (1,)), A)
    return out


def tier3_cases():
    out = []

    def add(name, function, *inputs, **options):
        out.append(case(name, function, list(inputs), **options))

    image, kernel = Fill((2, 6, 7, 4), seed=21, scale=2.0), Fill((3, 3, 4, 6), seed=22, scale=1.0)
    dims = ("NHWC", "HWIO", "NHWC")
    add("convolution", lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=dims), image, kernel)
    add("convolution_strided", lambda x, k: lax.conv_general_dilated(x, k, (2, 1), ((1, 0), (2, 1)), dimension_numbers=dims), image, kernel)
    add("convolution_dilated", lambda x, k: lax.conv_general_dilated(x, k, (1, 1), ((0, 0), (1, 0)), lhs_dilation=(1, 2), rhs_dilation=(2, 1),
                                                                     dimension_numbers=dims), image, kernel)
    add("convolution_nchw", lambda x, k: lax.conv(x, k, (1, 1), "SAME"), Fill((2, 3, 5, 5), seed=23, scale=1.0), Fill((4, 3, 3, 3), seed=24, scale=1.0))
    add("convolution_grouped", lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=dims, feature_group_count=2),
        image, Fill((3, 3, 2, 6), seed=25, scale=1.0))

    def conv_loss(x, k, groups, stride):
        y = lax.conv_general_dilated(x, k, stride, "SAME", dimension_numbers=dims, feature_group_count=groups)
        return jnp.sum(jnp.tanh(y))

    add("convolution_gradients", lambda x, k: jax.grad(partial(conv_loss, groups=1, stride=(2, 2)), (0, 1))(x, k), image, kernel)
    add("convolution_grouped_gradients", lambda x, k: jax.grad(partial(conv_loss, groups=2, stride=(1, 1)), (0, 1))(x, k),
        image, Fill((3, 3, 2, 6), seed=25, scale=1.0))
    add("max_pool_gradient", lambda x: jax.grad(lambda x: jnp.sum(lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2))(x), image)
    add("reverse", lambda a: (a[::-1], lax.rev(a, (0, 1)), jnp.flip(a, 1)), A)
    add("sort", lambda a: (jnp.sort(a, 1), jnp.sort(a, 0), -jnp.sort(-a, 1)), A)
    add("sort_pairs", lambda a, i: lax.sort((a[0], i), num_keys=1), A, np.arange(4, dtype=np.int32))
    add("argsort", lambda a: jnp.argsort(a, 1), A, tolerance=0)
    add("bitcast_convert", lambda a, u: (lax.bitcast_convert_type(a, jnp.uint32), lax.bitcast_convert_type(u, jnp.float32)), A, U, tolerance=0)
    add("bitcast_narrow", lambda u: lax.bitcast_convert_type(u, jnp.uint8), U, tolerance=0)
    add("reduce_precision", lambda a: lax.reduce_precision(a, 5, 10), (A * 1.001).astype(np.float32))
    add("popcount_clz", lambda u: (lax.population_count(u), lax.clz(u)), U, tolerance=0)
    add("top_k", lambda a: lax.top_k(a, 2), A)
    return out


# ---- (e) programs with shardings ----------------------------------------------------------------------

def sharded_cases():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    line = Mesh(np.array(jax.devices()[:4]), ("x",))

    def on(*spec, mesh=mesh):
        return NamedSharding(mesh, P(*spec))

    def tensor_parallel_mlp(x, y, up, down):
        def loss(up, down):
            return jnp.mean((jax.nn.relu(x @ up) @ down - y) ** 2)
        value, (g_up, g_down) = jax.value_and_grad(loss, (0, 1))(up, down)
        return up - 0.1 * g_up, down - 0.1 * g_down, value

    mlp = case("tensor_parallel_mlp", tensor_parallel_mlp,
               [Fill((8, 16), seed=31, scale=2.0), Fill((8, 4), seed=32, scale=2.0), Fill((16, 32), seed=33, scale=0.5),
                Fill((32, 4), seed=34, scale=0.5)],
               shardings=[on("data"), on("data"), on(None, "model"), on("model", None)], tolerance=1e-4,
               jit=lambda f: jax.jit(f, out_shardings=(on(None, "model"), on("model", None), on())))

    def constrained_attention(x, w):
        b, s, d = x.shape
        qkv = lax.with_sharding_constraint(x @ w, on("data", None, "model"))
        q, k, v = (jnp.reshape(t, (b, s, HEADS, d // HEADS)) for t in jnp.split(qkv, 3, -1))
        q = lax.with_sharding_constraint(q, on("data", P.UNCONSTRAINED, "model"))
        p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
        return lax.with_sharding_constraint(jnp.einsum("bhqk,bkhd->bqhd", p, v), on(("data", "model")))

    block = case("constrained_attention", constrained_attention,
                 [Fill((4, 8, 16), seed=35, scale=2.0), Fill((16, 48), seed=36, scale=1.0)],
                 shardings=[on("data"), on(None, "model")], tolerance=1e-4)

    def manual_psum(x, w):
        def body(x, w):
            return lax.psum(x @ w, "x")
        return jax.shard_map(body, mesh=line, in_specs=(P(None, "x"), P("x", None)), out_specs=P())(x, w)

    psum = case("manual_psum", manual_psum, [Fill((4, 16), seed=37, scale=2.0), Fill((16, 8), seed=38, scale=2.0)],
                shardings=[on(None, "x", mesh=line), on("x", mesh=line)], tolerance=1e-4)

    def manual_collectives(x):
        def body(x):
            whole = lax.all_gather(x, "x", axis=0, tiled=True)
            piece = lax.psum_scatter(whole, "x", scatter_dimension=0, tiled=True)
            turned = lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True)
            shifted = lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])
            return piece, turned, shifted + lax.axis_index("x").astype(jnp.float32), lax.pmax(x, "x")
        return jax.shard_map(body, mesh=line, in_specs=P("x"),
                             out_specs=(P("x"), P(None, "x"), P("x"), P()))(x)

    collectives = case("manual_collectives", manual_collectives, [Fill((8, 12), seed=39, scale=2.0)],
                       shardings=[on("x", mesh=line)], tolerance=1e-5)

    def partly_manual(x, w):
        def body(x, w):
            return lax.pmean(jnp.sum((x @ w) ** 2), "data")
        return jax.shard_map(body, mesh=mesh, in_specs=(P("data"), P()), out_specs=P(), axis_names={"data"})(x, w)

    partly = case("partly_manual", partly_manual, [Fill((8, 16), seed=40, scale=2.0), Fill((16, 8), seed=41, scale=1.0)],
                  shardings=[on("data"), on(None, "model")], tolerance=1e-4)
    return {"sharded_mlp": [mlp], "sharded_attention": [block], "sharded_manual": [psum, collectives, partly]}


def main():
    write("mlp_adam_step", [mlp_adam_step()])
    write("transformer_step", [transformer_step()])
    write("transformer_adam_step", [transformer_adam_step()])
    write("dropout_threefry", threefry_cases())
    write("ops_tier1", tier1_cases())
    write("ops_tier2", tier2_cases())
    write("ops_tier3", tier3_cases())
    for stem, cases in sharded_cases().items():
        write(stem, cases)
    print("jax", jax.__version__, "numpy", np.__version__)


if __name__ == "__main__":
    main()
