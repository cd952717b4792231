"""Fully sharded data parallelism and tensor parallelism together, on a mesh of 2 x 2 ranks, beside PyTorch on one device.

Over `tp` the layers of each MLP are split; over `dp` rows of the batch are, and parameters are kept in parts and gathered
for use. Every rank then stores a quarter of each matrix.
"""

import copy

import torch
from torch import nn

import partita
from partita.distributed import init_device_mesh, plan_of
from partita.distributed.fsdp import fully_shard
from partita.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
plain = nn.Sequential(MLP(16), MLP(16))
model = copy.deepcopy(plain)
for layer in model:
    parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
print(plan_of(model))

x, y = torch.rand(8, 16), torch.rand(8, 16)
step = partita.load(plain, (x, y), loss=nn.functional.mse_loss)
print(partita.Schedule(step, "dp=2,tp=2", plan_of(model)).explain("0.up.weight").split("\n\n")[0])

optimizers = [torch.optim.AdamW(module.parameters(), lr=0.01) for module in (model, plain)]
for number in range(1, 11):
    losses = []
    for module, optimizer in zip((model, plain), optimizers):
        loss = nn.functional.mse_loss(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if number % 5 == 0:
        print(f"step {number}: {losses[0]:.6f} on four ranks, {losses[1]:.6f} in PyTorch")

pairs = zip(model.parameters(), plain.parameters())
difference = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
print(f"parameters as in PyTorch: {difference < 1e-4}")
