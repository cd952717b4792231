"""Records losses and gradients of models of the zoo: `python make.py > recorded.txt`, with PyTorch 2.5 or newer.

Each line is `case tensor number number ..`: `loss` with its value, or a parameter with the sum of its gradient's squares and
the sum of the gradient times `sin(0.71 i)` for element i. Parameter number k of a case, by name, is `scale cos(0.37 i + k)`,
with a scale of 0.3 and the offset 1 for weights of norms. Inputs are `sin(0.53 i)`, labels `7 i mod classes`, targets
`cos(0.29 i)`, tokens `5 i mod vocab`; labels of text are `(3 i + 1) mod vocab`, every fifth ignored. Everything is in double
precision and written with PyTorch's own layers in functional form. T5's buckets are those of its authors' code.
"""

import math

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


class Parameters:
    """Parameters by name, filled once all names are known."""

    def __init__(self, shapes):
        self.of = {}
        for k, name in enumerate(sorted(shapes)):
            count = math.prod(shapes[name])
            values = torch.tensor([0.3 * math.cos(0.37 * i + k) for i in range(count)])
            if "norm" in name and name.endswith("weight"):
                values = values + 1
            self.of[name] = values.reshape(shapes[name]).requires_grad_()

    def __getitem__(self, name):
        return self.of[name]


def record(case, shapes, loss_of):
    parameters = Parameters(shapes)
    loss = loss_of(parameters)
    loss.backward()
    print(case, "loss", repr(loss.item()))
    for name, value in sorted(parameters.of.items()):
        flat = value.grad.reshape(-1)
        wave = torch.tensor([math.sin(0.71 * i) for i in range(flat.numel())])
        print(case, name, repr((flat * flat).sum().item()), repr((flat * wave).sum().item()))


def images(batch, side, channels, of=lambda i: math.sin(0.53 * i)):
    count = batch * side * side * channels
    return torch.tensor([of(i) for i in range(count)]).reshape(batch, side, side, channels)


def first(x):
    """Channels second, as PyTorch's layers want them."""
    return x.permute(0, 3, 1, 2)


def batch_norm(p, name, x):
    return F.batch_norm(x, None, None, p[name + ".weight"], p[name + ".bias"], training=True, eps=1e-5)


