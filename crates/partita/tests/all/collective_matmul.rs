//! Gathers before matmuls, and reduce-scatters behind them, as permutes under the parts of the product: exact on every
//! mesh, as many bytes as the collectives, and faster where the cost model says so.

use crate::session;
use partita::session::Session;
use partita_program::{CollectiveKind, Counts, collective_matmuls, counts};
use partita_schedule::verify::Unwatched;
use partita_simulate::simulate;

const SMALL: &[&str] = &[
    "model.dim=24",
    "model.heads=12",
    "model.layers=1",
    "model.sequence=12",
    "model.vocab=48",
    "train.batch=4",
    "train.dtype=f64",
    "plan.sequence_parallel=true",
];

#[test]
fn rings_are_exact_on_every_mesh() {
    for (name, mesh, more) in [
        ("gpt", "tp=2", &[][..]),
        ("gpt", "tp=3", &[]),
        ("gpt", "tp=4", &[]),
        ("llama", "dp=2,tp=2", &["model.kv_heads=12"]),
        ("gpt", "fsdp=2,tp=2", &[]),
        ("gpt", "fsdp=3", &[]),
        ("gpt", "pp=2,tp=2", &["model.layers=2", "train.microbatches=2"]),
    ] {
        let own = [format!("mesh.shape={mesh}"), "train.collective_matmul=on".to_string()];
        let items: Vec<&str> =
            SMALL.iter().chain(more).copied().chain(own.iter().map(String::as_str)).collect();
        let session = session(name, &items);
        let verified = session.verify(4, &session.step_runner(), &Unwatched);
        let report = verified.unwrap_or_else(|error| panic!("{name} {mesh}: {error}")).report;
        assert!(report.ok, "{name} {mesh}: {:?} {:?}", report.worst(), report.first_diverging);
        assert_eq!(report.tolerance, 1e-9);
    }
}

/// Collectives of a rank in the forward pass: number of tensors and bytes, of each kind.
fn forward(counts: &Counts) -> [(usize, usize); 3] {
    let kinds = [CollectiveKind::AllGather, CollectiveKind::ReduceScatter, CollectiveKind::CollectivePermute];
    kinds.map(|kind| (counts.forward.of(kind).logical, counts.forward.of(kind).bytes))
}

/// Two gathers before the matmuls of a layer and two reduce-scatters behind them, of `rows x dim` in f64 each.
#[test]
fn a_ring_moves_one_shard_in_each_of_its_permutes() {
    for ranks in [2, 3, 4] {
        let seen = |choice: &str| {
            let own = [format!("mesh.shape=tp={ranks}"), format!("train.collective_matmul={choice}")];
            let items: Vec<&str> = SMALL.iter().copied().chain(own.iter().map(String::as_str)).collect();
            let session = session("gpt", &items);
            forward(&counts(&session.lower(&session.build().unwrap()).unwrap(), 0))
        };
        let ([gathers, scatters, permutes], [left, also_left, rings]) = (seen("off"), seen("on"));
        let replaced = gathers.0 - left.0 + scatters.0 - also_left.0;
        let whole = gathers.1 - left.1 + scatters.1 - also_left.1;
        assert!(gathers.0 - left.0 >= 2 && scatters.0 - also_left.0 >= 2, "{ranks}: {gathers:?} {left:?}");
        assert_eq!(rings.0 - permutes.0, replaced * (ranks - 1), "{ranks}");
        assert_eq!(rings.1 - permutes.1, whole / ranks * (ranks - 1), "{ranks}");
    }
}

/// A model with so many features and layers whose activations are sharded over nodes with one device each.
fn slow_links(choice: &str, dim: usize, layers: usize) -> Session {
    let own = [
        format!("model.dim={dim}"),
        format!("model.layers={layers}"),
        format!("train.collective_matmul={choice}"),
        "model.heads=16".to_string(),
        "model.sequence=1024".to_string(),
        "model.vocab=512".to_string(),
        "train.batch=8".to_string(),
        "mesh.shape=tp=4".to_string(),
        "plan.sequence_parallel=true".to_string(),
        "cluster.name=a100-80g:4x1".to_string(),
    ];
    session("gpt", &own.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Where links are slow beside the arithmetic, a step of large matmuls gains, and `auto` finds it.
#[test]
fn the_cost_model_finds_where_rings_pay() {
    let step_s = |choice: &str, dim: usize| {
        let session = slow_links(choice, dim, 1);
        let set = session.lower(&session.build().unwrap()).unwrap();
        let permutes = counts(&set, 0).forward.of(CollectiveKind::CollectivePermute).logical;
        (simulate(&set, &session.config().cluster).unwrap().step_s, permutes)
    };
    let (off, auto) = (step_s("off", 4096), step_s("auto", 4096));
    assert!(off.1 == 0 && auto.1 > 0 && auto.0 < 0.99 * off.0, "{off:?} {auto:?}");
}

/// Where gathers of parameters keep the links busy, permutes would wait behind them: `auto` makes none.
#[test]
fn rings_do_not_wait_behind_gathers_of_parameters() {
    let step = |choice: &str| {
        let own = [
            "model.dim=2048",
            "model.heads=16",
            "model.layers=2",
            "model.sequence=512",
            "train.batch=4",
            "mesh.shape='fsdp=2,tp=4'",
            "plan.sequence_parallel=true",
            "cluster.name=a100-80g:2x4",
            &format!("train.collective_matmul={choice}"),
        ];
        let session = session("gpt", &own);
        let set = session.lower(&session.build().unwrap()).unwrap();
        let permutes = counts(&set, 0).forward.of(CollectiveKind::CollectivePermute).logical;
        (simulate(&set, &session.config().cluster).unwrap().step_s, permutes)
    };
    let [off, on, auto] = ["off", "on", "auto"].map(step);
    assert!(on.1 > 0 && on.0 > off.0 && auto == off, "{off:?} {on:?} {auto:?}");
}

/// A note says how many of them become permutes: each of them takes one permute fewer than there are ranks.
#[test]
fn a_note_says_which_rings_pay() {
    for (dim, pays) in [(4096, true), (64, false)] {
        let session = slow_links("auto", dim, 2);
        let (model, built) = (session.model().unwrap(), session.build().unwrap());
        let priced =
            collective_matmuls(&built.stages[0].classes, &session.lower_options(), session.cpu()).unwrap();
        let taken = priced.iter().filter(|choice| choice.pays()).count();
        let set = session.lower(&built).unwrap();
        let counts = counts(&set, 0);
        let permutes = [&counts.forward, &counts.backward]
            .map(|phase| phase.of(CollectiveKind::CollectivePermute).logical);
        assert_eq!(permutes.iter().sum::<usize>(), taken * 3, "{dim}: {priced:?}");
        assert_eq!(taken > 0, pays, "{dim}: {priced:?}");
        let notes = session.notes(&model, &built).join("\n");
        let expected = match pays {
            true => format!("{taken} of {} collectives around matmuls become permutes", priced.len()),
            false => format!("none of the {} collectives around matmuls is faster", priced.len()),
        };
        assert!(notes.contains(&expected), "{notes}");
    }
}
