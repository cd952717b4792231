//! Worlds of several processes, simulated by threads that each have their own place among the
//! processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use half::bf16;
use partita_base::{DType, Diagnostic, Id, Result};
use partita_comm::{
    CollectiveSpec, Combiner, Endpoint, Exchange, Failure, HostProcesses, Patience, Poll, Processes, World,
    run_ranks,
};

use crate::mailbox;

const RANKS: usize = 5;

/// How processes are connected.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// By files of one host.
    Files,
    /// By messages, with a seed of their delays.
    Messages(u64),
}

const KINDS: [Kind; 3] = [Kind::Files, Kind::Messages(1), Kind::Messages(2)];

/// Runs `body` once for each of `count` processes and returns what they return, in order.
fn each<T: Send>(kind: Kind, count: usize, body: impl Fn(Arc<dyn Processes>) -> T + Sync) -> Vec<T> {
    let folder = tempfile::tempdir().unwrap();
    let connected = if let Kind::Messages(seed) = kind { mailbox::join(count, seed) } else { Vec::new() };
    let join = |index: usize| match connected.get(index) {
        Some(processes) => processes.clone(),
        None => HostProcesses::join(folder.path(), index, count, Patience::default()).unwrap(),
    };
    std::thread::scope(|scope| {
        let process = |index: usize| {
            let (body, join) = (&body, &join);
            scope.spawn(move || body(join(index)))
        };
        let processes: Vec<_> = (0..count).map(process).collect();
        processes.into_iter().map(|process| process.join().unwrap()).collect()
    })
}

/// Collectives of every kind, uneven ones and those of some ranks among them.
fn specs() -> Vec<CollectiveSpec> {
    let all = || (0..RANKS).collect::<Vec<_>>();
    let sum = |dtype, len| Exchange::all_reduce(Combiner::Sum, dtype, len);
    let spec = CollectiveSpec::new;
    vec![
        spec("bucket", all(), vec![sum(DType::F32, 1031), sum(DType::BF16, 77), sum(DType::F32, 0)]),
        // Large enough that processes share the work.
        spec("gradients", all(), vec![sum(DType::F32, 20_011), sum(DType::BF16, 777), sum(DType::F32, 500)]),
        spec("some", vec![3, 0, 4], vec![Exchange::all_reduce(Combiner::Max, DType::F32, 13_000)]),
        spec("max", vec![4, 0, 2], vec![Exchange::all_reduce(Combiner::Max, DType::F32, 9)]),
        spec(
            "rows",
            all(),
            vec![Exchange::reduce_scatter(Combiner::Sum, DType::F32, 3, vec![4, 0, 7, 1, 2])],
        ),
        // Far enough apart that parts are packed.
        spec(
            "columns",
            all(),
            vec![
                Exchange::reduce_scatter(Combiner::Sum, DType::F32, 4, vec![200, 0, 310, 100, 205]),
                Exchange::reduce_scatter(Combiner::Sum, DType::F32, 1, vec![64; RANKS]),
            ],
        ),
        spec(
            "turned apart",
            vec![3, 0],
            vec![Exchange::all_to_all(4, &[6, 500], 0, 1, &[4, 2], &[200, 300])],
        ),
        spec("gathered", all(), vec![Exchange::all_gather(3, &[8, 4, 0, 12, 4])]),
        spec("turned", vec![3, 1], vec![Exchange::all_to_all(4, &[6, 5], 0, 1, &[4, 2], &[2, 3])]),
        spec(
            "ring",
            all(),
            vec![Exchange::collective_permute(&[(0, 1), (1, 2), (4, 0)], &[12; 5], &[12; 5])],
        ),
        spec("root", vec![2, 3, 0], vec![Exchange::broadcast(3, 1, 40)]),
        CollectiveSpec::send(1, 4, 16),
        CollectiveSpec::barrier(all()),
    ]
}

