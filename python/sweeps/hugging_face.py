"""Models of Hugging Face's transformers, small, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as hf
from torch import nn

VOCABULARY = 40
_DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_CACHELESS = {**_DECODER, "use_cache": False}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 8}
_SEQUENCES = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.0, "use_cache": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1,
}  # fmt: skip


def _made(model: str, config: str, **options: Any) -> nn.Module:
    found: nn.Module = getattr(hf, model)(getattr(hf, config)(**options))
    return found


def _experts(model: str, config: str, **options: Any) -> nn.Module:
    """With experts as one product of matrices, which PyTorch has for f64 too."""
    found: Any = _made(model, config, **options)
    found.set_experts_implementation("batched_mm")
    assert isinstance(found, nn.Module)
    return found


def gpt2() -> nn.Module:
    return _made(
        "GPT2LMHeadModel", "GPT2Config", n_layer=2, n_head=4, n_embd=32, vocab_size=VOCABULARY, n_positions=32,
        use_cache=False, bos_token_id=1, eos_token_id=2, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip


def llama() -> nn.Module:
    return _made("LlamaForCausalLM", "LlamaConfig", **_CACHELESS, num_key_value_heads=2)


def qwen2() -> nn.Module:
    return _made("Qwen2ForCausalLM", "Qwen2Config", **_CACHELESS, num_key_value_heads=2, tie_word_embeddings=True)


def qwen3_moe() -> nn.Module:
    return _experts(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig", **_CACHELESS, num_key_value_heads=2, head_dim=8, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=16, output_router_logits=True,
    )  # fmt: skip


def mixtral() -> nn.Module:
    return _experts("MixtralForCausalLM", "MixtralConfig", **_CACHELESS, num_key_value_heads=2, num_local_experts=4)


def bert() -> nn.Module:
    return _made("BertForMaskedLM", "BertConfig", **_DECODER, **_NO_DROPOUT)


def distilbert() -> nn.Module:
    return _made(
        "DistilBertForSequenceClassification", "DistilBertConfig", vocab_size=VOCABULARY, dim=32, hidden_dim=48, n_layers=2,
        n_heads=4, max_position_embeddings=32, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=3,
    )  # fmt: skip


def roberta() -> nn.Module:
    return _made("RobertaForTokenClassification", "RobertaConfig", **_DECODER, **_NO_DROPOUT, num_labels=5)


def albert() -> nn.Module:
    return _made("AlbertForMaskedLM", "AlbertConfig", **_DECODER, **_NO_DROPOUT, embedding_size=16)


def t5() -> nn.Module:
    return _made(
        "T5ForConditionalGeneration", "T5Config", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip


def bart() -> nn.Module:
    return _made("BartForConditionalGeneration", "BartConfig", **_SEQUENCES, max_position_embeddings=32)


def vit() -> nn.Module:
    return _made("ViTForImageClassification", "ViTConfig", **_VISION, **_NO_DROPOUT, patch_size=4, num_labels=5)


def clip() -> nn.Module:
    text = {**_DECODER, "max_position_embeddings": 16}
    return _made("CLIPModel", "CLIPConfig", text_config=text, vision_config={**_VISION, "patch_size": 4}, projection_dim=16)


def whisper() -> nn.Module:
    return _made(
        "WhisperForConditionalGeneration", "WhisperConfig", **_SEQUENCES, num_mel_bins=8, max_source_positions=8,
        max_target_positions=16, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip


def mamba() -> nn.Module:
    return _made(
        "MambaForCausalLM", "MambaConfig", vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2,
        use_cache=False, use_mambapy=False, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip


def opt() -> nn.Module:
    options = {name: value for name, value in _CACHELESS.items() if name != "intermediate_size"}
    return _made("OPTForCausalLM", "OPTConfig", **options, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0)


def gpt_neox() -> nn.Module:
    return _made("GPTNeoXForCausalLM", "GPTNeoXConfig", **_CACHELESS, hidden_dropout=0.0, attention_dropout=0.0)


def gemma2() -> nn.Module:
    return _made(
        "Gemma2ForCausalLM", "Gemma2Config", **_CACHELESS, num_key_value_heads=2, head_dim=8, sliding_window=4,
        query_pre_attn_scalar=8,
    )  # fmt: skip


# Each model, and what its batches have.
MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "gpt2": (gpt2, "tokens"),
    "llama": (llama, "tokens"),
    "qwen2": (qwen2, "tokens"),
    "qwen3-moe": (qwen3_moe, "tokens"),
    "mixtral": (mixtral, "tokens"),
    "bert": (bert, "masked"),
    "distilbert": (distilbert, "class"),
    "roberta": (roberta, "classes"),
    "albert": (albert, "masked"),
    "t5": (t5, "tokens"),
    "bart": (bart, "tokens"),
    "vit": (vit, "image"),
    "clip": (clip, "both"),
    "whisper": (whisper, "sound"),
    "mamba": (mamba, "tokens"),
    "opt": (opt, "tokens"),
    "gpt-neox": (gpt_neox, "bare"),
    "gemma2": (gemma2, "tokens"),
}
