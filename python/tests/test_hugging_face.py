"""Models of Hugging Face's transformers: trained on a mesh as PyTorch trains them."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import partita  # noqa: E402

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
