//! Weights of Hugging Face models for the bundled GPT, Llama and BERT: where each parameter is in
//! a checkpoint, and back.
//!
//! A parameter here is one tensor there, one part of several (`c_attn` of GPT-2 holds q, k and v), or
//! several joined (a fused `qkv_proj` of Llama). GPT-2 stores its weights as `[in, out]`, transposed.

use crate::{Limits, Tensor, Weights};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_ir::Literal;
use partita_nn::Model;

/// A family of models with one scheme of names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// `GPT2LMHeadModel`, the bundled `gpt`.
    Gpt2,
    /// `LlamaForCausalLM`, the bundled `llama`.
    Llama,
    /// `BertForMaskedLM`, the bundled `bert`.
    Bert,
}

/// What [`Family::load`] found.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The value of each parameter, in the order of the model. Element types are those of the file.
    pub tensors: IndexMap<String, Tensor>,
    /// Tensors of the file that no parameter uses: masks, positions, a pooler.
    pub unused: Vec<String>,
}

/// How a parameter is stored there. `#` is the number of the layer.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// The same tensor.
    Same,
    /// Transposed.
    Turned,
    /// One of three parts along the output features, transposed if it is a matrix.
    Third(usize),
    /// Three tensors, joined along the output features.
    Joined,
}

use Form::{Joined, Same, Third, Turned};

/// (here, there, form); names are those of modules, of their `.weight` and `.bias`.
type Names = &'static [(&'static str, &'static str, Form)];

const GPT2: Names = &[
    ("embed_tokens", "transformer.wte", Same),
    ("embed_positions", "transformer.wpe", Same),
    ("layers.#.attn_norm", "transformer.h.#.ln_1", Same),
    ("layers.#.attn.qkv_proj", "transformer.h.#.attn.c_attn", Turned),
    ("layers.#.attn.q_proj", "transformer.h.#.attn.c_attn", Third(0)),
    ("layers.#.attn.k_proj", "transformer.h.#.attn.c_attn", Third(1)),
    ("layers.#.attn.v_proj", "transformer.h.#.attn.c_attn", Third(2)),
    ("layers.#.attn.o_proj", "transformer.h.#.attn.c_proj", Turned),
    ("layers.#.mlp_norm", "transformer.h.#.ln_2", Same),
    ("layers.#.mlp.up_proj", "transformer.h.#.mlp.c_fc", Turned),
    ("layers.#.mlp.down_proj", "transformer.h.#.mlp.c_proj", Turned),
    ("norm", "transformer.ln_f", Same),
    ("lm_head", "lm_head", Same),
];

const LLAMA: Names = &[
    ("embed_tokens", "model.embed_tokens", Same),
    ("layers.#.attn_norm", "model.layers.#.input_layernorm", Same),
    ("layers.#.attn.qkv_proj", "model.layers.#.self_attn.{q,k,v}_proj", Joined),
    ("layers.#.attn.q_proj", "model.layers.#.self_attn.q_proj", Same),
    ("layers.#.attn.k_proj", "model.layers.#.self_attn.k_proj", Same),
    ("layers.#.attn.v_proj", "model.layers.#.self_attn.v_proj", Same),
    ("layers.#.attn.o_proj", "model.layers.#.self_attn.o_proj", Same),
    ("layers.#.mlp_norm", "model.layers.#.post_attention_layernorm", Same),
    ("layers.#.mlp.gate_proj", "model.layers.#.mlp.gate_proj", Same),
    ("layers.#.mlp.up_proj", "model.layers.#.mlp.up_proj", Same),
    ("layers.#.mlp.down_proj", "model.layers.#.mlp.down_proj", Same),
    ("norm", "model.norm", Same),
    ("lm_head", "lm_head", Same),
];

const BERT: Names = &[
    ("embed_tokens", "bert.embeddings.word_embeddings", Same),
    ("embed_positions", "bert.embeddings.position_embeddings", Same),
    ("embed_types", "bert.embeddings.token_type_embeddings", Same),
    ("embed_norm", "bert.embeddings.LayerNorm", Same),
    ("layers.#.attn.qkv_proj", "bert.encoder.layer.#.attention.self.{query,key,value}", Joined),
    ("layers.#.attn.q_proj", "bert.encoder.layer.#.attention.self.query", Same),
    ("layers.#.attn.k_proj", "bert.encoder.layer.#.attention.self.key", Same),
    ("layers.#.attn.v_proj", "bert.encoder.layer.#.attention.self.value", Same),
    ("layers.#.attn.o_proj", "bert.encoder.layer.#.attention.output.dense", Same),
    ("layers.#.attn_norm", "bert.encoder.layer.#.attention.output.LayerNorm", Same),
    ("layers.#.mlp.up_proj", "bert.encoder.layer.#.intermediate.dense", Same),
    ("layers.#.mlp.down_proj", "bert.encoder.layer.#.output.dense", Same),
    ("layers.#.mlp_norm", "bert.encoder.layer.#.output.LayerNorm", Same),
    ("lm_transform", "cls.predictions.transform.dense", Same),
    ("lm_norm", "cls.predictions.transform.LayerNorm", Same),
    ("lm_head", "cls.predictions.decoder", Same),
];

