#!/usr/bin/env python3
"""Exports small models with torch.export and records what PyTorch computes with them.

    python3 make.py FOLDER [NAME..]      # the models of this file, or only those named
    python3 make.py FOLDER --families    # weights of tiny random Hugging Face models (needs transformers)
    python3 make.py FOLDER --hugging-face  # exported tiny random Hugging Face models (needs transformers)

For each model NAME.pt2 and NAME.safetensors: inputs as `input.<name>`, outputs as `output.<position>`, the loss as
`loss`, gradients as `grad.<parameter>` of every trained parameter, new values of buffers as `buffer.<name>`, and the
losses of five steps of SGD and of AdamW as `steps.<optimizer>`. The metadata `outputs` has the names of the outputs.
"""

import copy
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.export.experimental
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = str(Path(__file__).resolve().parent)
CASES = {}


def case(function):
    """Registers a function that returns (model, inputs by name, export options)."""
    CASES[function.__name__] = function
    return function


class Loss(nn.Module):
    """A model with its loss: the loss is one of the outputs, as users export it."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x, y):
        out = self.model(x)
        return {"loss": self.loss(out, y), "logits": out}


def regression(model, width=4, out=4, rows=6):
    return Loss(model, nn.MSELoss()), {"x": torch.randn(rows, width), "y": torch.randn(rows, out)}, {}


@case
def mlp():
    return regression(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)))


@case
def mlp_dynamic():
    model, inputs, _ = regression(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)))
    batch = torch.export.Dim("batch", min=2, max=64)
    other = {"x": torch.randn(9, 4), "y": torch.randn(9, 4)}
    return model, inputs, {"dynamic_shapes": {"x": {0: batch}, "y": {0: batch}}, "other": other}


@case
def mlp_uneven():
    return regression(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)), 5, 3)


@case
def mlp_bf16():
    model, inputs, options = regression(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)))
    return model.bfloat16(), {k: v.bfloat16() for k, v in inputs.items()}, options


@case
def mlp_strided():
    """Parameters that are stored transposed, and with an offset into a larger storage."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    model[0].weight = nn.Parameter(torch.randn(4, 8).t())
    model[2].bias = nn.Parameter(torch.randn(10)[3:7])
    return regression(model)


@case
def frozen():
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    model[0].weight.requires_grad_(False)
    model[2].requires_grad_(False)
    return regression(model)


class Attention(nn.Module):
    def __init__(self, width, heads, manual):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.manual = heads, manual

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = self.qkv(x).split(w, dim=2)
        q, k, v = (t.view(b, s, self.heads, w // self.heads).transpose(1, 2) for t in (q, k, v))
        if self.manual:
            score = q @ k.transpose(-2, -1) * (w // self.heads) ** -0.5
            mask = torch.tril(torch.ones(s, s, dtype=torch.bool))
            score = score.masked_fill(~mask, float("-inf"))
            y = F.softmax(score, dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(b, s, w))


class Block(nn.Module):
    def __init__(self, width, heads, manual):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, heads, manual)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        x = x + self.drop(self.attn(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, manual=False, tied=True, vocab=11, width=8, heads=2, layers=2, length=6):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads, manual) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, tokens, labels):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)), logits


def tokens(vocab=11, rows=3, length=6, ignored=True):
    ids, labels = torch.randint(vocab, (rows, length)), torch.randint(vocab, (rows, length))
    if ignored:
        labels[0, :3] = -100
    return {"tokens": ids, "labels": labels}


@case
def gpt():
    return Gpt(), tokens(), {}


@case
def gpt_manual():
    return Gpt(manual=True, tied=False, layers=1), tokens(), {}


@case
def gpt_dynamic():
    batch = torch.export.Dim("batch", min=2, max=64)
    dynamic = {"dynamic_shapes": {"tokens": {0: batch}, "labels": {0: batch}}, "other": tokens(rows=5)}
    return Gpt(layers=1), tokens(), dynamic


class Bert(nn.Module):
    def __init__(self, vocab=11, width=8, length=6):
        super().__init__()
        self.word, self.position = nn.Embedding(vocab, width, padding_idx=0), nn.Embedding(length, width)
        self.kind = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layer = nn.TransformerEncoderLayer(width, 2, 16, 0.0, "gelu", batch_first=True)
        self.head = nn.Linear(width, vocab)
        self.register_buffer("position_ids", torch.arange(length).expand((1, -1)), persistent=False)

    def forward(self, tokens, mask, labels):
        ids = self.position_ids[:, : tokens.shape[1]]
        x = self.norm(self.word(tokens) + self.position(ids) + self.kind(torch.zeros_like(tokens)))
        x = self.layer(x, src_key_padding_mask=mask == 0)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.transpose(1, 2), labels), "logits": logits}


@case
def bert():
    inputs = tokens()
    mask = torch.ones(3, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    return Bert(), {"tokens": inputs["tokens"], "mask": mask, "labels": inputs["labels"]}, {}


class Rms(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def turned(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        depth = width // heads
        self.heads, self.groups, self.depth = heads, groups, depth
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, groups * depth, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 16, bias=False) for _ in range(2))
        self.down = nn.Linear(16, width, bias=False)
        self.norm1, self.norm2 = Rms(width), nn.RMSNorm(width, eps=1e-5)

    def forward(self, x, cos, sin):
        b, s, w = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, s, self.heads, self.depth).transpose(1, 2)
        k = self.k(h).view(b, s, self.groups, self.depth).transpose(1, 2)
        v = self.v(h).view(b, s, self.groups, self.depth).transpose(1, 2)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, w))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, vocab=11, width=16, heads=4, groups=2, layers=1):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, groups) for _ in range(layers))
        self.norm, self.head = Rms(width), nn.Linear(width, vocab, bias=False)
        depth = width // heads
        inverse = 1.0 / (10000.0 ** (torch.arange(0, depth, 2).float() / depth))
        self.register_buffer("inverse", inverse, persistent=False)

    @torch.no_grad()
    def rotary(self, tokens):
        positions = torch.arange(tokens.shape[1])[None, :].float()
        angles = (self.inverse[None, :, None] @ positions[:, None, :]).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos()[:, None], angles.sin()[:, None]

    def forward(self, tokens, labels):
        cos, sin = self.rotary(tokens)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x))
        shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1).float(), shifted.reshape(-1), ignore_index=-100), logits


