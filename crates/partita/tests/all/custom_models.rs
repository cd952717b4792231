//! A model kind of a program's own: one file with its keys, its graph and its plan, and no change elsewhere.

use indexmap::IndexMap;
use partita::config::Config;
use partita::prelude::*;
use partita_base::Result;
use partita_schedule::verify::Unwatched;
use partita_schedule::{ReadyOptions, StepKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Learns whether two vectors are near: two towers that share a width, and the mean squared error of their product.
#[derive(Debug)]
struct Towers {
    width: usize,
}

struct TowersKind;

impl ModelKind for TowersKind {
    fn name(&self) -> &str {
        "towers"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        Ok(Arc::new(Towers { width: section.get("width", 4, "features of each tower")? }))
    }
}

impl ModelSource for Towers {
    fn name(&self) -> &str {
        "towers"
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        let mut cx = Context::new("towers", dtype, training);
        let inputs = ["left", "right"].map(|name| cx.input(name, dtype, &[batch, self.width]));
        let targets = cx.input("targets", dtype, &[batch, self.width]);
        let left = cx.call("left_tower", &Linear::new(self.width, self.width), inputs[0])?;
        let right = cx.call("right_tower", &Linear::new(self.width, self.width), inputs[1])?;
        let product = cx.builder.multiply(left, right)?;
        let loss = losses::mse(&mut cx, product, targets)?;
        cx.finish(vec![("loss".to_string(), loss), ("product".to_string(), product)])
    }

    fn plan(&self, _: &Graph, mesh: &Mesh, _: &ReadyOptions) -> Result<Plan> {
        match mesh.axis_named("tp") {
            None => Ok(Plan::default()),
            Some(_) => Plan::from_toml("[plan]\n\"*_tower\" = \"colwise\"\n", "towers"),
        }
    }
}

/// Rows of a fixed pattern.
struct Pattern {
    rows: usize,
    width: usize,
}

impl Feed for Pattern {
    fn batch(&self, step: u64) -> Result<Fed> {
        let tensor = |shift: usize| {
            let value = |at: usize| ((at * 7 + shift + step as usize) % 5) as f64 * 0.25 - 0.5;
            let ty = TensorType::new(DType::F32, [self.rows, self.width]);
            Literal::from_f64(&ty, (0..self.rows * self.width).map(value))
        };
        let names = ["left", "right", "targets"];
        Ok(names.iter().enumerate().map(|(at, name)| (name.to_string(), tensor(at))).collect())
    }

    fn validation(&self, index: u64) -> Result<Fed> {
        self.batch(1000 + index)
    }

    fn validation_batches(&self) -> u64 {
        2
    }

    fn tokens_per_batch(&self) -> usize {
        self.rows
    }

    fn describe(&self) -> String {
        "a pattern".to_string()
    }

    fn position(&self, steps: u64) -> BTreeMap<String, String> {
        BTreeMap::from([("pattern".to_string(), steps.to_string())])
    }

    fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64> {
        Ok(position["pattern"].parse().expect("a number"))
    }
}

fn config(folder: &std::path::Path, mesh: &str) -> Config {
    let file = folder.join("towers.toml");
    std::fs::write(&file, "[model]\nkind = \"towers\"\nwidth = 6\n[train]\nsteps = 5\nbatch = 4\n").unwrap();
    let overrides = [format!("mesh.shape={mesh}"), format!("checkpoint.dir={}", folder.join(mesh).display())];
    let kinds = ModelKinds::bundled().with(TowersKind);
    Config::load_with(&kinds, file.to_str().unwrap(), &overrides).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_kind_of_its_own_is_configured_planned_verified_and_trained() {
    let folder = tempfile::tempdir().unwrap();
    let mut losses = Vec::new();
    for mesh in ["dp=1", "dp=2,tp=2"] {
        let session = Session::new(config(folder.path(), mesh)).unwrap();
        let model = session.model().unwrap();
        let built = session.build_model(&model).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(built.plan.entries.is_empty(), mesh == "dp=1");
        let verified = session.verify(4, &session.step_runner(), &Unwatched).unwrap();
        assert!(verified.report.ok, "{mesh}: {:?}", verified.report.worst());

        let feed = Arc::new(Pattern { rows: 4, width: 6 });
        let mut trainer = Trainer::new(&session, model, &built, feed, None).unwrap();
        let finished = trainer.fit(&mut Unobserved, &AtomicBool::new(false)).unwrap();
        assert_eq!((finished.done, finished.saved.as_ref().map(|(step, _)| *step)), (5, Some(5)));
        losses.push((finished.last.unwrap().loss, finished.validation_loss.unwrap()));
    }
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6 * a.abs();
    assert!(near(losses[0].0, losses[1].0) && near(losses[0].1, losses[1].1), "{losses:?}");
}

#[test]
fn keys_and_data_of_an_unknown_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session::new(config(folder.path(), "dp=1")).unwrap();
    let model = session.model().unwrap();
    let error = session.feed(&model).map(|_| ()).unwrap_err();
    assert_eq!(error.code, "E036");
    assert!(error.found.as_deref().unwrap().contains("left: tensor<4x6xf32>"), "{error}");

    let kinds = ModelKinds::bundled().with(TowersKind);
    let file = folder.path().join("towers.toml");
    let refused = |item: &str| {
        Config::load_with(&kinds, file.to_str().unwrap(), &[item.to_string()]).map(|_| ()).unwrap_err().code
    };
    assert_eq!(refused("model.widht=3"), "E001");
    assert_eq!(refused("model.width=-3"), "E002");
    let keys = Config::keys(&kinds);
    let width = keys.iter().find(|key| key.name == "width" && key.kinds == ["towers"]).unwrap();
    assert_eq!(width.default, "4");
}

/// The parts of a step of a model in a closure, which no config names.
#[test]
fn parts_of_a_step_are_built_from_a_closure() {
    let source = from_fn("line", |cx, batch| {
        let (inputs, targets) =
            (cx.input("inputs", DType::F32, &[batch, 2]), cx.input("targets", DType::F32, &[batch, 1]));
        let prediction = cx.call("line", &Linear::new(2, 1), inputs)?;
        let loss = losses::mse(cx, prediction, targets)?;
        Ok(vec![("loss".to_string(), loss), ("prediction".to_string(), prediction)])
    });
    let session = Session::of(source, "dp=2").unwrap();
    let model = session.model().unwrap();
    let outputs = |part| session.build_part(&model, &Plan::default(), part).unwrap().step.output_names;
    assert_eq!(outputs(StepKind::Loss), ["loss"]);
    assert_eq!(outputs(StepKind::Outputs), ["loss", "prediction"]);
    let gradients = outputs(StepKind::Gradients);
    assert!(gradients.contains(&"grad.line.weight".to_string()), "{gradients:?}");
    assert!(outputs(StepKind::Step).contains(&"line.weight".to_string()));
    // The feed of this signature is the one of an MLP.
    assert!(session.feed(&model).unwrap().describe().contains("2-4-1"));
    let fed = IndexMap::from([("inputs".to_string(), Literal::new([1, 2], vec![1.0f32, 2.0]))]);
    assert_eq!(session.infer(None, &fed).unwrap()["prediction"].ty.shape, [1, 1]);
}
