"""Microbatches and pipelines of modules whose samples are independent: a step is compared with PyTorch's on one device, loss
and parameters after it. Models of transformers are made from configs: two layers, random weights."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402

import partita  # noqa: E402
from partita import PartitaError, Trainer  # noqa: E402

ROWS, TOKENS, WIDTH, WORDS = 8, 6, 16, 96


class Squared(nn.Module):
    """The mean square of what a function of the parts and the arguments returns, or its first result."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleDict(parts)

    def forward(self, *args):
        found = self.function(self.parts, *args)
        return ((found[0] if isinstance(found, tuple) else found) ** 2).mean()


def tokens():
    return torch.randn(ROWS, TOKENS, WIDTH)


def ids(high, *shape):
    return torch.randint(0, high, shape)


def turned(parts, x):
    x = x.transpose(0, 1)
    return parts["a"](x, x, x)[0].transpose(0, 1)


def flattened(parts, x):
    flat = parts["l"](x.transpose(0, 1).reshape(TOKENS * ROWS, WIDTH))
    return flat.reshape(TOKENS, ROWS, WIDTH).transpose(0, 1)


def routed(parts, x):
    scores, chosen = parts["l"](x).topk(3, -1)
    return scores * torch.softmax(parts["g"](x), -1).gather(-1, chosen)


def line(**more):
    return {"l": nn.Linear(WIDTH, WIDTH), **more}


def attention(**options):
    return {"a": nn.MultiheadAttention(WIDTH, 4, **options)}


def encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
    return {"e": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)}


MODULES = {
    "attention": (lambda p, x: p["a"](x, x, x), attention(batch_first=True), lambda: (tokens(),)),
    "attention with the positions first": (turned, attention(), lambda: (tokens(),)),
    "encoder": (lambda p, x: p["e"](x), encoder(), lambda: (tokens(),)),
    "encoder and decoder": (
        lambda p, x, y: p["t"](x, y),
        {"t": nn.Transformer(WIDTH, 4, 1, 1, 32, dropout=0.0, batch_first=True)},
        lambda: (tokens(), tokens()),
    ),
    "flattened": (flattened, line(), lambda: (tokens(),)),
    "gather": (
        lambda p, x, i: p["l"](x).gather(-1, i), line(), lambda: (tokens(), ids(WIDTH, ROWS, TOKENS, 3))
    ),
    "gather of some rows": (
        lambda p, x, i: p["l"](x).gather(1, i), line(), lambda: (tokens(), ids(TOKENS, ROWS, 2, WIDTH))
    ),
    "take_along_dim": (
        lambda p, x, i: torch.take_along_dim(p["l"](x), i, -1),
        line(),
        lambda: (tokens(), ids(WIDTH, ROWS, TOKENS, 2)),
    ),
    "a position of each row": (
        lambda p, x, i: p["l"](x)[torch.arange(x.shape[0]), i], line(), lambda: (tokens(), ids(TOKENS, ROWS))
    ),
    "positions of each row": (
        lambda p, x, i: p["l"](x)[torch.arange(x.shape[0])[:, None], i],
        line(),
        lambda: (tokens(), ids(TOKENS, ROWS, 2)),
    ),
    "the largest position": (
        lambda p, x, i: p["l"](x)[torch.arange(x.shape[0]), i.argmax(-1)],
        line(),
        lambda: (tokens(), ids(WORDS, ROWS, TOKENS)),
    ),
    "written by row": (
        lambda p, x, i: torch.zeros(x.shape[0], TOKENS).index_put(
            (torch.arange(x.shape[0]), i), p["l"](x)[:, 0, 0], accumulate=True
        ),
        line(),
        lambda: (tokens(), ids(TOKENS, ROWS)),
    ),
    "scatter_add": (
        lambda p, x, i: torch.zeros(x.shape[0], WIDTH).scatter_add(1, i, p["l"](x)[:, 0]),
        line(),
        lambda: (tokens(), ids(WIDTH, ROWS, WIDTH)),
    ),
    "topk": (lambda p, x: p["l"](x).topk(3, -1), line(), lambda: (tokens(),)),
    "a router": (routed, line(g=nn.Linear(WIDTH, WIDTH)), lambda: (tokens(),)),
    "sort": (lambda p, x: p["l"](x).sort(-1), line(), lambda: (tokens(),)),
    "argsort": (lambda p, x: p["l"](x).gather(-1, x.argsort(-1)), line(), lambda: (tokens(),)),
    "positions of one row": (
        lambda p, x, at: p["l"](x) + p["e"](at),
        line(e=nn.Embedding(TOKENS, WIDTH)),
        lambda: (tokens(), torch.arange(TOKENS)[None]),
    ),
    "a mask of as many positions as rows": (
        lambda p, x, m: torch.softmax(p["l"](x) @ x.transpose(1, 2) + m, -1),
        line(),
        lambda: (torch.randn(ROWS, ROWS, WIDTH), torch.zeros(ROWS, ROWS).triu(1) - 1.0),
    ),
}


def compare(module, batch, meshes, *, rate=0.1, rows=None):
    """Steps on meshes, each with a number of microbatches, beside PyTorch's step."""
    whole = copy.deepcopy(module)
    optimizer = torch.optim.SGD(whole.parameters(), rate)
    loss = whole(*batch)
    loss.backward()
    optimizer.step()
    expected = whole.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = partita.load(module, batch, batch=rows)
    for mesh, microbatches in meshes:
        trainer = Trainer(model, None, mesh, partita.optim.SGD(lr=rate), microbatches=microbatches)
        assert trainer.step(batch) == pytest.approx(loss.item(), rel=1e-5, abs=1e-6), mesh
        found = trainer.state_dict()
        for name, value in expected.items():
            if name in found and value.is_floating_point():
                torch.testing.assert_close(torch.as_tensor(found[name]), value, rtol=2e-5, atol=3e-6, msg=f"{name} on {mesh}")