@case
def llama():
    return Llama(), tokens(ignored=False), {}


@case
def autocast():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = F.relu(self.a(x))
                y = self.b(h)
            return y.float()

    return regression(Net())


@case
def conv():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    return Loss(net, nn.CrossEntropyLoss()), {"x": torch.randn(4, 2, 8, 8), "y": torch.randint(3, (4,))}, {}


@case
def conv_eval():
    model, inputs, options = conv()
    model.train()
    model(**{k: v for k, v in inputs.items()})
    return model.eval(), inputs, options


@case
def conv_more():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv1d(2, 4, 3, padding="same", dilation=2)
            self.b = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
            self.norm, self.inst = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)
            self.c = nn.Conv2d(4, 4, 3, groups=4, bias=False)

        def forward(self, x):
            x = F.leaky_relu(self.a(x))
            x = self.b(x.view(2, 4, 2, 3))
            x = F.elu(self.norm(x)) + self.inst(x)
            x = F.avg_pool2d(F.hardswish(self.c(F.pad(x, (1, 1, 1, 1)))), 2)
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            return F.adaptive_avg_pool2d(x, (3, 4)).flatten(1)[:, :4]

    return Loss(Net(), nn.SmoothL1Loss()), {"x": torch.randn(2, 2, 6), "y": torch.randn(2, 4)}, {}


@case
def lstm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.rnn = nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(10, 7)

        def forward(self, tokens, labels):
            y, (h, c) = self.rnn(self.embed(tokens))
            logits = self.head(y)
            return F.cross_entropy(logits.transpose(1, 2), labels) + h.mean() + c.sum() * 0.1, logits

    return Net(), tokens(7, 2, 3, ignored=False), {}


@case
def gru():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.plain = nn.GRU(4, 5), nn.RNN(5, 4)

        def forward(self, x):
            return self.plain(self.rnn(x)[0])[0]

    return Loss(Net(), nn.MSELoss()), {"x": torch.randn(3, 2, 4), "y": torch.randn(3, 2, 4)}, {}


@case
def detach():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            h = self.a(x)
            return self.b(h) * h.detach() + h

    return regression(Net())


@case
def no_grad():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            h = torch.tanh(self.a(x))
            with torch.no_grad():
                scale = h.abs().mean(0, keepdim=True) + 0.1
                with torch.enable_grad():
                    inner = self.b(h * 2.0)
                shift = self.b(h)
            return h / scale + shift * self.a(x) + inner

    return regression(Net())


@case
def straight_through():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            h = self.a(x)
            rounded = torch.round(h * 4.0) / 4.0
            return self.b(h + (rounded - h).detach())

    return regression(Net())


@case
def in_place():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)

        def forward(self, x):
            h = self.a(x)
            h.relu_()
            h = h * 1.5
            h[:, 1].mul_(2.0)
            view = h.view(2, 3, 6)
            view[0].add_(1.0)
            h.transpose(0, 1)[2:4].copy_(x.t()[:2])
            y = torch.zeros(6, 6)
            y[1:, :] += h[1:]
            y[:, 3] = h[:, 0] * 3.0
            y.masked_fill_(y > 4.0, 0.5)
            copy, view = y.t().reshape(36), y.t().contiguous().t().reshape(36)
            copy.mul_(0.5)
            view.add_(0.25)
            y.reshape(2, 18)[0].mul_(1.5)
            y.t().contiguous()[0].mul_(9.0)
            return self.b(y + copy.view(6, 6) + view.view(6, 6))

    return regression(Net())


@case
def buffers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(4))
            self.shift = torch.tensor([0.5, 0.25, 0.0, -1.0])

        def forward(self, x):
            h = self.a(x) * self.scale + self.shift + torch.tensor(0.25)
            self.count += 1
            self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
            return h + self.mean

    return regression(Net())


@case
def dropout_eval():
    return regression(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)).eval())


