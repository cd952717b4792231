//! Models by name at their published sizes, and Hugging Face's `config.json`. A name gives the section `[model]` of a
//! config; no weight is allocated for it.
//!
//! Sizes are those of the papers and model cards: GPT-2 (Radford et al. 2019), GPT-3 (Brown et al. 2020, table 2.1) with
//! the vocabulary of Megatron-LM, Megatron-LM's weak scaling (Narayanan et al. 2021, table 1), Alpa's GPT (Zheng et al.
//! 2022, table 5) and its GShard models, MPT (llm-foundry's configs), Llama (Touvron et al. 2023, Dubey et al. 2024), BERT
//! (Devlin et al. 2019), Mixtral (Jiang et al. 2024), DeepSeek-V3 (DeepSeek-AI 2024), Alpa's
//! Wide-ResNets, ViT (Dosovitskiy et al. 2020), T5 (Raffel et al. 2020).

use partita_base::{Diagnostic, Result};
use std::path::Path;
use toml::{Table, Value};

/// Sizes of a decoder in the style of GPT-2: name, layers, features, heads, tokens of a row, vocabulary.
const GPT: &[(&str, [i64; 5])] = &[
    ("gpt2-124m", [12, 768, 12, 1024, 50257]),
    ("gpt2-355m", [24, 1024, 16, 1024, 50257]),
    ("gpt2-774m", [36, 1280, 20, 1024, 50257]),
    ("gpt2-1.5b", [48, 1600, 25, 1024, 50257]),
    ("gpt-350m", [24, 1024, 16, 1024, 51200]),
    ("gpt-1.3b", [24, 2048, 32, 1024, 51200]),
    ("gpt-2.6b", [32, 2560, 32, 1024, 51200]),
    ("gpt-6.7b", [32, 4096, 32, 1024, 51200]),
    ("gpt-15b", [48, 5120, 40, 1024, 51200]),
    ("gpt-39b", [48, 8192, 64, 1024, 51200]),
    ("gpt3-1.3b", [24, 2048, 16, 2048, 51200]),
    ("gpt3-2.7b", [32, 2560, 32, 2048, 51200]),
    ("gpt3-6.7b", [32, 4096, 32, 2048, 51200]),
    ("gpt3-13b", [40, 5120, 40, 2048, 51200]),
    ("gpt3-175b", [96, 12288, 96, 2048, 51200]),
    ("gpt-13b", [40, 5120, 40, 2048, 50368]),
    ("gpt-18.4b", [40, 6144, 48, 2048, 51200]),
    ("gpt-39.1b", [48, 8192, 64, 2048, 51200]),
    ("gpt-76.1b", [60, 10240, 80, 2048, 51200]),
    ("gpt-145.6b", [80, 12288, 96, 2048, 51200]),
    ("gpt-310.1b", [96, 16384, 128, 2048, 51200]),
    ("gpt-529.6b", [105, 20480, 128, 2048, 51200]),
    ("gpt-1t", [128, 25600, 160, 2048, 51200]),
    ("mpt-7b", [32, 4096, 32, 2048, 50368]),
    ("mpt-30b", [48, 7168, 56, 2048, 50368]),
    ("mpt-70b", [80, 8192, 64, 2048, 50368]),
];

/// Sizes of a decoder in the style of Llama: name, layers, features, heads, heads of keys and values, hidden features,
/// tokens of a row, vocabulary.
const LLAMA: &[(&str, [i64; 7])] = &[
    ("llama-7b", [32, 4096, 32, 32, 11008, 2048, 32000]),
    ("llama-13b", [40, 5120, 40, 40, 13824, 2048, 32000]),
    ("llama-33b", [60, 6656, 52, 52, 17920, 2048, 32000]),
    ("llama-65b", [80, 8192, 64, 64, 22016, 2048, 32000]),
    ("llama2-7b", [32, 4096, 32, 32, 11008, 4096, 32000]),
    ("llama2-13b", [40, 5120, 40, 40, 13824, 4096, 32000]),
    ("llama2-70b", [80, 8192, 64, 8, 28672, 4096, 32000]),
    ("llama3-8b", [32, 4096, 32, 8, 14336, 8192, 128256]),
    ("llama3-70b", [80, 8192, 64, 8, 28672, 8192, 128256]),
    ("llama3-405b", [126, 16384, 128, 8, 53248, 8192, 128256]),
];

