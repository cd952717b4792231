"""`partita.alpa` beside plain JAX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
pytest.importorskip("flax", reason="flax is not installed")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from flax import linen as nn  # noqa: E402
from flax.training.train_state import TrainState  # noqa: E402
from jax import lax  # noqa: E402

import partita  # noqa: E402
from partita import PartitaError, alpa  # noqa: E402

ROWS = 12


class Network(nn.Module):
    """Two dense layers, with a mark between them where one is asked for."""

    mark: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(32)(x))
        if self.mark:
            alpa.mark_pipeline_boundary()
        return nn.Dense(8)(x)


@pytest.fixture(autouse=True)
def cluster():
    alpa.init(cluster="local", num_devices_per_node=2)
    yield
    alpa.shutdown()


@pytest.fixture
def batch():
    x, y = jax.random.split(jax.random.PRNGKey(3))
    return {"x": jax.random.normal(x, (ROWS, 16)), "y": jax.random.normal(y, (ROWS, 8))}


def state_of(model, batch, optimizer=None):
    params = model.init(jax.random.PRNGKey(4), batch["x"])
    return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer or optax.adam(1e-2))


def mean_square(state, batch, reduce=jnp.mean):
    return lambda params: reduce((state.apply_fn(params, batch["x"]) - batch["y"]) ** 2)


def step_of(grad, construct=lambda loss: loss, reduce=jnp.mean):
    def step(state, batch):
        return state.apply_gradients(grads=grad(construct(mean_square(state, batch, reduce)))(state.params))

    return step


def assert_agree(found, expected, tolerance=1e-6):
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for a, b in ((np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in leaves):
        assert np.abs(a - b).max() <= tolerance * max(np.abs(b).max(), 1e-6)


METHODS = [
    (alpa.ShardParallel(), "dp=2", {("backward", "all_reduce")}),
    (alpa.DataParallel(num_micro_batches=3), "dp=2", {("backward", "all_reduce")}),
    (alpa.Zero2Parallel(), "dp=2", {("backward", "reduce_scatter"), ("update", "all_gather")}),
    (
        alpa.ShardParallel(mesh="tp=2", plan={"Network.Dense_0": "colwise", "Network.Dense_1": "rowwise"}),
        "tp=2",
        {("forward", "all_reduce")},
    ),
    (
        alpa.PipeshardParallel(devices=4, num_micro_batches=2, layer_option=alpa.AutoLayerOption(layer_num=2)),
        "pp=2,dp=2",
        {("forward", "send"), ("backward", "send"), ("backward", "all_reduce"), ("update", "send")},
    ),
]


@pytest.mark.parametrize("method, mesh, meetings", METHODS, ids=lambda value: value if isinstance(value, str) else None)
def test_a_step_trains_as_plain_jax_under_each_method(batch, method, mesh, meetings):
    state = expected = state_of(Network(), batch)
    step, plain = alpa.parallelize(step_of(alpa.grad), method=method), step_of(jax.grad)
    for _ in range(3):
        state, expected = step(state, batch), plain(expected, batch)
        # Adam's first steps turn rounding of small gradients into parts of the learning rate.
        alpa.testing.assert_allclose(state.params, expected.params, rtol=0, atol=1e-4)
    planned = step.get_last_executable()
    assert str(planned.mesh) == mesh
    met = [row for rank in range(planned.mesh.size) for row in planned.collectives(rank)]
    assert {(phase, kind) for phase, kind, _, _ in met} == meetings
    report = planned.verify(state, batch)
    assert report.ok and len(report.tensors) == 5
    assert int(state.step) == 3 and state.step.dtype == jnp.int32


@pytest.mark.parametrize("microbatches", [1, 4, 5])
@pytest.mark.parametrize("reduce", [jnp.mean, jnp.sum])
def test_gradients_are_those_of_the_batch(batch, reduce, microbatches):
    # A batch of 12 in 5 microbatches, and a sum in place of a mean: nothing is divided by the number of microbatches.
    state = state_of(Network(mark=True), batch)

    @alpa.parallelize(method=alpa.PipeshardParallel(num_micro_batches=microbatches))
    def gradients(params, batch):
        loss = alpa.manual_layer_construction(mean_square(state, batch, reduce))
        return alpa.value_and_grad(loss)(params)

    found = gradients(state.params, batch)
    assert_agree(found, jax.value_and_grad(mean_square(state, batch, reduce))(state.params))
    stages = gradients.get_last_executable().stages()
    assert sorted(stages) == [0, 1] and all(stages[stage]["weight_grad"] > 0 for stage in stages)


def test_marks_make_the_stages_and_the_state_stays_on_the_ranks(batch):
    state = state_of(Network(mark=True), batch)
    method = alpa.PipeshardParallel(num_micro_batches=4)
    step = alpa.parallelize(step_of(alpa.grad, alpa.manual_layer_construction), method=method)
    first = step(state, batch)
    planned = step.get_last_executable()
    assert str(planned.mesh) == "pp=2,dp=1"
    # One row block of the hidden layer crosses for each microbatch: 3 rows of 32 numbers.
    assert ("forward", "send", 4, ROWS * 32 * 4) in planned.collectives()
    kernel = first.params["params"]["Dense_1"]["kernel"]
    assert isinstance(kernel, alpa.DistributedArray) and kernel.shape == (32, 8)
    second = step(first, batch)
    assert step.get_last_executable() is planned
    with pytest.raises(PartitaError) as refused:
        np.asarray(kernel)
    assert refused.value.code == "E387" and "Dense_1.kernel" in refused.value.message
    expected = step_of(jax.grad)(step_of(jax.grad)(state, batch), batch)
    alpa.testing.assert_allclose(second.params, expected.params, rtol=0, atol=1e-4)
    # JAX takes the arrays, and a state of other origin is copied to the ranks.
    assert jax.jit(jnp.sum)(second.params["params"]["Dense_0"]["bias"]).shape == ()
    again = step(state, batch)
    alpa.testing.assert_allclose(again.params, step_of(jax.grad)(state, batch).params, rtol=0, atol=1e-4)


def test_without_donation_an_earlier_state_can_be_read(batch):
    state = state_of(Network(), batch)
    step = alpa.parallelize(step_of(alpa.grad), donate_argnums=())
    first = step(state, batch)
    step(first, batch)
    alpa.testing.assert_allclose(first.params, step_of(jax.grad)(state, batch).params, rtol=0, atol=1e-4)


def test_metrics_and_auxiliary_results_are_those_of_the_batch(batch):
    state = state_of(Network(), batch, optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9)))

    def step_with(value_and_grad):
        def step(state, batch):
            def loss(params):
                out = state.apply_fn(params, batch["x"])
                return jnp.mean((out - batch["y"]) ** 2), {"largest": out.max(), "rows": out}

            (value, aux), gradients = value_and_grad(loss, has_aux=True)(state.params)
            return state.apply_gradients(grads=gradients), {"loss": value, **aux}

        return step

    step = alpa.parallelize(step_with(alpa.value_and_grad), method=alpa.DataParallel(num_micro_batches=3))
    found, metrics = step(state, batch)
    expected, plain = step_with(jax.value_and_grad)(state, batch)
    assert_agree(metrics, plain)
    assert_agree(found.params, expected.params)


def test_trees_without_flax_and_constants_that_a_function_refers_to(batch):
    optimizer, offset = optax.adamw(1e-2), jnp.linspace(0.0, 1.0, 16 * 8).reshape(16, 8)

    def step_with(grad):
        def step(params, moments, batch):
            def loss(params):
                return jnp.mean((jnp.tanh(batch["x"] @ (params["w"] + offset)) - batch["y"]) ** 2)

            updates, moments = optimizer.update(grad(loss)(params), moments, params)
            return optax.apply_updates(params, updates), moments

        return step

    params = {"w": jnp.zeros((16, 8))}
    step = alpa.parallelize(step_with(alpa.grad), batch_argnums=(2,), method=alpa.DataParallel(num_micro_batches=2))
    found = expected = (params, optimizer.init(params))
    for _ in range(2):
        found, expected = step(*found, batch), step_with(jax.grad)(*expected, batch)
    assert_agree(found[0], expected[0], 1e-4)


def code_of(function, *arguments):
    with pytest.raises(PartitaError) as refused:
        function(*arguments)
    return refused.value.code, str(refused.value)


def test_a_gradient_of_jax_is_refused_where_it_must_be_split(batch):
    state = state_of(Network(), batch)
    step = alpa.parallelize(step_of(jax.grad), method=alpa.DataParallel(num_micro_batches=2))
    code, text = code_of(step, state, batch)
    assert code == "E386" and "write `alpa.grad` in place of `jax.grad`" in text
    # Without microbatches there is nothing to split.
    plain = alpa.parallelize(step_of(jax.grad), method=alpa.DataParallel())
    assert_agree(plain(state, batch).params, step_of(jax.grad)(state, batch).params, 1e-4)


def test_marks_that_cannot_be_honoured_are_refused_with_their_line(batch):
    state = state_of(Network(mark=True), batch)
    code, text = code_of(alpa.parallelize(step_of(alpa.grad)), state, batch)
    assert code == "E386" and "manual_layer_construction" in text and "test_alpa.py:" in text

    def rematerialised(params, x):
        def block(x):
            alpa.mark_pipeline_boundary()
            return jnp.tanh(x @ params["w"])

        return jax.checkpoint(block)(x)

    def scanned(params, x):
        def body(x, _):
            alpa.mark_pipeline_boundary()
            return jnp.tanh(x @ params["w"]), None

        return lax.scan(body, x, length=2)[0]

    def jitted(params, x):
        @jax.jit
        def block(x):
            x = jnp.tanh(x @ params["w"])
            alpa.mark_pipeline_boundary()
            return jnp.tanh(x @ params["w"])

        return block(x)

    def gradients(forward):
        @alpa.parallelize(method=alpa.PipeshardParallel(num_micro_batches=2))
        def step(params, x):
            return alpa.grad(alpa.manual_layer_construction(lambda params: jnp.sum(forward(params, x) ** 2)))(params)

        return step

    params, x = {"w": jnp.eye(16) / 2}, batch["x"]
    for forward, name in [(rematerialised, "remat"), (scanned, "scan")]:
        code, text = code_of(gradients(forward), params, x)
        assert code == "E386" and "test_alpa.py:" in text and name in text
    # A function that is only jitted is opened.
    found = gradients(jitted)
    assert_agree(found(params, x), jax.grad(lambda params: jnp.sum(jitted(params, x) ** 2))(params))
    assert str(found.get_last_executable().mesh) == "pp=2,dp=1"


def test_an_update_that_reads_samples_past_the_gradients_is_refused(batch):
    state = state_of(Network(), batch)

    def step(state, mean, batch):
        grads = alpa.grad(mean_square(state, batch))(state.params)
        return state.apply_gradients(grads=grads), 0.9 * mean + 0.1 * batch["x"].mean(0)

    method = alpa.DataParallel(num_micro_batches=2)
    refused = code_of(alpa.parallelize(step, method=method, batch_argnums=(2,)), state, jnp.zeros(16), batch)
    assert refused[0] == "E266" and "mean" in refused[1]


def test_several_gradients_in_one_step_are_refused_with_their_lines(batch):
    state = state_of(Network(), batch)

    def step(state, batch):
        one, two = (alpa.grad(mean_square(state, batch, reduce))(state.params) for reduce in (jnp.mean, jnp.max))
        return state.apply_gradients(grads=jax.tree.map(jnp.add, one, two))

    code, text = code_of(alpa.parallelize(step), state, batch)
    assert code == "E386" and "2 times" in text


def test_flags_are_static_and_arguments_may_be_named(batch):
    state, traced = state_of(Network(), batch), []

    @alpa.parallelize
    def step(state, batch, training, scale=1.0):
        traced.append(training)
        loss = mean_square(state, batch)
        grads = alpa.grad(lambda params: loss(params) * (scale if training else 0.0))(state.params)
        return state.apply_gradients(grads=grads)

    def plain(scale):
        grads = jax.grad(lambda params: mean_square(state, batch)(params) * scale)(state.params)
        return state.apply_gradients(grads=grads)

    alpa.testing.assert_allclose(step(state, batch, training=True).params, plain(1.0).params)
    alpa.testing.assert_allclose(step(state, batch, True, 3.0).params, plain(3.0).params)
    alpa.testing.assert_allclose(step(state, batch, True, 2.0).params, plain(2.0).params)
    alpa.testing.assert_allclose(step(state, batch, False).params, plain(0.0).params)
    # Traced without a scale, with one, and for the other flag; another number is no reason to trace again.
    assert traced == [True, True, False]


def test_modules_of_haiku_are_marked_alike(batch):
    hk = pytest.importorskip("haiku", reason="dm-haiku is not installed")

    def forward(x):
        x = jax.nn.gelu(hk.Linear(32)(x))
        alpa.mark_pipeline_boundary()
        return hk.Linear(8)(hk.LayerNorm(-1, True, True)(x))

    network = hk.without_apply_rng(hk.transform(forward))

    def gradients_by(grad, construct):
        def step(params, batch):
            return grad(construct(lambda params: jnp.mean((network.apply(params, batch["x"]) - batch["y"]) ** 2)))(params)

        return step

    params = network.init(jax.random.PRNGKey(5), batch["x"])
    method = alpa.PipeshardParallel(num_micro_batches=3)
    planned = alpa.parallelize(gradients_by(alpa.grad, alpa.manual_layer_construction), method=method)
    assert_agree(planned(params, batch), gradients_by(jax.grad, lambda loss: loss)(params, batch))
    assert str(planned.get_last_executable().mesh) == "pp=2,dp=1"


def test_devices_that_do_not_exist_are_refused():
    code, text = code_of(lambda: alpa.init(cluster="slurm"))
    assert code == "E385" and "slurm" in text
    assert code_of(lambda: alpa.init(engine="xla"))[0] == "E385"
    assert code_of(lambda: alpa.init(cluster="ray", engine="mpi"))[0] == "E385"
    assert code_of(lambda: alpa.init(num_nodes=2))[0] == "E385"
    assert code_of(lambda: alpa.init(num_devices_per_node=0))[0] == "E385"
    assert code_of(lambda: alpa.AutoLayerOption(0))[0] == "E386"


RAY = """
import os, signal, sys
import jax, jax.numpy as jnp, numpy as np, ray
from partita import PartitaError, alpa

