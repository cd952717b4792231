"""What `compare` runs: tables of plain data."""

# The values of each column of CASES. The table covers every pair of values that `allowed` lets stand together.
COLUMNS = {
    "model": ["mlp", "gpt", "llama", "bert"],
    "mesh": ["dp=2", "tp=2", "tp=3", "sp=2", "fsdp=2", "fsdp=3", "dp=2,tp=2", "dp=2,fsdp=2", "dp=2,sp=2", "fsdp=2,tp=2"],
    "plan": ["ready", "zero1", "zero2", "recompute"],
    "parallel": ["", "sequence", "vocab", "both"],
    "projections": ["split", "fused"],
    "rows": [12, 10],
    "microbatches": [1, 2, 3],
    "dtype": ["f32", "f64", "bf16"],
    "products": ["native", "portable"],
    "workers": [1, 2, 4],
    "training": ["plain", "clipped"],
    "optimizer": ["adamw", "adam", "sgd", "lion"],
}


def allowed(case):
    """Whether values, of some or all columns, mean anything together."""
    mesh = case.get("mesh")
    axes = None if mesh is None else [axis.split("=")[0] for axis in mesh.split(",")]
    mlp = case.get("model") == "mlp"
    zero = case.get("plan") in ("zero1", "zero2")
    parallel = bool(case.get("parallel"))
    return not (
        (axes and zero and "dp" not in axes)
        or (axes and parallel and "tp" not in axes)
        or (axes and mlp and "sp" in axes)
        or (mlp and (parallel or case.get("projections") == "fused"))
    )


# A line that is added to the ready plan.
PLAN_LINES = {
    "zero1": 'sch["**"].zero1()',
    "zero2": 'sch["**"].zero2()',
    "recompute": 'sch["layers.*"].checkpoint()',
}

PARALLEL_FLAGS = {
    "": [],
    "sequence": ["--sequence-parallel"],
    "vocab": ["--vocab-parallel"],
    "both": ["--sequence-parallel", "--vocab-parallel"],
}

# Four heads of 6 features, so that three ranks get 2, 1 and 1 heads.
SMALL = ["model.dim=24", "model.layers=2", "model.heads=4", "model.sequence=16"]
SIZES = {
    "mlp": ["model.dims=[12,20,10]"],
    "gpt": SMALL,
    "llama": SMALL + ["model.kv_heads=2"],
    "bert": SMALL + ["model.vocab=257"],
}

# The config of a step; `compare` fills in the model and the optimizer.
CONFIG = """
[model]
kind = "{model}"

[train]
validate_every = 3
validate_batches = 2
sample_bytes = 16

[optimizer]
kind = "{optimizer}"
learning_rate = 3e-3
warmup_steps = 2
decay = "cosine"
weight_decay = 0.1
{settings}

[mesh]
shape = "dp=1"
"""
OPTIMIZERS = {"adamw": "beta2 = 0.95", "adam": "", "sgd": "momentum = 0.9", "lion": ""}

# The models that drop out, and the settings of a step that clips and drops out, and of one that does neither.
DROPOUT = ["gpt", "bert"]
TRAINING = {"plain": ("optimizer.clip_grad_norm=0", 0.0), "clipped": ("optimizer.clip_grad_norm=0.5", 0.1)}