@case
def shared():
    """One module called twice, and one parameter under two names."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.c = self.a

        def forward(self, x):
            return self.b(torch.relu(self.a(torch.relu(self.c(x)))))

    return regression(Net())


@case
def elementwise():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 4))

        def forward(self, x):
            w = self.w
            y = torch.exp(-w.abs()) + torch.log1p(w * w) + torch.sqrt(w.square() + 1.0) + torch.rsqrt(w.pow(2) + 1.0)
            y = (
                y + torch.sin(w) * torch.cos(w) - torch.erf(w) + torch.expm1(w * 0.1) + w.pow(3)
                + (w * w + 1.0) ** 1.5
            )
            y = (
                y + torch.clamp(w, -0.5, 0.5) + torch.where(w > 0, w, 2.0 * w) + torch.maximum(w, x)
                + torch.minimum(w, x)
            )
            y = (
                y + F.softplus(w) + F.mish(w) + F.hardsigmoid(w) + F.hardtanh(w) + F.relu6(w) + F.selu(w)
                + F.logsigmoid(w)
            )
            y = (
                y + torch.remainder(w, 0.7) + torch.floor(w) + torch.sign(w) + torch.reciprocal(w + 10.0)
                + w / (x.abs() + 1.0)
            )
            y = (
                y + torch.lerp(w, x, 0.3) + torch.addcmul(x, w, w, value=0.5) + (3.0 - w)
                + torch.rsub(w, x, alpha=2.0)
            )
            y = (
                y + torch.sigmoid(w) * torch.tanh(w) + torch.log(w.abs() + 1.0) + torch.log2(w.abs() + 1.0)
                + F.glu(torch.cat([w, x], 1))
            )
            return y + (w > x).float() + torch.logical_and(w > 0, x > 0).to(w.dtype) + torch.isfinite(w).float()

    return regression(Net())


@case
def shapes():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 4))
            self.t = nn.Parameter(torch.randn(2, 3, 4))

        def forward(self, x):
            w, t = self.w, self.t
            a, b = w.chunk(2, dim=1)
            c = torch.stack([a, b], dim=1).flatten(1)
            d = (
                torch.cat([w[1:], w[:1]], 0) + torch.roll(w, 1, 0) + w.flip(1) + w.repeat(2, 1)[:6]
                + w[::2].repeat_interleave(2, 0)
            )
            e = (
                t.permute(1, 0, 2).reshape(6, 4) + t.unbind(0)[1].expand(2, 3, 4).reshape(6, 4)
                + t.movedim(0, 1).flatten(0, 1)
            )
            f = (
                torch.tril(w[:4]) .sum(0) + torch.triu(w[:4], 1).sum(0) + w.narrow(0, 1, 2).squeeze().mean(0)
                + w.t()[0, :4]
            )
            g = (
                F.pad(w, (1, -1, 0, 0), value=2.0) + torch.einsum("ij,kj->ik", w, w)[:, :4]
                + torch.einsum("bij,bkj->bik", t, t).sum((0, 1))[0]
            )
            h = (
                w[torch.tensor([0, 2, 2, 5, 1, 0])] + w.index_select(1, torch.tensor([3, 0, 1, 1]))
                + torch.gather(w, 1, torch.tensor([[0, 1, 3, 3]]).expand(6, 4))
            )
            i = (
                torch.zeros(6, 4).index_put((torch.tensor([1, 1]), torch.tensor([0, 0])), w[0, :2], accumulate=True)
                + torch.zeros(6, 4).scatter_add(0, torch.tensor([[0, 1, 1, 5]]), w[:1])
            )
            j = (
                t[:, torch.tensor([0, 2])][:, :, None].squeeze(2).sum((0, 1)) + t.split([1, 2], 1)[1].amax((0, 1))
                + F.one_hot(torch.tensor([1, 0, 3, 2]), 4).sum(0)
            )
            return (
                c + d + e + f + g + h + i + j + torch.arange(4.0) + torch.linspace(0.0, 1.0, 4) + torch.full((4,), 2)
                + torch.eye(6, 4)
            )

    return regression(Net())


@case
def reductions():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 4))

        def forward(self, x):
            w = self.w
            y = (
                w.mean(1, keepdim=True) + w.var(0) + w.std(1, keepdim=True, unbiased=False) + w.amax(0)
                + w.amin(1, keepdim=True)
            )
            y = (
                y + torch.logsumexp(w, 1, keepdim=True) + torch.logsumexp(w, (0, 1)) + w.norm()
                + torch.linalg.vector_norm(w, 1, 1, keepdim=True)
            )
            y = y + w.cumsum(1) + w.max(0).values + w.min(1, keepdim=True).values + w.prod(1, keepdim=True) + w.sum()
            y = (
                y + F.softmax(w, 0) + F.log_softmax(w, 1) + F.normalize(w, dim=1) + torch.var_mean(w, 0)[0]
                + w.argmax(1, keepdim=True)
            )
            y = y + (w > 5.0).any() + (w > -9.0).all(1, keepdim=True) + F.cosine_similarity(w, x, dim=1)[:, None]
            return y * 0.1

    return regression(Net())


@case
def losses():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 4))

        def forward(self, x, y):
            w = self.w * x
            loss = F.l1_loss(w, x) + F.huber_loss(w, x, delta=0.7) + F.smooth_l1_loss(w, x, reduction="sum") * 0.1
            loss = (
                loss
                + F.binary_cross_entropy_with_logits(w, torch.sigmoid(x), pos_weight=torch.tensor([1.0, 2.0, 3.0, 0.5]))
            )
            loss = (
                loss + F.binary_cross_entropy(torch.sigmoid(w), torch.sigmoid(x)) + F.nll_loss(F.log_softmax(w, 1), y)
            )
            loss = loss + F.cross_entropy(w, y, label_smoothing=0.1) + F.cross_entropy(w, F.softmax(x, 1))
            loss = loss + F.kl_div(F.log_softmax(w, 1), F.softmax(x, 1), reduction="batchmean")
            return (
                loss + F.cross_entropy(w, y, reduction="none").square().sum()
                + F.mse_loss(w, x, reduction="sum") * 0.01
            )

    return Net(), {"x": torch.randn(6, 4), "y": torch.tensor([0, 3, 1, -100, 2, 2])}, {}


@case
def attentions():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 2, 4, 5, 6))

        def forward(self, x):
            q, k, v = self.w
            mask = torch.ones(5, 5, dtype=torch.bool).tril(1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            y = y + F.scaled_dot_product_attention(q, k, v, attn_mask=x, scale=0.3)
            y = y + F.scaled_dot_product_attention(q, k, v[..., :3]).repeat(1, 1, 1, 2)
            y = y + F.scaled_dot_product_attention(q[:, :, :3], k, v, is_causal=True).mean(2, keepdim=True)
            heads = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], attn_mask=x[:, :1] > 0.0, enable_gqa=True)
            return y + heads + F.scaled_dot_product_attention(q[0], k[0], v[0], is_causal=True)

    return Loss(Net(), nn.MSELoss()), {"x": torch.randn(2, 4, 5, 5), "y": torch.randn(2, 4, 5, 6)}, {}


@case
def experts():
    """A layer of experts whose rows are sorted by expert, as Hugging Face writes it."""
    import transformers.integrations.moe  # registers grouped_mm_fallback

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(4, 3)
            self.up, self.down = nn.Parameter(torch.randn(3, 4, 8)), nn.Parameter(torch.randn(3, 8, 4))

        def forward(self, x):
            weights, chosen = self.router(x).softmax(-1).topk(2)
            expert, order = chosen.flatten().sort(stable=True)
            ends = torch.histc(expert.float(), bins=3, min=0, max=2).cumsum(0, dtype=torch.int32)
            h = F.silu(F.grouped_mm(x[order // 2], self.up, offs=ends))
            y = torch.ops.transformers.grouped_mm_fallback(h, self.down, ends) * weights.flatten()[order, None]
            both = torch.zeros_like(y).index_put((order,), y).view(6, 2, 4).sum(1)
            # Elements at the edges of bins and outside of all; a group without rows; stacks of matrices.
            counts = torch.histc(x * 2, bins=4, min=-1, max=3) + torch.histc(torch.arange(8.0), bins=4, min=1, max=5)
            some = F.grouped_mm(x, self.up, offs=torch.tensor([2, 2, 6], dtype=torch.int32))
            return both + counts + some[:, :4] + (F.grouped_mm(self.up, self.down) * self.up[..., :4]).sum((0, 1))

    return regression(Net())


COLLECTIVES, WITH_GRADIENT = torch.ops._c10d_functional, torch.ops._c10d_functional_autograd


def waited(tensor):
    return COLLECTIVES.wait_tensor(tensor)


class DataParallel(nn.Module):
    """A model of one of several ranks: its loss is the mean over the ranks. Group `0` is that of all."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        loss, *others = tensors_of(self.model(**inputs))
        return waited(COLLECTIVES.all_reduce(loss, "avg", "0")), *others