/// Where one parameter is: the names of the tensors there, and their form.
struct Place {
    names: Vec<String>,
    form: Form,
}

impl Family {
    /// The family of the bundled model with this name: `gpt`, `llama`, `bert`.
    pub fn of(model: &str) -> Option<Family> {
        match model {
            "gpt" => Some(Family::Gpt2),
            "llama" => Some(Family::Llama),
            "bert" => Some(Family::Bert),
            _ => None,
        }
    }

    fn names(self) -> Names {
        match self {
            Family::Gpt2 => GPT2,
            Family::Llama => LLAMA,
            Family::Bert => BERT,
        }
    }

    /// Where the parameter `name` is; `None` for a parameter that these models do not have.
    fn place(self, name: &str) -> Option<Place> {
        let (module, leaf) = name.rsplit_once('.')?;
        let mut parts: Vec<&str> = module.split('.').collect();
        let number = parts.iter().position(|part| part.bytes().all(|b| b.is_ascii_digit()));
        let layer = number.map_or("", |at| std::mem::replace(&mut parts[at], "#"));
        let module = parts.join(".");
        let &(_, there, form) = self.names().iter().find(|(here, _, _)| *here == module)?;
        let there = format!("{}.{leaf}", there.replace('#', layer));
        let names = match there.split_once('{').zip(there.split_once('}')) {
            Some(((before, rest), (_, after))) => {
                let choices = rest.split('}').next().unwrap_or_default().split(',');
                choices.map(|choice| format!("{before}{choice}{after}")).collect()
            }
            None => vec![there],
        };
        Some(Place { names, form })
    }

    /// Finds the value of every parameter of a bundled model. E363 with all parameters that are missing or have another
    /// shape; E350 if the file has changed.
    pub fn load(self, model: &Model, weights: &Weights) -> Result<Loaded> {
        let mut tensors = IndexMap::new();
        let mut used: Vec<String> = Vec::new();
        let mut problems = Vec::new();
        for (name, spec) in &model.params {
            match self.find(name, &spec.ty.shape, weights, &mut used)? {
                Ok(tensor) => drop(tensors.insert(name.clone(), tensor)),
                Err(problem) => problems.push(problem),
            }
        }
        // Another name of a tensor that is used is used too.
        let tied = |name: &str| {
            used.iter()
                .any(|used| weights.get(used).zip(weights.get(name)).is_some_and(|(a, b)| a.is_same_view(b)))
        };
        let aliases = self.aliases(model);
        let is_used = |name: &str| {
            used.iter().any(|used| used == name) || tied(name) || aliases.iter().any(|alias| alias == name)
        };
        let unused =
            weights.iter().map(|(name, _)| name).filter(|name| !is_used(name)).map(String::from).collect();
        if problems.is_empty() {
            return Ok(Loaded { tensors, unused });
        }
        let mut error = Diagnostic::new("E363", "the weights do not fit the model")
            .expected(format!("a tensor for each of the {} parameters", model.params.len()))
            .found(format!("{} that are missing or have another shape", problems.len()))
            .help("give the config the sizes of the checkpoint: vocabulary, dimension, layers, heads, positions");
        for problem in problems.iter().take(20) {
            error = error.note(problem.clone());
        }
        Err(error)
    }

    /// Names there of parameters that are tied here.
    fn aliases(self, model: &Model) -> Vec<String> {
        model.ties.iter().filter_map(|(alias, _)| self.place(alias)).flat_map(|place| place.names).collect()
    }