def wide_resnet(case, stem, blocks, dim, width, expansion, side, classes, batch):
    shapes, plan = {}, []

    def conv(name, out, inner, kernel):
        shapes[name + ".weight"] = [out, inner, kernel, kernel]

    def norm(name, features):
        shapes[name + ".weight"] = shapes[name + ".bias"] = [features]

    conv("stem.conv", dim, 3, stem)
    norm("stem.norm", dim)
    features, number = dim, 0
    for stage, count in enumerate(blocks):
        for place in range(count):
            at, inner = f"layers.{number}.", dim << stage
            stride = 2 if stage > 0 and place == 0 else 1
            middle, out = inner * width, inner * expansion
            conv(at + "conv1", inner, features, 1)
            conv(at + "conv2", middle, inner, 3)
            conv(at + "conv3", out, middle, 1)
            for name, size in [("norm1", inner), ("norm2", middle), ("norm3", out)]:
                norm(at + name, size)
            projected = features != out or stride != 1
            if projected:
                conv(at + "proj", out, features, 1)
                norm(at + "proj_norm", out)
            plan.append((at, stride, projected))
            features, number = out, number + 1
    shapes["head.weight"], shapes["head.bias"] = [classes, features], [classes]

    def loss(p):
        large = stem > 3
        x = F.conv2d(first(images(batch, side, 3)), p["stem.conv.weight"], stride=2 if large else 1, padding=stem // 2)
        x = F.relu(batch_norm(p, "stem.norm", x))
        x = F.max_pool2d(x, 3, 2, 1) if large else x
        for at, stride, projected in plan:
            y = F.relu(batch_norm(p, at + "norm1", F.conv2d(x, p[at + "conv1.weight"])))
            y = F.conv2d(y, p[at + "conv2.weight"], stride=stride, padding=1)
            y = F.relu(batch_norm(p, at + "norm2", y))
            y = batch_norm(p, at + "norm3", F.conv2d(y, p[at + "conv3.weight"]))
            if projected:
                x = batch_norm(p, at + "proj_norm", F.conv2d(x, p[at + "proj.weight"], stride=stride))
            x = F.relu(x + y)
        logits = F.linear(x.mean((2, 3)), p["head.weight"], p["head.bias"])
        return F.cross_entropy(logits, torch.tensor([7 * i % classes for i in range(batch)]))

    record(case, shapes, loss)


def vit():
    side, patch, dim, layers, heads, hidden, classes, batch = 8, 4, 8, 2, 2, 16, 5, 2
    sequence = (side // patch) ** 2
    shapes = {
        "embed_patches.weight": [dim, 3, patch, patch],
        "embed_patches.bias": [dim],
        "embed_positions.weight": [sequence, dim],
        "norm.weight": [dim],
        "norm.bias": [dim],
        "head.weight": [classes, dim],
        "head.bias": [classes],
    }
    for layer in range(layers):
        at = f"layers.{layer}."
        for name in ["attn_norm", "mlp_norm"]:
            shapes[at + name + ".weight"] = shapes[at + name + ".bias"] = [dim]
        linear = [(f"attn.{x}_proj", dim, dim) for x in "qkvo"]
        for name, out, inner in linear + [("mlp.up_proj", hidden, dim), ("mlp.down_proj", dim, hidden)]:
            shapes[at + name + ".weight"], shapes[at + name + ".bias"] = [out, inner], [out]

    def loss(p):
        linear = lambda name, x: F.linear(x, p[name + ".weight"], p[name + ".bias"])
        norm = lambda name, x: F.layer_norm(x, [dim], p[name + ".weight"], p[name + ".bias"], 1e-6)
        x = F.conv2d(first(images(batch, side, 3)), p["embed_patches.weight"], p["embed_patches.bias"], stride=patch)
        x = x.flatten(2).transpose(1, 2) + p["embed_positions.weight"]
        for layer in range(layers):
            at = f"layers.{layer}."
            h = norm(at + "attn_norm", x)
            heads_of = lambda name: linear(at + name, h).reshape(batch, sequence, heads, -1).transpose(1, 2)
            y = F.scaled_dot_product_attention(*[heads_of(f"attn.{part}_proj") for part in "qkv"])
            x = x + linear(at + "attn.o_proj", y.transpose(1, 2).reshape(batch, sequence, dim))
            h = F.gelu(linear(at + "mlp.up_proj", norm(at + "mlp_norm", x)))
            x = x + linear(at + "mlp.down_proj", h)
        logits = linear("head", norm("norm", x).mean(1))
        return F.cross_entropy(logits, torch.tensor([7 * i % classes for i in range(batch)]))

    record("vit", shapes, loss)


def unet():
    side, channels, outputs, dim, depth, groups, batch = 8, 3, 2, 4, 2, 2, 2
    shapes, features, number = {}, channels, 0

    def block(at, inner, out):
        for name, size in [("conv1", inner), ("conv2", out)]:
            shapes[at + name + ".weight"], shapes[at + name + ".bias"] = [out, size, 3, 3], [out]
        for name in ["norm1", "norm2"]:
            shapes[at + name + ".weight"] = shapes[at + name + ".bias"] = [out]

    for level in range(depth + 1):
        block(f"layers.{number}.", features, dim << level)
        features, number = dim << level, number + 1
    for level in reversed(range(depth)):
        at, out = f"layers.{number}.", dim << level
        shapes[at + "up.weight"], shapes[at + "up.bias"] = [features, out, 2, 2], [out]
        block(at, 2 * out, out)
        features, number = out, number + 1
    shapes["head.weight"], shapes["head.bias"] = [outputs, dim, 1, 1], [outputs]

    def loss(p):
        conv = lambda name, x, padding: F.conv2d(x, p[name + ".weight"], p[name + ".bias"], padding=padding)

        def apply(at, x):
            for part in "12":
                x = conv(at + "conv" + part, x, 1)
                x = F.silu(F.group_norm(x, groups, p[at + f"norm{part}.weight"], p[at + f"norm{part}.bias"]))
            return x

        x, kept, number = first(images(batch, side, channels)), [], 0
        for level in range(depth + 1):
            x = apply(f"layers.{number}.", F.max_pool2d(x, 2, 2) if level else x)
            kept.append(x)
            number += 1
        for level in reversed(range(depth)):
            at = f"layers.{number}."
            x = F.conv_transpose2d(x, p[at + "up.weight"], p[at + "up.bias"], stride=2)
            x = apply(at, torch.cat([kept[level], x], 1))
            number += 1
        targets = first(images(batch, side, outputs, lambda i: math.cos(0.29 * i)))
        return F.mse_loss(conv("head", x, 0), targets)

    record("unet", shapes, loss)


def bucket(relative, both, buckets, distance):
    """Of `key - query`, as in the T5 authors' Mesh TensorFlow code."""
    found, n = torch.zeros_like(relative), -relative
    if both:
        buckets //= 2
        found = found + (n < 0).long() * buckets
        n = n.abs()
    else:
        n = n.clamp(min=0)
    exact = buckets // 2
    far = exact + (torch.log(n.clamp(min=1) / exact) / math.log(distance / exact) * (buckets - exact)).long()
    return found + torch.where(n < exact, n, far.clamp(max=buckets - 1))


def t5():
    vocab, dim, layers, heads, depth, hidden, sequence, batch, buckets, distance = 11, 6, 2, 2, 4, 10, 12, 2, 8, 10
    shapes = {
        "embed_tokens.weight": [vocab, dim],
        "encoder_positions.weight": [buckets, heads],
        "decoder_positions.weight": [buckets, heads],
        "encoder_norm.weight": [dim],
        "norm.weight": [dim],
    }
    for layer in range(2 * layers):
        at = f"layers.{layer}."
        for part in ["attn"] + ["cross"] * (layer >= layers):
            shapes[at + part + "_norm.weight"] = [dim]
            for x in "qkv":
                shapes[at + f"{part}.{x}_proj.weight"] = [heads * depth, dim]
            shapes[at + f"{part}.o_proj.weight"] = [dim, heads * depth]
        shapes[at + "mlp_norm.weight"] = [dim]
        shapes[at + "mlp.up_proj.weight"], shapes[at + "mlp.down_proj.weight"] = [hidden, dim], [dim, hidden]

    def loss(p):
        tokens = torch.tensor([5 * i % vocab for i in range(batch * sequence)]).reshape(batch, sequence)
        labels = [-100 if i % 5 == 0 else (3 * i + 1) % vocab for i in range(batch * sequence)]
        labels = torch.tensor(labels).reshape(batch, sequence)
        norm = lambda name, x: p[name + ".weight"] * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        place = torch.arange(sequence)
        relative = place[None, :] - place[:, None]
        added = {}
        for name, both in [("encoder", True), ("decoder", False)]:
            table = p[name + "_positions.weight"]
            added[name] = table[bucket(relative, both, buckets, distance)].permute(2, 0, 1)
        added["decoder"] = added["decoder"].masked_fill(relative[None] > 0, float("-inf"))

        def attention(at, x, memory, added):
            split = lambda name, x: F.linear(x, p[at + name + ".weight"]).reshape(batch, sequence, heads, depth)
            q, k, v = split("q_proj", x), split("k_proj", memory), split("v_proj", memory)
            scores = torch.einsum("bshd,bthd->bhst", q, k)
            scores = scores if added is None else scores + added
            y = torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v)
            return F.linear(y.reshape(batch, sequence, heads * depth), p[at + "o_proj.weight"])

        def mlp(at, x):
            h = F.relu(F.linear(norm(at + "mlp_norm", x), p[at + "mlp.up_proj.weight"]))
            return x + F.linear(h, p[at + "mlp.down_proj.weight"])

        x = p["embed_tokens.weight"][tokens]
        for layer in range(layers):
            at = f"layers.{layer}."
            h = norm(at + "attn_norm", x)
            x = mlp(at, x + attention(at + "attn.", h, h, added["encoder"]))
        memory = norm("encoder_norm", x)
        moved = F.pad(labels, (1, 0))[:, :-1]
        x = p["embed_tokens.weight"][moved.masked_fill(moved == -100, 0)]
        for layer in range(layers, 2 * layers):
            at = f"layers.{layer}."
            h = norm(at + "attn_norm", x)
            x = x + attention(at + "attn.", h, h, added["decoder"])
            x = x + attention(at + "cross.", norm(at + "cross_norm", x), memory, None)
            x = mlp(at, x)
        logits = F.linear(norm("norm", x) * dim**-0.5, p["embed_tokens.weight"])
        return F.cross_entropy(logits.reshape(-1, vocab), labels.reshape(-1))

    record("t5", shapes, loss)


wide_resnet("wide-resnet", 3, [1, 2], 2, 2, 3, 6, 4, 3)
wide_resnet("wide-resnet-pooled", 7, [1, 1], 2, 1, 4, 16, 4, 2)
vit()
unet()
t5()
