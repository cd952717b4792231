"""Models of Hugging Face's transformers: trained on a mesh as PyTorch trains them."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import partita  # noqa: E402
from partita import ms, slapo  # noqa: E402
from partita.distributed import init_device_mesh  # noqa: E402
from partita.distributed.fsdp import fully_shard  # noqa: E402

LLAMA_PLAN = {
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.k_proj": "colwise",
    "model.layers.*.self_attn.v_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.mlp.gate_proj": "colwise",
    "model.layers.*.mlp.up_proj": "colwise",
    "model.layers.*.mlp.down_proj": "rowwise",
}


def gpt2():
    config = transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=32, vocab_size=64, n_positions=32, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    config.attn_pdrop = config.resid_pdrop = config.embd_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            hidden_size=32,
            intermediate_size=64,
            vocab_size=64,
            max_position_embeddings=32,
            use_cache=False,
        )
    )


@pytest.mark.parametrize("make, mesh, plan", [(gpt2, "dp=2", None), (llama, "dp=2,tp=2", LLAMA_PLAN)])
def test_it_trains_as_pytorch_does(make, mesh, plan):
    torch.manual_seed(0)
    module = make()
    tokens = torch.randint(64, (4, 16))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    model = partita.load(module, batch)
    trainer = partita.Trainer(model, plan, mesh, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    planned = partita.Schedule(model, mesh, plan).build()
    assert type(planned(**batch)) is type(module(**batch))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        loss = module(**batch).loss
        assert trainer.step(batch) == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(trainer.state_dict()[name], value, rtol=1e-4, atol=1e-4)


SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
# As transformers makes them: with `use_cache` on.
DEFAULTS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=2, n_head=4, n_embd=32, vocab_size=64, bos_token_id=0, eos_token_id=0,
            attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, intermediate_size=64)),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SMALL, num_key_value_heads=2, intermediate_size=64, sliding_window=8)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0
        )
    ),
    "mamba": lambda: transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4, use_mambapy=False)
    ).eval(),
}  # fmt: skip


def caches(found):
    return [str(note.message) for note in found if "for the next token" in str(note.message)]


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_cache_is_dropped_with_one_note(name):
    torch.manual_seed(0)
    module = DEFAULTS[name]()
    assert module.config.use_cache
    tokens = torch.randint(1, 64, (4, 16))
    batch = {"input_ids": tokens, "labels": tokens}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = partita.load(module, batch)
        sch = partita.Schedule(model, "dp=2", optimizer="sgd")
        planned, trainer = sch.build(), sch.trainer()
        expected, result = module(**batch), planned(**batch)
        assert trainer.step(batch) == pytest.approx(expected.loss.item(), rel=1e-5)
    notes = caches(found)
    assert len(notes) == 1 and notes[0].startswith(f"{type(module).__name__} returns a cache") and notes[0] in model.notes
    assert type(result) is type(expected)
    assert [key for key in expected if isinstance(expected[key], torch.Tensor)] == list(result)
    torch.testing.assert_close(result.logits, expected.logits, rtol=1e-4, atol=1e-5)
    for part in module.modules():
        if hasattr(part, "config"):
            part.config.use_cache = False
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert partita.load(module, batch).notes == [note for note in model.notes if note not in notes]
    assert not caches(found)


def test_a_cache_is_dropped_wherever_a_module_is_exported():
    class Inside(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = DEFAULTS["gpt2"]()

        def forward(self, ids):
            logits, cache = self.inner(ids, use_cache=True, return_dict=False)
            return {"logits": logits, "more": [cache, logits.mean()]}

    torch.manual_seed(0)
    module, tokens = Inside(), torch.randint(1, 64, (4, 16))
    expected = module(tokens)
    sch = slapo.create_schedule(module, mesh="dp=2")
    with pytest.warns(UserWarning, match="Inside returns a cache"):
        with slapo.Verify(sch, example_inputs=[tokens]):
            sch["inner.transformer.h.0"].checkpoint()
        by_slapo = slapo.build(sch)[0](tokens)
    with pytest.warns(UserWarning, match="Inside returns a cache"):
        by_ms = ms.build(ms.create_schedule(module, mesh="dp=2"))[0](tokens)
    with pytest.warns(UserWarning, match="Inside returns a cache"):
        schedule = partita.Schedule(partita.load(module, (tokens,)), "dp=2")
        assert schedule.verify().ok
    with pytest.warns(UserWarning, match="Inside returns a cache"):
        sharded = fully_shard(Inside(), mesh=init_device_mesh("cpu", (2,)))
        sharded.load_state_dict(module.state_dict())
        by_shards = sharded(tokens)
    for found in (by_slapo, by_ms, schedule.build()(tokens), by_shards):
        assert found["more"][0] is None
        torch.testing.assert_close(found["logits"], expected["logits"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["more"][1], expected["more"][1], rtol=1e-4, atol=1e-5)
