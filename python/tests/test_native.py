"""The surface without PyTorch: meshes, plans, recorded models, schedules, training, diagnostics."""

import copy
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import partita

PLAN = {"model.0": "colwise", "model.2": "rowwise"}


def batch(seed=0):
    draws = np.random.default_rng(seed)
    return draws.standard_normal((6, 4), np.float32), draws.standard_normal((6, 4), np.float32)


def mlp_loss(state, x, y):
    """The loss of the recorded MLP in numpy: linear, GELU, linear, mean square."""
    from math import erf

    hidden = x @ state["model.0.weight"].T + state["model.0.bias"]
    hidden = hidden * 0.5 * (1 + np.vectorize(erf)(hidden / np.sqrt(2)))
    out = hidden @ state["model.2.weight"].T + state["model.2.bias"]
    return float(np.mean((out - y) ** 2))


def test_a_mesh_has_axes_and_ranks():
    mesh = partita.Mesh("dp=2,tp=3")
    assert (mesh.axis_names, mesh.shape, mesh.size, len(mesh)) == (["dp", "tp"], [2, 3], 6, 6)
    assert repr(mesh) == 'Mesh("dp=2,tp=3")'
    assert pickle.loads(pickle.dumps(mesh)) == mesh == partita.Mesh("dp=2, tp=3")
    assert len({mesh, partita.Mesh("dp=2,tp=3")}) == 1


def test_a_refusal_has_its_parts():
    with pytest.raises(partita.PartitaError) as refused:
        partita.Mesh("dp=0")
    assert refused.value.code == "E204"
    assert str(refused.value).startswith("error[E204]: ")
    with pytest.raises(partita.PartitaError) as refused:
        partita.Plan({"a": "colwis"})
    assert refused.value.code == "E222"
    assert "colwise" in refused.value.help


def test_all_spellings_of_a_plan_are_equal():
    plan = partita.Plan({"up": "colwise", "norm": ["sequence", "checkpoint"]})
    assert plan.lines() == [("up", "colwise"), ("norm", "sequence"), ("norm", "checkpoint")]
    for text in (plan.to_calls(), plan.to_toml(), plan.to_tables()):
        assert partita.Plan(text) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan == copy.deepcopy(plan)
    assert plan != partita.Plan() and len(partita.Plan()) == 0


def test_a_recorded_model_says_what_it_takes_and_has(recorded):
    model = partita.load(recorded("mlp"))
    assert model.inputs == {"x": ("f32", (6, 4)), "y": ("f32", (6, 4))}
    assert model.has_loss and model.outputs["loss"] == ("f32", ())
    assert model.parameters["model.0.weight"] == ("f32", (8, 4))
    assert model.modules["model.0"] == "Linear"
    assert "dot_general" in model.text()
    with pytest.raises(partita.PartitaError) as refused:
        partita.load("no-such-file.pt2")
    assert refused.value.code == "E350"


def test_a_file_that_changes_after_it_was_opened_is_refused_and_a_replaced_one_is_read(recorded, tmp_path):
    path, new = tmp_path / "mlp.pt2", tmp_path / "new"
    for target in (path, new):
        target.write_bytes(recorded("mlp").read_bytes())
    model = partita.load(path)
    state = model.state_dict()
    new.write_bytes(bytes(path.stat().st_size))
    new.rename(path)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, state[name])
    path.write_bytes(recorded("mlp").read_bytes())
    model = partita.load(path)
    with path.open("r+b") as file:
        file.truncate(1000)
    for use in (model.state_dict, lambda: partita.Trainer(model, PLAN, "tp=2", "sgd")):
        with pytest.raises(partita.PartitaError) as refused:
            use()
        assert refused.value.code == "E350"
        assert "mlp.pt2" in str(refused.value) and "1000 bytes: it was truncated" in str(refused.value)


def test_a_schedule_checks_each_line_and_explains(recorded):
    sch = partita.Schedule(partita.load(recorded("mlp")), "tp=2")
    sch["model.0"].shard("weight", axis=0).shard("bias", 0)
    sch["model.2"].shard("weight", 1).sync("fwd_post", "all_reduce")
    assert len(sch.plan) == 4
    assert all("test_native.py" in origin for origin in sch.plan.origins())
    for code, wrong in [
        ("E221", lambda: sch["model.9"]),
        ("E231", lambda: sch["model.0"].shard("weight", 0)),
        ("E232", lambda: sch["model.0"].shard("wieght", 0)),
        ("E222", lambda: sch["model.0"].apply("shrad", "weight", 0)),
        ("E222", lambda: sch["model.0"].apply("shard", "weight", object())),
    ]:
        with pytest.raises(partita.PartitaError) as refused:
            wrong()
        assert refused.value.code == code
    assert len(sch.plan) == 4
    assert "all_reduce" in sch.explain()
    assert "[{tp}, {}]" in sch.explain("model.0.weight")
    forward = [row for row in sch.collectives() if row[0] == "forward"]
    assert [(kind, count) for _, kind, count, _ in forward] == [("all_reduce", 1)]
    assert "all_reduce" in sch.program(1)
    assert sch.undo() is not None and len(sch.plan) == 3


