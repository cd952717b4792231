//! Models as an open set: a [`ModelKind`] reads the keys of `[model]` for one value of `model.kind`, and gives a
//! [`ModelSource`], which builds forward graphs.
//!
//! The kinds of a config are a value, [`ModelKinds`], so a program adds a kind of its own by implementing the two traits
//! in one file and calling [`ModelKinds::with`]; no match over models exists that would need an arm. A model that needs no
//! config is a closure: [`from_fn`].

mod bert;
mod deepseek;
mod experts;
mod file;
mod gpt;
mod images;
mod llama;
mod mlp;
pub mod named;
mod pretrained;
mod t5;

use crate::keys::Section;
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_ir::{Graph, ValueId};
use partita_mesh::Mesh;
use partita_nn::{Context, ExpertsConfig, Model};
use partita_schedule::{Plan, ReadyOptions, storage_plan};
use std::fmt;
use std::sync::Arc;

/// A model with its sizes: what builds forward graphs.
pub trait ModelSource: fmt::Debug + Send + Sync {
    /// The kind of model: `gpt`.
    fn name(&self) -> &str;

    /// The forward graph for `batch` rows, with parameters and activations of type `dtype`; with `training`, dropout is
    /// active. Its fed inputs have the rows as dimension 0; its outputs are `loss` and others, or others alone.
    ///
    /// # Errors
    /// E050 for sizes or a type that no such model has.
    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model>;

    /// Refuses sizes that do not fit together, before anything is built.
    ///
    /// # Errors
    /// E050 with the offending size.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// Sizes by which a typo is found before a graph is built from it.
    fn sizes(&self, batch: usize) -> Sizes {
        let _ = batch;
        Sizes::default()
    }

    /// The plan for a mesh if the config has none: by default that of [`storage_plan`]. The empty plan shards only the
    /// batch.
    ///
    /// # Errors
    /// E222 and others of [`ready_plan`](partita_schedule::ready_plan).
    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        let _ = options;
        Ok(storage_plan(forward, mesh))
    }

    /// The same model with so many repeated layers; `None` if it has no layers that repeat. Where only every second layer
    /// has experts, two layers repeat as one; so does a block of an encoder with one of the decoder. Layers before those
    /// that repeat are always there.
    fn with_layers(&self, layers: usize) -> Option<Arc<dyn ModelSource>> {
        let _ = layers;
        None
    }

    /// The numbered blocks that repeat together as one layer: two where every second one has experts, or of an encoder and
    /// a decoder.
    fn period(&self) -> usize {
        1
    }

    /// Which of the blocks that repeat together as one layer a block is, of so many that repeat.
    fn kind_of_block(&self, block: usize, blocks: usize) -> usize {
        let _ = blocks;
        block % self.period()
    }

    /// Repeated layers, tokens of a row and features of the residual stream of such a model.
    fn stream(&self) -> Option<[usize; 3]> {
        None
    }

    /// Tokens of a row of a batch, which throughput counts; `None` for a model of images, numbers or a file, of which it
    /// counts rows.
    fn tokens(&self) -> Option<usize> {
        self.stream().map(|[_, tokens, _]| tokens)
    }

    /// The experts of a layer and those that a token visits; `None` for a model without.
    fn experts(&self) -> Option<Experts> {
        None
    }

    /// What the model alone decides about a batch.
    fn terms(&self) -> Terms {
        Terms::default()
    }

    /// Facts for the user.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// An error of building the training step, with what the model knows about its cause.
    fn explained(&self, error: Box<Diagnostic>) -> Box<Diagnostic> {
        error
    }

    /// Whether the logits at a position may depend on later tokens. Such a model of text learns to predict hidden tokens;
    /// any other learns to predict the next token, and can generate text.
    fn is_bidirectional(&self) -> bool {
        false
    }
}

/// What a model from elsewhere decides about a batch. The models of the zoo decide nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// The rows of a batch unless the config says otherwise.
    pub rows: Option<usize>,
    /// Whether a batch has that many rows and no others.
    pub are_rows_fixed: bool,
    /// The fewest and the most rows of a batch, if the model bounds them.
    pub row_bounds: Option<[usize; 2]>,
    /// The only element type of parameters.
    pub dtype: Option<DType>,
    /// Whether random numbers by signature are data for its inputs, whatever they mean.
    pub takes_any_data: bool,
}

impl Terms {
    /// E050 for a batch or an element type that the model does not have.
    pub fn check(&self, rows: usize, dtype: DType) -> Result<()> {
        let refused = |key: &str, what: &str, expected: String, found: String| {
            Err(Diagnostic::new("E050", format!("the {what} of this model is fixed"))
                .at(key)
                .expected(expected)
                .found(found))
        };
        match *self {
            Terms { rows: Some(own), are_rows_fixed: true, .. } if own != rows => {
                refused("train.batch", "batch", format!("{own} rows"), format!("{rows} rows"))
            }
            Terms { dtype: Some(own), .. } if own != dtype => {
                refused("train.dtype", "element type", own.to_string(), dtype.to_string())
            }
            _ => Ok(()),
        }
    }
}

/// The experts of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token visits.
    pub top_k: usize,
}

/// The number of layers after which the layers of a decoder repeat: every `every`-th one has experts.
fn period(experts: Option<&ExpertsConfig>) -> usize {
    experts.map_or(1, |experts| experts.every.max(1))
}

impl Experts {
    fn of(config: &ExpertsConfig) -> Experts {
        Experts { count: config.experts, top_k: config.top_k }
    }

