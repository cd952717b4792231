//! The model zoo: configs that build forward graphs with a loss.

mod bert;
mod deepseek;
mod experts;
mod gpt;
mod llama;
mod mlp;
mod resnet;
mod t5;
mod unet;
mod vit;

pub use bert::BertConfig;
pub use deepseek::DeepseekConfig;
pub use experts::ExpertsConfig;
pub use gpt::GptConfig;
pub use llama::LlamaConfig;
pub use mlp::MlpConfig;
pub use resnet::WideResNetConfig;
pub use t5::T5Config;
pub use unet::UnetConfig;
pub use vit::VitConfig;

use crate::context::Context;
use crate::losses;
use crate::model::Model;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::ValueId;
use partita_ir::port::LOSS;

/// A model and its sizes.
#[derive(Clone, PartialEq, Debug)]
pub enum ModelConfig {
    /// Stacked linear layers.
    Mlp(MlpConfig),
    /// A GPT-2 style decoder.
    Gpt(GptConfig),
    /// A Llama style decoder.
    Llama(LlamaConfig),
    /// A BERT style encoder with a masked-language head.
    Bert(BertConfig),
    /// A DeepSeek-V3 style decoder.
    Deepseek(DeepseekConfig),
    /// A wide residual network.
    WideResNet(WideResNetConfig),
    /// A vision transformer.
    Vit(VitConfig),
    /// A U-Net.
    Unet(UnetConfig),
    /// A T5 style encoder and decoder.
    T5(T5Config),
}

impl ModelConfig {
    /// `mlp`, `gpt`, `llama`, `bert`, `deepseek`, `wide-resnet`, `vit`, `unet` or `t5`; `moe-gpt` and
    /// `mixtral` for the decoders with experts.
    pub fn name(&self) -> &'static str {
        match self {
            ModelConfig::Mlp(_) => "mlp",
            ModelConfig::Gpt(GptConfig { experts: Some(_), .. }) => "moe-gpt",
            ModelConfig::Llama(LlamaConfig { experts: Some(_), .. }) => "mixtral",
            ModelConfig::Gpt(_) => "gpt",
            ModelConfig::Llama(_) => "llama",
            ModelConfig::Bert(_) => "bert",
            ModelConfig::Deepseek(_) => "deepseek",
            ModelConfig::WideResNet(_) => "wide-resnet",
            ModelConfig::Vit(_) => "vit",
            ModelConfig::Unet(_) => "unet",
            ModelConfig::T5(_) => "t5",
        }
    }

    /// The tiny default of the model with this [`ModelConfig::name`].
    pub fn from_name(name: &str) -> Option<ModelConfig> {
        match name {
            "mlp" => Some(ModelConfig::Mlp(MlpConfig::default())),
            "gpt" => Some(ModelConfig::Gpt(GptConfig::default())),
            "llama" => Some(ModelConfig::Llama(LlamaConfig::default())),
            "bert" => Some(ModelConfig::Bert(BertConfig::default())),
            "moe-gpt" => Some(ModelConfig::Gpt(GptConfig::with_experts())),
            "deepseek" => Some(ModelConfig::Deepseek(DeepseekConfig::default())),
            "wide-resnet" => Some(ModelConfig::WideResNet(WideResNetConfig::default())),
            "vit" => Some(ModelConfig::Vit(VitConfig::default())),
            "unet" => Some(ModelConfig::Unet(UnetConfig::default())),
            "t5" => Some(ModelConfig::T5(T5Config::default())),
            "mixtral" => Some(ModelConfig::Llama(LlamaConfig::mixtral())),
            _ => None,
        }
    }

    /// E050 with the offending value if the sizes do not fit together.
    pub fn validate(&self) -> Result<()> {
        match self {
            ModelConfig::Mlp(config) => config.validate(),
            ModelConfig::Gpt(config) => config.validate(),
            ModelConfig::Llama(config) => config.validate(),
            ModelConfig::Bert(config) => config.validate(),
            ModelConfig::Deepseek(config) => config.validate(),
            ModelConfig::WideResNet(config) => config.validate(),
            ModelConfig::Vit(config) => config.validate(),
            ModelConfig::Unet(config) => config.validate(),
            ModelConfig::T5(config) => config.validate(),
        }
    }

    /// The forward graph for `batch` rows, parameters and activations in `dtype` (a float). With
    /// `training`, the dropout of the config is active.
    pub fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        positive("batch", batch)?;
        if !dtype.is_float() {
            return Err(Diagnostic::new("E050", "a model of this element type cannot be trained")
                .expected("f32, f64, bf16 or f16")
                .found(dtype.name()));
        }
        self.validate()?;
        let mut cx = Context::new(self.name(), dtype, training);
        let outputs = match self {
            ModelConfig::Mlp(config) => config.forward(&mut cx, batch)?,
            ModelConfig::Gpt(config) => config.forward(&mut cx, batch)?,
            ModelConfig::Llama(config) => config.forward(&mut cx, batch)?,
            ModelConfig::Bert(config) => config.forward(&mut cx, batch)?,
            ModelConfig::Deepseek(config) => config.forward(&mut cx, batch)?,
            ModelConfig::WideResNet(config) => config.forward(&mut cx, batch)?,
            ModelConfig::Vit(config) => config.forward(&mut cx, batch)?,
            ModelConfig::Unet(config) => config.forward(&mut cx, batch)?,
            ModelConfig::T5(config) => config.forward(&mut cx, batch)?,
        };
        cx.finish(outputs)
    }
}

