"""Functions of PyTorch on distributed tensors, with values and gradients of one device."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F  # noqa: E402

from partita.distributed.tensor import (  # noqa: E402
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)

# Of `x`, 4 x 6 x 8, and `y`, 8 x 6.
FUNCTIONS = {
    "add and multiply": lambda x, y: (x + 1) * x - x / 3 + (1 - x) * 2,
    "addmm": lambda x, y: torch.addmm(y[0, :], x[0], y),
    "argmax": lambda x, y: x.argmax(1),
    "attention": lambda x, y: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "bmm": lambda x, y: torch.bmm(x, x.transpose(1, 2)),
    "chunk": lambda x, y: x.chunk(2, 2)[1],
    "clamp": lambda x, y: x.clamp(-1, 1),
    "comparison": lambda x, y: (x > 0).all(1),
    "contiguous": lambda x, y: x.transpose(0, 1).contiguous(),
    "cross entropy": lambda x, y: F.cross_entropy(x.flatten(0, 1), x.flatten(0, 1).argmax(-1)),
    "cumsum": lambda x, y: x.cumsum(1),
    "einsum": lambda x, y: torch.einsum("bij,jk->bik", x, y),
    "expand": lambda x, y: y[None].expand(3, 8, 6),
    "flip": lambda x, y: x.flip(0),
    "gather": lambda x, y: x.gather(2, x.argmax(2, keepdim=True)),
    "index": lambda x, y: x[:, [0, 2]],
    "iteration": lambda x, y: list(x)[1],
    "layer norm": lambda x, y: F.layer_norm(x, (8,)),
    "lerp": lambda x, y: torch.lerp(x, -x, 0.3),
    "linear": lambda x, y: F.linear(x, y.T),
    "log softmax": lambda x, y: x.log_softmax(0),
    "logsumexp": lambda x, y: x.logsumexp(1),
    "masked fill": lambda x, y: x.masked_fill(x > 0, 0.0),
    "maximum": lambda x, y: torch.maximum(x, -x),
    "mean": lambda x, y: x.mean((0, 1)),
    "norm": lambda x, y: torch.linalg.vector_norm(x, dim=1),
    "pad": lambda x, y: F.pad(x, (1, 1)),
    "permute": lambda x, y: x.permute(2, 0, 1),
    "power": lambda x, y: x**2,
    "prod": lambda x, y: x.prod(1),
    "repeat": lambda x, y: y.repeat(2, 1),
    "reshape": lambda x, y: x.reshape(4, -1),
    "roll": lambda x, y: x.roll(1, 0),
    "sort": lambda x, y: x.sort(-1).values,
    "std": lambda x, y: x.std(),
    "topk": lambda x, y: x.topk(3, -1)[0],
    "tril": lambda x, y: y.tril(),
    "types": lambda x, y: x.double().float() + x.type_as(y),
    "unsqueeze": lambda x, y: x.unsqueeze(1).squeeze(1),
    "var_mean": lambda x, y: torch.var_mean(x, 1)[0],
    "where": lambda x, y: torch.where(x > 0, x, 0.0),
    "whole numbers": lambda x, y: (x * 4).int() // 2,
    "zeros_like": lambda x, y: torch.zeros_like(x),
}


# Of `x` and `y`; a function is tried in one of them.
LAYOUTS = [
    [(Shard(0), Shard(1)), (Shard(1), Replicate())],
    [(Replicate(), Shard(2)), (Shard(0), Shard(0))],
    [(Shard(1), Shard(1)), (Replicate(), Shard(1))],
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_that_of_one_device(name):
    function = FUNCTIONS[name]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    generator = torch.Generator().manual_seed(0)
    plain = [torch.randn(shape, generator=generator).requires_grad_() for shape in ((4, 6, 8), (8, 6))]
    expected = function(*plain)
    is_differentiated = expected.is_floating_point() and expected.requires_grad
    if is_differentiated:
        expected.square().sum().backward()
    ours = [
        distribute_tensor(value.detach().clone().requires_grad_(), mesh, layout)
        for value, layout in zip(plain, LAYOUTS[sum(map(ord, name)) % len(LAYOUTS)])
    ]
    found = function(*ours)
    assert isinstance(found, DTensor)
    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-4, atol=1e-4)
    if not is_differentiated:
        return
    found.square().sum().backward()
    for value, other in zip(ours, plain):
        if other.grad is not None:
            torch.testing.assert_close(value.grad.full_tensor(), other.grad, rtol=1e-3, atol=1e-3)