def test_verification_compares_everything_with_one_device(recorded):
    sch = partita.Schedule(partita.load(recorded("mlp")), "dp=2,tp=2", PLAN)
    report = sch.verify()
    assert report and report.ok and report.first_diverging is None
    names = [name for name, _, _ in report.tensors]
    assert "loss" in names and "grad.model.0.weight" in names
    assert 0 <= report.largest_difference < 1e-4
    assert repr(report).startswith("verified: ")


def test_patterns_are_found_and_fused(recorded):
    sch = partita.Schedule(partita.load(recorded("mlp")), "tp=2")
    with pytest.raises(partita.PartitaError) as refused:
        sch.find("gelu(x + b)")
    assert refused.value.code in ("E242", "E248")
    sch["model.0"].decompose()
    sch.trace(flatten=True)
    found = sch.find("gelu(x + b)")
    assert len(found) == 1
    sch.fuse(found, name="bias_gelu", compiler="cpu")
    assert sch.verify()


@pytest.mark.parametrize("mesh", ["tp=1", "dp=2", "tp=2", "dp=2,tp=2"])
def test_training_is_the_same_on_every_mesh(recorded, mesh):
    model = partita.load(recorded("mlp"))
    plan = PLAN if "tp" in mesh else None
    trainer = partita.Trainer(model, plan, mesh, optimizer=partita.optim.SGD(lr=0.1))
    x, y = batch()
    for _ in range(3):
        expected = mlp_loss(trainer.state_dict(), x, y)
        assert trainer.step((x, y)) == pytest.approx(expected, rel=1e-5)
    assert trainer.steps == 3
    assert trainer.step({"y": y, "x": x}) < mlp_loss(model.state_dict(), x, y)


def test_the_state_is_global_and_moves_between_meshes(recorded):
    model = partita.load(recorded("mlp"))
    x, y = batch()
    first = partita.Trainer(model, PLAN, "tp=2", "sgd")
    first.step((x, y), lr=0.5)
    state = first.state_dict()
    assert not np.array_equal(state["model.0.weight"], model.state_dict()["model.0.weight"])
    second = partita.Trainer(model, None, "dp=3", "sgd")
    second.load_state_dict(state)
    for name, value in second.state_dict().items():
        np.testing.assert_array_equal(value, state[name])
    with pytest.raises(KeyError, match="model.0.bias"):
        second.load_state_dict({name: value for name, value in state.items() if name != "model.0.bias"})
    with pytest.raises(partita.PartitaError) as refused:
        second.load_state_dict(state | {"model.0.bias": np.zeros(3, np.float32)})
    assert refused.value.code == "E415"


def test_a_run_continues_from_its_checkpoint_on_another_mesh(recorded, tmp_path):
    model = partita.load(recorded("mlp"))
    x, y = batch()
    whole = partita.Trainer(model, None, "tp=1")
    expected = [whole.step((x, y), lr=0.01) for _ in range(4)]
    first = partita.Trainer(model, PLAN, "tp=2")
    assert [first.step((x, y), lr=0.01) for _ in range(2)] == pytest.approx(expected[:2], rel=1e-5)
    path = first.save(tmp_path / "run")
    assert path.parent == tmp_path / "run" and (path / "model.safetensors").exists()
    second = partita.Trainer(model, None, "dp=3")
    with pytest.raises(partita.PartitaError) as refused:
        second.save(tmp_path / "run")
    assert refused.value.code in ("E330", "E331")
    del first
    second.load(tmp_path / "run")
    assert second.steps == 2
    assert [second.step((x, y), lr=0.01) for _ in range(2)] == pytest.approx(expected[2:], rel=1e-5)
    second.save(tmp_path / "run")
    assert len([folder for folder in (tmp_path / "run").iterdir() if folder.name.startswith("step")]) == 2
    with pytest.raises(partita.PartitaError) as refused:
        partita.Trainer(partita.load(recorded("gpt")), None, "dp=2").load(tmp_path / "run")
    assert refused.value.code == "E314"


