"""How a function is parallelized: a mesh, a plan, and the number of microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita._partita import Mesh, Plan
from partita._schedule import mesh_of, plan_of
from partita.alpa._cluster import device_count
from partita.alpa._layers import AutoLayerOption, ManualLayerOption

__all__ = ["DataParallel", "Method", "PipeshardParallel", "ShardParallel", "Zero2Parallel"]

_PlanLike = Plan | str | Mapping[str, Any] | None


class Method:
    """What all methods have. ``devices`` is the number of ranks; by default that of ``alpa.init``. ``mesh`` and ``plan``
    are those of Partita, for those who want to say more: ``mesh="pp=2,tp=2"``, ``plan={"Dense_0": "colwise"}``."""

    pipeline_schedule = "1f1b"
    layer_option: ManualLayerOption | AutoLayerOption | None = None

    def __init__(
        self,
        devices: int | None = None,
        num_micro_batches: int | None = None,
        *,
        mesh: Mesh | str | None = None,
        plan: _PlanLike = None,
    ) -> None:
        self.devices, self.num_micro_batches = devices, num_micro_batches or 1
        self._mesh, self._plan = mesh, plan

    def mesh(self, layers: int) -> Mesh:
        """The ranks for a function with so many layers."""
        return mesh_of(self._mesh) if self._mesh is not None else self._ranks(self.devices or device_count(), layers)

    def plan(self) -> Plan:
        """The lines beside those that shard the batch."""
        return plan_of(self._plan)

    def _ranks(self, count: int, layers: int) -> Mesh:
        return Mesh(f"dp={count}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_micro_batches={self.num_micro_batches})"


class ShardParallel(Method):
    """Every tensor may be sharded. Without a plan the batch is, over all ranks; layouts of parameters follow from the
    lines of a plan, since costs do not choose them yet."""


class DataParallel(Method):
    """The batch is sharded, everything else is replicated."""


class Zero2Parallel(Method):
    """The batch is sharded, and so are gradients and the states of the optimizer (ZeRO-2)."""

    def plan(self) -> Plan:
        return plan_of('[plan]\n"**" = "zero2"' if self._plan is None else self._plan)


class PipeshardParallel(Method):
    """Stages of a pipeline, each on ranks of its own, over which it is sharded.

    Layers come from ``manual_layer_construction`` or ``automatic_layer_construction`` around the loss, or from
    ``layer_option``. Each becomes a stage if there are as many ranks; otherwise neighbours are joined. Ranks that are left
    shard the batch of each stage: with 2 layers on 8 ranks the mesh is ``pp=2,dp=4``. ``pipeline_schedule`` names a
    timetable: ``1f1b``, ``gpipe``, ``zb-h1``, .. ``stage_mode`` is ``"uniform"`` or ``"auto"``: both divide the ranks
    evenly, until a planner chooses by cost.
    """

    def __init__(
        self,
        devices: int | None = None,
        num_micro_batches: int = 1,
        pipeline_schedule: str = "1f1b",
        layer_option: ManualLayerOption | AutoLayerOption | None = None,
        stage_mode: str = "uniform",
        *,
        mesh: Mesh | str | None = None,
        plan: _PlanLike = None,
    ) -> None:
        super().__init__(devices, num_micro_batches, mesh=mesh, plan=plan)
        if stage_mode not in ("uniform", "auto"):
            raise ValueError(f'stage_mode is "uniform" or "auto", found {stage_mode!r}')
        self.pipeline_schedule, self.layer_option, self.stage_mode = pipeline_schedule, layer_option, stage_mode

    def _ranks(self, count: int, layers: int) -> Mesh:
        stages = max(stages for stages in range(1, min(count, layers) + 1) if count % stages == 0)
        return Mesh(f"pp={stages},dp={count // stages}")