/// Sizes of an encoder in the style of BERT: name, layers, features, heads.
const BERT: &[(&str, [i64; 3])] = &[("bert-base", [12, 768, 12]), ("bert-large", [24, 1024, 16])];

/// Sizes of a GPT with experts in every second layer: name, layers, features, heads, experts. Hidden features are 8 times
/// the features.
const MOE_GPT: &[(&str, [i64; 4])] = &[
    ("gshard-moe-380m", [8, 768, 16, 8]),
    ("gshard-moe-690m", [8, 768, 16, 16]),
    ("gshard-moe-1.3b", [16, 768, 16, 16]),
    ("gshard-moe-2.4b", [16, 1024, 16, 16]),
    ("gshard-moe-10b", [16, 1536, 16, 32]),
];

/// Wide-ResNets of Alpa: name, features, width, blocks of the third stage.
const WIDE_RESNET: &[(&str, [i64; 3])] = &[
    ("wide-resnet-250m", [160, 2, 6]),
    ("wide-resnet-500m", [224, 2, 6]),
    ("wide-resnet-1b", [320, 2, 6]),
    ("wide-resnet-2b", [448, 2, 6]),
    ("wide-resnet-4b", [640, 2, 6]),
    ("wide-resnet-6.8b", [320, 16, 6]),
    ("wide-resnet-13b", [320, 16, 23]),
];

/// Vision transformers: name, layers, features, heads, extent of a patch.
const VIT: &[(&str, [i64; 4])] =
    &[("vit-b-16", [12, 768, 12, 16]), ("vit-l-16", [24, 1024, 16, 16]), ("vit-h-14", [32, 1280, 16, 14])];

/// Models of which there is one size: name and section.
const SINGLE: &[(&str, &str)] = &[
    (
        "mixtral-8x7b",
        "kind = 'mixtral'\nlayers = 32\ndim = 4096\nheads = 32\nkv_heads = 8\nhidden = 14336\nsequence = 32768\n\
         vocab = 32000\nexperts = 8\ntop_k = 2\nrotary_base = 1e6",
    ),
    (
        "deepseek-v3",
        "kind = 'deepseek'\nlayers = 61\ndense_layers = 3\ndim = 7168\nheads = 128\nquery_rank = 1536\n\
         latent_rank = 512\nplain_features = 128\nrotary_features = 64\nvalue_features = 128\nhidden = 18432\n\
         expert_hidden = 2048\nexperts = 256\ntop_k = 8\nshared = 1\nsequence = 4096\nvocab = 129280",
    ),
    (
        "t5-small",
        "kind = 't5'\nlayers = 6\ndim = 512\nheads = 8\nhead_features = 64\nhidden = 2048\nsequence = 512\nvocab = 32128",
    ),
    (
        "t5-base",
        "kind = 't5'\nlayers = 12\ndim = 768\nheads = 12\nhead_features = 64\nhidden = 3072\nsequence = 512\nvocab = 32128",
    ),
    (
        "t5-3b",
        "kind = 't5'\nlayers = 24\ndim = 1024\nheads = 32\nhead_features = 128\nhidden = 16384\nsequence = 512\nvocab = 32128",
    ),
    (
        "t5-11b",
        "kind = 't5'\nlayers = 24\ndim = 1024\nheads = 128\nhead_features = 128\nhidden = 65536\nsequence = 512\nvocab = 32128",
    ),
];