CASES = [
    # model, mesh, plan, parallel, projections, rows, microbatches, dtype, products, workers, training, optimizer
    ("mlp",   "dp=2",        "zero1",     "",         "split", 10, 1, "bf16", "native",   4, "clipped", "sgd"),
    ("mlp",   "tp=2",        "ready",     "",         "split", 10, 1, "bf16", "portable", 1, "plain",   "sgd"),
    ("mlp",   "tp=3",        "recompute", "",         "split", 10, 3, "bf16", "portable", 4, "plain",   "adam"),
    ("mlp",   "fsdp=2",      "ready",     "",         "split", 12, 3, "f64",  "portable", 2, "plain",   "lion"),
    ("mlp",   "fsdp=3",      "recompute", "",         "split", 10, 3, "f32",  "native",   4, "clipped", "adamw"),
    ("mlp",   "dp=2,tp=2",   "ready",     "",         "split", 12, 2, "f64",  "native",   2, "plain",   "lion"),
    ("mlp",   "dp=2,tp=2",   "recompute", "",         "split", 12, 2, "f32",  "native",   1, "plain",   "adam"),
    ("mlp",   "dp=2,fsdp=2", "zero2",     "",         "split", 10, 2, "f32",  "portable", 1, "clipped", "adam"),
    ("mlp",   "fsdp=2,tp=2", "ready",     "",         "split", 12, 3, "f32",  "portable", 2, "plain",   "adamw"),
    ("gpt",   "dp=2",        "zero2",     "",         "fused", 12, 3, "f64",  "portable", 1, "plain",   "adam"),
    ("gpt",   "tp=2",        "recompute", "vocab",    "split", 12, 1, "f64",  "native",   1, "plain",   "adamw"),
    ("gpt",   "tp=3",        "ready",     "both",     "split", 10, 2, "f64",  "portable", 2, "clipped", "adamw"),
    ("gpt",   "sp=2",        "recompute", "",         "split", 10, 3, "f64",  "native",   4, "clipped", "lion"),
    ("gpt",   "fsdp=2",      "ready",     "",         "split", 10, 1, "bf16", "native",   1, "clipped", "adamw"),
    ("gpt",   "fsdp=3",      "ready",     "",         "fused", 10, 2, "bf16", "portable", 1, "plain",   "sgd"),
    ("gpt",   "dp=2,tp=2",   "zero1",     "both",     "split", 10, 3, "f32",  "portable", 1, "plain",   "sgd"),
    ("gpt",   "dp=2,tp=2",   "zero2",     "sequence", "fused", 12, 1, "f32",  "portable", 4, "clipped", "lion"),
    ("gpt",   "dp=2,fsdp=2", "zero2",     "",         "fused", 12, 3, "bf16", "native",   4, "plain",   "adamw"),
    ("gpt",   "dp=2,sp=2",   "zero1",     "",         "fused", 12, 3, "f32",  "native",   4, "plain",   "adam"),
    ("gpt",   "dp=2,sp=2",   "ready",     "",         "split", 12, 2, "f64",  "portable", 2, "clipped", "adamw"),
    ("gpt",   "fsdp=2,tp=2", "recompute", "vocab",    "split", 12, 1, "f32",  "native",   1, "plain",   "adamw"),
    ("gpt",   "fsdp=2,tp=2", "ready",     "sequence", "split", 10, 3, "f64",  "portable", 2, "clipped", "adam"),
    ("gpt",   "fsdp=2,tp=2", "recompute", "both",     "split", 10, 1, "f32",  "native",   2, "plain",   "adam"),
    ("llama", "dp=2",        "ready",     "",         "split", 10, 2, "f32",  "portable", 2, "clipped", "lion"),
    ("llama", "tp=2",        "recompute", "both",     "fused", 12, 3, "bf16", "native",   4, "clipped", "adam"),
    ("llama", "tp=3",        "ready",     "sequence", "fused", 12, 1, "f32",  "native",   1, "plain",   "lion"),
    ("llama", "sp=2",        "recompute", "",         "fused", 12, 1, "bf16", "native",   1, "clipped", "sgd"),
    ("llama", "fsdp=2",      "recompute", "",         "split", 12, 2, "f64",  "portable", 1, "clipped", "adam"),
    ("llama", "fsdp=3",      "ready",     "",         "fused", 12, 2, "f64",  "portable", 4, "plain",   "lion"),
    ("llama", "dp=2,tp=2",   "zero1",     "sequence", "fused", 10, 2, "bf16", "portable", 4, "clipped", "adamw"),
    ("llama", "dp=2,tp=2",   "zero2",     "both",     "fused", 10, 2, "f64",  "native",   4, "clipped", "sgd"),
    ("llama", "dp=2,fsdp=2", "ready",     "",         "fused", 10, 1, "bf16", "native",   2, "plain",   "sgd"),
    ("llama", "dp=2,sp=2",   "zero2",     "",         "split", 12, 2, "f64",  "native",   2, "plain",   "sgd"),
    ("llama", "fsdp=2,tp=2", "ready",     "vocab",    "fused", 10, 2, "bf16", "portable", 4, "clipped", "lion"),
    ("bert",  "dp=2",        "recompute", "",         "fused", 10, 2, "bf16", "portable", 2, "plain",   "adamw"),
    ("bert",  "tp=2",        "recompute", "sequence", "split", 10, 2, "f64",  "portable", 2, "plain",   "adamw"),
    ("bert",  "tp=2",        "ready",     "both",     "split", 10, 1, "f32",  "portable", 1, "plain",   "lion"),
    ("bert",  "tp=3",        "ready",     "vocab",    "fused", 10, 1, "f32",  "native",   1, "plain",   "sgd"),
    ("bert",  "sp=2",        "ready",     "",         "fused", 12, 2, "f32",  "portable", 2, "plain",   "adam"),
    ("bert",  "sp=2",        "recompute", "",         "split", 10, 3, "f64",  "native",   2, "plain",   "adamw"),
    ("bert",  "fsdp=2",      "recompute", "",         "fused", 10, 2, "f32",  "native",   4, "clipped", "sgd"),
    ("bert",  "fsdp=3",      "recompute", "",         "split", 12, 1, "f64",  "native",   2, "clipped", "adam"),
    ("bert",  "dp=2,tp=2",   "zero1",     "vocab",    "fused", 12, 3, "f64",  "native",   2, "clipped", "sgd"),
    ("bert",  "dp=2,tp=2",   "zero2",     "vocab",    "split", 10, 1, "bf16", "portable", 2, "clipped", "adam"),
    ("bert",  "dp=2,fsdp=2", "zero1",     "",         "split", 10, 1, "f64",  "portable", 2, "plain",   "lion"),
    ("bert",  "dp=2,fsdp=2", "recompute", "",         "split", 12, 2, "f64",  "native",   1, "clipped", "adamw"),
    ("bert",  "dp=2,sp=2",   "zero2",     "",         "fused", 10, 1, "bf16", "portable", 1, "clipped", "lion"),
    ("bert",  "dp=2,sp=2",   "recompute", "",         "fused", 10, 2, "bf16", "portable", 1, "clipped", "adam"),
    ("bert",  "fsdp=2,tp=2", "recompute", "sequence", "fused", 12, 2, "f64",  "native",   4, "plain",   "sgd"),
]

