"""Sequence parallelism in the words of torch.distributed, on three ranks of this process, beside PyTorch on one device.

Each rank holds its rows of the batch. They are gathered before the first layer, whose output features are split; the sums
of the second layer are added and scattered back to rows. 32 features on three ranks are 11, 11 and 10.
"""

import copy
import os

import torch
from torch import nn

from partita.distributed import plan_of
from partita.distributed._tensor import Shard
from partita.distributed._tensor.device_mesh import init_device_mesh
from partita.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from partita.log_utils import get_logger, rank_log, verify_min_gpu_count


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.relu, self.out_proj = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)

    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))


assert verify_min_gpu_count(min_gpus=2)
mesh = init_device_mesh(device_type="cpu", mesh_shape=(int(os.environ.get("WORLD_SIZE", "3")),))
rank, logger = mesh.get_rank(), get_logger()
rank_log(rank, logger, f"{mesh=}")

torch.manual_seed(0)
plain = ToyModel()
model = parallelize_module(
    copy.deepcopy(plain),
    mesh,
    {
        "in_proj": ColwiseParallel(input_layouts=Shard(0)),
        "out_proj": RowwiseParallel(output_layouts=Shard(0)),
    },
)
print(plan_of(model))

optimizers = [torch.optim.AdamW(module.parameters(), lr=0.25, foreach=True) for module in (model, plain)]
for step in range(10):
    batch = torch.rand(20, 10)
    losses = []
    for module, optimizer in zip((model, plain), optimizers):
        loss = module(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if step % 3 == 0:
        print(f"step {step}: {losses[0]:.4f} on {mesh.size()} ranks, {losses[1]:.4f} in PyTorch")

pairs = zip(model.parameters(), plain.parameters())
difference = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
print(f"parameters as in PyTorch: {difference < 1e-4}")