/// E050 if a size is zero.
fn positive(key: &str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(Diagnostic::new("E050", format!("`{key}` is zero"))
            .at(key)
            .expected("at least 1")
            .found("0"));
    }
    Ok(())
}

/// E050 unless `0 <= rate < 1`.
fn rate(key: &str, value: f64) -> Result<()> {
    if !(0.0..1.0).contains(&value) {
        return Err(Diagnostic::new("E050", format!("`{key}` out of range"))
            .at(key)
            .expected("at least 0 and less than 1")
            .found(value.to_string()));
    }
    Ok(())
}

/// The inputs of language models: `tokens` and `labels`, i32 `[batch, sequence]`. `labels[b, s]` is
/// the target of position `s`; -100 is ignored.
fn token_inputs(cx: &mut Context, batch: usize, sequence: usize) -> (ValueId, ValueId) {
    let shape = [batch, sequence];
    (cx.input("tokens", DType::I32, &shape), cx.input("labels", DType::I32, &shape))
}

/// The inputs of models that classify images: `inputs` `[batch, height, width, channels]` in the type of the model, and
/// `labels`, i32 `[batch]`.
fn image_inputs(cx: &mut Context, batch: usize, image: [usize; 3]) -> (ValueId, ValueId) {
    let dtype = cx.dtype();
    let images = cx.input("inputs", dtype, &[&[batch], &image[..]].concat());
    (images, cx.input("labels", DType::I32, &[batch]))
}

/// The documents of packed rows.
#[derive(Clone, Copy)]
struct Documents {
    /// The position of each token in its document, i32 `[batch, sequence]`.
    positions: ValueId,
    /// The first position of the row that each token sees, and the one behind its own: i32 `[batch, sequence, 2]`.
    limits: ValueId,
}

impl Documents {
    /// From the input `positions`.
    fn of(cx: &mut Context, batch: usize, sequence: usize) -> Result<Documents> {
        let positions = cx.input("positions", DType::I32, &[batch, sequence]);
        let limits = cx.scope("documents", |cx| {
            let b = &mut cx.builder;
            let place = b.iota(b.ty(positions).clone(), 1)?;
            let first = b.subtract(place, positions)?;
            let behind = b.offset(place, 1.0)?;
            let both = [first, behind].map(|limit| b.reshape(limit, &[batch, sequence, 1]));
            let [first, behind] = both;
            b.concatenate(&[first?, behind?], 2)
        })?;
        Ok(Documents { positions, limits })
    }
}

/// `loss` from logits and labels, and the `logits`.
fn with_loss(cx: &mut Context, logits: ValueId, labels: ValueId) -> Result<Vec<(String, ValueId)>> {
    let loss = losses::cross_entropy(cx, logits, labels)?;
    let loss = cx.with_added_losses(loss)?;
    Ok(vec![(LOSS.to_string(), loss), ("logits".to_string(), logits)])
}