def test_another_rule_of_equal_states_is_refused_unless_it_may_change(recorded, tmp_path):
    model = partita.load(recorded("mlp"))
    first = partita.Trainer(model, None, "dp=2", "adamw")
    first.step(batch(), lr=0.01)
    first.save(tmp_path / "run")
    del first
    same = partita.Trainer(model, None, "tp=1", "adamw")
    assert same.load(tmp_path / "run") == []
    del same
    other = partita.Trainer(model, None, "dp=2", "adam")
    with pytest.raises(partita.PartitaError) as refused:
        other.load(tmp_path / "run")
    assert refused.value.code == "E317" and "AdamW" in refused.value.expected
    assert other.steps == 0
    (line,) = other.load(tmp_path / "run", changed=True)
    assert "AdamW" in line and other.steps == 1


def test_batches_that_do_not_fit_are_refused_and_change_nothing(recorded):
    trainer = partita.Trainer(partita.load(recorded("mlp")), PLAN, "tp=2")
    x, y = batch()
    with pytest.raises(partita.PartitaError, match="E430.*too few tensors"):
        trainer.step(x)
    for code, wrong in [
        ("E415", (x[:3], y)),
        ("E415", (x.astype(np.float64), y)),
        ("E430", {"x": x}),
        ("E414", {"x": x, "y": y, "z": y}),
    ]:
        with pytest.raises(partita.PartitaError) as refused:
            trainer.step(wrong)
        assert refused.value.code == code
    assert trainer.steps == 0
    assert trainer.step((x.tolist(), y.tolist())) > 0


def test_a_loss_that_is_not_finite_is_an_error(recorded):
    trainer = partita.Trainer(partita.load(recorded("mlp")), PLAN, "tp=2")
    x, y = batch()
    before = trainer.state_dict()
    with pytest.raises(partita.PartitaError) as refused:
        trainer.step((np.full_like(x, np.nan), y))
    assert refused.value.code == "E412"
    for name, value in trainer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_planned_model_is_a_function(recorded):
    model = partita.load(recorded("mlp"))
    x, y = batch()
    planned = partita.Schedule(model, "tp=2", PLAN).build()
    outputs = planned(x, y)
    assert list(outputs) == list(model.outputs)
    assert float(outputs["loss"]) == pytest.approx(mlp_loss(model.state_dict(), x, y), rel=1e-5)


def test_threads_share_a_trainer(recorded):
    trainer = partita.Trainer(partita.load(recorded("mlp")), PLAN, "tp=2", "sgd")
    x, y = batch()
    losses = []
    threads = [threading.Thread(target=lambda: losses.append(trainer.step((x, y)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trainer.steps == 4 and len(set(losses)) == 4


def test_importing_needs_neither_torch_nor_numpy():
    code = "import sys, partita; print(sorted(m for m in ('torch', 'numpy', 'jax') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_is_a_module():
    command = [sys.executable, "-m", "partita"]
    done = subprocess.run([*command, "show", "mlp", "--mesh", "tp=2"], capture_output=True, text=True)
    assert done.returncode == 0 and "layers" in done.stdout
    wrong = subprocess.run([*command, "trian"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "train" in wrong.stderr
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert helped.returncode == 0 and "verify" in helped.stdout


@pytest.mark.parametrize("make", ["trainer", "schedule", "model"])
def test_what_cannot_be_pickled_says_so(recorded, make):
    model = partita.load(recorded("mlp"))
    made = {
        "trainer": lambda: partita.Trainer(model, None, "tp=1"),
        "schedule": lambda: partita.Schedule(model, "tp=1"),
        "model": lambda: model,
    }[make]()
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(made)


def test_a_run_that_does_not_fit_is_refused_before_it_starts(recorded):
    with pytest.raises(partita.PartitaError) as refused:
        partita.Trainer(partita.load(recorded("mlp")), None, "dp=1000")
    assert refused.value.code == "E007"


def test_a_plan_is_a_table_in_a_notebook():
    html = partita.Plan({"a.*": "colwise"}, origin="<me>")._repr_html_()
    assert "<code>a.*</code>" in html and "&lt;me&gt;" in html


def test_a_model_and_its_schedule_are_shown_in_a_notebook(recorded):
    model = partita.load(recorded("mlp"))
    html = model._repr_html_()
    assert "<code>model.0.weight</code></td><td>f32</td><td>[8, 4]</td>" in html
    assert "<summary>4 parameters</summary>" in html and "<summary>2 inputs</summary>" in html
    # The graph is text of a document, not of a page.
    assert "stablehlo.dot_general" in html and html.count("<pre>") == 1 and "tensor&lt;" in html and "tensor<" not in html
    sch = partita.Schedule(model, "tp=2", PLAN)
    assert sch._repr_html_() == sch.plan._repr_html_() and "<code>colwise</code>" in sch._repr_html_()
    assert str(sch.plan) == sch.plan.to_calls() and repr(sch.plan) == "Plan(2 lines)"