# An old checkpoint of three steps, on the first mesh, goes on for three more in both builds, on the second mesh.
RESUMED = [
    # model, mesh, plan, projections, dtype; mesh, plan
    ("mlp", "tp=2", "ready", "split", "f64", "fsdp=2", "ready"),
    ("gpt", "dp=2", "zero1", "fused", "f32", "tp=3", "ready"),
    ("gpt", "fsdp=3", "ready", "split", "bf16", "dp=2,tp=2", "recompute"),
    ("llama", "fsdp=2,tp=2", "ready", "split", "f32", "fsdp=3", "ready"),
    ("llama", "dp=2,tp=2", "zero2", "fused", "f64", "sp=2", "ready"),
    ("bert", "dp=2,sp=2", "ready", "split", "f32", "dp=2", "zero2"),
]

# One planned step against one device, on the interpreter and as it is trained.
VERIFIED = [
    # model, mesh, plan, dtype, runner
    ("mlp", "fsdp=3", "ready", "f64", "interpreter"),
    ("gpt", "tp=3", "ready", "f32", "cpu"),
    ("llama", "dp=2,tp=2", "zero1", "f64", "interpreter"),
    ("bert", "dp=2,sp=2", "recompute", "f32", "cpu"),
]

# Steps large enough for their memory to be seen: the peak of the process less what the programs plan.
MEMORY_SIZES = ["model.dim=128", "model.layers=3", "model.heads=4", "model.sequence=128"]
MEMORY = [
    # model, mesh
    ("gpt", "dp=2,tp=2"),
    ("llama", "fsdp=2,tp=2"),
    ("bert", "dp=2"),
]

