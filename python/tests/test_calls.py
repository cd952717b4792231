"""Every call that the documents make, with the object that answers it here and the test that shows it: docs/calls.md.

``python tests/test_calls.py`` writes the page; the test checks it. A call works if its object exists and its test does.
"""

import importlib
import re
import sys
import warnings
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "calls.md"

SLAPO, MS, LAUNCH = "test_slapo::{}", "test_ms::{}", "test_launch::{}"
TUTORIAL = SLAPO.format("test_the_tutorial_prints_what_it_says")
PROFILER = "test_profiler::{}"
ALPA = "test_alpa"

# The document, then for each call: as it is written there, the object here, the test or the file of tests.
DOCUMENTS = {
    "Slapo: optimize MLP module on multi-device": [
        ("slapo.env.setup(rank=, world_size=, backend=)", "partita.slapo.env:setup", "test_slapo::test_the_environment_answers"),
        ("dist.get_rank(), dist.get_world_size()", "torch.distributed:get_rank", "test_slapo::test_the_environment_answers"),
        ("slapo.create_schedule(model)", "partita.slapo:create_schedule", TUTORIAL),
        ("sch.mod", "partita.slapo:Schedule.mod", TUTORIAL),
        ('sch["linear1"]', "partita.slapo:Schedule.__getitem__", TUTORIAL),
        (".shard(name, axis=)", "partita.slapo:Schedule.shard", "test_slapo::test_the_tutorial_trains_as_pytorch_does"),
        (".sync(mode=, sync_op_or_fn=)", "partita.slapo:Schedule.sync", "test_slapo::test_the_tutorial_trains_as_pytorch_does"),
        (
            "with slapo.Verify(sch, example_inputs=)",
            "partita.slapo:Verify",
            "test_slapo::test_a_schedule_that_changes_the_numbers_is_undone",
        ),
        (".decompose()", "partita.slapo:Schedule.decompose", TUTORIAL),
        ("sch.trace(flatten=)", "partita.slapo:Schedule.trace", TUTORIAL),
        ("sch.find(pattern)", "partita.slapo:Schedule.find", TUTORIAL),
        ("sch.fuse(subgraph, compiler=, name=)", "partita.slapo:Schedule.fuse", TUTORIAL),
        (
            "slapo.build(sch, init_weights=)",
            "partita.slapo:build",
            "test_slapo::test_the_tutorial_trains_as_pytorch_does",
        ),
    ],
    "Decouple model execution from definition": [
        ("ms.create_schedule(model)", "partita.ms:create_schedule", MS.format("test_kernel_injection")),
        (
            "ms.create_schedule(model, optimizer, world_size, rank)",
            "partita.ms:create_schedule",
            MS.format("test_parameter_sharding"),
        ),
        (
            "sch.gm.graph",
            "partita.ms:Schedule.gm",
            MS.format("test_the_graph_and_its_operators_print_as_in_the_proposal"),
        ),
        (
            "sch.forward_ops",
            "partita.ms:Schedule.forward_ops",
            MS.format("test_the_graph_and_its_operators_print_as_in_the_proposal"),
        ),
        ("FusedLayerNorm", "partita.ms.kernels:FusedLayerNorm", MS.format("test_kernel_injection")),
        ("sch[ops[1]].replace(FusedLayerNorm, [N, N * 2])", "partita.ms:Ops.replace", MS.format("test_kernel_injection")),
        ("sch[ops[0:3]].replace(FusedBlock, N)", "partita.ms:Ops.replace", MS.format("test_kernel_fusion")),
        (".partition(axis=, param=)", "partita.ms:Ops.partition", MS.format("test_parameter_sharding")),
        (".partition(axis=)", "partita.ms:Ops.partition", MS.format("test_parameter_sharding")),
        ("ms.build(sch)", "partita.ms:build", MS.format("test_parameter_sharding")),
        ("opt_model.graph", "torch.fx:GraphModule.graph", MS.format("test_kernel_injection")),
    ],
    "Sequence parallelism, FSDP and MLIR": [
        ("log_utils.rank_log, get_logger, verify_min_gpu_count", "partita.log_utils:rank_log", "test_distributed"),
        (
            "init_device_mesh(device_type=, mesh_shape=)",
            "partita.distributed.device_mesh:init_device_mesh",
            "test_distributed",
        ),
        ("device_mesh.get_rank()", "partita.distributed.device_mesh:DeviceMesh.get_rank", "test_distributed"),
        ("Shard(0)", "partita.distributed.tensor:Shard", "test_distributed"),
        ("parallelize_module(module, mesh, plan)", "partita.distributed.tensor.parallel:parallelize_module", "test_parallel"),
        ("ColwiseParallel(input_layouts=)", "partita.distributed.tensor.parallel:ColwiseParallel", "test_parallel"),
        ("RowwiseParallel(output_layouts=)", "partita.distributed.tensor.parallel:RowwiseParallel", "test_parallel"),
        (
            "profile(activities=, schedule=, on_trace_ready=, record_shapes=, profile_memory=, with_stack=)",
            "partita.profiler:profile",
            PROFILER.format("test_each_cycle_is_handed_over_with_the_step_that_begins"),
        ),
        ("ProfilerActivity.CPU, .CUDA", "partita.profiler:ProfilerActivity.CUDA", PROFILER.format("test_what_is_no_activity_or_count_is_refused")),
        (
            "schedule(wait=, warmup=, active=, repeat=)",
            "partita.profiler:schedule",
            PROFILER.format("test_the_schedule_is_the_one_of_the_document"),
        ),
        (
            "tensorboard_trace_handler(folder)",
            "partita.profiler:tensorboard_trace_handler",
            PROFILER.format("test_a_trace_file_a_cycle_in_chromes_format"),
        ),
        (
            "prof.step()",
            "partita.profiler:profile.step",
            PROFILER.format("test_each_cycle_is_handed_over_with_the_step_that_begins"),
        ),
        (
            'prof.key_averages().table(sort_by="cuda_time_total", row_limit=)',
            "partita.profiler:profile.key_averages",
            PROFILER.format("test_the_table_has_the_form_of_pytorch"),
        ),
        ("torch.optim.AdamW(model.parameters(), foreach=)", "torch.optim:AdamW", "test_loops::test_hooks_clipping_and_a_scheduler"),
        ("a script once per rank", "partita.launch:launch", LAUNCH.format("test_a_loop_of_pytorch_runs_once_per_rank")),
        ("fully_shard(module, mesh=)", "partita.distributed.fsdp:fully_shard", "test_parallel"),
        ("compiler.compile_str(mlir, target_backends=)", "partita.iree.compiler:compile_str", "test_program"),
        ("runtime.Config, SystemContext, VmInstance, VmModule.from_flatbuffer", "partita.iree.runtime:SystemContext", "test_program"),
        ("runtime.get_driver(..).create_default_device()", "partita.iree.runtime:get_driver", "test_program"),
        ("ctx.add_vm_module(module), ctx.modules.module.f(..)", "partita.iree.runtime:SystemContext", "test_program"),
        ("runtime.asdevicearray(device, array), .to_host()", "partita.iree.runtime:asdevicearray", "test_program"),
    ],
    "nvFuser: multi-GPU": [
        ("class Model(FusionDefinition)", "partita.nvfuser:FusionDefinition", "test_nvfuser"),
        ("definition(self), multigpu_schedule(self)", "partita.nvfuser:FusionDefinition", "test_nvfuser"),
        ("fd.from_pytorch(tensor)", "partita.nvfuser:FusionDefinition.from_pytorch", "test_nvfuser"),
        ("fd.ops.matmul(a, b)", "partita.nvfuser:FusionDefinition", "test_nvfuser"),
        ("fd.add_output(t)", "partita.nvfuser:FusionDefinition.add_output", "test_nvfuser"),
        ("fd.create_mesh(shape)", "partita.nvfuser:FusionDefinition.create_mesh", "test_nvfuser"),
        ("fd.ops.create_dtensor(..), create_dtensor(..)", "partita.nvfuser:FusionDefinition", "test_nvfuser"),
        ("fd.ops.to_local(t), t.to_local()", "partita.nvfuser:FusionDefinition", "test_nvfuser"),
        ("schedule.cache_after(t, op), cache_before(t, op)", "partita.nvfuser:FusionDefinition", "test_nvfuser"),
        ("self.all_tensors()", "partita.nvfuser:FusionDefinition.all_tensors", "test_nvfuser"),
        ("scatter(t), gather(t)", "partita.nvfuser:FusionDefinition", "test_nvfuser"),
        ("DTensor.from_local(..)", "partita.distributed.tensor:DTensor.from_local", "test_distributed"),
    ],
    "Alpa: distributed training with both shard and pipeline parallelism": [
        ('alpa.init(cluster="ray")', "partita.alpa:init", ALPA),
        ("alpa.shutdown()", "partita.alpa:shutdown", ALPA),
        ("alpa.parallelize(method=)", "partita.alpa:parallelize", ALPA),
        ("alpa.PipeshardParallel(num_micro_batches=, layer_option=, stage_option=)", "partita.alpa:PipeshardParallel", ALPA),
        ("alpa.manual_layer_construction", "partita.alpa:manual_layer_construction", ALPA),
        ("alpa.automatic_layer_construction(layer_num=)", "partita.alpa:automatic_layer_construction", ALPA),
        ("alpa.mark_pipeline_boundary()", "partita.alpa:mark_pipeline_boundary", ALPA),
        ("alpa.grad(f)", "partita.alpa:grad", ALPA),
        ("assert_allclose(a, b)", "partita.alpa.testing:assert_allclose", ALPA),
    ],
}


