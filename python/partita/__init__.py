"""Partita: a training program written once for one device, run on a mesh by a plan.

    import partita

    model = partita.load(module, (x, y), loss=torch.nn.functional.mse_loss)
    sch = partita.Schedule(model, "tp=2")
    sch["up"].style("colwise")
    sch["down"].style("rowwise")
    print(sch.verify())                         # the plan changes no number
    trainer = partita.Trainer(model, sch.plan, "tp=2", optimizer=partita.optim.AdamW(lr=1e-3))
    loss = trainer.step((x, y))

All ranks run in this process. PyTorch is needed only for models that are modules of it; importing this package does
not import it, nor numpy.
"""

from partita import _launched, optim
from partita._compile import compile_str
from partita._load import Model, load
from partita._partita import Mesh, PartitaError, Plan, Report
from partita._planned import Planned
from partita._predict import estimate, plan, simulate
from partita._program import Program, Step
from partita._schedule import At, Schedule, Subgraphs
from partita._trainer import Trainer

__version__ = "0.1.0"

_launched.start()

__all__ = [
    "At",
    "Mesh",
    "Model",
    "PartitaError",
    "Plan",
    "Planned",
    "Program",
    "Report",
    "Schedule",
    "Step",
    "Subgraphs",
    "Trainer",
    "compile_str",
    "estimate",
    "load",
    "optim",
    "plan",
    "simulate",
]
