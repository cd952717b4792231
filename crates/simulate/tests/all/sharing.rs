//! Links that the ranks of a node share, against sums by hand.

use super::{built, lowered, mlp, predicted};
use partita_base::{CollectiveId, Combiner, DType};
use partita_cost::{Algorithm, Cluster, Level, Link};
use partita_ir::{Phase, TensorType};
use partita_mesh::BoxMove;
use partita_program::{
    Action, Collective, CollectiveKind, CollectiveOp, Instruction, Origin, Program, ProgramSet, Start,
    Transfer,
};
use partita_simulate::{Simulation, collective_s};

/// Nodes of so many ranks: fast links within them, and links of 100 bytes a second with a latency of a second between them.
fn nodes(ranks: usize, links: Option<usize>) -> Cluster {
    let link = |latency_s, bytes_per_s| Link { latency_s, bytes_per_s, algorithm: Algorithm::Ring };
    let levels = vec![
        Level { ranks: Some(ranks), link: link(0.0, 1e12), links: None },
        Level { ranks: None, link: link(1.0, 100.0), links },
    ];
    Cluster { levels, ..Cluster::default() }
}

/// A collective of one tensor of so many bytes; a send goes from its first member to the second one.
fn collective(bucket: usize, kind: CollectiveKind, members: &[usize], bytes: usize) -> Collective {
    let ty = TensorType::new(DType::I8, vec![bytes]);
    let exchange = match kind {
        CollectiveKind::AllReduce => CollectiveOp::AllReduce { combiner: Combiner::Sum },
        _ => CollectiveOp::Send {
            boxes: vec![BoxMove {
                source: 0,
                target: 1,
                source_start: vec![0],
                target_start: vec![0],
                extents: vec![bytes],
            }]
            .into(),
        },
    };
    let types: Vec<TensorType> = vec![ty; members.len()];
    let (inputs, outputs) = (types.clone().into(), types.into());
    let transfer = Transfer { exchange, inputs, outputs, what: String::new() };
    Collective {
        kind,
        members: members.into(),
        transfers: vec![transfer].into(),
        label: String::new(),
        phase: Phase::Forward,
        microbatch: None,
        bucket,
        edge: None,
    }
}

/// Each rank starts its collectives in their order, then waits for all of them.
fn set(ranks: usize, collectives: Vec<Collective>) -> ProgramSet {
    let program = |rank: usize| {
        let own = || {
            let all = collectives.iter().enumerate();
            all.filter(|(_, one)| one.members.contains(&rank)).map(|(number, _)| CollectiveId::new(number))
        };
        let start = |collective| Action::Start(Start { collective, inputs: Vec::new(), outputs: Vec::new() });
        let actions = own().map(start).chain(own().map(Action::Wait));
        let instruction = |action| Instruction { action, origin: Origin::default() };
        Program { ranks: vec![rank], instructions: actions.map(instruction).collect(), ..Program::default() }
    };
    ProgramSet { programs: (0..ranks).map(program).collect(), collectives }
}

/// Begin and end of each collective, in their order.
fn times(simulation: &Simulation) -> Vec<(f64, f64)> {
    let mut exchanged: Vec<_> = simulation.exchanged.iter().collect();
    exchanged.sort_by_key(|one| one.collective.index());
    exchanged.iter().map(|one| (one.begin_s, one.end_s)).collect()
}

#[test]
fn a_send_waits_until_the_link_of_its_node_is_free() {
    // 200 bytes are all-reduced in two halves that take a second each, both with a second of latency; 300 bytes are sent.
    let both = set(
        4,
        vec![
            collective(0, CollectiveKind::AllReduce, &[0, 2], 200),
            collective(1, CollectiveKind::Send, &[1, 3], 300),
        ],
    );
    let on = |links| times(&predicted(&both, &nodes(2, links)));
    assert_eq!(on(None), [(0.0, 4.0), (0.0, 4.0)]);
    assert_eq!(on(Some(2)), on(None));
    // Its bytes keep the link for two seconds.
    assert_eq!(on(Some(1)), [(0.0, 4.0), (2.0, 6.0)]);
    // If the send begins first, it keeps the link for three.
    let turned = set(
        4,
        vec![
            collective(0, CollectiveKind::AllReduce, &[1, 3], 200),
            collective(1, CollectiveKind::Send, &[0, 2], 300),
        ],
    );
    assert_eq!(times(&predicted(&turned, &nodes(2, Some(1)))), [(3.0, 7.0), (0.0, 4.0)]);
    // Bytes that come share nothing with those that go.
    let back = set(
        4,
        vec![
            collective(0, CollectiveKind::Send, &[0, 2], 300),
            collective(1, CollectiveKind::Send, &[3, 1], 300),
        ],
    );
    assert_eq!(times(&predicted(&back, &nodes(2, Some(1)))), [(0.0, 4.0); 2]);
}