@pytest.mark.parametrize("name", MODULES)
def test_samples_that_are_independent_are_divided(name):
    torch.manual_seed(0)
    function, parts, batch = MODULES[name]
    compare(Squared(function, **parts), batch(), [("dp=1", 2), ("dp=1", 3), ("dp=2", 2)])


def test_a_mask_that_could_be_the_batch_needs_its_size():
    torch.manual_seed(0)
    function, parts, _ = MODULES["a mask of as many positions as rows"]
    batch = (tokens(), torch.zeros(TOKENS, TOKENS))
    with pytest.raises(PartitaError) as refused:
        compare(Squared(function, **parts), batch, [("dp=1", 2)])
    assert refused.value.code == "E226" and "8 or 6 rows" in str(refused.value) and "batch=" in str(refused.value)
    compare(Squared(function, **parts), batch, [("dp=1", 2), ("dp=2", 2)], rows=ROWS)
    with pytest.raises(PartitaError) as refused:
        partita.load(Squared(function, **parts), batch, batch=7)
    assert refused.value.code == "E359"


def test_samples_that_are_mixed_are_refused():
    """Sums over the batch in the forward pass, and tokens that are sorted over all samples."""
    torch.manual_seed(0)
    for function in (
        lambda p, x: p["l"](x) - torch.cumsum(x, 0),
        lambda p, x: p["l"](x)[torch.argsort(x[:, 0, 0])],
        lambda p, x: p["l"](x)[torch.arange(ROWS - 1, -1, -1)] * torch.arange(ROWS)[:, None, None],
    ):
        try:
            compare(Squared(function, **line()), (tokens(),), [("dp=1", 2)])
        except PartitaError as refused:
            assert refused.code == "E220", refused


def configured():
    """Models of transformers by name, with how their logits or features are computed."""
    tf = pytest.importorskip("transformers", reason="transformers is not installed")
    shared = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    grouped = {**shared, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}
    dry = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    def causal(config):
        return tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager")

    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0}
    return {
        "gpt2": lambda: causal(tf.GPT2Config(vocab_size=WORDS, **gpt2, **still, attn_pdrop=0.0)),
        "llama": lambda: causal(tf.LlamaConfig(**grouped)),
        "mistral": lambda: causal(tf.MistralConfig(**grouped, sliding_window=8)),
        "qwen2": lambda: causal(tf.Qwen2Config(**grouped)),
        "qwen3": lambda: causal(tf.Qwen3Config(**grouped, head_dim=8)),
        "gemma2": lambda: causal(tf.Gemma2Config(**grouped, head_dim=8)),
        "phi3": lambda: causal(tf.Phi3Config(**grouped, **still)),
        "gpt_neox": lambda: causal(tf.GPTNeoXConfig(**shared, use_cache=False)),
        "bert": lambda: tf.BertForMaskedLM(tf.BertConfig(**shared, **dry)),
        "t5": lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(
                vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0, use_cache=False
            )
        ),
        "vit": lambda: tf.ViTForImageClassification(
            tf.ViTConfig(
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                image_size=16,
                patch_size=4,
                **dry,
            )
        ),
        "clip": lambda: tf.CLIPTextModel(tf.CLIPTextConfig(**shared, eos_token_id=WORDS - 1)),
        "mixtral": lambda: causal(tf.MixtralConfig(**grouped, num_local_experts=4, num_experts_per_tok=2)),
        "qwen3_moe": lambda: causal(
            tf.Qwen3MoeConfig(**grouped, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
        ),
    }


EXPERTS = ("mixtral", "qwen3_moe")
FAMILIES = (
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "phi3",
    "gpt_neox",
    "bert",
    "t5",
    "vit",
    "clip",
    *EXPERTS,
)


class Loss(nn.Module):
    """A model with its loss."""

    def __init__(self, name, model):
        super().__init__()
        self.name, self.model = name, model

    def forward(self, x, y):
        if self.name == "vit":
            return nn.functional.cross_entropy(self.model(pixel_values=x).logits, y)
        if self.name == "clip":
            found = self.model(input_ids=x)
            return (found.pooler_output**2).mean() + (found.last_hidden_state**2).mean()
        if self.name == "t5":
            logits = self.model(input_ids=x, decoder_input_ids=y, use_cache=False).logits
        else:
            logits = self.model(input_ids=x).logits
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def of_family(name):
    torch.manual_seed(0)
    module = Loss(name, configured()[name]()).train()
    x, y = torch.randint(3, WORDS - 1, (ROWS, 12)), torch.randint(3, WORDS - 1, (ROWS, 12))
    if name == "clip":
        x[torch.arange(ROWS), torch.randint(4, 12, (ROWS,))] = WORDS - 1
    if name == "vit":
        x, y = torch.randn(ROWS, 3, 16, 16), torch.randint(0, 2, (ROWS,))
    return module, (x, y)


@pytest.mark.parametrize("name", FAMILIES)
def test_models_of_transformers(name):
    module, batch = of_family(name)
    if name in EXPERTS:
        # By default tokens of all samples are sorted by expert: refused with what to do instead.
        with pytest.raises(PartitaError) as refused:
            compare(module, batch, [("dp=2", 1), ("dp=1", 2)])
        assert refused.value.code == "E220" and "set_experts_implementation" in str(refused.value)
        module.model.set_experts_implementation("batched_mm")
    compare(module, batch, [("dp=2", 1), ("dp=2", 2), ("pp=2", 2)])