/// Bytes that are finite in every type.
fn bytes(spec: &CollectiveSpec, exchange: &Exchange, member: usize, round: usize) -> Vec<u8> {
    let number = |i: usize| ((i * 37 + member * 101 + round * 13) % 997) as f32 / 31.0 - 9.0;
    let count = exchange.input_bytes(member);
    match exchange {
        Exchange::AllReduce { dtype: DType::BF16, .. } => {
            (0..count / 2).flat_map(|i| bf16::from_f32(number(i)).to_ne_bytes()).collect()
        }
        _ => (0..count.div_ceil(4))
            .flat_map(|i| number(i + spec.label.len()).to_ne_bytes())
            .take(count)
            .collect(),
    }
}

/// The results of a rank from all collectives, used several times.
fn results(endpoint: Endpoint) -> Result<Vec<Vec<u8>>> {
    let mut results = Vec::new();
    for round in 0..20 {
        for (id, spec) in specs().iter().enumerate() {
            let Some(member) = spec.members.iter().position(|&rank| rank == endpoint.rank()) else {
                continue;
            };
            let inputs: Vec<_> = spec.exchanges.iter().map(|e| bytes(spec, e, member, round)).collect();
            let mut outputs: Vec<_> =
                spec.exchanges.iter().map(|e| vec![0xee; e.output_bytes(member)]).collect();
            let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            let mut got: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            endpoint.complete(Id::new(id), &given, &mut got)?;
            results.extend(outputs);
        }
    }
    Ok(results)
}

#[test]
fn collectives_have_the_bits_that_they_have_in_one_process() {
    let expected = run_ranks(RANKS, specs(), results).unwrap();
    for (kind, count) in KINDS.into_iter().flat_map(|kind| [2, 3, RANKS].map(|count| (kind, count))) {
        let found = each(kind, count, |processes| {
            let world = processes.world(RANKS, specs()).unwrap();
            assert_eq!(world.local_ranks(), processes.ranks(processes.index(), RANKS).collect::<Vec<_>>());
            assert_eq!((world.is_first(), world.is_whole()), (processes.index() == 0, false));
            std::thread::scope(|scope| {
                let rank = |&rank: &usize| {
                    let world = &world;
                    scope.spawn(move || results(Endpoint::new(world.transport(), rank)).unwrap())
                };
                let ranks: Vec<_> = world.local_ranks().iter().map(rank).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
            })
        });
        assert!(found.concat() == expected, "{kind:?}, {count} processes");
    }
}

/// Bytes that each of `ranks` processes of one rank sends in one use of a collective.
fn bytes_sent(ranks: usize, exchanges: Vec<Exchange>) -> Vec<usize> {
    let (processes, sent) = mailbox::counted(ranks, 7);
    let spec = CollectiveSpec::new("counted", (0..ranks).collect(), exchanges);
    let spec = &spec;
    std::thread::scope(|scope| {
        for (rank, processes) in processes.into_iter().enumerate() {
            scope.spawn(move || {
                let world = processes.world(ranks, vec![spec.clone()]).unwrap();
                let inputs: Vec<_> = spec.exchanges.iter().map(|e| bytes(spec, e, rank, 0)).collect();
                let mut outputs: Vec<_> =
                    spec.exchanges.iter().map(|e| vec![0; e.output_bytes(rank)]).collect();
                let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                let mut got: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
                Endpoint::new(world.transport(), rank).complete(Id::new(0), &given, &mut got).unwrap();
            });
        }
    });
    (0..ranks).map(sent).collect()
}

#[test]
fn a_large_all_reduce_sends_its_input_less_than_twice() {
    let len = 1 << 18;
    let bytes = len * 4;
    let sum = |len| Exchange::all_reduce(Combiner::Sum, DType::F32, len);
    for ranks in [2, 4, 8] {
        let all = vec![2 * (ranks - 1) * bytes / ranks; ranks];
        assert_eq!(bytes_sent(ranks, vec![sum(len)]), all, "one tensor");
        assert_eq!(bytes_sent(ranks, vec![sum(len / 2), sum(len / 4), sum(len / 4)]), all, "a bucket");
        assert_eq!(
            bytes_sent(ranks, vec![sum(64)]),
            vec![(ranks - 1) * 256; ranks],
            "a small one goes to all"
        );
    }
}

