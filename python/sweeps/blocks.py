"""Parts of random modules. Each keeps the kind of its tensor: rows of ``(batch, width)``, sequences of
``(batch, length, width)``, images of ``(batch, channels, height, width)``."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: tuple[Activation, ...] = (F.gelu, F.silu, torch.tanh, F.relu, torch.sigmoid, F.softplus, F.elu, F.mish)


class Plain(nn.Module):
    """A linear layer and an activation."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=draw.random() < 0.8)
        self.activation = draw.choice(ACTIVATIONS)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x))


class Residual(nn.Module):
    """Two linear layers beside a residual path, with a norm before or after."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        inner = width * draw.choice((2, 3))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm, self.first = nn.LayerNorm(width), draw.random() < 0.5
        self.drop = nn.Dropout(0.0)
        self.activation = draw.choice(ACTIVATIONS)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x) if self.first else x
        y = x + self.drop(self.down(self.activation(self.up(y))))
        found: Tensor = y if self.first else self.norm(y)
        return found


class Gated(nn.Module):
    """One linear layer whose output is split into a value and a gate."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.both, self.uneven = nn.Linear(width, 2 * width), draw.random() < 0.3
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        if self.uneven:
            small, rest = self.both(x).split([self.width // 2, 2 * self.width - self.width // 2], -1)
            value, gate = rest[..., : self.width], torch.cat([small, rest[..., self.width :]], -1)
        else:
            value, gate = self.both(x).chunk(2, -1)
        found: Tensor = value * torch.sigmoid(gate)
        return found


class Joined(nn.Module):
    """Two branches, one after the other in one tensor, and a linear layer over both."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        half = width // 2
        self.left, self.right = nn.Linear(width, half), nn.Linear(width, width - half)
        self.after, self.scale = nn.Linear(width, width), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([torch.tanh(self.left(x)), F.gelu(self.right(x))], -1)
        found: Tensor = x + self.scale * self.after(y)
        return found


class LowRank(nn.Module):
    """A product of three factors, as an einsum."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        rank, self.any = draw.choice((2, 3, 4)), draw.random() < 0.08
        self.a = nn.Parameter(torch.randn(width, rank) / math.sqrt(width))
        self.b = nn.Parameter(torch.randn(rank, width) / math.sqrt(rank))

    def forward(self, x: Tensor) -> Tensor:
        if self.any:
            return x + torch.einsum("...i,ir,rj->...j", x, self.a, self.b)
        return x + torch.einsum("ni,ir,rj->nj", x.flatten(0, -2), self.a, self.b).view_as(x)


class Experts(nn.Module):
    """Every expert of every token, mixed by the weights of its best two."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        count, inner = draw.choice((2, 4)), 2 * width
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, width, inner) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(count, inner, width) / math.sqrt(inner))
        self.best = draw.choice((1, 2))

    def forward(self, x: Tensor) -> Tensor:
        shares = F.softmax(self.router(x), -1)
        best = shares.topk(self.best, -1)
        kept = torch.zeros_like(shares).scatter(-1, best.indices, best.values)
        rows = x.flatten(0, -2)
        inner = F.silu(torch.einsum("nd,edh->neh", rows, self.up))
        found = torch.einsum("neh,ehd->ned", inner, self.down)
        return x + torch.einsum("ned,ne->nd", found, kept.flatten(0, -2)).view_as(x)


class Chosen(nn.Module):
    """The weights of one expert for each row, taken by an index that the module computes."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(width, 3), nn.Parameter(torch.randn(3, width, width) / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        shares = F.softmax(self.router(x), -1)
        which = shares.argmax(-1)
        weight = self.experts[which]
        share = shares.gather(-1, which.unsqueeze(-1))
        return x + share * torch.matmul(weight, x.unsqueeze(-1)).squeeze(-1)


class RunningMean(nn.Module):
    """A norm with a mean that the module keeps in a buffer."""

    mean: Tensor
    calls: Tensor

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.detach().reshape(-1, x.shape[-1]).mean(0), alpha=0.1)
                self.calls.add_(1)
        return self.scale * (x - self.mean)


class Whitened(nn.Module):
    """A weight that is divided by its norms before it is used."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.v, self.g = nn.Parameter(torch.randn(width, width)), nn.Parameter(torch.ones(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.g * self.v / self.v.norm(dim=1, keepdim=True))


class Reordered(nn.Module):
    """Columns that are rolled, flipped, picked by a constant index, or added up along the row."""

    order: Tensor

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.way = draw.choice(("roll", "flip", "index", "cumsum", "where", "clamp", "unbind", "sort"))
        self.register_buffer("order", torch.tensor(draw.sample(range(width), width)), persistent=False)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale
        if self.way == "roll":
            return y.roll(1, -1) + x
        if self.way == "flip":
            return y.flip(-1) + x
        if self.way == "index":
            return y.index_select(-1, self.order)
        if self.way == "cumsum":
            return y.cumsum(-1) / math.sqrt(x.shape[-1])
        if self.way == "where":
            return torch.where(x > 0, y, x.square() * 0.1)
        if self.way == "clamp":
            return y.clamp(-0.7, 0.9)
        if self.way == "sort":
            return y.sort(-1).values
        first, *rest = y.unbind(-1)
        return torch.stack([*rest, first], -1)


class BatchNorm(nn.Module):
    """``BatchNorm1d`` over all but the last dimension."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=draw.choice((0.1, 0.3)), affine=draw.random() < 0.8)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            normed: Tensor = self.norm(x.transpose(1, 2))
            return normed.transpose(1, 2)
        found: Tensor = self.norm(x)
        return found


class Attention(nn.Module):
    """Attention with a packed or three layers, a causal mask in a buffer or none, fewer keys than queries, rotation."""

    mask: Tensor
    angles: Tensor

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.heads = 2
        self.shared = draw.random() < 0.4
        keys = width // 2 if self.shared else width
        self.sizes = [width, keys, keys]
        self.qkv, self.o = nn.Linear(width, sum(self.sizes)), nn.Linear(width, width)
        self.way = draw.choice(("fused", "fused", "written", "causal"))
        self.turned = draw.random() < 0.4
        size = width // self.heads
        self.register_buffer("mask", torch.full((16, 16), float("-inf")).triu(1))
        self.register_buffer("angles", torch.outer(torch.arange(16.0), 1.0 / 10 ** torch.linspace(0, 1, size // 2)))

    def rotate(self, x: Tensor) -> Tensor:
        angles = self.angles[: x.shape[-2]]
        left, right = x.chunk(2, -1)
        return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        size = width // self.heads
        q, k, v = self.qkv(x).split(self.sizes, -1)
        q = q.view(rows, length, self.heads, size).transpose(1, 2)
        k = k.reshape(rows, length, -1, size).transpose(1, 2)
        v = v.unflatten(-1, (-1, size)).permute(0, 2, 1, 3)
        if self.shared:
            k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        if self.turned:
            q, k = self.rotate(q), self.rotate(k)
        if self.way == "written":
            scores = q @ k.transpose(-1, -2) / math.sqrt(size) + self.mask[:length, :length]
            y = F.softmax(scores, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.way == "causal")
        found: Tensor = x + self.o(y.transpose(1, 2).reshape(rows, length, width))
        return found


class MultiHead(nn.Module):
    """``nn.MultiheadAttention`` or ``nn.TransformerEncoderLayer``."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.layer: nn.Module
        if draw.random() < 0.5:
            self.layer, self.alone = nn.MultiheadAttention(width, 2, batch_first=True), True
        else:
            self.layer, self.alone = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True), False

    def forward(self, x: Tensor) -> Tensor:
        if self.alone:
            found: Tensor = self.layer(x, x, x, need_weights=False)[0]
            return x + found
        encoded: Tensor = self.layer(x)
        return encoded


class Recurrent(nn.Module):
    """``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` over the sequence, or a cell in a loop."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.way = draw.choice(("lstm", "gru", "rnn", "cell"))
        kinds = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
        self.layer: nn.Module
        if self.way == "cell":
            self.layer = nn.GRUCell(width, width)
        else:
            self.layer = kinds[self.way](width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.way != "cell":
            found: Tensor = self.layer(x)[0]
            return found
        state, states = torch.zeros_like(x[:, 0]), []
        for each in x.unbind(1):
            state = self.layer(each, state)
            states.append(state)
        return torch.stack(states, 1)


class Mixed(nn.Module):
    """What goes along the sequence: a convolution, a shift, a learned mix, or a sum of all before."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.way = draw.choice(("conv", "depthwise", "shift", "mean", "scan"))
        if self.way in ("conv", "depthwise"):
            self.conv = nn.Conv1d(width, width, 3, padding=1, groups=width if self.way == "depthwise" else 1)
        self.share = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.way in ("conv", "depthwise"):
            found: Tensor = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
            return found
        if self.way == "shift":
            before = F.pad(x, (0, 0, 1, 0))[:, :-1]
            return self.share * x + (1 - self.share) * before
        if self.way == "mean":
            return x - self.share * x.mean(1, keepdim=True)
        return self.share * x.cumsum(1) / x.shape[1]


class RootNorm(nn.Module):
    """A norm of the root of the mean square."""

    def __init__(self, width: int, draw: random.Random) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


class Convolution(nn.Module):
    """A convolution, a norm of some kind and an activation, with or without a residual path."""

    def __init__(self, channels: int, draw: random.Random) -> None:
        super().__init__()
        groups = draw.choice((1, 1, 2, channels))
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=draw.random() < 0.7)
        norms: tuple[Callable[[], nn.Module], ...] = (
            lambda: nn.BatchNorm2d(channels),
            lambda: nn.GroupNorm(2, channels),
            lambda: nn.InstanceNorm2d(channels, affine=True),
            nn.Identity,
        )
        self.norm, self.activation, self.residual = draw.choice(norms)(), draw.choice(ACTIVATIONS), draw.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm(self.conv(x)))
        return x + y if self.residual else y


class Weighed(nn.Module):
    """Channels that are weighed by what is in them all."""

    def __init__(self, channels: int, draw: random.Random) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(channels, 2), nn.Linear(2, channels)

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3))))))
        return x * shares[:, :, None, None]


class Resized(nn.Module):
    """An image made smaller and larger again, or its channels shuffled."""

    def __init__(self, channels: int, draw: random.Random) -> None:
        super().__init__()
        self.way = draw.choice(("average", "max", "transposed", "bilinear", "shuffle", "unshuffle", "reflect"))
        self.conv = nn.Conv2d(channels, channels, 1)
        if self.way == "transposed":
            self.wide = nn.ConvTranspose2d(channels, channels, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.way == "average":
            return x + F.interpolate(F.avg_pool2d(y, 2), scale_factor=2)
        if self.way == "max":
            return x + F.interpolate(F.max_pool2d(y, 2), scale_factor=2.0, mode="nearest")
        if self.way == "transposed":
            wide: Tensor = self.wide(y[:, :, ::2, ::2])
            return x + wide
        if self.way == "bilinear":
            return x + F.interpolate(F.avg_pool2d(y, 2), scale_factor=2, mode="bilinear", align_corners=False)
        if self.way == "shuffle":
            rows, channels, height, width = y.shape
            found: Tensor = y.view(rows, 2, channels // 2, height, width).transpose(1, 2)
            return found.reshape(rows, channels, height, width)
        if self.way == "unshuffle":
            return F.pixel_shuffle(F.pixel_unshuffle(y, 2).flip(1), 2)
        return F.avg_pool2d(F.pad(y, (1, 1, 1, 1), mode="reflect"), 3, stride=1)


Block = Callable[[int, random.Random], nn.Module]
OF_ROWS: tuple[Block, ...] = (
    Plain, Residual, Gated, Joined, LowRank, Experts, Chosen, RunningMean, Whitened, Reordered, BatchNorm, RootNorm,
)  # fmt: skip
OF_SEQUENCES: tuple[Block, ...] = (
    Attention, Attention, MultiHead, Recurrent, Mixed, RootNorm, Residual, Gated, Experts, Reordered, Plain, RunningMean,
    BatchNorm,
)  # fmt: skip
OF_IMAGES: tuple[Block, ...] = (Convolution, Convolution, Weighed, Resized)