/// Four ranks on two nodes, whose groups do the same. Two halves of 200 bytes take a second each between nodes, with a second
/// of latency each; within a node the halves of the other tensor take a second each.
#[test]
fn collectives_over_other_levels_of_links_overlap() {
    let all =
        |bucket, members: &[usize], bytes| collective(bucket, CollectiveKind::AllReduce, members, bytes);
    let between = |bucket| vec![all(bucket, &[0, 2], 200), all(bucket, &[1, 3], 200)];
    let within = |bucket| [[0, 1], [2, 3]].map(|members| all(bucket, &members, 2_000_000_000_000)).to_vec();
    let seen = |started: [Vec<Collective>; 3]| {
        let mut seen = times(&predicted(&set(4, started.concat()), &nodes(2, None)));
        seen.dedup();
        seen
    };
    // Those between nodes take turns.
    assert_eq!(seen([between(0), within(1), between(2)]), [(0.0, 4.0), (0.0, 2.0), (4.0, 8.0)]);
    // A collective over both levels waits for both queues, and those behind it in either wait for it.
    let both = vec![all(1, &[0, 1, 2, 3], 0)];
    assert_eq!(seen([between(0), both, within(2)]), [(0.0, 4.0), (4.0, 6.0), (6.0, 8.0)]);
}

#[test]
fn a_link_serves_what_can_begin_first() {
    // Rank 0 exchanges with rank 3 of the other node behind what it does with rank 2, which takes four seconds; what rank 1
    // sends meanwhile does not wait for that.
    let all = set(
        5,
        vec![
            collective(0, CollectiveKind::AllReduce, &[0, 3], 200),
            collective(1, CollectiveKind::AllReduce, &[0, 4], 200),
            collective(2, CollectiveKind::Send, &[1, 5], 100),
        ],
    );
    let all = ProgramSet { programs: set(6, all.collectives.clone()).programs, ..all };
    let found = times(&predicted(&all, &nodes(3, Some(1))));
    assert_eq!(found, [(0.0, 4.0), (4.0, 8.0), (2.0, 4.0)]);
}

#[test]
fn groups_of_a_collective_share_the_links_of_their_nodes() {
    let set = lowered(&built(&mlp(2, 16, 8).unwrap(), "dp=2,tp=8", 1, "1f1b"));
    let whole = predicted(&set, &nodes(8, None));
    // As many links as ranks are one for each.
    assert_eq!(predicted(&set, &nodes(8, Some(8))), whole);
    assert_eq!(predicted(&set, &nodes(8, Some(64))), whole);
    for (links, times) in [(1, 8.0), (2, 4.0), (3, 8.0 / 3.0)] {
        let shared = predicted(&set, &nodes(8, Some(links)));
        let mut crossing = 0;
        for exchanged in &shared.exchanged {
            let one = &set.collectives[exchanged.collective.index()];
            let alone_s = collective_s(one, &nodes(8, Some(links)));
            assert_eq!(alone_s, collective_s(one, &nodes(8, None)));
            let is_crossing = one.members.iter().any(|rank| rank / 8 != one.members[0] / 8);
            let latency_s = if is_crossing { 2.0 } else { 0.0 };
            let times = if is_crossing { times } else { 1.0 };
            // Groups of different sizes are different exchanges, which take turns.
            let alike = set.collectives.iter().filter(|other| other.bucket == one.bucket);
            if is_crossing && alike.clone().all(|other| other.transfers == one.transfers) {
                let expected_s = latency_s + (alone_s - latency_s) * times;
                let found_s = exchanged.end_s - exchanged.begin_s;
                assert!((found_s - expected_s).abs() < 1e-9, "{links}: {found_s} {expected_s}");
                crossing += 1;
            }
        }
        assert!(crossing > 0);
        assert!(shared.step_s > whole.step_s);
    }
    // Four ranks of a node with one group at a time, as where only one rank of each node takes part.
    let set = lowered(&built(&mlp(2, 16, 8).unwrap(), "dp=4", 1, "1f1b"));
    assert_eq!(predicted(&set, &nodes(1, Some(1))), predicted(&set, &nodes(1, None)));
}