/// The names, in the order of the tables.
pub fn names() -> Vec<&'static str> {
    let gpt = GPT.iter().map(|(name, _)| *name);
    gpt.chain(LLAMA.iter().map(|(name, _)| *name))
        .chain(BERT.iter().map(|(name, _)| *name))
        .chain(MOE_GPT.iter().map(|(name, _)| *name))
        .chain(WIDE_RESNET.iter().map(|(name, _)| *name))
        .chain(VIT.iter().map(|(name, _)| *name))
        .chain(SINGLE.iter().map(|(name, _)| *name))
        .collect()
}

/// The name of a model with the sizes of this section `[model]`, if one has them.
pub fn name_of(section: &Table) -> Option<&'static str> {
    let has_sizes = |sizes: Table| sizes.iter().all(|(key, value)| section.get(key) == Some(value));
    names().into_iter().find(|name| named(name).is_some_and(has_sizes))
}

/// The section `[model]` for a name, in upper or lower case.
pub fn named(name: &str) -> Option<Table> {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    let of = |kind: &str, keys: &[&str], sizes: &[i64]| {
        let sizes = keys.iter().zip(sizes).map(|(key, &size)| (key.to_string(), Value::Integer(size)));
        Table::from_iter(std::iter::once(("kind".to_string(), Value::from(kind))).chain(sizes))
    };
    if let Some((_, sizes)) = GPT.iter().find(|(known, _)| is(known)) {
        return Some(of("gpt", &["layers", "dim", "heads", "sequence", "vocab"], sizes));
    }
    if let Some((_, sizes)) = LLAMA.iter().find(|(known, _)| is(known)) {
        return Some(of(
            "llama",
            &["layers", "dim", "heads", "kv_heads", "hidden", "sequence", "vocab"],
            sizes,
        ));
    }
    if let Some((_, sizes)) = MOE_GPT.iter().find(|(known, _)| is(known)) {
        let mut table = of("moe-gpt", &["layers", "dim", "heads", "experts"], sizes);
        for (key, value) in [("sequence", 1024), ("vocab", 32000), ("mlp_ratio", 8)] {
            table.insert(key.to_string(), Value::Integer(value));
        }
        return Some(table);
    }
    if let Some((_, [dim, width, blocks])) = WIDE_RESNET.iter().find(|(known, _)| is(known)) {
        let mut table = of("wide-resnet", &["dim", "width"], &[*dim, *width]);
        table.insert("blocks".to_string(), Value::from(vec![3, 4, *blocks, 3]));
        for (key, value) in [("image", 224), ("classes", 1024), ("stem", 7)] {
            table.insert(key.to_string(), Value::Integer(value));
        }
        return Some(table);
    }
    if let Some((_, sizes)) = VIT.iter().find(|(known, _)| is(known)) {
        let mut table = of("vit", &["layers", "dim", "heads", "patch"], sizes);
        for (key, value) in [("image", 224), ("classes", 1000)] {
            table.insert(key.to_string(), Value::Integer(value));
        }
        return Some(table);
    }
    if let Some((_, section)) = SINGLE.iter().find(|(known, _)| is(known)) {
        return section.parse().ok();
    }
    let (_, [layers, dim, heads]) = BERT.iter().find(|(known, _)| is(known))?;
    let mut table =
        of("bert", &["layers", "dim", "heads", "sequence", "vocab"], &[*layers, *dim, *heads, 512, 30522]);
    table.insert("types".to_string(), Value::Integer(2));
    Some(table)
}

