"""How a function is parallelized: meshes to choose from, a plan, and the number of microbatches."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from partita._error import refuse
from partita._partita import Mesh, Plan
from partita._schedule import mesh_of, plan_of
from partita.alpa._cluster import device_count
from partita.alpa._layers import AutoLayerOption, ManualLayerOption

__all__ = [
    "AutoShardingOption",
    "AutoStageOption",
    "DataParallel",
    "ManualStageOption",
    "Method",
    "PipeshardParallel",
    "ShardParallel",
    "UniformStageOption",
    "Zero2Parallel",
]

_PlanLike = Plan | str | Mapping[str, Any] | None


class AutoShardingOption:
    """Layouts by cost: the planner chooses how many ranks shard the batch, and how the others shard the layers.
    ``force_data_parallel`` lets all ranks shard the batch; ``prefer_reduce_scatter`` shards the states of the optimizer too.
    """

    def __init__(self, force_data_parallel: bool = False, prefer_reduce_scatter: bool = False) -> None:
        self.force_data_parallel, self.prefer_reduce_scatter = force_data_parallel, prefer_reduce_scatter

    def __repr__(self) -> str:
        return (
            f"AutoShardingOption(force_data_parallel={self.force_data_parallel}, "
            f"prefer_reduce_scatter={self.prefer_reduce_scatter})"
        )


class AutoStageOption:
    """The number of stages by cost."""

    def __repr__(self) -> str:
        return "AutoStageOption()"


class UniformStageOption:
    """As many stages as layers, if the ranks suffice."""

    def __repr__(self) -> str:
        return "UniformStageOption()"


class ManualStageOption:
    """Stages that a person writes: the numbers of the layers of each, such as ``[[0], [1, 2]]``, and its ranks. A physical
    mesh is (nodes, devices), a logical one (ranks that shard the batch, ranks that shard layers): the same for all stages.

    Raises ``ValueError`` for layers that are not 0, 1, .. in order, stages with other meshes, or options of one stage; E385
    for several nodes.
    """

    def __init__(
        self,
        forward_stage_layer_ids: Sequence[Sequence[int]],
        submesh_physical_shapes: Sequence[Sequence[int]],
        submesh_logical_shapes: Sequence[Sequence[int]],
        submesh_autosharding_option_dicts: Sequence[Mapping[str, Any]],
    ) -> None:
        self.forward_stage_layer_ids = [list(layers) for layers in forward_stage_layer_ids]
        self.submesh_physical_shapes = [tuple(shape) for shape in submesh_physical_shapes]
        self.submesh_logical_shapes = [tuple(shape) for shape in submesh_logical_shapes]
        self.submesh_autosharding_option_dicts = [dict(options) for options in submesh_autosharding_option_dicts]
        layers = [layer for stage in self.forward_stage_layer_ids for layer in stage]
        if not layers or layers != list(range(len(layers))) or not all(self.forward_stage_layer_ids):
            raise ValueError(f"layers 0, 1, .. in order, at least one in each stage; found {self.forward_stage_layer_ids}")
        stages = len(self.forward_stage_layer_ids)
        physical, logical = self.submesh_physical_shapes, self.submesh_logical_shapes
        if {len(physical), len(logical), len(self.submesh_autosharding_option_dicts)} != {stages}:
            raise ValueError(f"there are {stages} stages: expected as many meshes and options, found {self!r}")
        if any(len(shape) != 2 or min(shape) < 1 for shape in (*physical, *logical)):
            raise ValueError(f"a mesh is two positive numbers, found {physical} and {logical}")
        if len({*physical}) > 1 or len({*logical}) > 1:
            raise ValueError(f"all stages have the same mesh here, found {physical} and {logical}")
        if any(self.submesh_autosharding_option_dicts):
            raise ValueError("options of one stage are not there: give `default_auto_sharding_option=` or a plan")
        nodes, devices = physical[0]
        if nodes != 1:
            raise refuse("E385", "partita.alpa runs on one node", expected="meshes (1, devices)", found=repr(physical[0]))
        if logical[0][0] * logical[0][1] != devices:
            raise ValueError(f"{devices} devices are no logical mesh {logical[0]}")

    def mesh(self) -> Mesh:
        """The stages and the ranks of each."""
        dp, tp = self.submesh_logical_shapes[0]
        return Mesh(f"pp={len(self.forward_stage_layer_ids)},dp={dp}" + (f",tp={tp}" if tp > 1 else ""))

    def __repr__(self) -> str:
        return (
            f"ManualStageOption({self.forward_stage_layer_ids}, {self.submesh_physical_shapes}, "
            f"{self.submesh_logical_shapes}, {self.submesh_autosharding_option_dicts})"
        )


_StageOption = AutoStageOption | UniformStageOption | ManualStageOption


class Method:
    """What all methods have. ``devices`` is the number of ranks; by default that of ``alpa.init``. ``mesh`` and ``plan``
    are those of Partita, for those who want to say more: ``mesh="pp=2,tp=2"``, ``plan={"Dense_0": "colwise"}``."""

    is_pipelined = False
    pipeline_schedule = "1f1b"
    layer_option: ManualLayerOption | AutoLayerOption | None = None
    stage_layers: list[list[int]] | None = None
    """The layers of each stage, where a person has written them."""

    def __init__(
        self,
        devices: int | None = None,
        num_micro_batches: int | None = None,
        *,
        mesh: Mesh | str | None = None,
        plan: _PlanLike = None,
        auto_sharding_option: AutoShardingOption | None = None,
    ) -> None:
        self.devices = devices
        self.num_micro_batches = 1 if num_micro_batches is None else _count(num_micro_batches)
        self.auto_sharding_option = auto_sharding_option
        self._mesh, self._plan = mesh, plan

    def meshes(self, layers: int, rows: int) -> list[Mesh]:
        """The meshes to choose from, for a function with so many layers and rows in a microbatch; one if there is no
        choice."""
        if self._mesh is not None:
            return [mesh_of(self._mesh)]
        count = self.devices or device_count()
        sharding = self.auto_sharding_option
        found = []
        for stages in self._stages(count, layers):
            ranks = count // stages
            batches = [ranks]
            if sharding is not None and not sharding.force_data_parallel:
                batches = [dp for dp in range(1, ranks + 1) if ranks % dp == 0 and dp <= max(rows, 1)]
            for dp in reversed(batches):
                pp, tp = f"pp={stages}," if self.is_pipelined else "", f",tp={ranks // dp}" if dp < ranks else ""
                found.append(Mesh(f"{pp}dp={dp}{tp}"))
        return found

    def plan(self) -> Plan:
        """The lines beside those that shard the batch, before a search."""
        if self._plan is None and self.auto_sharding_option is not None and self.auto_sharding_option.prefer_reduce_scatter:
            return plan_of(_ZERO2)
        return plan_of(self._plan)

    def _stages(self, count: int, layers: int) -> list[int]:
        """The numbers of stages to choose from."""
        return [1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_micro_batches={self.num_micro_batches})"


def _count(microbatches: Any) -> int:
    """``ValueError`` for what is no positive whole number."""
    try:
        count = operator.index(microbatches)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"num_micro_batches is a positive whole number, found {microbatches!r}")
    return count


_ZERO2 = '[plan]\n"**" = "zero2"'


class ShardParallel(Method):
    """Every tensor may be sharded. Without a plan the batch is, over all ranks; with
    ``auto_sharding_option=AutoShardingOption()`` the planner chooses the mesh and the layouts of parameters."""


class DataParallel(Method):
    """The batch is sharded, everything else is replicated."""


class Zero2Parallel(Method):
    """The batch is sharded, and so are gradients and the states of the optimizer (ZeRO-2)."""

    def plan(self) -> Plan:
        return plan_of(_ZERO2 if self._plan is None else self._plan)


class PipeshardParallel(Method):
    """Stages of a pipeline, each on ranks of its own, over which it is sharded.

    Layers come from ``manual_layer_construction`` or ``automatic_layer_construction`` around the loss, or from
    ``layer_option``. With ``stage_mode="uniform"`` each becomes a stage if there are as many ranks; otherwise neighbours
    are joined. Ranks that are left shard the batch of each stage: with 2 layers on 8 ranks the mesh is ``pp=2,dp=4``. With
    ``stage_mode="auto"`` each number of stages that divides the ranks is tried, with the ranks of a stage sharing batch and
    layers in each way, and the one with the least predicted time is taken; ``result`` of the executable says which.
    ``stage_option`` is the newer name of ``stage_mode``: ``"auto"``, ``AutoStageOption()``, ``"uniform"``, ..; with a
    ``ManualStageOption`` the layers of each stage, and its ranks, are those that it says.
    ``pipeline_schedule`` names a timetable: ``1f1b``, ``gpipe``, ``zb-h1``, ..

    Raises ``ValueError`` for another mode, or a number of microbatches that is no positive whole number.
    """

    is_pipelined = True

    def __init__(
        self,
        devices: int | None = None,
        num_micro_batches: int = 1,
        pipeline_schedule: str = "1f1b",
        layer_option: ManualLayerOption | AutoLayerOption | None = None,
        stage_mode: str | None = None,
        *,
        stage_option: _StageOption | str | None = None,
        default_auto_sharding_option: AutoShardingOption | None = None,
        mesh: Mesh | str | None = None,
        plan: _PlanLike = None,
    ) -> None:
        if stage_mode is not None and stage_option is not None:
            raise ValueError("stage_mode and stage_option say the same: give one of them")
        chosen = stage_mode if stage_option is None else stage_option
        is_auto = chosen == "auto" or isinstance(chosen, AutoStageOption)
        manual = chosen if isinstance(chosen, ManualStageOption) else None
        is_uniform = chosen in (None, "uniform") or isinstance(chosen, UniformStageOption)
        if not is_auto and not is_uniform and manual is None:
            raise ValueError(
                'stages are "uniform" or "auto", `UniformStageOption()`, `AutoStageOption()` or a `ManualStageOption(..)`, '
                f"found {chosen!r}"
            )
        if manual is not None and mesh is not None:
            raise ValueError("a ManualStageOption says the mesh: give one of them")
        sharding = default_auto_sharding_option
        splits_layers = manual is not None and manual.submesh_logical_shapes[0][1] > 1
        if (is_auto or (splits_layers and plan is None)) and sharding is None:
            sharding = AutoShardingOption()
        if manual is not None:
            mesh, self.stage_layers = manual.mesh(), manual.forward_stage_layer_ids
            count = devices or device_count()
            if mesh.size > count:
                raise refuse(
                    "E385",
                    "the stages have more devices than there are",
                    expected=f"at most {count}",
                    found=f"{mesh.size}, as {mesh}",
                )
        super().__init__(devices, num_micro_batches, mesh=mesh, plan=plan, auto_sharding_option=sharding)
        self.pipeline_schedule, self.layer_option = pipeline_schedule, layer_option
        self.stage_mode = "auto" if is_auto else "uniform" if manual is None else "manual"

    def _stages(self, count: int, layers: int) -> list[int]:
        possible = [stages for stages in range(1, min(count, layers) + 1) if count % stages == 0]
        # Among equals the first is taken: fewer stages.
        return possible if self.stage_mode == "auto" else possible[-1:]