@case
def data_parallel():
    return DataParallel(Gpt(layers=2, tied=False)), tokens(rows=4, ignored=False), {"ranks": 2}


@case
def collectives():
    """Every collective of one of two ranks, and ops that no batch dimension separates."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, y):
            h = torch.tanh(self.a(x))
            gathered = waited(WITH_GRADIENT.all_gather_into_tensor(h, 2, "0"))
            part = waited(WITH_GRADIENT.reduce_scatter_tensor(gathered, "sum", 2, "0"))
            sent = waited(WITH_GRADIENT.all_to_all_single(h, [2, 2], [2, 2], "0"))
            z = self.b(h - gathered.mean(0)) + part * 0.1 + sent.flip(0)
            own = h.detach()
            z = z + waited(COLLECTIVES.broadcast(own, 1, "0")) + waited(COLLECTIVES.all_reduce(own, "max", "0"))
            both = waited(COLLECTIVES.all_gather_into_tensor(own, 2, "0"))
            z = z * waited(COLLECTIVES.reduce_scatter_tensor(both, "avg", 2, "0"))
            z = z + waited(COLLECTIVES.all_to_all_single(own, [2, 2], [2, 2], "0")) + h.sort(0).values + h.cumsum(0)
            z = z + torch.zeros(4, 4).index_put((torch.tensor([1, 1]),), h[:2], accumulate=True) + h @ h.t()
            z = torch.cat([z, F.pad(h, (0, 1))[:, 3:]], 1)
            return waited(COLLECTIVES.all_reduce(F.mse_loss(z[:, :4], y) + z[:, 4:].square().sum(), "avg", "0")), z

    return Net(), {"x": torch.randn(8, 4), "y": torch.randn(8, 4)}, {"ranks": 2}


OPS = torch.ops.aten


def rows(w, x):
    """Ops that the models above do not call, each overload once. `w` [6, 4] is a parameter, `x` [6, 4] the input."""
    i, j = (x * 5.0).to(torch.int64), (x * 3.0).to(torch.int64)
    k, m, n, p = j.abs() + 1, x > 0, x < 0.5, w.abs() + 0.5
    image, kernel, line = w.view(1, 2, 3, 4), w[:2].view(2, 1, 2, 2), w.view(1, 4, 6)
    labels, log = torch.tensor([0, 3, 1, -100, 2, 2]), F.log_softmax(w, 1)
    yield from (OPS.__and__.Tensor(m, n), OPS.__or__.Tensor(i, j), OPS.__xor__.Tensor(m, n))
    yield from (OPS.__and__.Scalar(i, 3), OPS.__or__.Scalar(i, 3), OPS.__xor__.Scalar(i, 3))
    yield from (OPS.bitwise_and.Tensor(i, j), OPS.bitwise_or.Tensor(i, j), OPS.bitwise_xor.Tensor(i, j))
    yield from (OPS.bitwise_and.Scalar(i, 6), OPS.bitwise_or.Scalar(i, 6), OPS.bitwise_xor.Scalar(i, 6))
    yield from (OPS.logical_or.default(m, i), OPS.logical_xor.default(m, n), OPS.isinf.default(w / 0.0))
    yield from (OPS.ge.Tensor(w, i), OPS.le.Tensor(w, x), OPS.lt.Tensor(i, j), OPS.ne.Tensor(i, j))
    yield OPS.ne.Scalar(i, 1)
    yield from (OPS.floor_divide.default(i, k), OPS.div.Tensor_mode(w, p, rounding_mode="floor"))
    yield from (OPS.div.Tensor_mode(i, k, rounding_mode="trunc"), OPS.div.Scalar_mode(w, 0.3, rounding_mode="trunc"))
    yield from (OPS.remainder.Tensor(i, k), OPS.fmod.Tensor(w, p), OPS.fmod.Scalar(i, 3))
    yield OPS.true_divide.Tensor(i, k)
    yield from (OPS.floor_divide.Scalar(i, 3), OPS.addcdiv.default(x, w, p, value=0.5), OPS.lerp.Tensor(w, x, p))
    yield from (OPS.ceil.default(w), OPS.trunc.default(w * 3.0), OPS.tan.default(w * 0.3), OPS.log10.default(p))
    yield OPS.sgn.default(w)
    yield from (OPS.erfc.default(w), OPS.erfinv.default(torch.tanh(w) * 0.5), OPS.sub.Scalar(w, 2, 0.5))
    yield OPS.add.Scalar(w, 2)
    yield from (OPS.pow.Scalar(2.0, w), OPS.pow.Tensor_Tensor(p, x), OPS.mul.Scalar(w, 2), OPS.div.Scalar(w, 4))
    yield OPS.rsub.Scalar(w, 1, 2)
    yield from (OPS.max.other(w, x), OPS.min.other(w, x), OPS.clip.default(w, -0.3), OPS.clamp_min.Tensor(w, x))
    yield from (OPS.clamp_max.Tensor(w, x), OPS.clamp_max.default(w, 0.2), OPS.clamp_min.default(w, -0.2))
    yield OPS.clamp.Tensor(w, x - 1.0, x + 0.5)
    yield from (OPS.where.ScalarOther(m, w, 2.0), OPS.where.ScalarSelf(m, 2.0, w), OPS.where.Scalar(m, 1.0, 0.0))
    yield from (OPS.masked_fill.Tensor(w, m, torch.tensor(3.0)), OPS.prelu.default(w, w[0]))
    yield OPS._prelu_kernel.default(w, p)
    yield from (OPS.max.default(w), OPS.min.default(w), OPS.prod.default(p), OPS.all.default(m))
    yield from (OPS.all.dims(m, [0, 1]), OPS.any.dims(m, [1]), OPS.isnan.default(w / 0.0))
    yield from (OPS.any.dim(m, 1), OPS.argmin.default(w), OPS.std.default(w))
    yield from (OPS.std.correction(w, [1], correction=0), OPS.var.default(w))
    yield from (OPS.std_mean.correction(w, [0])[0], OPS.var_mean.correction(w, [0])[1], OPS.var.dim(w, [1], False))
    yield from (OPS.norm.Scalar(w), OPS.norm.ScalarOpt_dim(w, 2, [1], True))
    yield from (OPS.mT.default(w), OPS.numpy_T.default(w), OPS.mv.default(w, x[0]), OPS.dot.default(w[0], x[0]))
    yield OPS.outer.default(w[0], x[1])
    yield OPS.baddbmm.default(x, w[None], x[None, :4, :4], beta=0.5, alpha=2.0)
    yield OPS.bilinear.default(w, x, w.view(2, 3, 4)[:, :, :].expand(2, 3, 4)[:, :1].expand(2, 4, 4))
    yield from (OPS.reshape_as.default(w, x.t()), OPS.view_as.default(w, x), OPS.broadcast_to.default(w[0], [6, 4]))
    yield OPS.tile.default(w, [2])
    yield from (OPS.split.sizes(w, [2, 4])[1], OPS.unflatten.int(w, 0, [2, -1]))
    yield OPS.select_scatter.default(w, x[0], 0, 2)
    yield from (OPS.slice_scatter.default(w, x[:2], 0, 1, 3), OPS.take_along_dim.default(w, k[:1] % 4, 1))
    yield OPS.index_add.default(w, 0, k[0] % 6, x[:4], alpha=2.0)
    yield from (OPS.scatter.src(w, 0, k[:1] % 6, x), OPS.scatter.value(w, 1, k[:, :1] % 4, 3.0))
    yield from (OPS.new_full.default(w, [4], 2.0), OPS.new_ones.default(i, [4]), OPS.new_zeros.default(w, [4]))
    yield OPS.ones_like.default(w)
    yield from (OPS.zeros_like.default(w, dtype=torch.int64), OPS.full_like.default(w, 2.5), OPS.fill.Scalar(w, 2.0))
    yield OPS.fill.Tensor(w, w[0, 0])
    yield from (OPS.zero.default(w), OPS.copy.default(x, w[0].detach()), OPS.eye.default(4), OPS.arange.start(2, 6))
    yield OPS.arange.start_step(0.5, 3.0, 0.5)
    yield from (OPS.to.device(w, "cpu", torch.float64), OPS.to.other(i, w))
    yield OPS.to.dtype_layout(i, dtype=torch.float32)
    yield from (OPS.type_as.default(i, w), OPS.scalar_tensor.default(2.5), OPS._unsafe_view.default(w, [4, 6]))
    yield OPS._to_copy.default(w, dtype=torch.float16)
    yield OPS.native_layer_norm.default(w, [4], x[0], x[1], 1e-5)[0]
    yield from (OPS._fused_rms_norm.default(w, [4], x[0], 1e-5)[0], OPS.rms_norm.default(w, [4]))
    yield OPS.native_group_norm.default(image, x[0, :2], None, 1, 2, 12, 1, 1e-5)[0]
    yield OPS._native_batch_norm_legit.default(w, x[0], None, x[1], x[2].abs(), False, 0.1, 1e-5)[0]
    yield OPS._native_batch_norm_legit.no_stats(w, x[0], None, True, 0.1, 1e-5)[0]
    yield OPS._native_batch_norm_legit_no_training.default(w, x[0], x[1], x[2], x[3].abs(), 0.1, 1e-5)[0]
    yield OPS.native_dropout.default(w, 0.5, False)[0]
    yield OPS.native_batch_norm.default(w, x[0], x[1], x[2], x[3].abs(), False, 0.1, 1e-5)[0]
    yield OPS.feature_dropout.default(w, 0.5, False)
    yield from (OPS.nll_loss.default(log, labels), OPS.nll_loss_forward.default(log, labels, None, 1, -100)[0])
    yield OPS.nll_loss2d_forward.default(log.t().contiguous().view(1, 4, 2, 3), labels.view(1, 2, 3), None, 2, -100)[0]
    yield OPS.log_sigmoid_forward.default(w)[0]
    yield OPS.conv1d.default(line, w.view(2, 4, 3), None, [2], [1])
    yield OPS.conv2d.padding(image, kernel, None, [1], "same", [1], 2)
    yield OPS.conv3d.default(image.view(1, 2, 1, 3, 4), w.view(2, 2, 1, 2, 3))
    yield OPS.conv3d.padding(image.view(1, 2, 1, 3, 4), w.view(2, 2, 1, 2, 3), None, [1], "valid")
    yield OPS.conv_transpose1d.default(line, w.view(4, 2, 3), None, [2])
    yield OPS.conv1d.padding(line, w.view(2, 4, 3), None, [1], "same")
    yield OPS.conv_transpose3d.input(image.view(1, 2, 3, 2, 2), kernel.view(2, 1, 2, 2, 1))
    yield from (OPS.max_pool1d.default(line, [3], [2], [1]), OPS.avg_pool1d.default(line, [2]))
    yield OPS.max_pool2d.default(image, [2, 2], [2, 2], [0, 0], [1, 1], True)
    yield from (OPS.avg_pool2d.default(image, [2, 2], [1, 1], [1, 1]), OPS.adaptive_avg_pool1d.default(line, [4]))
    yield from (OPS._adaptive_avg_pool2d.default(image, [2, 3]), OPS.upsample_nearest2d.default(image, [6, 8]))
    yield OPS.logsumexp.default(image, [1, 3])
    yield from (OPS.var.correction(w, [1], correction=2), OPS.constant_pad_nd.default(w, [1, 2], 0.5))
    yield from (OPS.eq.Tensor(i, j), OPS.ge.Scalar(w, 0.5))
    yield OPS.fill.Scalar(OPS.empty_like.default(w), 2.0)
    yield OPS.max_pool2d_with_indices.default(image, [2, 2])[0]
    yield OPS.native_layer_norm.default(w, [4], None, None, 1e-5)[0]
    yield from (*OPS.sort.default(w, 0, True), OPS.sort.stable(w, stable=True, dim=1)[0], *OPS.topk.default(w, 2))
    yield OPS.topk.default(w, 3, 0, False)[0]
    yield from (OPS.argsort.default(w), OPS.argsort.stable(w, stable=True, descending=True), OPS.diff.default(w))
    yield OPS.diff.default(m, 1, 0)
    yield from (OPS._weight_norm.default(w, x[:, :1]), OPS.pixel_shuffle.default(w.view(4, 2, 3), 2))
    yield OPS.swapaxes.default(w, 0, -1)
    yield OPS._scaled_dot_product_flash_attention_for_cpu.default(line[None], line[None], line[None], 0.0, True)[0]
    yield from (OPS.alias.default(w), OPS.expand_as.default(w[0], x))


def overloads_of(rows):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 4))

        def forward(self, x):
            outputs = list(rows(self.w, x))
            flat = [y.flatten() for y in outputs if y.dtype == torch.float32]
            return {"loss": torch.cat(flat).square().mean()} | {f"row{i}": y for i, y in enumerate(outputs)}

    return Net(), {"x": torch.randn(6, 4)}, {}


@case
def overloads():
    return overloads_of(rows)


def more_rows(w, x):
    """Overloads like those above: cells, windows, bags of rows, distances, positions."""
    line, image, tall, m = w.view(2, 4, 3), w.view(1, 2, 3, 4), w.repeat(2, 1)[:8], w > 0.0
    ids, bags, square = torch.tensor([0, 2, 2, 5, 1]), torch.tensor([0, 2, 2]), x[:4].expand(2, 4, 4)
    yield from OPS.lstm_cell.default(w, [x[:, :2], w[:, 1:3]], tall, tall[:, 2:], tall[:, 0], tall[:, 1])
    yield OPS.gru_cell.default(w, x[:, :2], w, w[:, :2], w[:, 0])
    yield from (OPS.rnn_tanh_cell.default(w, x, w[:4], x[:4]), OPS.rnn_relu_cell.default(w, x, w[:4], x[:4], x[0], w[1]))
    yield from (OPS.diagonal.default(w), OPS.diagonal.default(w, 1), OPS.diagonal.default(w.view(2, 3, 4), -2, 2, 0))
    yield from (OPS.unfold.default(w, 0, 3, 1), OPS.unfold.default(w, 0, 2, 3), OPS.unfold.default(w, 1, 1, 2))
    yield OPS.im2col.default(image, [2, 2], [1, 2], [1, 0], [1, 2])
    yield OPS.im2col.default(line[None, 0], [1, 2], [1, 1], [0, 0], [1, 1])
    yield OPS.embedding_bag.padding_idx(w, ids, bags, False, 0, False, None, False, None)[0]
    yield OPS.embedding_bag.padding_idx(w, ids, bags, False, 1, False, None, False, -4)[0]
    yield OPS.embedding_bag.default(w, ids, torch.tensor([0, 1, 5]), False, 0, False, x[:5, 0], True)[0]
    yield OPS._embedding_bag.default(w, ids, bags, False, 1)[0]
    yield OPS._embedding_bag_forward_only.default(x, ids, bags)[0]
    yield from (OPS.upsample_nearest1d.default(line, [6]), OPS.upsample_nearest1d.vec(line, None, [1.5]))
    yield from (OPS.upsample_nearest2d.default(image, [5, 3]), OPS.upsample_nearest2d.vec(image, None, [2.0, 0.5]))
    yield from (OPS.cdist.default(w, x), OPS.cdist.default(w, w), OPS._cdist_forward.default(w, x, 2.0, None))
    yield OPS._euclidean_dist.default(line, line[:, :2])
    yield from (OPS.atan2.default(w, x), OPS.logcumsumexp.default(w, 0), OPS.logcumsumexp.default(w * 90.0, 1))
    yield from (OPS.median.default(w[:5]), *OPS.median.dim(w, 1), *OPS.median.dim(w, 0, True))
    yield OPS.fill.Scalar(OPS.empty.memory_format([2], dtype=torch.float32), 1.0)
    yield OPS.fill.Scalar(OPS.new_empty.default(w, [3]), 2.0)
    OPS._assert_async.default(m.any())
    OPS._assert_async.msg(m.any(), "some are positive")
    yield from (OPS.einsum.default("ij,kj,il->kl", [w, x, w]), OPS.einsum.default("ij,ik,il,m->jk", [w, x, w, x[0]]))
    yield from (*OPS.unsafe_split.Tensor(w, 4), OPS.unsafe_split_with_sizes.default(w, [1, 3], 1)[1])
    yield OPS._trilinear.default(w, square, x, [1, 3], [0], [1, 2], [2, 3])
    yield OPS.slice_scatter.default(w, x[:3], 0, 1, 6, 2)
    yield from (OPS.slice_scatter.default(w, x[:, :1], 1, 3, 9, 4), OPS.slice_scatter.default(w, x[:0], 0, 4, 2, 3))
    # Rows in order, in steps, repeated, in another order, and with a row that has no gradient.
    yield from (OPS.embedding.default(w, torch.arange(6)), OPS.embedding.default(w, torch.arange(1, 6, 2).expand(2, 3)))
    yield from (OPS.embedding.default(w, torch.arange(5, 0, -2)), OPS.embedding.default(w, torch.arange(4)[None], 2))


@case
def overloads_more():
    return overloads_of(more_rows)


@case
def steps():
    """Updates in place of elements that lie at steps."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 6)

        def forward(self, x):
            h = self.a(x)
            h[:, ::2] *= 2
            h[1::3, 1:].add_(x[:2, :1])
            h.diagonal().mul_(0.5)
            h.diagonal(-1).fill_(0.25)
            odd = h[:, 1::4]
            h[::5].copy_(x[:2, :1].expand(2, 6))
            return h[:, :4] + odd.sum(1, keepdim=True)

    return regression(Net())


