"""A module of PyTorch on a mesh of 2 x 2 ranks: a plan line by line, its proof, its reasons, and training beside PyTorch."""

import torch
import torch.nn.functional as F

import partita


class MLP(torch.nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


torch.manual_seed(0)
module = MLP(64, 256)
x, y = torch.randn(32, 64), torch.randn(32, 64)

model = partita.load(module, (x, y), loss=F.mse_loss)
print(model)

sch = partita.Schedule(model, "dp=2,tp=2")
sch["up"].style("colwise")
sch["down"].style("rowwise")
print(sch.verify())
for phase, collective, count, size in sch.collectives():
    print(f"{phase:9} {count} {collective}, {size} bytes")
print(sch.explain("up.weight"))

optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
trainer = partita.Trainer(model, sch.plan, "dp=2,tp=2", optimizer=optimizer)
for step in range(1, 21):
    optimizer.zero_grad()
    loss = F.mse_loss(module(x), y)
    loss.backward()
    optimizer.step()
    planned = trainer.step((x, y))
    if step % 5 == 0:
        print(f"step {step:2}: PyTorch {loss.item():.6f}, on four ranks {planned:.6f}")
