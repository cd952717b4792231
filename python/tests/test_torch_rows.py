"""Shares of the parts of a batch: each part passes alone through PyTorch, times its share, and their sum is compared with a pass
over the whole batch; or the module or loss is refused, by the op that combines rows."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from partita import PartitaError  # noqa: E402
from partita.torch._one_device import OneDevice, without_dropout  # noqa: E402
from partita.torch._parallel import PartLoss, part_of, rows_of  # noqa: E402
from partita.torch._rows import Unshared  # noqa: E402


class Of(nn.Module):
    """A function of a square weight, a vector, a module and the arguments."""

    def __init__(self, function, inner=None):
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
        self.inner, self.function = inner or nn.Identity(), function

    def forward(self, *args):
        return self.function(self, *args)


def assigned(self, x):
    y = (x @ self.w).clone()
    y[:, 0] = 0.0
    y[:, 1:] *= 2
    return y + 1


def assigned_row(self, x):
    y = (x @ self.w).clone()
    y[0] = 0.0
    return y


def windows(self, x):
    """Windows of 2 x 2 in images of 4 x 4, of which each is a batch of its own, as in Swin."""
    tiles = (x @ self.w).view(len(x), 2, 2, 2, 2, 4).permute(0, 1, 3, 2, 4, 5)
    return tiles.reshape(-1, 4, 4).softmax(1).view(len(x), 16, 4).mean(1)


def masked(output, target):
    values, mask = target
    return ((output - values) ** 2 * mask).sum() / mask.sum()


def squares(output, _):
    return output.pow(2).sum()


def x(*shape):
    return torch.randn(*shape)


def i(most, *shape):
    return torch.randint(most, shape)


def attention(**options):
    return nn.MultiheadAttention(8, 2, batch_first=True, **options)


# Cases with four parts, of one row each; the others have two.
FOUR = ("attention", "padding", "recurrent", "windows", "transposed and back", "few labels", "a mask")
MASK = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1.0], [0, 0, 0, 1.0]])
SOME = torch.tensor([-100, -100, 2, -100])
PADDED = torch.tensor([[0, 0, 0, 1, 1]] * 4).bool()
ROW, OP = "combines rows", "takes rows by an index"

# Name: the module, the loss, what makes the arguments with the target, and what of the refusal must be said; "" for none.
CASES = {
    "linear": (lambda: Of(lambda m, a: a @ m.w + m.v), F.mse_loss, lambda: (x(4, 4), x(4, 4)), ""),
    "attention": (lambda: Of(lambda m, a: m.inner(a, a, a)[0], attention()), squares, lambda: (x(4, 5, 8), x(4)), ""),
    "attention over length first": (
        lambda: Of(lambda m, a: m.inner(*3 * [a.transpose(0, 1)])[0].transpose(0, 1), nn.MultiheadAttention(8, 2)),
        squares,
        lambda: (x(4, 5, 8), x(4)),
        "",
    ),
    "padding": (
        lambda: Of(lambda m, a, k: m.inner(a, a, a, key_padding_mask=k)[0], attention()),
        squares,
        lambda: (x(4, 5, 8), PADDED, x(4)),
        "",
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
        F.mse_loss,
        lambda: (x(4, 5, 8), x(4, 5, 8)),
        "",
    ),
    "recurrent": (lambda: Of(lambda m, a: m.inner(a)[0], nn.LSTM(4, 6, batch_first=True)), squares, lambda: (x(4, 5, 4), x(4)), ""),
    "recurrent over length first": (
        lambda: Of(lambda m, a: m.inner(a.transpose(0, 1))[1][0], nn.GRU(4, 6)),
        squares,
        lambda: (x(4, 5, 4), x(4)),
        "",
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(4, 5),
        ),
        F.cross_entropy,
        lambda: (x(4, 3, 8, 8), i(5, 4)),
        "",
    ),
    "batch norm in eval mode": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), squares, lambda: (x(4, 4), x(4)), ""),
    "batch norm": (lambda: nn.BatchNorm1d(4), squares, lambda: (x(4, 4), x(4)), "running_mean"),
    "batch norm without state": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)),
        squares,
        lambda: (x(4, 4), x(4)),
        "statistics of the rows",
    ),
    "instance norm": (lambda: nn.InstanceNorm1d(4, affine=True), lambda o, t: o.pow(3).sum(), lambda: (x(4, 4, 8), x(4)), ""),
    "instance norm of one sample": (lambda: nn.InstanceNorm1d(4), squares, lambda: (x(4, 8), x(4)), ROW),
    "windows": (lambda: Of(windows), squares, lambda: (x(4, 4, 4, 4), x(4)), ""),
    "a token of each row": (lambda: Of(lambda m, a: torch.cat([m.v.expand(len(a), 1, 4), a], 1) @ m.w), squares, lambda: (x(4, 3, 4), x(4)), ""),
    "repeated": (lambda: Of(lambda m, a: a @ m.w + m.v.repeat(len(a), 1)), squares, lambda: (x(4, 4), x(4)), ""),
    "two views as one batch": (
        lambda: Of(lambda m, a, b: torch.cat([a, b]) @ m.w),
        lambda o, t: F.mse_loss(*o.chunk(2)),
        lambda: (x(4, 4), x(4, 4), x(4)),
        "",
    ),
    "halves of one batch": (
        lambda: Of(lambda m, a: a @ m.w),
        lambda o, t: F.mse_loss(*o.chunk(2)),
        lambda: (x(4, 4), x(4)),
        ROW,
    ),
    "an element of each row": (
        lambda: Of(lambda m, a, k: (a @ m.w)[torch.arange(len(a)), k]), squares, lambda: (x(4, 4), i(4, 4), x(4)), "",
    ),
    "gathered": (lambda: Of(lambda m, a, k: (a @ m.w).gather(1, k)), squares, lambda: (x(4, 4), i(4, 4, 2), x(4)), ""),
    "assigned": (lambda: Of(assigned), squares, lambda: (x(4, 4), x(4)), ""),
    "experts": (
        lambda: Of(lambda m, a: sum((a @ m.w).softmax(-1)[:, k : k + 1] * a[:, k:] @ m.w[k:] for k in range(4))),
        squares,
        lambda: (x(4, 4), x(4)),
        "",
    ),
    "transposed and back": (lambda: Of(lambda m, a: (a @ m.w).t().reshape(-1).view(4, -1).t()), F.mse_loss, lambda: (x(4, 4), x(4, 4)), ""),
    "transposed and read by rows": (lambda: Of(lambda m, a: (a @ m.w).t().reshape(-1).view(-1, 4)), F.mse_loss, lambda: (x(4, 4), x(4, 4)), ROW),
    "mixed by a view": (lambda: Of(lambda m, a: (a @ m.w).reshape(2, -1).softmax(-1)), squares, lambda: (x(4, 4), x(4)), ROW),
    "rows by an index": (lambda: Of(lambda m, a, k: (a @ m.w)[k]), F.mse_loss, lambda: (x(4, 4), torch.tensor([0, 1, 2, 3]), x(4, 4)), OP),
    "rows by index_select": (lambda: Of(lambda m, a, k: (a @ m.w).index_select(0, k)), F.mse_loss, lambda: (x(4, 4), torch.arange(4), x(4, 4)), OP),
    "rows by an embedding": (lambda: Of(lambda m, a, k: F.embedding(k, a @ m.w)), F.mse_loss, lambda: (x(4, 4), torch.zeros(4, dtype=int), x(4, 4)), OP),
    "rows by gather": (lambda: Of(lambda m, a, k: (a @ m.w).gather(0, k)), squares, lambda: (x(4, 4), torch.zeros(4, 4, dtype=int), x(4)), ROW),
    "a row assigned": (lambda: Of(assigned_row), squares, lambda: (x(4, 4), x(4)), ROW),
    "flipped": (lambda: Of(lambda m, a: a @ m.w + (a @ m.w).flip(0)), squares, lambda: (x(4, 4), x(4)), ROW),
    "summed up": (lambda: Of(lambda m, a: (a @ m.w).cumsum(0)), squares, lambda: (x(4, 4), x(4)), ROW),
    "attention over rows": (lambda: Of(lambda m, a: F.scaled_dot_product_attention(a @ m.w, a, a)), squares, lambda: (x(4, 4), x(4)), ROW),
    "the number of rows": (lambda: Of(lambda m, a: a @ m.w * len(a)), F.mse_loss, lambda: (x(4, 4), x(4, 4)), "with the number of rows"),
    "an unknown op": (lambda: Of(lambda m, a: torch.cdist(a @ m.w, m.w)), squares, lambda: (x(4, 4), x(4)), "nothing is known of `cdist`"),
    "a class weight of the size of the batch": (
        lambda: Of(lambda m, a: (a @ m.w)[:, :2]),
        lambda o, t: F.binary_cross_entropy_with_logits(o, t[0], pos_weight=t[1]),
        lambda: (x(2, 4), (torch.ones(2, 2), torch.ones(2))),
        ROW,
    ),
    "divided by the rows": (lambda: Of(lambda m, a: a @ m.w), lambda o, t: o.pow(2).sum() / len(o), lambda: (x(4, 4), x(4)), ""),
    "divided by a tensor of the rows": (
        lambda: Of(lambda m, a: a @ m.w), lambda o, t: o.pow(2).sum() / torch.tensor(float(len(o))), lambda: (x(4, 4), x(4)), "",
    ),
    "beside the rows": (lambda: Of(lambda m, a: a @ m.w), lambda o, t: o.pow(2).mean() + len(o), lambda: (x(4, 4), x(4)), "by `add`"),
    "a mask": (lambda: Of(lambda m, a: a @ m.w), masked, lambda: (x(4, 4), (x(4, 4), MASK)), ""),
    "weights that cancel": (
        lambda: Of(lambda m, a: a @ m.w), masked, lambda: (x(4, 4), (x(4, 4), torch.tensor([[1.0], [-1], [2], [1]]).expand(4, 4))), "is 0",
    ),
    "few labels": (lambda: Of(lambda m, a: a @ m.w), F.cross_entropy, lambda: (x(4, 4), SOME), ""),
    "a sum over few labels": (
        lambda: Of(lambda m, a: a @ m.w),
        lambda o, t: F.cross_entropy(o, t, reduction="sum") / (t != -100).sum(),
        lambda: (x(4, 4), SOME),
        "",
    ),
    "class weights": (
        lambda: Of(lambda m, a: a @ m.w),
        lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([1.0, 2, 3, 4])),
        lambda: (x(4, 4), torch.arange(4)),
        "",
    ),
    "labels along length": (
        lambda: nn.Linear(4, 5), lambda o, t: F.cross_entropy(o.transpose(1, 2), t), lambda: (x(4, 3, 4), i(5, 4, 3)), "",
    ),
    "one sample of classes": (
        lambda: Of(lambda m, a: (a @ m.w).sum(1)), lambda o, t: F.cross_entropy(o, t.softmax(0)), lambda: (x(4, 4), x(4)), ROW,
    ),
    "two terms of other counts": (
        lambda: nn.Linear(4, 5), lambda o, t: F.cross_entropy(o, t) + o.pow(2).mean(), lambda: (x(4, 4), SOME), "in different terms",
    ),
    "centred": (lambda: nn.Linear(4, 5), lambda o, t: (o - o.mean(0)).pow(2).mean(), lambda: (x(4, 4), x(4)), "depends on all rows"),
    "a deviation": (lambda: nn.Linear(4, 5), lambda o, t: o.std(0).mean(), lambda: (x(4, 4), x(4)), "is no sum over rows"),
    "a root": (lambda: nn.Linear(4, 5), lambda o, t: o.pow(2).mean().sqrt(), lambda: (x(4, 4), x(4)), "is no sum over rows"),
    "softmax over rows": (lambda: nn.Linear(4, 5), lambda o, t: o.softmax(0).pow(2).sum(), lambda: (x(4, 4), x(4)), ROW),
    "every row with every other": (
        lambda: nn.Linear(4, 5), lambda o, t: F.cross_entropy(o @ t.T, torch.arange(len(o))), lambda: (x(4, 4), x(4, 5)), ROW,
    ),
    "rows broadcast against rows": (lambda: nn.Linear(4, 1), lambda o, t: F.mse_loss(o[:, 0], t), lambda: (x(4, 4), x(4, 1)), ROW),
    "cosine": (lambda: nn.Linear(4, 5), lambda o, t: 1 - F.cosine_similarity(o, t).mean(), lambda: (x(4, 4), x(4, 5)), ""),
    "triplets": (lambda: nn.Linear(4, 5), lambda o, t: F.triplet_margin_loss(o, *t), lambda: (x(4, 4), (x(4, 5), x(4, 5))), ""),
    "divergence": (
        lambda: nn.Linear(4, 5),
        lambda o, t: F.kl_div(o.log_softmax(-1), t.softmax(-1), reduction="batchmean"),
        lambda: (x(4, 4), x(4, 5)),
        "",
    ),
    "scattered from a longer source": (
        lambda: Of(lambda m, a, k: (a @ m.w).scatter(1, k, torch.ones(8, 4).cumsum(0))),
        squares, lambda: (x(4, 4), i(4, 4, 4), x(4)), ROW,
    ),
    "alike and then not": (
        lambda: Of(lambda m, a: a @ m.w + F.embedding(torch.zeros(len(a), dtype=int), m.w).t().reshape(-1, 4)),
        squares, lambda: (x(4, 4), x(4)), ROW,
    ),
    "a scale by rows": (
        lambda: Of(lambda m, a: F.scaled_dot_product_attention(a @ m.w, a, a, scale=1 / len(a))),
        squares, lambda: (x(4, 3, 4), x(4)), "with the number of rows",
    ),
    "rows of a constant": (
        lambda: nn.Linear(4, 4), lambda o, t: F.kl_div(o.log_softmax(-1), torch.ones(2, 4).softmax(0), reduction="sum"),
        lambda: (x(2, 4), x(2)), ROW,
    ),
    "rounded": (
        lambda: nn.Linear(4, 4), lambda o, t: o.pow(2).sum().div(len(o), rounding_mode="floor"), lambda: (x(4, 4), x(4)), "rounds",
    ),
    "by no rows": (lambda: nn.Linear(4, 4), lambda o, t: o.sum() * (len(o) - 4), lambda: (x(4, 4), x(4)), "multiplies by 0"),
    "one tensor as query, key and value": (
        lambda: Of(lambda m, a: F.scaled_dot_product_attention(*3 * [a @ m.w])), squares, lambda: (x(4, 3, 4), x(4)), "",
    ),
    "in f64": (lambda: nn.Linear(4, 5).double(), F.mse_loss, lambda: (x(4, 4).double(), x(4, 5).double()), ""),
}  # fmt: skip


def check(module, loss, batch, count, tolerance=1e-5):
    """Compares the sum over parts with PyTorch's pass over the batch."""
    one_device = OneDevice(module, loss)
    given = one_device.bound(batch, {})
    rows = rows_of(given)
    parts = [part_of(given, rows, count, number) for number in range(count)]
    shares = one_device.shares(given, parts[0], count)
    passes = PartLoss(loss, 1)
    sides = [copy.deepcopy(module), module]
    losses = []
    for side, pieces, found in (
        (sides[0], parts, shares.compute(
                pytree.tree_leaves(given), [pytree.tree_leaves(part) for part in parts], one_device.buffers()
            )),
        (sides[1], [given], [1.0]),
    ):
        passes.begin(found)
        with without_dropout():
            for piece in pieces:
                passes.forward(side, piece).backward()
        losses.append(sum(passes.found))
    torch.testing.assert_close(losses[0], losses[1], rtol=tolerance, atol=tolerance)
    for one, other in zip(sides[0].parameters(), sides[1].parameters()):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=tolerance, atol=tolerance * other.grad.abs().max().item() + 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_parts_make_up_the_batch_or_are_refused_by_the_op(name):
    torch.manual_seed(0)
    module, loss, make, reason = CASES[name]
    made, batch = module(), make()
    count = 4 if name in FOUR else 2
    if not reason:
        check(made, loss, batch, count)
    else:
        with pytest.raises((PartitaError, Unshared)) as refused:
            check(made, loss, batch, count)
        assert reason in str(refused.value)


def models():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {
        "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
        "max_position_embeddings": 32,
    }  # fmt: skip
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)),
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)),
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **none)),
        "t5": transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
        ),
    }


class Judged(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, labels):
        return self.model(input_ids=tokens, labels=labels).loss


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5"])
def test_models_of_transformers_have_shares(name):
    torch.manual_seed(0)
    labels = i(32, 4, 6)
    labels[0, 2:] = labels[3, 4:] = -100
    check(Judged(models()[name]), None, (i(32, 4, 6), labels), 2, 3e-5)


def test_a_part_without_labels_is_refused_where_the_module_computes_the_loss():
    labels = i(32, 4, 6)
    labels[2:] = -100
    with pytest.raises(Unshared, match="nothing counts"):
        check(Judged(models()["llama"]), None, (i(32, 4, 6), labels), 2)