@case
def autocast_core():
    """An autocast region with a norm: after decomposition the unused statistics are stated in bf16."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
            self.b = nn.Linear(8, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.b(F.gelu(self.norm(self.a(x))))
            return y.float()

    return (*regression(Net())[:2], {"core": True})


@case
def sizes():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            b = x.shape[0]
            h = self.a(x).view(b * 2, 2) * (b % 2 + 1)
            h = torch.cat([h, torch.zeros(torch.sym_max(b, 3) - torch.sym_min(b, 2) + b // 2, 2)], 0)
            return h.mean() * (x.numel() / b) + h.square().sum() * -b, h

    batch = torch.export.Dim("batch", min=2, max=64)
    return Net(), {"x": torch.randn(6, 4)}, {"dynamic_shapes": {"x": {0: batch}}, "other": {"x": torch.randn(7, 4)}}


@case
def cells():
    """Recurrent layers in other settings."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.rnn = nn.LSTM(4, 4), nn.RNN(4, 4, nonlinearity="relu", bias=False)

        def forward(self, x):
            return self.rnn(self.lstm(x)[0])[0]

    return Loss(Net(), nn.MSELoss()), {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}, {}


@case
def dropout():
    """Dropout in training mode: its random numbers are PyTorch's own, so only its form can be compared."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 4))

        def forward(self, x):
            y = F.dropout(self.w * x, 0.25)
            return y.sum(), y

    return Net(), {"x": torch.randn(6, 4)}, {}


class OnlyLoss(nn.Module):
    """Joint programs have the loss as their only output with a gradient."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return tensors_of(self.model(**inputs))[0]