STEPS = 20
if __name__ == "__main__":
    engine, count = sys.argv[1], int(sys.argv[2])

    def step_of(value_and_grad, construct=lambda loss: loss):
        def step(params, batch):
            @construct
            def loss(params):
                x = jnp.tanh(batch["x"] @ params["a"])
                alpa.mark_pipeline_boundary()
                return jnp.mean((x @ params["b"] - batch["y"]) ** 2)

            value, gradients = value_and_grad(loss)(params)
            return {name: params[name] - 0.1 * gradients[name] for name in params}, value

        return step

    draws = np.random.default_rng(0)
    draw = lambda *shape: draws.standard_normal(shape, np.float32)
    params = {"a": draw(8, 16), "b": draw(16, 4)}
    batches = [{"x": draw(12, 8), "y": draw(12, 4)} for _ in range(STEPS)]
    marked = step_of(alpa.value_and_grad, alpa.manual_layer_construction)
    methods = [alpa.ShardParallel(), alpa.PipeshardParallel(num_micro_batches=3)]

    def train(step):
        state, losses = params, []
        for batch in batches:
            state, loss = step(state, batch)
            losses.append(float(loss))
        return state, losses

    expected, plain = train(jax.jit(step_of(jax.value_and_grad)))
    alpa.init(num_devices_per_node=count)
    native = [train(alpa.parallelize(marked, method=method))[1] for method in methods]
    alpa.shutdown()
    ray.init(num_cpus=count, include_dashboard=False)
    alpa.init(cluster="ray", engine=engine)
    for method, beside in zip(methods, native):
        step = alpa.parallelize(marked, method=method)
        state, losses = train(step)
        alpa.testing.assert_allclose(state, expected, rtol=1e-4, atol=1e-5)
        for other in (beside, plain):
            assert len(losses) == len(other) == STEPS and losses[-1] != losses[0]
            np.testing.assert_allclose(losses, other, rtol=1e-4)
        executable = step.get_last_executable()
        print(executable.mesh, bool(executable.verify(state, batches[0])), len(executable.bytes_on_ranks))
        print("largest difference", np.abs(np.subtract(losses, beside) / beside).max(), file=sys.stderr)
    try:
        alpa.parallelize(marked, method=alpa.PipeshardParallel(mesh="pp=3"))(params, batches[0])
    except PartitaError as error:
        print(error.code)
    from partita.alpa._cluster import _devices
    os.kill(ray.get(_devices.ray.devices[1].__ray_call__.remote(lambda device: os.getpid())), signal.SIGKILL)
    try:
        step(state, batches[0])
    except PartitaError as error:
        print(error.code, error.message)
    alpa.shutdown()
