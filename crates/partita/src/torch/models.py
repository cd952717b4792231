"""Models as modules of PyTorch. Parameters have the names and shapes of the exported ones; initial values are loaded."""

import torch
from torch import nn
from torch.nn import functional as F


class MLP(nn.Module):
    """Linear layers with a ReLU between them."""

    def __init__(self, dims, bias):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in zip(dims, dims[1:]))

    def forward(self, inputs):
        x = self.layers[0](inputs)
        for layer in self.layers[1:]:
            x = layer(F.relu(x))
        return x


class RMSNorm(nn.Module):
    """Divides the last dimension by its root mean square and scales it."""

    def __init__(self, dim, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(dim)), epsilon

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Module):
    """Causal attention over `x[batch, sequence, dim]`, with rotary positions if they have a base."""

    def __init__(self, dim, heads, kv_heads, bias, fused, rotary_base=None):
        super().__init__()
        self.heads, self.kv_heads, self.rotary_base = heads, kv_heads, rotary_base
        self.depth = dim // heads
        kv = kv_heads * self.depth
        if fused:
            self.qkv_proj = nn.Linear(dim, dim + 2 * kv, bias=bias)
        else:
            self.q_proj = nn.Linear(dim, dim, bias=bias)
            self.k_proj = nn.Linear(dim, kv, bias=bias)
            self.v_proj = nn.Linear(dim, kv, bias=bias)
        self.o_proj = nn.Linear(dim, dim, bias=bias)

    def forward(self, x):
        rows, length, dim = x.shape
        if hasattr(self, "qkv_proj"):
            kv = self.kv_heads * self.depth
            q, k, v = self.qkv_proj(x).split([dim, kv, kv], -1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = q.view(rows, length, self.heads, self.depth).transpose(1, 2)
        k = k.view(rows, length, self.kv_heads, self.depth).transpose(1, 2)
        v = v.view(rows, length, self.kv_heads, self.depth).transpose(1, 2)
        if self.rotary_base is not None:
            cosine, sine = self.rotary_tables(length)
            q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        if self.kv_heads != self.heads:
            k, v = (repeated(each, self.heads // self.kv_heads) for each in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, dim))

    def rotary_tables(self, length):
        """Cosines and sines `[length, depth]` of `position * base^(-2 i / depth)`, for the pairs (i, i + depth / 2)."""
        device = self.o_proj.weight.device
        pair = torch.arange(self.depth // 2, device=device)
        angle = torch.arange(length, device=device)[:, None] * self.rotary_base ** (-2.0 / self.depth * pair)
        angle = torch.cat([angle, angle], 1)
        return angle.cos(), angle.sin()


def rotated(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def repeated(x, times):
    """Each head `times` times: `[batch, heads, sequence, depth]`."""
    rows, heads, length, depth = x.shape
    return x[:, :, None].expand(rows, heads, times, length, depth).reshape(rows, heads * times, length, depth)


class Gelu(nn.Module):
    """`down_proj(gelu(up_proj(x)))`, GELU by tanh."""

    def __init__(self, dim, hidden, bias):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(dim, hidden, bias=bias), nn.Linear(hidden, dim, bias=bias)

    def forward(self, x):
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))


class SwiGlu(nn.Module):
    """`down_proj(silu(gate_proj(x)) * up_proj(x))`."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, attn_norm, attn, mlp_norm, mlp, dropout):
        super().__init__()
        self.attn_norm, self.attn, self.mlp_norm, self.mlp = attn_norm, attn, mlp_norm, mlp
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attn(self.attn_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Decoder(nn.Module):
    """Tokens `[batch, sequence]` to logits `[batch, sequence, vocab]`."""

    def __init__(self, vocab, dim, blocks, norm, tied, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(blocks)
        self.norm, self.lm_head = norm, nn.Linear(dim, vocab, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def embedded(self, tokens):
        return self.embed_tokens(tokens)

    def forward(self, tokens):
        x = self.dropout(self.embedded(tokens))
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class GPT(Decoder):
    """In the style of GPT-2: learned positions, layer norms before each part."""

    def __init__(self, vocab, dim, layers, heads, kv_heads, sequence, hidden, tied, fused_qkv, bias, dropout):
        def norm():
            return nn.LayerNorm(dim, bias=bias)

        def block():
            attention = Attention(dim, heads, kv_heads, bias, fused_qkv)
            return Block(norm(), attention, norm(), Gelu(dim, hidden, bias), dropout)

        super().__init__(vocab, dim, [block() for _ in range(layers)], norm(), tied, dropout)
        self.embed_positions = nn.Embedding(sequence, dim)

    def embedded(self, tokens):
        return self.embed_tokens(tokens) + self.embed_positions(torch.arange(tokens.shape[1], device=tokens.device))


class Llama(Decoder):
    """In the style of Llama: rotary positions, RMS norms, SwiGLU, no biases."""

    def __init__(
        self, vocab, dim, layers, heads, kv_heads, hidden, tied, fused_qkv, rotary_base, epsilon, dropout
    ):
        def block():
            attention = Attention(dim, heads, kv_heads, False, fused_qkv, rotary_base)
            return Block(RMSNorm(dim, epsilon), attention, RMSNorm(dim, epsilon), SwiGlu(dim, hidden), dropout)

        super().__init__(vocab, dim, [block() for _ in range(layers)], RMSNorm(dim, epsilon), tied, dropout)


def mse(output, target):
    return F.mse_loss(output, target)


def cross_entropy(output, target):
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


MODELS = {model.__name__: model for model in (MLP, GPT, Llama)}
LOSSES = {loss.__name__: loss for loss in (mse, cross_entropy)}