for base in ("mlp", "mlp_uneven"):
    CASES[f"{base}_joint"] = lambda base=base: (OnlyLoss(CASES[base]()[0]), CASES[base]()[1], {"joint": True})


# The same models after decomposition to core ATen ops.
for base in ("mlp", "gpt_dynamic", "conv"):
    CASES[f"{base}_core"] = lambda base=base: (*CASES[base]()[:2], {**CASES[base]()[2], "core": True})


def hugging_face():
    import transformers as t

    small = dict(attn_implementation="sdpa", use_cache=False)
    gpt2 = t.GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=2, n_positions=16,
                        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **small)
    bert = t.BertConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                        max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
                        attn_implementation="sdpa")
    llama = t.LlamaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                          intermediate_size=24, max_position_embeddings=16, **small)
    eager = t.GPT2Config(**{**gpt2.to_dict(), "attn_implementation": "eager"})
    mixtral = t.MixtralConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                              intermediate_size=24, num_local_experts=4, max_position_embeddings=16,
                              experts_implementation="batched_mm", **small)
    grouped = t.MixtralConfig(**{**mixtral.to_dict(), "attn_implementation": "sdpa", "experts_implementation": "grouped_mm"})
    kinds = {"hf_gpt2": (t.GPT2LMHeadModel, gpt2), "hf_gpt2_eager": (t.GPT2LMHeadModel, eager),
             "hf_bert": (t.BertForMaskedLM, bert), "hf_llama": (t.LlamaForCausalLM, llama),
             "hf_mixtral": (t.MixtralForCausalLM, mixtral), "hf_mixtral_grouped": (t.MixtralForCausalLM, grouped)}
    for name, (model, config) in kinds.items():
        ids = torch.randint(31, (3, 8))
        mask = torch.ones(3, 8, dtype=torch.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(31, (3, 8))}
        inputs["attention_mask"][1, 6:] = 0
        yield name, (lambda model=model, config=config, inputs=inputs: (model(config), inputs, {}))