def is_there(place):
    """Whether an object exists; None if what it needs is not installed."""
    module, _, path = place.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # The surface itself is missing, or a library below it.
        return False if error.name is not None and error.name.startswith("partita") else None
    for name in path.split("."):
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


def is_shown(test):
    file, _, name = test.partition("::")
    path = TESTS / f"{file}.py"
    return path.exists() and (not name or re.search(rf"^def {name}\b", path.read_text(), re.MULTILINE) is not None)


def rows():
    for document, calls in DOCUMENTS.items():
        for call, place, test in calls:
            there = is_there(place)
            yield document, call, test, None if there is None else bool(there and is_shown(test))


def line(call, test, works):
    return f"| `{call}` | `{test}` | {'works' if works else 'not yet'} |"


def page():
    text = [
        "# The calls of the documents",
        "",
        "Each call that the documents make from which the surfaces come, and the test in `python/tests` that shows it. Import",
        "lines and names of devices are changed. `python python/tests/test_calls.py` writes this page, a test checks it.",
    ]
    last = None
    for document, call, test, works in rows():
        if document != last:
            text += ["", f"## {document}", "", "| call | test | |", "|---|---|---|"]
            last = document
        text.append(line(call, test, works))
    return "\n".join(text) + "\n"


def test_the_page_lists_every_call_and_those_that_work_do():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    lines = PAGE.read_text().splitlines()
    wrong, stale = [], []
    for _, call, test, works in rows():
        if line(call, test, True) in lines:
            wrong += [call] if works is False else []
        elif line(call, test, False) in lines:
            stale += [call] if works else []
        else:
            wrong.append(call)
    assert not wrong, f"write the page again: {wrong}"
    assert sum(row.startswith("| `") for row in lines) == sum(len(calls) for calls in DOCUMENTS.values())
    if stale:
        warnings.warn(f"the page is older than what works: {stale}")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{sum(bool(works) for *_, works in rows())} of {sum(1 for _ in rows())} work", file=sys.stderr)
