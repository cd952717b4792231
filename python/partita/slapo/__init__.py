"""Slapo's schedule language over modules of PyTorch, planned, verified and run by Partita.

    from partita import slapo

    sch = slapo.create_schedule(model)
    sch["linear1"].shard("weight", axis=0)
    sch["linear2"].sync(mode="fwd_post", sync_op_or_fn="all_reduce")
    print(sch.mod)
    opt_model, _ = slapo.build(sch, init_weights=False)

Each call changes ``sch.mod``, which is for reading, and adds a line to a plan. The plan is applied when the shapes of the
inputs are known: in ``Verify``, in ``build(.., example_inputs=)``, or in the first call of the built model.
"""

from partita.slapo import env, pattern
from partita.slapo.modules import LinearWithSeparateBias, LinearWithSyncFunc
from partita.slapo.schedule import Schedule, Verify, build, create_schedule

__all__ = [
    "LinearWithSeparateBias",
    "LinearWithSyncFunc",
    "Schedule",
    "Verify",
    "build",
    "create_schedule",
    "env",
    "pattern",
]
