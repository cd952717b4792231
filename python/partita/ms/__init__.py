"""The language of the scheduling proposal, "Decouple Model Execution from Definition", planned and run by Partita.

    import partita.ms as ms
    from partita.ms.kernels import FusedLayerNorm

    sch = ms.create_schedule(model)
    ops = sch.forward_ops
    sch[ops[1]].replace(FusedLayerNorm, [N, N * 2])
    sch[ops[0]].partition(axis=0, param="weight")
    opt_model, optimizer = ms.build(sch)

Operators are nodes of ``torch.fx``. What replaces them takes their parameters and is proved to compute the same.
"""

from partita.ms import kernels
from partita.ms.schedule import Ops, Schedule, build, create_schedule

__all__ = ["Ops", "Schedule", "build", "create_schedule", "kernels"]