#[test]
fn a_reduce_scatter_sends_to_each_what_it_reduces() {
    let scatter = |outer| Exchange::reduce_scatter(Combiner::Sum, DType::F32, outer, vec![1000; 4]);
    let row = 3 * 1000 * 4;
    assert_eq!(bytes_sent(4, vec![scatter(1), scatter(1), scatter(1)]), [3 * row; 4]);
    assert_eq!(bytes_sent(4, vec![scatter(6)]), [6 * row; 4]);
}

#[test]
fn processes_agree_and_hand_each_other_bytes() {
    KINDS.into_iter().for_each(agree);
}

fn agree(kind: Kind) {
    // Longer than one chunk of the control channel.
    let long = |rank: usize| (0..600_000 + rank).map(|i| (i * 7 + rank) as u8).collect::<Vec<u8>>();
    let codes = each(kind, 3, |processes| {
        let index = processes.index();
        let world = processes.world(RANKS, vec![]).unwrap();
        assert_eq!(world.largest(10 + index as u64).unwrap(), 12);
        assert_eq!([world.any(index == 1).unwrap(), world.any(false).unwrap()], [true, false]);
        for rank in 0..RANKS {
            assert!(world.broadcast(rank, || Ok(long(rank))).unwrap() == long(rank));
            let gathered = world.gather(rank, || Ok(vec![rank as u8])).unwrap();
            assert_eq!(gathered, (index == 0).then(|| vec![rank as u8]));
        }
        world.barrier().unwrap();
        // Rank 4 belongs to the last process.
        let failed = world.broadcast(4, || Err(Diagnostic::new("E417", "busy"))).unwrap_err();
        assert_eq!(world.largest(7).unwrap(), 7, "a failed answer ends no run");
        assert_eq!(world.broadcast(RANKS, || Ok(vec![])).unwrap_err().code, "E447");
        // Fewer ranks than processes: each has them all.
        assert!(processes.world(2, vec![]).unwrap().is_whole());
        (failed.code, failed.message.clone())
    });
    let [(first, message), (second, _), (third, _)] = codes.try_into().unwrap();
    assert_eq!((first, second, third), ("E447", "E447", "E417"));
    assert_eq!(message, "rank 4 cannot continue: busy");
}

#[test]
fn a_failure_ends_the_collectives_of_all_but_not_what_they_say_to_each_other() {
    KINDS.into_iter().for_each(fail);
}

