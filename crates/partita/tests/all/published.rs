//! Plans found by search against layouts that people found and published (`tests/data/published_layouts.md` names the
//! sources), both priced with the same costs.

use partita::auto_plan::{Candidate, Freedom, meshes};
use partita::predict::block::Recompute;
use partita::predict::rows::{Measured, read};
use partita::predict::step::Job;
use partita::{Config, Session};
use partita_cost::Cluster;
use partita_mesh::Mesh;
use partita_pipeline::Order;
use partita_schedule::ReadyOptions;
use std::collections::BTreeMap;

const LAYOUTS: &str = include_str!("../data/published_layouts.csv");

/// The step of a run on its machine, without a layout.
fn session(job: &Job, cluster: &Cluster) -> Session {
    let mut config = Config::load("gpt2-124m", &[]).unwrap();
    config.model = job.block.model.with_layers(job.layers).unwrap();
    config.cluster = cluster.clone();
    config.train.dtype = job.block.dtype;
    config.train.batch = job.block.rows * job.dp * job.microbatches;
    Session::new(config).unwrap()
}

/// Seconds and bytes of the published layout; or why it has none.
fn published(session: &Session, job: &Job) -> Result<(Mesh, f64, u64), String> {
    let replicas = job.dp / if job.zero == 3 { job.shard_group } else { 1 };
    let axes = [("pp", job.pp), ("dp", replicas), ("fsdp", job.dp / replicas), ("tp", job.block.tp)];
    let axes: Vec<(&str, usize)> = axes.into_iter().filter(|(_, size)| *size > 1).collect();
    let mesh = Mesh::new("mesh", if axes.is_empty() { &[("dp", 1)] } else { &axes });
    let options = ReadyOptions {
        sequence_parallel: job.block.sequence_parallel,
        vocab_parallel: job.block.vocab_parallel,
        zero: job.zero.min(2),
    };
    let small = session.config().model.with_layers(1).unwrap();
    let forward = small.build(1, job.block.dtype, true).unwrap().forward;
    let mut plan = small.plan(&forward, &mesh, &options).map_err(|error| error.message.clone())?;
    let recomputed = match job.block.recompute {
        Recompute::Layers => Some("layers.*"),
        Recompute::FeedForward => Some("layers.*.mlp"),
        Recompute::Nothing | Recompute::Attention => None,
    };
    if let Some(modules) = recomputed {
        plan.add(modules, "checkpoint", "published").map_err(|error| error.message.clone())?;
    }
    let mut config = session.config().clone();
    config.train.timetable = match (&job.order, job.chunks) {
        (Some(order), _) => order.clone(),
        (None, 1) => Order::default(),
        (None, chunks) => Order::named(&format!("interleaved-1f1b:{chunks}")).unwrap(),
    };
    let session = Session::new(config)
        .unwrap()
        .with_mesh(mesh.clone())
        .with_microbatches(job.microbatches)
        .with_sequence_parallel(job.block.sequence_parallel);
    let price = session.price_folded(Some(&plan)).map_err(|error| error.message.clone())?;
    Ok((mesh, price.step_s(), price.bytes()))
}

/// What a search depends on.
fn subject(session: &Session) -> String {
    let config = session.config();
    format!("{:?} {:?} {}", config.model, config.cluster, config.train.batch)
}

/// Compares the rows that `wanted` takes; returns how many layouts were compared.
fn compare(wanted: impl Fn(usize, &Measured) -> bool) -> usize {
    let rows = read(LAYOUTS, "published_layouts.csv").unwrap();
    let (mut compared, mut slower, mut found) = (0, Vec::new(), BTreeMap::<String, Candidate>::new());
    for (_, row) in rows.iter().enumerate().filter(|(number, row)| wanted(*number, row)) {
        let (job, cluster) = match &row.job {
            Ok(job) => job,
            Err(why) => {
                println!("{}: not compared: {why}", row.row);
                continue;
            }
        };
        let session = session(job, cluster);
        let limit = cluster.device.memory_bytes;
        let (mesh, step_s, bytes) = match published(&session, job) {
            Ok(price) if price.2 <= limit => price,
            Ok((mesh, _, bytes)) => {
                println!("{}: not compared: {mesh} needs {:.1} GB here", row.row, bytes as f64 / 1e9);
                continue;
            }
            Err(why) => {
                println!("{}: not compared: {why}", row.row);
                continue;
            }
        };
        let freedom = Freedom { microbatches: true, flags: true, ..Freedom::default() };
        let best = found.entry(subject(&session)).or_insert_with(|| {
            let tried = meshes(mesh.rank_count(), 128, session.config().train.batch);
            let session = session.clone().with_microbatches(1);
            session.auto_plan_over(None, &tried, freedom, &|_| {}).unwrap().best
        });
        compared += 1;
        let text = format!(
            "{}: {:.4} s and {:.1} GB with {}, published {mesh} with {} microbatches {:.4} s and {:.1} GB",
            row.row,
            best.step_s,
            best.bytes as f64 / 1e9,
            best.flags(),
            job.microbatches,
            step_s,
            bytes as f64 / 1e9
        );
        println!("{text}");
        assert!(best.bytes <= limit, "{text}");
        if best.step_s > step_s * (1.0 + 1e-9) {
            slower.push(text);
        }
    }
    println!("{compared} layouts compared, {} searches", found.len());
    assert!(slower.is_empty(), "{} plans are slower:\n{}", slower.len(), slower.join("\n"));
    compared
}

/// One row of each of three sources: a pipeline with data and tensor parallel ranks, a pipeline alone, tensor parallel ranks
/// alone.
#[test]
fn a_few_published_layouts_are_not_predicted_to_be_faster() {
    let few = ["alpa-001", "zero_bubble-013", "megatron_2020-004"];
    assert_eq!(compare(|_, row| few.contains(&row.row.as_str())), few.len());
}

/// `ROWS=bloom cargo test --release -p partita --test all -- --ignored published` compares the rows whose name contains
/// that; without it, all of them.
#[test]
#[ignore = "takes minutes"]
fn no_published_layout_is_predicted_to_be_faster() {
    let part = std::env::var("ROWS").unwrap_or_default();
    assert!(compare(|_, row| row.row.contains(&part)) > 0);
}