"""


@pytest.mark.parametrize(("engine", "count"), [("native", 2), ("xla", 4)])
def test_a_device_of_a_ray_cluster_is_an_actor(tmp_path, engine, count):
    """The losses of 20 steps are those of the ranks of one process and of plain JAX."""
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "script.py").write_text(RAY)
    package = str(Path(partita.__file__).resolve().parents[1])
    environment = os.environ | {"PYTHONPATH": package, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, tmp_path / "script.py", engine, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    promised = [f"dp={count} True {count}", f"pp=2,dp={count // 2} True {count}", "E460"]
    promised += ["E385 a device of the Ray cluster has ended"]
    assert [line for line in done.stdout.splitlines() if line in promised] == promised


def test_devices_are_forgotten_with_shutdown(batch):
    state = state_of(Network(), batch)
    alpa.init(num_devices_per_node=3)
    assert alpa.parallelize(step_of(alpa.grad)).get_executable(state, batch).mesh == partita.Mesh("dp=3")
    alpa.shutdown()
    alpa.init()
    assert alpa.parallelize(step_of(alpa.grad)).get_executable(state, batch).mesh == partita.Mesh(f"dp={os.cpu_count()}")


def test_gradients_meet_once_in_a_step(batch):
    """However many microbatches there are; the layers of JAX give the gradients of their kernels transposed."""
    state, met = state_of(Network(), batch), []
    for microbatches in (1, 2, 4):
        step = alpa.parallelize(step_of(alpa.grad), method=alpa.DataParallel(num_micro_batches=microbatches))
        met.append(step.get_executable(state, batch).collectives())
    # Two kernels and two biases of f32, in one exchange.
    size = 4 * (16 * 32 + 32 + 32 * 8 + 8)
    assert met == [[("backward", "all_reduce", 1, size)]] * 3


def test_an_automatic_stage_mode_takes_the_fastest_mesh(batch, capsys):
    state = state_of(Network(mark=True), batch)
    method = alpa.PipeshardParallel(devices=4, num_micro_batches=2, stage_mode="auto")
    step = alpa.parallelize(step_of(alpa.grad, alpa.manual_layer_construction), method=method)
    found = step(state, batch)
    alpa.testing.assert_allclose(found.params, step_of(jax.grad)(state, batch).params, rtol=0, atol=1e-4)
    planned = step.get_last_executable()
    result = planned.result
    assert {str(tried.mesh) for tried in result.tried} == {
        "pp=1,dp=4", "pp=1,dp=2,tp=2", "pp=1,dp=1,tp=4", "pp=2,dp=2", "pp=2,dp=1,tp=2"
    }  # fmt: skip
    costs = [tried.seconds for tried in result.tried]
    assert costs == sorted(costs) and costs[0] > 0 and result.tried[0].mesh == planned.mesh == result.mesh
    assert {tried.source for tried in result.tried} == {"given", "planner"}
    assert sorted(sum(result.forward_stage_layer_ids, [])) == [0, 1]
    assert planned.verify(found, batch).ok
    printed = capsys.readouterr().out
    stages = len(result.forward_stage_layer_ids)
    assert f"Result forward_stage_layer_ids: {result.forward_stage_layer_ids}\n" in printed
    assert f"Result meshes: {[(1, 4 // stages)] * stages}\n" in printed
    assert printed.endswith(f"Result autosharding_option_dicts: {[{}] * stages}\n")


def test_layers_of_stages_are_told():
    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    params, x = [jnp.eye(16)] * 6, jnp.ones((12, 16))
    for layers, mesh, expected in [(3, "pp=3,dp=1", [[0], [1], [2]]), (6, "pp=2,dp=1", [[0, 1, 2], [3, 4, 5]])]:
        method = alpa.PipeshardParallel(
            num_micro_batches=2, layer_option=alpa.AutoLayerOption(layers), stage_option=alpa.AutoStageOption(), mesh=mesh
        )
        step = alpa.parallelize(lambda params, x: alpa.grad(loss)(params, x), method=method)
        assert step.get_executable(params, x).result.forward_stage_layer_ids == expected


def of_three_layers(grad, construct=lambda loss: loss):
    """A step over two marks: three matrices, so three layers."""

    def loss(params, x):
        for number, w in enumerate(params):
            x = jnp.tanh(x @ w)
            if number < 2:
                alpa.mark_pipeline_boundary()
        return jnp.mean(x**2)

    return lambda params, x: grad(construct(loss))(params, x)


@pytest.mark.parametrize("layers, ops", [([[0], [1, 2]], (1, 2)), ([[0, 1], [2]], (2, 1))])
def test_stages_are_those_that_a_person_writes(layers, ops):
    params = [jax.random.normal(jax.random.PRNGKey(seed), (16, 16)) / 4 for seed in range(3)]
    x = jax.random.normal(jax.random.PRNGKey(3), (12, 16))
    option = alpa.ManualStageOption(layers, [(1, 1)] * 2, [(1, 1)] * 2, [{}] * 2)
    method = alpa.PipeshardParallel(num_micro_batches=2, stage_option=option)
    step = alpa.parallelize(of_three_layers(alpa.grad, alpa.manual_layer_construction), method=method)
    assert_agree(step(params, x), of_three_layers(jax.grad)(params, x), 1e-5)
    executable = step.get_last_executable()
    assert str(executable.mesh) == "pp=2,dp=1" and executable.verify(params, x)
    # Each matrix is multiplied once in a forward pass of a microbatch, in the stage that has it.
    programs = [executable.program(rank) for rank in range(2)]
    products = [sum("dot_general" in line and "forward" in line for line in text.splitlines()) for text in programs]
    assert products[0] * ops[1] == products[1] * ops[0] > 0


def test_stages_that_a_person_writes_may_share_layers():
    alpa.init(cluster="local", num_devices_per_node=4)
    params = [jax.random.normal(jax.random.PRNGKey(seed), (16, 16)) / 4 for seed in range(3)]
    option = alpa.ManualStageOption([[0], [1, 2]], [(1, 2)] * 2, [(1, 2)] * 2, [{}] * 2)
    method = alpa.PipeshardParallel(num_micro_batches=2, stage_option=option)
    step = alpa.parallelize(of_three_layers(alpa.grad, alpa.manual_layer_construction), method=method)
    x = jnp.ones((12, 16))
    assert_agree(step(params, x), of_three_layers(jax.grad)(params, x), 1e-5)
    executable = step.get_last_executable()
    assert str(executable.mesh) == "pp=2,dp=1,tp=2"
    assert executable.result.forward_stage_layer_ids == [[0], [1, 2]]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (([[1], [0]], [(1, 1)] * 2, [(1, 1)] * 2, [{}] * 2), "0, 1, .. in order"),
        (([[0], []], [(1, 1)] * 2, [(1, 1)] * 2, [{}] * 2), "at least one in each stage"),
        (([[0], [1]], [(1, 1)], [(1, 1)] * 2, [{}] * 2), "there are 2 stages"),
        (([[0], [1]], [(1, 1), (1, 2)], [(1, 1), (1, 2)], [{}] * 2), "the same mesh"),
        (([[0], [1]], [(1, 0)] * 2, [(1, 1)] * 2, [{}] * 2), "two positive numbers"),
        (([[0], [1]], [(1, 2)] * 2, [(1, 1)] * 2, [{}] * 2), "no logical mesh"),
        (([[0], [1]], [(1, 1)] * 2, [(1, 1)] * 2, [{"a": 1}, {}]), "options of one stage"),
        (([[0], [1]], [(2, 1)] * 2, [(1, 2)] * 2, [{}] * 2), "one node"),
    ],
)
def test_stages_that_cannot_be_are_refused(arguments, text):
    with pytest.raises((ValueError, PartitaError), match=text):
        alpa.ManualStageOption(*arguments)


def test_stages_of_other_layers_or_devices_are_refused():
    params, x = [jnp.eye(16)] * 3, jnp.ones((12, 16))
    option = alpa.ManualStageOption([[0], [1]], [(1, 1)] * 2, [(1, 1)] * 2, [{}] * 2)
    for construct in (alpa.manual_layer_construction, alpa.automatic_layer_construction(layer_num=3)):
        method = alpa.PipeshardParallel(num_micro_batches=2, stage_option=option)
        step = alpa.parallelize(of_three_layers(alpa.grad, construct), method=method)
        assert code_of(step, params, x)[0] == "E386"
    with pytest.raises(PartitaError, match="more devices than there are"):
        alpa.PipeshardParallel(stage_option=alpa.ManualStageOption([[0], [1]], [(1, 2)] * 2, [(2, 1)] * 2, [{}] * 2))
    with pytest.raises(ValueError, match="says the mesh"):
        alpa.PipeshardParallel(stage_option=option, mesh="pp=2")


def test_the_planner_shards_layers_by_cost():
    # Large enough that sharing the work is faster than doing it on each rank.
    a, b, x = (jax.random.normal(jax.random.PRNGKey(seed), (256, 256)) / 16 for seed in range(3))

    def step_with(grad):
        return lambda params, x: grad(lambda params: jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"]) ** 2))(params)

    params, option = {"a": a, "b": b}, alpa.AutoShardingOption()
    step = alpa.parallelize(step_with(alpa.grad), method=alpa.ShardParallel(mesh="tp=2", auto_sharding_option=option))
    assert_agree(step(params, x), step_with(jax.grad)(params, x), 1e-5)
    planned = step.get_last_executable()
    assert planned.result.tried[0].source == "planner" and len(planned.plan) > 0
    data = alpa.AutoShardingOption(force_data_parallel=True, prefer_reduce_scatter=True)
    step = alpa.parallelize(step_with(alpa.grad), method=alpa.ShardParallel(auto_sharding_option=data))
    planned = step.get_executable(params, x)
    assert str(planned.mesh) == "dp=2" and [str(tried.mesh) for tried in planned.result.tried] == ["dp=2"]
    assert "zero2" in planned.plan.to_toml()


def test_modes_of_stages_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="found 'fastest'"):
        alpa.PipeshardParallel(stage_mode="fastest")
    with pytest.raises(ValueError, match="give one of them"):
        alpa.PipeshardParallel(stage_mode="auto", stage_option="auto")


def test_more_microbatches_than_rows_and_more_stages_than_layers_are_refused(batch):
    state = state_of(Network(), batch)
    step = alpa.parallelize(step_of(alpa.grad), method=alpa.DataParallel(num_micro_batches=ROWS + 1))
    assert code_of(step, state, batch)[0] == "E225"
    method = alpa.PipeshardParallel(layer_option=alpa.AutoLayerOption(2), mesh="pp=3")
    assert code_of(alpa.parallelize(step_of(alpa.grad), method=method), state, batch)[0] == "E460"


@pytest.mark.parametrize("microbatches", [1, 3, 4])
@pytest.mark.parametrize("devices", [2, 4])
def test_a_mean_over_the_rows_of_a_mask_waits_for_nobody(batch, devices, microbatches):
    alpa.shutdown()
    alpa.init(cluster="local", num_devices_per_node=devices)
    params = {"a": jnp.ones((16, 32)) / 16, "b": jnp.ones((32, 8)) / 32}
    given = batch | {"mask": (jnp.arange(ROWS) % 3 > 0).astype(jnp.float32)}

    def step_of_mask(grad, construct=lambda loss: loss):
        def step(params, batch):
            def loss(params):
                hidden = jnp.tanh(batch["x"] @ params["a"])
                alpa.mark_pipeline_boundary()
                rows = ((hidden @ params["b"] - batch["y"]) ** 2).mean(-1)
                return (rows * batch["mask"]).sum() / batch["mask"].sum()

            value, grads = grad(construct(loss))(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        return step

    method = alpa.PipeshardParallel(devices=devices, num_micro_batches=microbatches)
    step = alpa.parallelize(step_of_mask(alpa.value_and_grad, alpa.manual_layer_construction), method=method)
    assert_agree(step(params, given), step_of_mask(jax.value_and_grad)(params, given), 1e-5)
    assert step.get_last_executable().verify(params, given)


def test_verify_allows_a_gradient_that_is_rounding_alone(batch):
    """A mean over the rows is taken away again, so that the bias has no influence."""
    params = {"a": jnp.ones((16, 32)) / 16, "w": jnp.linspace(-1, 1, 256).reshape(32, 8), "b": jnp.full(8, 0.3)}

    def step(params, batch):
        def loss(params):
            found = jnp.tanh(batch["x"] @ params["a"]) @ params["w"] + params["b"]
            return ((found - found.mean(0)) ** 2 / (found.var(0) + 1.0)).mean()

        value, grads = alpa.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    planned = alpa.parallelize(step, method=alpa.DataParallel())
    planned(params, batch)
    report = planned.get_last_executable().verify(params, batch)
    assert report, report
    assert any(name == "grad.b" for name, _, _ in report.tensors)


def test_assert_allclose_names_the_leaf():
    with pytest.raises(AssertionError, match=r"\['a'\]\[1\]"):
        alpa.testing.assert_allclose({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]})
    with pytest.raises(AssertionError, match="other leaves: .'b'."):
        alpa.testing.assert_allclose({"a": 1.0}, {"a": 1.0, "b": 2.0})
    alpa.testing.assert_allclose({"a": np.ones(3)}, {"a": jnp.ones(3) + 1e-5})


def test_the_example_trains_as_jax():
    package, folder = Path(partita.__file__).resolve().parents[1], Path(__file__).resolve().parents[1] / "examples"
    environment = os.environ | {"PYTHONPATH": str(package), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, folder / "alpa.py", "64"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    promised = ["marked: pp=2,dp=1, verified: 9", "Result forward_stage_layer_ids: [[0", "automatic: pp=", "loss 68.069; after"]
    for text in promised:
        assert text in done.stdout


@pytest.mark.parametrize("count", [0, -1, 2.5])
def test_microbatches_are_a_positive_whole_number(count):
    with pytest.raises(ValueError, match="positive whole number"):
        alpa.PipeshardParallel(num_micro_batches=count)
    with pytest.raises(TypeError, match="method"):
        alpa.parallelize(method="dp")
