"""The demos of the scheduling proposal: a kernel injected, ops fused into a block, parameters on several ranks.

    python ms_demos.py [width] [picture.png]

The picture of the times needs matplotlib.
"""

import copy
import sys
import time

import numpy as np
import torch
from torch import nn

import partita.ms as ms
from partita.ms.kernels import FusedLayerNorm

WIDTH = int(sys.argv[1]) if len(sys.argv) > 1 else 256
PICTURE = sys.argv[2] if len(sys.argv) > 2 else None


class MLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dense_1 = nn.Linear(dim, dim * 2)
        self.layer_norm = nn.LayerNorm([dim, dim * 2])
        self.activation = nn.ReLU()
        self.dense_2 = nn.Linear(dim * 2, dim)

    def forward(self, x):
        return self.dense_2(self.activation(self.layer_norm(self.dense_1(x))))


class FusedBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, dim * 2)
        self.ln = nn.LayerNorm([dim, dim * 2])
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.ln(self.fc(x)))


torch.manual_seed(0)
model = MLP(WIDTH)

print("1. A kernel for the layer norm")
sch = ms.create_schedule(copy.deepcopy(model))
print(sch.gm.graph)
ops = sch.forward_ops
print(ops)
sch[ops[1]].replace(FusedLayerNorm, [WIDTH, WIDTH * 2])
opt_model, _ = ms.build(sch)
inp = torch.rand(WIDTH, WIDTH)
np.testing.assert_almost_equal(model(inp).detach().numpy(), opt_model(inp).detach().numpy(), decimal=5)
print("as PyTorch: True")

times = {"PyTorch": [], "Partita": []}
with torch.no_grad():
    for _ in range(50):
        inp = torch.rand(WIDTH, WIDTH)
        for name, module in (("PyTorch", model), ("Partita", opt_model)):
            begin = time.perf_counter()
            module(inp)
            times[name].append((time.perf_counter() - begin) * 1000)
for name, taken in times.items():
    print(f"{name}: {np.mean(taken):.3f} ms in the mean, {np.median(taken):.3f} ms in the median")
if PICTURE is not None:
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed")
    else:
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        for name, taken in times.items():
            plt.plot(range(len(taken)), taken, label=name)
        plt.xlabel("call")
        plt.ylabel("ms")
        plt.legend()
        plt.savefig(PICTURE)
        print(f"the times are drawn in {PICTURE}")

print("1.1. Three ops as one block")
sch = ms.create_schedule(copy.deepcopy(model))
ops = sch.forward_ops
sch[ops[0:3]].replace(FusedBlock, WIDTH)
print(sch.gm.graph)
fused, _ = ms.build(sch, example_inputs=[inp])
print(f"as PyTorch: {torch.allclose(fused(inp), model(inp), atol=1e-5)}")

print("2. Parameters on two ranks")
beside = MLP(32)
model = copy.deepcopy(beside)
optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
sch = ms.create_schedule(model, optimizer, world_size=2, rank=0)
ops = sch.forward_ops
sch[ops[0]].partition(axis=0, param="weight")
sch[ops[3]].partition(axis=1, param="weight")
sch[ops[3]].partition(axis=0)
print(sch.plan)
model, optimizer = ms.build(sch)
other = torch.optim.SGD(beside.parameters(), lr=0.002)
for step in range(5):
    inp = torch.rand(32, 32)
    sums = []
    for module, rule in ((beside, other), (model, optimizer)):
        output = module(inp)
        output.sum().backward()
        rule.step()
        sums.append(output.sum().item())
    print(f"step {step}: PyTorch {sums[0]:.3f}, on two ranks {sums[1]:.3f}")