fn fail(kind: Kind) {
    each(kind, 2, |processes| {
        let world = processes.world(2, vec![CollectiveSpec::barrier(vec![0, 1])]).unwrap();
        let transport = world.transport();
        if processes.index() == 1 {
            transport.fail(Failure { rank: 1, code: "E412".into(), message: "`loss` is ∞".into() });
            transport.fail(Failure { rank: 1, code: "E410".into(), message: "second".into() });
        } else {
            let begin = Instant::now();
            let error = Endpoint::new(transport, 0).barrier(Id::new(0)).unwrap_err();
            assert_eq!(error.message, "rank 1 failed: `loss` is ∞");
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(transport.failure().unwrap().code, "E412");
        assert_eq!(transport.poll(Id::new(0), processes.index()), Poll::Failed);
        assert_eq!(world.largest(processes.index() as u64).unwrap(), 1);
    });
}

#[test]
fn a_world_that_failed_is_followed_by_one_that_knows_nothing_of_it() {
    KINDS.into_iter().for_each(renew);
}

/// Of two ranks in two processes, the second fails while the first is in a collective, time after time.
fn renew(kind: Kind) {
    // Large enough that processes share the work.
    const LENGTH: usize = 40_000;
    let spec =
        CollectiveSpec::new("sum", vec![0, 1], vec![Exchange::all_reduce(Combiner::Sum, DType::F32, LENGTH)]);
    each(kind, 2, |processes| {
        let rank = processes.index();
        let mut world = processes.world(2, vec![spec.clone(), CollectiveSpec::barrier(vec![0, 1])]).unwrap();
        for round in 0..6 {
            let mut sum = vec![0.0f32; LENGTH];
            let endpoint = Endpoint::new(world.transport(), rank);
            for own in 0..round % 3 {
                let input = vec![(own + rank) as f32; LENGTH];
                match endpoint.complete_one(Id::new(0), &input, &mut sum) {
                    Ok(()) => {
                        assert!(sum.iter().all(|&sum| sum == (2 * own + 1) as f32), "{kind:?}, {round}")
                    }
                    // The second rank fails as soon as it has its own sums.
                    Err(_) => assert_eq!(rank, 0),
                }
            }
            if rank == 1 {
                let failure = Failure { rank, code: "E412".into(), message: "`loss` is NaN".into() };
                world.transport().fail(failure);
            } else {
                endpoint.complete_one(Id::new(0), &vec![f32::NAN; LENGTH], &mut sum).unwrap_err();
            }
            let renewed = world.renewed().unwrap().expect("processes made it");
            assert_eq!((renewed.local_ranks(), renewed.transport().failure()), (world.local_ranks(), None));
            // Before both have looked, neither fails again. The second rank may leave the barrier first, and fail in the next
            // round while the first one is in it.
            if let Err(error) = Endpoint::new(renewed.transport(), rank).barrier(Id::new(1)) {
                assert!(rank == 0 && error.code == "E443", "{error}");
            }
            world = renewed;
        }
        Endpoint::new(world.transport(), rank).barrier(Id::new(1)).unwrap();
    });
    let alone = World::in_process(1, vec![CollectiveSpec::barrier(vec![0])]).unwrap();
    alone.transport().fail(Failure { rank: 0, code: "E412".into(), message: String::new() });
    let renewed = alone.renewed().unwrap().unwrap();
    Endpoint::new(renewed.transport(), 0).barrier(Id::new(0)).unwrap();
}

#[test]
fn a_process_that_leaves_is_missed() {
    KINDS.into_iter().for_each(leave);
}

fn leave(kind: Kind) {
    let ends = |goes_on: &(dyn Fn(&World) -> String + Sync)| {
        let told = each(kind, 2, |processes| {
            let world = processes.world(2, vec![CollectiveSpec::barrier(vec![0, 1])]).unwrap();
            if processes.index() == 0 { goes_on(&world) } else { String::new() }
        });
        told[0].clone()
    };
    let barrier =
        |world: &World| Endpoint::new(world.transport(), 0).barrier(Id::new(0)).unwrap_err().message;
    let told = ends(&barrier);
    assert!(told.contains("process 1") && told.contains(" has "), "{told}");
    let told = ends(&|world| world.barrier().unwrap_err().message);
    assert!(told.starts_with("process 1") && told.ends_with(" has ended"), "{told}");
}

/// What process 0 of two says when it waits for process 1, which has joined and does nothing; it holds its lock, or not.
fn told_of_a_silent_one(holds_lock: bool) -> Box<Diagnostic> {
    let folder = tempfile::tempdir().unwrap();
    let create = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
    let beat = [&1u64.to_le_bytes()[..], &77u32.to_le_bytes()].concat();
    std::fs::write(folder.path().join("heartbeat-1"), beat).unwrap();
    create("joined-1");
    let life = create("process-1");
    if holds_lock {
        life.lock().unwrap();
    }
    let silence = Duration::from_millis(600);
    let patience = Patience { silence, ..Patience::default() };
    let processes = HostProcesses::join(folder.path(), 0, 2, patience).unwrap();
    let world = processes.world(4, vec![]).unwrap();
    let transport = world.transport();
    transport.begin(1, 7);
    assert_eq!([0, 1].map(|rank| transport.sign(rank).instruction), [None, Some(7)]);
    let error = world.barrier().unwrap_err();
    let sign = transport.sign(2);
    assert_eq!((sign.has_ended, sign.instruction), (!holds_lock, None));
    assert!(sign.process.starts_with("process 1 (id 77 on "), "{sign:?}");
    assert!(!holds_lock || sign.silence > silence, "{sign:?}");
    error
}

#[test]
fn a_process_without_a_heartbeat_is_told_from_one_that_has_ended() {
    for (holds_lock, code, what) in [(true, "E443", "has not run for"), (false, "E447", "has ended")] {
        let error = told_of_a_silent_one(holds_lock);
        assert!(error.code == code && error.message.contains(what), "{error}");
        assert_eq!(error.notes, ["rank 2 had begun no instruction", "rank 3 had begun no instruction"]);
    }
}

#[test]
fn places_among_the_processes_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let hasty = Patience { joining: Duration::from_millis(30), ..Patience::default() };
    let join = |index, count| HostProcesses::join(folder.path(), index, count, hasty);
    let code = |joined: Result<Arc<dyn Processes>>| joined.unwrap_err().code;
    assert_eq!(code(join(2, 2)), "E448");
    let alone = join(0, 1).unwrap();
    assert!(alone.world(3, vec![]).unwrap().is_whole());
    let taken = join(0, 1).unwrap_err();
    assert!(taken.code == "E448" && taken.message.contains("another process has this index"), "{taken}");
    let missing = join(1, 3).unwrap_err();
    assert!(missing.found.as_ref().is_some_and(|found| found.contains("[2]")), "{missing}");
    let transport = || World::in_process(3, vec![]).unwrap();
    for ranks in [vec![], vec![1, 0], vec![1, 1], vec![0, 3]] {
        let whole: Arc<dyn partita_comm::Transport> = Arc::new(Silent);
        assert_eq!(World::new(whole, ranks).err().map(|error| error.code), Some("E444"));
    }
    assert_eq!(transport().local_ranks(), [0, 1, 2]);
}