    /// The value of a parameter, or what is wrong with it.
    fn find(
        self,
        name: &str,
        shape: &[usize],
        weights: &Weights,
        used: &mut Vec<String>,
    ) -> Result<Result<Tensor, String>> {
        let Some(place) = self.place(name) else {
            return Ok(Err(format!("`{name}`: these models have no such parameter")));
        };
        let mut parts = Vec::new();
        for there in &place.names {
            let found = spellings(there).find(|spelling| weights.get(spelling).is_some());
            let Some(found) = found else {
                return Ok(Err(format!("`{name}` is missing: expected as `{there}`")));
            };
            parts.push(weights.get(&found).expect("just found").clone());
            used.push(found);
        }
        let wrong = |tensor: &Tensor| {
            format!(
                "`{name}` has another shape: {shape:?} here, {:?} as `{}`",
                tensor.ty.shape, place.names[0]
            )
        };
        let whole = parts[0].clone();
        let tensor = match place.form {
            // Shorter rows than those of the checkpoint have its first positions.
            Same if name == "embed_positions.weight"
                && whole.ty.rank() == 2
                && shape[0] < whole.ty.shape[0] =>
            {
                whole.rows(0, shape[0])
            }
            Same => whole,
            Turned if whole.ty.rank() == 2 => whole.transposed(),
            Turned => whole,
            Third(number) => {
                let turned = if whole.ty.rank() == 2 { whole.transposed() } else { whole };
                let rows = shape.first().copied().unwrap_or(0);
                if turned.ty.shape.first() != Some(&(3 * rows)) {
                    return Ok(Err(wrong(&turned)));
                }
                turned.rows(number * rows, rows)
            }
            Joined => match Tensor::joined(&parts)? {
                Some(joined) => joined,
                None => return Ok(Err(wrong(&parts[0]))),
            },
        };
        Ok(if tensor.ty.shape == shape { Ok(tensor) } else { Err(wrong(&tensor)) })
    }

    /// The tensors of a checkpoint with the names of the family, for [`crate::save`]: what
    /// `from_pretrained` and `load_state_dict` read. Tied tensors have one name. E363 for a parameter
    /// that these models do not have.
    pub fn checkpoint(self, params: &IndexMap<String, Literal>) -> Result<IndexMap<String, Literal>> {
        let mut thirds: IndexMap<String, Vec<Option<Tensor>>> = IndexMap::new();
        let mut tensors = IndexMap::new();
        for (name, literal) in params {
            let place = self.place(name).ok_or_else(|| {
                Diagnostic::new("E363", format!("`{name}` has no name in these models"))
                    .expected("a parameter of the bundled model")
                    .found(name.clone())
            })?;
            let tensor = of_literal(name, literal)?;
            let is_matrix = tensor.ty.rank() == 2;
            let first = place.names[0].clone();
            match place.form {
                Turned if is_matrix => drop(tensors.insert(first, tensor.transposed().literal()?)),
                Same | Turned => drop(tensors.insert(first, literal.clone())),
                Third(number) => {
                    thirds.entry(first).or_insert_with(|| vec![None; 3])[number] = Some(tensor);
                }
                Joined => {
                    // As many rows for q as input features; k and v share the rest.
                    let rows = literal.ty.shape[0];
                    let of_q =
                        params.get(&name.replace(".bias", ".weight")).map_or(rows / 3, |w| w.ty.shape[1]);
                    let of_k = rows.saturating_sub(of_q) / 2;
                    for (name, (start, count)) in
                        place.names.into_iter().zip([(0, of_q), (of_q, of_k), (of_q + of_k, of_k)])
                    {
                        tensors.insert(name, tensor.rows(start, count).literal()?);
                    }
                }
            }
        }
        for (name, parts) in thirds {
            let parts: Option<Vec<Tensor>> = parts.into_iter().collect();
            let joined = parts.as_deref().map(Tensor::joined).transpose()?.flatten().ok_or_else(|| {
                Diagnostic::new("E363", format!("`{name}` cannot be joined"))
                    .expected("the three projections q, k and v")
                    .found("fewer, or different shapes")
            })?;
            let joined = if joined.ty.rank() == 2 { joined.transposed() } else { joined };
            tensors.insert(name, joined.literal()?);
        }
        Ok(tensors)
    }
}

/// The spellings of a name in files: with and without the prefix of the base model, with the older
/// names of norm parameters, and tied heads under the name of the embedding.
fn spellings(name: &str) -> impl Iterator<Item = String> {
    let mut names = vec![name.to_string()];
    for (head, embedding) in [
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ] {
        if name == head {
            names.push(embedding.to_string());
        }
    }
    if name == "lm_head.weight" {
        names.extend(["transformer.wte.weight".to_string(), "model.embed_tokens.weight".to_string()]);
    }
    for prefix in ["transformer.", "model.", "bert."] {
        let bare: Vec<String> =
            names.iter().filter_map(|name| name.strip_prefix(prefix)).map(String::from).collect();
        names.extend(bare);
    }
    let older = |name: &String| match name.rsplit_once("LayerNorm.") {
        Some((before, "weight")) => Some(format!("{before}LayerNorm.gamma")),
        Some((before, "bias")) => Some(format!("{before}LayerNorm.beta")),
        _ => None,
    };
    let older: Vec<String> = names.iter().filter_map(older).collect();
    names.into_iter().chain(older)
}

/// A tensor of the elements of a literal.
fn of_literal(name: &str, literal: &Literal) -> Result<Tensor> {
    let place = 0..literal.ty.bytes();
    Tensor::dense(name, literal.ty.clone(), literal.to_bytes().into(), place, &Limits::default())
}
