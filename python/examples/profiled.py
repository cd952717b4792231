"""A training loop under the profiler: a table of passes and instructions, and a trace file for each cycle."""

import tempfile
from pathlib import Path

import torch
from torch import nn

import partita
from partita.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

torch.manual_seed(0)
module = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))
inp = torch.rand(20, 10)
planned = partita.Schedule(partita.load(module, inp), "tp=2", {"0": "colwise", "2": "rowwise"}).build()
optimizer = torch.optim.AdamW(planned.parameters(), lr=0.25)

with tempfile.TemporaryDirectory() as folder:
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=3, repeat=2),
        on_trace_ready=tensorboard_trace_handler(folder),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as prof:
        for _ in range(10):
            optimizer.zero_grad()
            planned(inp).sum().backward()
            optimizer.step()
            prof.step()
    print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=10))
    print(f"{len(list(Path(folder).glob('*.pt.trace.json')))} traces")