def families(folder):
    """Weights of tiny random Hugging Face models in their files, and the logits that they give."""
    import transformers as t

    gpt = t.GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=2, n_positions=8)
    llama = t.LlamaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                          intermediate_size=24, max_position_embeddings=8, rms_norm_eps=1e-5, tie_word_embeddings=False)
    bert = t.BertConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                        max_position_embeddings=8)
    kinds = (("gpt", t.GPT2LMHeadModel, gpt), ("llama", t.LlamaForCausalLM, llama), ("bert", t.BertForMaskedLM, bert))
    for name, kind, config in kinds:
        torch.manual_seed(7)
        model = kind(config).eval()
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        ids, mask = torch.randint(31, (3, 8)), torch.ones(3, 8, dtype=torch.int64)
        extra = {}
        if name == "bert":
            mask[1, 6:] = 0
            extra = {"token_types": torch.randint(2, (3, 8))}
        types = {"token_type_ids": extra["token_types"]} if extra else {}
        logits = model(input_ids=ids, attention_mask=mask, **types).logits
        model.save_pretrained(folder / name, safe_serialization=True)
        record = {"input.tokens": ids, "input.attention_mask": mask, "logits": logits.detach()}
        record |= {f"input.{key}": value for key, value in extra.items()}
        save_file({key: value.contiguous() for key, value in record.items()}, folder / f"{name}.safetensors")
        for other in list((folder / name).iterdir()):
            if other.suffix != ".safetensors":
                other.unlink()


