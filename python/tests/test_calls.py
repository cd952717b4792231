"""Every call that the documents make, with the object that answers it here and the test that shows it: docs/calls.md.

``python tests/test_calls.py`` writes the page; the test checks it. A call works if its object exists and its test does.
"""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "calls.md"

# The document, then for each call: as it is written there, the object here, the test by file and function. A call that
# does not work yet says as a fourth entry what it waits for.
DOCUMENTS = {
    "Slapo: optimize MLP module on multi-device": [
        ("slapo.env.setup(rank=, world_size=, backend=)", "partita.slapo.env:setup", "test_slapo::test_the_environment_answers"),
        ("dist.get_rank(), dist.get_world_size()", "torch.distributed:get_rank", "test_slapo::test_the_environment_answers"),
        ("slapo.create_schedule(model)", "partita.slapo:create_schedule", "test_slapo::test_the_tutorial_prints_what_it_says"),
        ("sch.mod", "partita.slapo:Schedule.mod", "test_slapo::test_the_tutorial_prints_what_it_says"),
        ('sch["linear1"]', "partita.slapo:Schedule.__getitem__", "test_slapo::test_the_tutorial_prints_what_it_says"),
        (".shard(name, axis=)", "partita.slapo:Schedule.shard", "test_slapo::test_the_tutorial_trains_as_pytorch_does"),
        (".sync(mode=, sync_op_or_fn=)", "partita.slapo:Schedule.sync", "test_slapo::test_the_tutorial_trains_as_pytorch_does"),
        (
            "with slapo.Verify(sch, example_inputs=)",
            "partita.slapo:Verify",
            "test_slapo::test_the_tutorial_at_full_size_verifies",
        ),
        (".decompose()", "partita.slapo:Schedule.decompose", "test_slapo::test_the_tutorial_prints_what_it_says"),
        ("sch.trace(flatten=)", "partita.slapo:Schedule.trace", "test_slapo::test_the_tutorial_prints_what_it_says"),
        ("sch.find(pattern)", "partita.slapo:Schedule.find", "test_slapo::test_the_tutorial_prints_what_it_says"),
        (
            "sch.fuse(subgraph, compiler=, name=)",
            "partita.slapo:Schedule.fuse",
            "test_slapo::test_the_tutorial_prints_what_it_says",
        ),
        ("slapo.build(sch, init_weights=)", "partita.slapo:build", "test_slapo::test_the_tutorial_trains_as_pytorch_does"),
    ],
    "Decouple model execution from definition": [
        ("ms.create_schedule(model)", "partita.ms:create_schedule", "test_ms::test_kernel_injection"),
        (
            "ms.create_schedule(model, optimizer, world_size, rank)",
            "partita.ms:create_schedule",
            "test_ms::test_parameter_sharding",
        ),
        ("sch.gm.graph", "partita.ms:Schedule.gm", "test_ms::test_the_graph_and_its_operators_print_as_in_the_proposal"),
        (
            "sch.forward_ops",
            "partita.ms:Schedule.forward_ops",
            "test_ms::test_the_graph_and_its_operators_print_as_in_the_proposal",
        ),
        ("FusedLayerNorm", "partita.ms.kernels:FusedLayerNorm", "test_ms::test_kernel_injection"),
        ("sch[ops[1]].replace(FusedLayerNorm, [N, N * 2])", "partita.ms:Ops.replace", "test_ms::test_kernel_injection"),
        ("sch[ops[0:3]].replace(FusedBlock, N)", "partita.ms:Ops.replace", "test_ms::test_kernel_fusion"),
        (".partition(axis=, param=)", "partita.ms:Ops.partition", "test_ms::test_parameter_sharding"),
        (".partition(axis=)", "partita.ms:Ops.partition", "test_ms::test_parameter_sharding"),
        ("ms.build(sch)", "partita.ms:build", "test_ms::test_parameter_sharding"),
        ("opt_model.graph", "torch.fx:GraphModule.graph", "test_ms::test_kernel_injection"),
    ],
    "Sequence parallelism, FSDP and MLIR": [
        (
            "log_utils.rank_log, get_logger, verify_min_gpu_count",
            "partita.log_utils:rank_log",
            "test_distributed::test_one_rank_logs",
        ),
        (
            "init_device_mesh(device_type=, mesh_shape=)",
            "partita.distributed.device_mesh:init_device_mesh",
            "test_distributed::test_meshes_answer_as_pytorchs_do",
        ),
        (
            "device_mesh.get_rank()",
            "partita.distributed.device_mesh:DeviceMesh.get_rank",
            "test_distributed::test_meshes_answer_as_pytorchs_do",
        ),
        ("Shard(0)", "partita.distributed.tensor:Shard", "test_distributed::test_redistribute_changes_the_layout_alone"),
        (
            "parallelize_module(module=, device_mesh=, parallelize_plan=)",
            "partita.distributed.tensor.parallel:parallelize_module",
            "test_parallel::test_the_sequence_parallel_toy_trains_as_on_one_device",
        ),
        (
            "ColwiseParallel(input_layouts=)",
            "partita.distributed.tensor.parallel:ColwiseParallel",
            "test_parallel::test_the_toy_meets_once_before_and_once_after",
        ),
        (
            "RowwiseParallel(output_layouts=)",
            "partita.distributed.tensor.parallel:RowwiseParallel",
            "test_parallel::test_the_toy_meets_once_before_and_once_after",
        ),
        (
            "profile(activities=, schedule=, on_trace_ready=, record_shapes=, profile_memory=, with_stack=)",
            "partita.profiler:profile",
            "test_profiler::test_each_cycle_is_handed_over_with_the_step_that_begins",
        ),
        (
            "ProfilerActivity.CPU, .CUDA",
            "partita.profiler:ProfilerActivity.CUDA",
            "test_profiler::test_what_is_no_activity_or_count_is_refused",
        ),
        (
            "schedule(wait=, warmup=, active=, repeat=)",
            "partita.profiler:schedule",
            "test_profiler::test_the_schedule_is_the_one_of_the_document",
        ),
        (
            "tensorboard_trace_handler(folder)",
            "partita.profiler:tensorboard_trace_handler",
            "test_profiler::test_a_trace_file_a_cycle_in_chromes_format",
        ),
        (
            "prof.step()",
            "partita.profiler:profile.step",
            "test_profiler::test_each_cycle_is_handed_over_with_the_step_that_begins",
        ),
        (
            'prof.key_averages().table(sort_by="cuda_time_total", row_limit=)',
            "partita.profiler:profile.key_averages",
            "test_profiler::test_the_table_has_the_form_of_pytorch",
        ),
        (
            "torch.optim.AdamW(model.parameters(), lr=, foreach=)",
            "torch.optim:AdamW",
            "test_parallel::test_the_sequence_parallel_toy_trains_as_on_one_device",
        ),
        ("a script once per rank", "partita.launch:launch", "test_launch::test_a_loop_of_pytorch_runs_once_per_rank"),
        (
            "fully_shard(module, mesh=)",
            "partita.distributed.fsdp:fully_shard",
            "test_parallel::test_fsdp_and_tensor_parallelism_train_as_on_one_device",
        ),
        (
            "compiler.compile_str(mlir, target_backends=)",
            "partita.iree.compiler:compile_str",
            "test_program::test_the_steps_of_iree_lead_to_the_same_function",
        ),
        (
            "runtime.Config, SystemContext, VmInstance, VmModule.from_flatbuffer",
            "partita.iree.runtime:SystemContext",
            "test_program::test_the_steps_of_iree_lead_to_the_same_function",
        ),
        (
            "runtime.get_driver(..).create_default_device()",
            "partita.iree.runtime:get_driver",
            "test_program::test_the_steps_of_iree_lead_to_the_same_function",
        ),
        (
            "ctx.add_vm_module(module), ctx.modules.module.f(..)",
            "partita.iree.runtime:SystemContext.add_vm_module",
            "test_program::test_the_steps_of_iree_lead_to_the_same_function",
        ),
        (
            "runtime.asdevicearray(device, array), .to_host()",
            "partita.iree.runtime:asdevicearray",
            "test_program::test_the_steps_of_iree_lead_to_the_same_function",
        ),
    ],
    "nvFuser: multi-GPU": [
        (
            "class Model(FusionDefinition)",
            "partita.nvfuser:FusionDefinition",
            "test_nvfuser::test_the_matmul_is_that_of_one_device",
        ),
        (
            "definition(self), multigpu_schedule(self)",
            "partita.nvfuser:FusionDefinition.multidevice_schedule",
            "test_nvfuser::test_the_matmul_is_that_of_one_device",
        ),
        (
            "fd.from_pytorch(tensor)",
            "partita.nvfuser:FusionDefinition.from_pytorch",
            "test_nvfuser::test_the_matmul_is_that_of_one_device",
        ),
        ("fd.ops.matmul(a, b)", "partita.nvfuser:FusionDefinition", "test_nvfuser::test_the_matmul_is_that_of_one_device"),
        (
            "fd.add_output(t)",
            "partita.nvfuser:FusionDefinition.add_output",
            "test_nvfuser::test_the_matmul_is_that_of_one_device",
        ),
        (
            "fd.create_mesh(shape)",
            "partita.nvfuser:FusionDefinition.create_mesh",
            "test_nvfuser::test_the_matmul_is_that_of_one_device",
        ),
        (
            "fd.ops.create_dtensor(..), create_dtensor(..)",
            "partita.nvfuser:create_dtensor",
            "test_nvfuser::test_a_local_output_is_one_tensor_per_rank",
        ),
        (
            "fd.ops.to_local(t), t.to_local()",
            "partita.nvfuser:FusionDefinition",
            "test_nvfuser::test_a_local_output_is_one_tensor_per_rank",
        ),
        (
            "schedule.cache_after(t, op), cache_before(t, op)",
            "partita.nvfuser:LoadStoreOpType.scatter",
            "test_nvfuser::test_the_host_program_has_compute_and_communication_apart",
        ),
        (
            "self.all_tensors()",
            "partita.nvfuser:FusionDefinition.all_tensors",
            "test_nvfuser::test_the_matmul_is_that_of_one_device",
        ),
        (
            "scatter(t, mesh, placement), gather(shards, mesh)",
            "partita.nvfuser:scatter",
            "test_nvfuser::test_shards_along_one_axis_of_both_operands_are_fetched",
        ),
        (
            "DTensor.from_local(x, device_mesh, layout)",
            "partita.distributed.tensor:DTensor.from_local",
            "test_distributed::test_from_local_takes_the_tensors_of_ranks_or_a_global_one",
        ),
    ],
    "Alpa: distributed training with both shard and pipeline parallelism": [
        (
            'ray.init(), alpa.init(cluster="ray")',
            "partita.alpa:init",
            "test_alpa::test_a_device_of_a_ray_cluster_is_an_actor",
        ),
        ("alpa.shutdown()", "partita.alpa:shutdown", "test_alpa::test_devices_are_forgotten_with_shutdown"),
        ("alpa.parallelize(method=)", "partita.alpa:parallelize", "test_alpa::test_a_step_trains_as_plain_jax_under_each_method"),
        (
            "alpa.PipeshardParallel(num_micro_batches=)",
            "partita.alpa:PipeshardParallel",
            "test_alpa::test_gradients_are_those_of_the_batch",
        ),
        (
            'alpa.PipeshardParallel(stage_mode="auto")',
            "partita.alpa:PipeshardParallel",
            "test_alpa::test_an_automatic_stage_mode_takes_the_fastest_mesh",
        ),
        (
            "alpa.manual_layer_construction",
            "partita.alpa:manual_layer_construction",
            "test_alpa::test_marks_make_the_stages_and_the_state_stays_on_the_ranks",
        ),
        (
            "alpa.automatic_layer_construction(layer_num=)",
            "partita.alpa:automatic_layer_construction",
            "test_alpa::test_the_example_trains_as_jax",
        ),
        (
            "alpa.mark_pipeline_boundary()",
            "partita.alpa:mark_pipeline_boundary",
            "test_alpa::test_marks_make_the_stages_and_the_state_stays_on_the_ranks",
        ),
        ("alpa.grad(f)", "partita.alpa:grad", "test_alpa::test_gradients_are_those_of_the_batch"),
        (
            "assert_allclose(a, b, atol=)",
            "partita.alpa.testing:assert_allclose",
            "test_alpa::test_assert_allclose_names_the_leaf",
        ),
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
    """Whether a test exists and is not skipped by a mark."""
    file, name = test.split("::")
    path = TESTS / f"{file}.py"
    if not path.exists():
        return False
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            marks = [ast.unparse(decorator) for decorator in node.decorator_list]
            return not any(re.match(r"pytest\.mark\.(skip|xfail)", mark) for mark in marks)
    return False


def rows():
    """Each call: its document, as it is written, its test, what is said of it, whether that is so (None: unknown here)."""
    for document, calls in DOCUMENTS.items():
        for call, place, test, *waits in calls:
            there = is_there(place)
            yield document, call, test, *(waits or ["works"]), None if there is None else there and is_shown(test)


def line(call, test, said):
    return f"| `{call}` | `{test}` | {said} |"


def page():
    text = [
        "# The calls of the documents",
        "",
        "Each call that the documents make from which the surfaces come, and the test in `python/tests` that shows it, by file",
        "and function. Import lines and names of devices are changed. `python python/tests/test_calls.py` writes this page, a",
        "test checks it. What a call waits for is said in its row; its test shows how it is refused.",
    ]
    last = None
    for document, call, test, said, _ in rows():
        if document != last:
            text += ["", f"## {document}", "", "| call | test | |", "|---|---|---|"]
            last = document
        text.append(line(call, test, said))
    return "\n".join(text) + "\n"


def test_the_page_lists_every_call_and_those_that_work_do():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert [f"{call}: {test}" for _, call, test, _, is_so in rows() if is_so is False] == []
    assert PAGE.read_text() == page(), "write the page again: python tests/test_calls.py"


def test_a_test_that_is_missing_or_marked_shows_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "TESTS", tmp_path)
    body = "import pytest\n\n@pytest.mark.{}\ndef test_a():\n    pass\n"
    for mark, shown in [("parametrize('x', [])", True), ("skip", False), ("skipif(True)", False), ("xfail", False)]:
        (tmp_path / "test_x.py").write_text(body.format(mark))
        assert is_shown("test_x::test_a") == shown
    assert not is_shown("test_x::test_b") and not is_shown("test_y::test_a")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{sum(row[3] == 'works' for row in rows())} of {sum(1 for _ in rows())} work", file=sys.stderr)
