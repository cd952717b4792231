"""Slapo's tutorial in short: an MLP with tensor parallelism and a fused bias and GELU, planned for two ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from partita import slapo


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear1, self.activation, self.linear2 = nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)

    def forward(self, data):
        return self.linear2(self.activation(self.linear1(data)))


slapo.env.setup(rank=0, world_size=2)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, all in this process")

torch.manual_seed(0)
model = MLP(256)
sch = slapo.create_schedule(model)

with slapo.Verify(sch, example_inputs=[torch.randn(2, 16, 256)]) as verified:
    sch["linear1"].shard("weight", axis=0)
    sch["linear1"].shard("bias", axis=0)
    sch["linear2"].shard("weight", axis=1)
    sch["linear2"].sync(mode="fwd_post", sync_op_or_fn="all_reduce")
    sch["linear1"].sync(mode="bwd_post", sync_op_or_fn="all_reduce")
print(f"verified: {verified.largest_difference < 1e-5}")
print(sch.mod)

sch["linear1"].decompose()
sch.trace(flatten=True)
subgraph = sch.find(lambda x, bias: F.gelu(bias + x))
print(subgraph)
sch.fuse(subgraph, compiler="TorchScript", name="BiasGeLU")
print(sch.mod)

built, _ = slapo.build(sch, init_weights=False)
data = torch.randn(2, 16, 256)
difference = (built(data) - model(data)).abs().max().item()
print(f"as PyTorch: {difference < 1e-5}")
dist.destroy_process_group()