def plain_traces(graph_module):
    """Keeps only file and line of the frames of this file in stack traces, and no absolute paths."""
    for module in graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            trace = node.meta.get("stack_trace")
            if trace:
                lines = trace.replace(HERE + "/", "").splitlines()
                frames = [line.strip() for line in lines if 'File "make.py"' in line]
                node.meta["stack_trace"] = "\n".join(frames) if frames else lines[0].split("site-packages/")[-1]
            node.meta.pop("from_node", None)
            node.meta.pop("torch_fn", None)


def tensors_of(outputs):
    """The tensors that a model returns, in order."""
    if torch.is_tensor(outputs):
        return [outputs]
    return [value for value in (outputs.values() if hasattr(outputs, "values") else outputs) if torch.is_tensor(value)]


def names_of(outputs):
    """Their names: those of a dictionary, else `output.<position>`."""
    if hasattr(outputs, "items"):
        return [key for key, value in outputs.items() if torch.is_tensor(value)]
    return [f"output.{i}" for i in range(len(tensors_of(outputs)))]


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def train(model, inputs, make_optimizer, average=lambda parameters: None):
    """The losses of five steps of a copy of the model."""
    model = copy.deepcopy(model)
    optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = next(v for v in tensors_of(model(**inputs)) if v.dim() == 0 and v.is_floating_point())
        loss.backward()
        average(model.parameters())
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def average_gradients(parameters):
    """What data parallelism does before each step of the optimizer."""
    for parameter in parameters:
        torch.distributed.all_reduce(parameter.grad, torch.distributed.ReduceOp.SUM)
        parameter.grad /= torch.distributed.get_world_size()


def record_rank(rank, ranks, name, folder, place):
    """One rank's part of a model with collectives: the first exports, and records what all ranks compute together."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
    torch.manual_seed(7)
    model, inputs, _ = CASES[name]()
    own = {key: value.chunk(ranks)[rank] for key, value in inputs.items()}
    if rank == 0:
        program = torch.export.export(model, (), kwargs=own)
        plain_traces(program.graph_module)
        torch.export.save(program, folder / f"{name}.pt2")
    tensors = {f"input.{key}": value for key, value in inputs.items()}
    for key, make_optimizer in OPTIMIZERS.items():
        tensors[f"steps.{key}"] = train(model, own, make_optimizer, average_gradients)
    loss, *others = tensors_of(model(**own))
    loss.backward()
    average_gradients(model.parameters())
    tensors |= {"loss": loss.detach(), "output.0": loss.detach()}
    for i, output in enumerate(others):
        parts = [torch.empty_like(output) for _ in range(ranks)]
        dist.all_gather(parts, output.detach().contiguous())
        tensors[f"output.{i + 1}"] = torch.cat(parts)
    tensors |= {f"grad.{key}": value.grad for key, value in model.named_parameters()}
    if rank == 0:
        save_file({key: value.detach().clone().contiguous() for key, value in tensors.items()}, folder / f"{name}.safetensors")
    dist.destroy_process_group()


def record(name, make, folder):
    torch.manual_seed(7)
    model, inputs, options = make()
    if "ranks" in options:
        place = (folder / f"{name}.group").resolve()
        place.unlink(missing_ok=True)
        torch.multiprocessing.spawn(record_rank, (options["ranks"], name, folder, place), options["ranks"])
        return place.unlink(missing_ok=True)
    core, joint = options.pop("core", False), options.pop("joint", False)
    other = options.pop("other", {})
    program = torch.export.export(model, (), kwargs=inputs, **options)
    if core:
        program = program.run_decompositions()
    if joint:
        program = torch.export.experimental._export_forward_backward(program)
    steps = {key: train(model, inputs, make_optimizer) for key, make_optimizer in OPTIMIZERS.items()}
    plain_traces(program.graph_module)
    torch.export.save(program, folder / f"{name}.pt2")
    before = {key: value.clone() for key, value in model.named_buffers()}
    returned = model(**inputs)
    outputs, metadata = tensors_of(returned), {"outputs": ",".join(names_of(returned))}
    loss = next(v for v in outputs if v.dim() == 0 and v.is_floating_point())
    loss.backward()
    tensors = {f"input.{key}": value for key, value in inputs.items()}
    tensors |= {f"output.{i}": value.detach() for i, value in enumerate(outputs)}
    tensors["loss"] = loss.detach()
    tensors |= {f"steps.{key}": losses for key, losses in steps.items()}
    if other:
        tensors |= {f"other.input.{key}": value for key, value in other.items()}
        tensors["other.loss"] = next(v for v in tensors_of(model(**other)) if v.dim() == 0).detach()
    for key, value in model.named_parameters():
        if value.requires_grad:
            tensors[f"grad.{key}"] = torch.zeros_like(value) if value.grad is None else value.grad
    for key, value in model.named_buffers():
        if not torch.equal(before[key], value):
            tensors[f"buffer.{key}"] = value
    plain = {key: value.detach().clone().contiguous() for key, value in tensors.items()}
    save_file(plain, folder / f"{name}.safetensors", metadata)


def main(folder, *names):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if "--families" in names:
        return families(folder)
    cases, names = (dict(hugging_face()), names[1:]) if "--hugging-face" in names[:1] else (CASES, names)
    chosen = {name: cases[name] for name in names or cases}
    for name, make in chosen.items():
        try:
            record(name, make, folder)
            print(name, (folder / f"{name}.pt2").stat().st_size)
        except Exception as error:  # the others are still recorded
            print(f"{name}: {type(error).__name__}: {str(error)[:600]}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