# Refused, with a code. PLAN stands for a plan file with the line beside it, CHECKPOINT for a checkpoint of gpt, and
# BROKEN for one whose tensors were cut short.
BAD_INPUTS = [
    (["train", "nothing"], None),
    (["train", "gpt", "--mesh", "tp=0"], None),
    (["train", "gpt", "--mesh", "tp=two"], None),
    (["train", "gpt", "--mesh", "dp=2,dp=2"], None),
    (["train", "gpt", "--mesh", "pp=two"], None),
    (["train", "gpt", "--mesh", "dp=4096"], None),
    (["train", "gpt", "--mesh", "tp=4", "--set", "model.heads=2", "--strict"], None),
    (["train", "gpt", "--set", "nothing.here=1"], None),
    (["train", "gpt", "--set", "train.stepz=1"], None),
    (["train", "gpt", "--set", "train.steps=many"], None),
    (["train", "gpt", "--set", "model.dropout=1.5"], None),
    (["train", "gpt", "--set", "model.heads=5"], None),
    (["train", "llama", "--set", "model.kv_heads=3"], None),
    (["train", "gpt", "--dtype", "f8"], None),
    (["train", "gpt", "--batch", "0"], None),
    (["train", "gpt", "--batch", "4", "--microbatches", "9"], None),
    (["train", "gpt", "--data", "nowhere"], None),
    (["train", "gpt", "--plan", "nowhere.toml"], None),
    (["train", "gpt", "--resume", "nowhere"], None),
    (["train", "llama", "--resume", "CHECKPOINT"], None),
    (["train", "gpt", "--resume", "CHECKPOINT", "--set", "model.dim=48"], None),
    (["train", "gpt", "--resume", "BROKEN"], None),
    (["show", "gpt", "--mesh", "tp=2", "--plan", "PLAN"], 'sch["lyers.*"].colwise()'),
    (["show", "gpt", "--mesh", "tp=2", "--plan", "PLAN"], 'sch["layers.*.mlp.up_proj"].colwize()'),
    (["show", "gpt", "--mesh", "tp=2", "--plan", "PLAN"], 'sch["layers.*.mlp.up_proj"].colwise('),
    (["show", "gpt", "--mesh", "tp=2", "--plan", "PLAN"], 'sch["layers.*.mlp.up_proj"].shard("weight", 7)'),
    (["show", "gpt", "--mesh", "tp=2", "--plan", "PLAN"], 'sch["layers.*.mlp.up_proj"].shard("wait", 0)'),
    (["show", "gpt", "--mesh", "tp=2", "--plan", "PLAN"], 'sch["layers.*.mlp"].sync("fwd_post", "all_reduce")'),
    (["show", "gpt", "--mesh", "tp=2", "--plan", "PLAN"], 'sch["layers.*.mlp"].sync("fwd_pre", "scatter(9)")'),
    (["show", "gpt", "--mesh", "dp=2", "--plan", "PLAN"], 'sch["**"].fsdp()'),
    (["lower", "gpt", "--rank", "9"], None),
    (["explain", "E999"], None),
    (["explain", "gpt", "nothing.of.this.name"], None),
    (["verify", "gpt", "--mesh", "tp=2", "--break-rule", "layers.0"], None),
]
