"""Small models of usual kinds: CNN, recurrent, mixture of experts, diffusion, autoencoders, tables of features."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Of a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.down(x))


class ResNet(nn.Module):
    """Logits, and the accuracy if labels are given."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.layers = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 16, 2))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.fc(self.layers(self.stem(x)).mean((2, 3)))
        accuracy = (scores.argmax(1) == labels).float().mean()
        return F.cross_entropy(scores, labels), scores, accuracy


class ConvNext(nn.Module):
    """Blocks of a depthwise convolution and a norm of channels that come last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 2, 2)
        self.depthwise = nn.ModuleList([nn.Conv2d(12, 12, 3, padding=1, groups=12) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(12) for _ in range(2)])
        self.up = nn.ModuleList([nn.Linear(12, 48) for _ in range(2)])
        self.down = nn.ModuleList([nn.Linear(48, 12) for _ in range(2)])
        self.gamma = nn.Parameter(torch.full((2, 12), 0.5))
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number in range(2):
            y = self.norms[number](self.depthwise[number](x).permute(0, 2, 3, 1))
            y = self.gamma[number] * self.down[number](F.gelu(self.up[number](y)))
            x = x + y.permute(0, 3, 1, 2)
        scores: Tensor = self.head(x.mean([-2, -1]))
        return scores


class UNet(nn.Module):
    """The noise in an image, at a time of diffusion; it ends in a shuffle of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 16, 3, 2, 1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16) for _ in range(2)])
        self.qkv = nn.Conv2d(16, 48, 1)
        self.leave = nn.Conv2d(32, 12, 3, 2, 1)

    def forward(self, sample: Tensor, timestep: Tensor) -> dict[str, Tensor]:
        rates = torch.exp(-math.log(1000.0) * torch.arange(8) / 8)
        angles = timestep[:, None].to(sample.dtype) * rates
        emb = self.time(torch.cat([angles.sin(), angles.cos()], -1))[:, :, None, None]
        first = self.enter(sample)
        y = self.down(F.silu(self.norms[0](first)) + emb)
        rows, channels, height, width = y.shape
        q, k, v = self.qkv(y).flatten(2).transpose(1, 2).chunk(3, -1)
        y = y + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).view(rows, channels, height, width)
        y = self.middle(F.silu(self.norms[1](y)) + emb)
        y = torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), first], 1)
        return {"sample": F.pixel_shuffle(self.leave(y), 2), "embedding": emb.detach().flatten(1)}


class Transformer(nn.Module):
    """Diffusion with a norm that the condition scales; patches out and in."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.cond = nn.Conv2d(3, 16, 2, 2), nn.Embedding(5, 16)
        self.places = nn.Parameter(torch.randn(1, 16, 16) * 0.1)
        self.modulation = nn.Linear(16, 96)
        self.norm1 = nn.LayerNorm(16, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(16, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.leave = nn.Linear(16, 12)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.places
        a, b, c, d, e, f = self.modulation(F.silu(self.cond(label))).unsqueeze(1).chunk(6, -1)
        y = self.norm1(h) * (1 + a) + b
        h = h + c * self.attention(y, y, y, need_weights=False)[0]
        h = h + f * self.down(F.gelu(self.up(self.norm2(h) * (1 + d) + e), approximate="tanh"))
        rows = h.shape[0]
        patches: Tensor = self.leave(h)
        return patches.view(rows, 4, 4, 3, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(rows, 3, 8, 8)


class Recurrent(nn.Module):
    """A language model of an LSTM or GRU, which returns its state too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.rnn: nn.Module = nn.LSTM(16, 16, 2, batch_first=True) if kind == "lstm" else nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 20)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> tuple[Tensor, Any]:
        found, state = self.rnn(self.embed(ids))
        return self.head(found)[:, :-1].reshape(-1, 20), state


class Mixture(nn.Module):
    """A transformer block whose experts are balanced by a loss of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.router = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4)])
        self.head = nn.Linear(16, 20)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        h = self.embed(ids)
        shares = F.softmax(self.router(self.norm(h)), -1)
        values, places = shares.topk(2, -1)
        values = values / values.sum(-1, keepdim=True)
        y = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            weight = torch.where(places == number, values, 0.0).sum(-1, keepdim=True)
            y = y + weight * expert(h)
        load = F.one_hot(places, 4).to(h.dtype).mean((0, 1, 2))
        balance = 4 * (load * shares.mean((0, 1))).sum()
        scores = self.head(h + y)
        own = F.cross_entropy(scores[:, :-1].reshape(-1, 20), ids[:, 1:].reshape(-1))
        return {"loss": own + 0.1 * balance, "aux_loss": balance, "logits": scores, "load": load.detach()}


class Variational(nn.Module):
    """An autoencoder whose noise is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.both = nn.Linear(24, 32), nn.Linear(32, 12)
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 24))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.both(F.relu(self.encoder(x))).chunk(2, 1)
        return self.decoder(mean + noise * torch.exp(0.5 * spread)), mean, spread


class Discriminator(nn.Module):
    """Of images; gradients go to the image too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found.squeeze(-1)


class Features(nn.Module):
    """Tables of features and a dense part, joined by their products, as for recommendations."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 8) for size in (10, 6, 4)])
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("rows", torch.tensor([0, 0, 0, 1, 1, 2]))
        self.register_buffer("columns", torch.tensor([1, 2, 3, 2, 3, 3]))

    rows: Tensor
    columns: Tensor

    def forward(self, dense: Tensor, sparse: dict[str, Tensor]) -> Tensor:
        first = self.bottom(dense)
        bags = [table(ids).sum(1) for table, ids in zip(self.tables, sparse.values())]
        everything = torch.stack([first, *bags], 1)
        products = torch.bmm(everything, everything.transpose(1, 2))[:, self.rows, self.columns]
        return torch.sigmoid(self.top(torch.cat([first, products], 1))).view(-1)


class Encoder(nn.Module):
    """``nn.TransformerEncoder`` with a mask of padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.embed, self.encoder = nn.Embedding(20, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        h = self.encoder(self.embed(ids), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        scores: Tensor = self.head((h * kept).sum(1) / kept.sum(1))
        return scores


class Mixer(nn.Module):
    """An MLP over patches, then one over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 2, 2)
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(2)])
        self.tokens = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Dropout(0.0), nn.Linear(24, 16))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.0), nn.Linear(32, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = h + self.tokens(self.norms[0](h).transpose(1, 2)).transpose(1, 2)
        h = h + self.channels(self.norms[1](h))
        scores: Tensor = self.head(h.mean(1))
        return scores