/// A transport between three ranks that is never used.
struct Silent;

impl partita_comm::Transport for Silent {
    fn rank_count(&self) -> usize {
        3
    }
    fn collectives(&self) -> &[CollectiveSpec] {
        &[]
    }
    unsafe fn start(&self, _: partita_comm::CollectiveId, _: usize, _: &[*const [u8]], _: &[*mut [u8]]) {
        unreachable!()
    }
    fn poll(&self, _: partita_comm::CollectiveId, _: usize) -> Poll {
        unreachable!()
    }
    fn notify(&self) -> &partita_comm::Notify {
        unreachable!()
    }
    fn fail(&self, _: Failure) {
        unreachable!()
    }
    fn failure(&self) -> Option<Failure> {
        None
    }
    fn missing(&self, _: partita_comm::CollectiveId) -> Vec<usize> {
        vec![]
    }
    fn control_all_gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![])
    }
}

#[test]
fn a_file_that_cannot_be_made_is_told_and_waited_for_by_nobody() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("world-0.tmp")).unwrap();
    let process = |index: usize| {
        let processes = HostProcesses::join(folder.path(), index, 2, Patience::default()).unwrap();
        let error = processes.world(2, vec![CollectiveSpec::send(0, 1, 8)]).err().unwrap();
        error.code
    };
    let process = &process;
    let codes = std::thread::scope(|scope| {
        [0, 1].map(|index| scope.spawn(move || process(index))).map(|thread| thread.join().unwrap())
    });
    assert_eq!(codes, ["E448", "E447"]);
}

#[test]
fn a_process_without_a_heartbeat_is_named_and_a_slow_one_is_waited_for() {
    let silence = Duration::from_millis(1500);
    let mut all = mailbox::join(3, 5);
    let stopped = all.pop().unwrap();
    for process in &all {
        process.tolerate(silence);
    }
    // Until all have been heard.
    std::thread::sleep(2 * silence);
    assert!(all.iter().all(|process| process.stopped().is_empty()));
    let gather = |process: &Arc<dyn Processes>| {
        process.world(process.count(), Vec::new()).unwrap().transport().control_all_gather(b"here")
    };
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            std::thread::sleep(3 * silence);
            gather(&stopped)
        });
        let others: Vec<_> = all.iter().map(|process| scope.spawn(|| gather(process))).collect();
        for other in others.into_iter().chain([late]) {
            assert_eq!(other.join().unwrap().unwrap(), vec![b"here".to_vec(); 3]);
        }
    });
    // Its heartbeat ends, and it says nothing, as after SIGSTOP.
    drop(stopped);
    for process in &all {
        let error = gather(process).unwrap_err();
        assert_eq!(error.code, "E443");
        assert!(error.message.starts_with("process 2 has not run for "), "{error}");
        assert_eq!(process.stopped(), [2]);
    }
}