    /// The parameters that a token uses, of a model with its experts: those of the experts that it visits, and all others.
    pub fn active(&self, model: &Model) -> f64 {
        let of = |name: &str, elements: usize| match name.contains(".experts.") {
            true => elements as f64 * self.top_k as f64 / self.count as f64,
            false => elements as f64,
        };
        model.params.iter().map(|(name, spec)| of(name, spec.ty.element_count())).sum()
    }
}

/// The parameters that a token uses, of a model with experts and repeated layers.
///
/// # Errors
/// Those of [`ModelSource::build`].
pub fn active_parameters(model: &dyn ModelSource) -> Result<Option<f64>> {
    let (Some(experts), Some([layers, ..])) = (model.experts(), model.stream()) else { return Ok(None) };
    let of = |layers: usize| -> Result<f64> {
        let few = model.with_layers(layers);
        let built = few.map(|few| few.build(1, DType::F32, true)).transpose()?;
        Ok(built.map_or(0.0, |built| experts.active(&built)))
    };
    let (one, two) = (of(1)?, of(2)?);
    Ok(Some(one + (two - one) * (layers - 1) as f64))
}

/// The largest sizes of a model.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sizes {
    /// Repeated layers.
    pub layers: usize,
    /// Elements of the largest tensors, each with its shape in words.
    pub tensors: Vec<(&'static str, f64)>,
}

impl Sizes {
    /// Those of a transformer: residual stream `[batch, sequence, dim]`, logits, attention scores, projections.
    pub fn of_transformer(
        batch: usize,
        layers: usize,
        [vocab, dim, heads, sequence]: [usize; 4],
        hidden: f64,
    ) -> Sizes {
        let real = |size: usize| size as f64;
        let width = real(vocab).max(hidden).max(real(heads) * real(sequence)).max(real(dim));
        Sizes {
            layers,
            tensors: vec![
                ("batch x sequence x features", real(batch) * real(sequence) * width),
                ("vocab x dim", real(vocab) * real(dim)),
                ("dim x hidden", real(dim) * hidden.max(real(dim))),
            ],
        }
    }
}

/// A kind of model that configs can name in `model.kind`.
pub trait ModelKind: Send + Sync {
    /// The name: `gpt`.
    fn name(&self) -> &str;

    /// Reads the sizes from the other keys of `[model]`.
    ///
    /// # Errors
    /// E002 for a value of the wrong type, and what the kind itself refuses.
    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>>;
}

/// The kinds of models that a config may name, in the order in which they were added.
#[derive(Clone, Default)]
pub struct ModelKinds {
    kinds: Vec<Arc<dyn ModelKind>>,
}

impl fmt::Debug for ModelKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl ModelKinds {
    /// `mlp`, `gpt`, `llama`, `bert`, `moe-gpt`, `mixtral`, `deepseek`, `wide-resnet`, `vit`, `unet`, `t5` and `file`.
    pub fn bundled() -> ModelKinds {
        ModelKinds::default()
            .with(mlp::Mlp)
            .with(gpt::Gpt)
            .with(llama::Llama)
            .with(bert::Bert)
            .with(experts::MoeGpt)
            .with(experts::Mixtral)
            .with(deepseek::Deepseek)
            .with(images::WideResNet)
            .with(images::Vit)
            .with(images::Unet)
            .with(t5::T5)
            .with(file::File)
    }

    /// These kinds and one more. A kind of the same name is replaced.
    pub fn with(mut self, kind: impl ModelKind + 'static) -> ModelKinds {
        self.kinds.retain(|other| other.name() != kind.name());
        self.kinds.push(Arc::new(kind));
        self
    }

    /// The names.
    pub fn names(&self) -> Vec<&str> {
        self.kinds.iter().map(|kind| kind.name()).collect()
    }

    /// The kind of this name. E004 if there is none.
    pub fn named(&self, name: &str) -> Result<&dyn ModelKind> {
        let found = self.kinds.iter().find(|kind| kind.name() == name);
        found.map(|kind| kind.as_ref()).ok_or_else(|| {
            let names = self.names();
            let (last, others) =
                names.split_last().map_or(("nothing", &[][..]), |(last, rest)| (*last, rest));
            let expected =
                if others.is_empty() { last.to_string() } else { format!("{} or {last}", others.join(", ")) };
            let mut error = Diagnostic::new("E004", format!("no model of kind `{name}`")).expected(expected);
            error.help = did_you_mean(name, names);
            error
        })
    }
}

/// A model written as a closure that gets the context and the number of rows, and returns the outputs with their names.
///
/// ```
/// use partita::prelude::*;
/// let model = from_fn("scores", |cx, batch| {
///     let (left, right) = (cx.input("left", DType::F32, &[batch, 4]), cx.input("right", DType::F32, &[batch, 4]));
///     let left = cx.call("project", &Linear::new(4, 4), left)?;
///     Ok(vec![("scores".to_string(), cx.builder.multiply(left, right)?)])
/// });
/// assert_eq!(model.build(2, DType::F32, false)?.params.len(), 2);
/// # Ok::<(), Box<Diagnostic>>(())
/// ```
pub fn from_fn(
    name: &str,
    write: impl Fn(&mut Context, usize) -> Result<Vec<(String, ValueId)>> + Send + Sync + 'static,
) -> Arc<dyn ModelSource> {
    Arc::new(FromFn { name: name.to_string(), write })
}

struct FromFn<F> {
    name: String,
    write: F,
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl<F: Fn(&mut Context, usize) -> Result<Vec<(String, ValueId)>> + Send + Sync> ModelSource for FromFn<F> {
    fn name(&self) -> &str {
        &self.name
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        let mut context = Context::new(&self.name, dtype, training);
        let outputs = (self.write)(&mut context, batch)?;
        context.finish(outputs)
    }
}