/// The section `[model]` for Hugging Face's description of a model: `model_type` of `gpt2`, `llama` and its kin, or
/// `bert`.
///
/// # Errors
/// E512 for text that is not JSON, with its line and column, and for a model of another kind or without its sizes.
pub fn from_hugging_face(text: &str, origin: &str) -> Result<Table> {
    let refused = |at: String| Diagnostic::new("E512", "the description of a model cannot be read").at(at);
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| {
        refused(format!("{origin}:{}:{}", error.line(), error.column()))
            .expected("JSON, as `config.json` of Hugging Face")
            .found(error.to_string())
    })?;
    let kind = value.get("model_type").and_then(serde_json::Value::as_str).unwrap_or("none");
    let size = |keys: &[&str]| -> Result<i64> {
        let found = keys.iter().find_map(|key| value.get(*key)).and_then(serde_json::Value::as_i64);
        found.filter(|size| (1..=1 << 32).contains(size)).ok_or_else(|| {
            refused(origin.to_string())
                .expected(format!("a count of at least 1 under {}", keys.join(" or ")))
                .found(
                    keys.iter()
                        .find_map(|key| value.get(*key))
                        .map_or("nothing".to_string(), |v| v.to_string()),
                )
        })
    };
    let tied = |default: bool| value.get("tie_word_embeddings").and_then(|v| v.as_bool()).unwrap_or(default);
    let mut table = Table::new();
    let mut set = |key: &str, value: Value| {
        table.insert(key.to_string(), value);
    };
    match kind {
        "gpt2" => {
            set("kind", "gpt".into());
            for (key, names) in [
                ("layers", &["n_layer"][..]),
                ("dim", &["n_embd"]),
                ("heads", &["n_head"]),
                ("sequence", &["n_positions", "n_ctx"]),
                ("vocab", &["vocab_size"]),
            ] {
                set(key, size(names)?.into());
            }
            set("tied", tied(true).into());
        }
        "llama" | "mistral" | "qwen2" => {
            set("kind", "llama".into());
            for (key, names) in [
                ("layers", &["num_hidden_layers"][..]),
                ("dim", &["hidden_size"]),
                ("heads", &["num_attention_heads"]),
                ("kv_heads", &["num_key_value_heads", "num_attention_heads"]),
                ("hidden", &["intermediate_size"]),
                ("vocab", &["vocab_size"]),
            ] {
                set(key, size(names)?.into());
            }
            // A row is as long as the model was trained for, within what one device can attend to.
            set("sequence", size(&["max_position_embeddings"])?.min(8192).into());
            // Qwen2 names a window that it does not use unless it says so.
            let is_used = |value: &serde_json::Value| value.as_bool() == Some(true);
            if kind != "qwen2" || value.get("use_sliding_window").is_some_and(is_used) {
                let window = value.get("sliding_window").and_then(serde_json::Value::as_i64);
                if let Some(window) = window.filter(|&window| window > 0) {
                    set("window", window.into());
                }
            }
            set("tied", tied(false).into());
        }
        "bert" => {
            set("kind", "bert".into());
            for (key, names) in [
                ("layers", &["num_hidden_layers"][..]),
                ("dim", &["hidden_size"]),
                ("heads", &["num_attention_heads"]),
                ("sequence", &["max_position_embeddings"]),
                ("vocab", &["vocab_size"]),
                ("types", &["type_vocab_size"]),
            ] {
                set(key, size(names)?.into());
            }
        }
        other => {
            return Err(refused(origin.to_string())
                .expected("a `model_type` of gpt2, llama, mistral, qwen2 or bert")
                .found(format!("`{other}`")));
        }
    }
    Ok(table)
}

/// The section `[model]` for a name or a JSON file, or nothing.
///
/// # Errors
/// Those of [`from_hugging_face`]; E005 for a file that cannot be read.
pub fn find(name: &str) -> Result<Option<Table>> {
    if let Some(table) = named(name) {
        return Ok(Some(table));
    }
    if Path::new(name).extension().is_none_or(|ending| ending != "json") {
        return Ok(None);
    }
    let text = partita_base::read_text(name).map_err(|error| {
        Diagnostic::new("E005", format!("no model file `{name}`"))
            .expected("a `config.json` as Hugging Face writes it")
            .found(error.to_string())
    })?;
    from_hugging_face(&text, name).map(Some)
}
