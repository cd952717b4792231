//! Every collective against a sequential reference that works element by element, on random groups,
//! extents and types; run by one thread per rank, and by one thread for all ranks in random order.

use half::{bf16, f16};
use partita_base::DType;
use partita_comm::*;
use proptest::prelude::*;

/// A small random generator, so that inputs are determined by one number.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 31);
        x.wrapping_mul(0x9e3779b97f4a7c15) >> 20
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn extents(&mut self, count: usize, below: usize) -> Vec<usize> {
        (0..count).map(|_| if self.below(4) == 0 { 0 } else { self.below(below) }).collect()
    }
    fn members(&mut self, rank_count: usize, count: usize) -> Vec<usize> {
        let mut ranks: Vec<usize> = (0..rank_count).collect();
        for i in 0..rank_count {
            ranks.swap(i, i + self.clone().below(rank_count - i));
            self.next();
        }
        ranks.truncate(count);
        ranks
    }
    /// One element. Floats vary in size, so that sums depend on their order.
    fn element(&mut self, dtype: DType) -> Vec<u8> {
        let float = (self.below(2001) as f64 - 1000.0) / 7.0 * [1.0, 1e-3, 64.0][self.below(3)];
        match dtype {
            DType::Bool => vec![self.below(2) as u8],
            DType::F16 => f16::from_f64(float).to_le_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(float).to_le_bytes().to_vec(),
            DType::F32 => (float as f32).to_le_bytes().to_vec(),
            DType::F64 => float.to_le_bytes().to_vec(),
            integer => (self.next() ^ (self.next() << 32)).to_le_bytes()[..integer.size_bytes()].to_vec(),
        }
    }
    fn buffer(&mut self, dtype: DType, len: usize) -> Vec<u8> {
        (0..len).flat_map(|_| self.element(dtype)).collect()
    }
}

/// The reduction of one element of each member, in wide arithmetic if that is exact, else in the
/// promised order and precision.
fn twin_element(combiner: Combiner, dtype: DType, elements: &[&[u8]]) -> Vec<u8> {
    fn float<T: Copy + PartialOrd + std::ops::Add<Output = T> + std::ops::Mul<Output = T>>(
        combiner: Combiner,
        values: Vec<T>,
    ) -> T {
        let step = |a: T, b: T| match combiner {
            Combiner::Sum => a + b,
            Combiner::Prod => a * b,
            Combiner::Max if b > a => b,
            Combiner::Min if b < a => b,
            _ => a,
        };
        values.into_iter().reduce(step).unwrap()
    }
    match dtype {
        DType::F64 => {
            let values = elements.iter().map(|e| f64::from_le_bytes((*e).try_into().unwrap())).collect();
            float(combiner, values).to_le_bytes().to_vec()
        }
        DType::F32 => {
            let values = elements.iter().map(|e| f32::from_le_bytes((*e).try_into().unwrap())).collect();
            float(combiner, values).to_le_bytes().to_vec()
        }
        DType::F16 => {
            let values =
                elements.iter().map(|e| f16::from_le_bytes((*e).try_into().unwrap()).to_f32()).collect();
            f16::from_f32(float(combiner, values)).to_le_bytes().to_vec()
        }
        DType::BF16 => {
            let values =
                elements.iter().map(|e| bf16::from_le_bytes((*e).try_into().unwrap()).to_f32()).collect();
            bf16::from_f32(float(combiner, values)).to_le_bytes().to_vec()
        }
        _ => {
            // Integers and booleans: 128 bits wrap to the same low bits. Booleans clamp to 1.
            let bits = 8 * dtype.size_bytes();
            let value = |e: &&[u8]| {
                let unsigned = e.iter().rev().fold(0i128, |v, b| (v << 8) | *b as i128);
                let negative = dtype.is_signed_integer() && unsigned >> (bits - 1) == 1;
                if negative { unsigned - (1i128 << bits) } else { unsigned }
            };
            let step = |a: i128, b: i128| match combiner {
                Combiner::Sum => a.wrapping_add(b),
                Combiner::Prod => a.wrapping_mul(b),
                Combiner::Max => a.max(b),
                Combiner::Min => a.min(b),
                Combiner::And => a & b,
                Combiner::Or => a | b,
            };
            let mut result = elements.iter().map(value).reduce(step).unwrap();
            if dtype == DType::Bool {
                result = result.min(1);
            }
            result.to_le_bytes()[..dtype.size_bytes()].to_vec()
        }
    }
}

fn twin_reduce(combiner: Combiner, dtype: DType, inputs: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.size_bytes();
    let element = |i: usize| {
        let elements: Vec<&[u8]> = inputs.iter().map(|input| &input[i * size..(i + 1) * size]).collect();
        twin_element(combiner, dtype, &elements)
    };
    (0..inputs[0].len() / size).flat_map(element).collect()
}

/// One exchange with the inputs of all members and the expected outputs.
struct Case {
    exchange: Exchange,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

fn random_case(random: &mut Random, count: usize) -> Case {
    match random.below(6) {
        0 => {
            let (combiner, dtype) = random_reduction(random);
            let len = [0, 1, 7, 700, 9000][random.below(5)];
            let inputs: Vec<_> = (0..count).map(|_| random.buffer(dtype, len)).collect();
            let outputs = vec![twin_reduce(combiner, dtype, &inputs); count];
            Case { exchange: Exchange::all_reduce(combiner, dtype, len), inputs, outputs }
        }
        1 => {
            let (combiner, dtype) = random_reduction(random);
            let (outer, extents) = (random.below(5), random.extents(count, 40));
            let row: usize = extents.iter().sum();
            let inputs: Vec<_> = (0..count).map(|_| random.buffer(dtype, outer * row)).collect();
            let whole = twin_reduce(combiner, dtype, &inputs);
            let mut start = 0;
            let outputs = extents.iter().map(|extent| {
                let bytes = dtype.size_bytes();
                let from = start;
                let rows = (0..outer).flat_map(|o| &whole[(o * row + from) * bytes..][..extent * bytes]);
                start += extent;
                rows.copied().collect()
            });
            let outputs = outputs.collect();
            Case { exchange: Exchange::reduce_scatter(combiner, dtype, outer, extents), inputs, outputs }
        }
        2 => {
            let (outer, bytes) = (random.below(5), random.extents(count, 40));
            let inputs: Vec<_> = bytes.iter().map(|b| random.buffer(DType::U8, outer * b)).collect();
            let mut whole = Vec::new();
            for o in 0..outer {
                for (input, b) in inputs.iter().zip(&bytes) {
                    whole.extend_from_slice(&input[o * b..(o + 1) * b]);
                }
            }
            Case { exchange: Exchange::all_gather(outer, &bytes), inputs, outputs: vec![whole; count] }
        }
        3 => all_to_all_case(random, count),
        4 => {
            // A random permutation without some of its pairs.
            let targets = random.members(count, count);
            let bytes = random.extents(count, 50);
            let pairs: Vec<_> = targets.into_iter().enumerate().filter(|_| random.below(4) > 0).collect();
            let mut output_bytes = random.extents(count, 20);
            let inputs: Vec<_> = bytes.iter().map(|&b| random.buffer(DType::U8, b)).collect();
            pairs.iter().for_each(|&(s, t)| output_bytes[t] = bytes[s]);
            let outputs = (0..count).map(|t| match pairs.iter().find(|p| p.1 == t) {
                Some(&(source, _)) => inputs[source].clone(),
                None => vec![0; output_bytes[t]],
            });
            let outputs = outputs.collect();
            Case { exchange: Exchange::collective_permute(&pairs, &bytes, &output_bytes), inputs, outputs }
        }
        _ => {
            let (root, bytes) = (random.below(count), random.below(5000));
            let data = random.buffer(DType::U8, bytes);
            let mut inputs = vec![Vec::new(); count];
            inputs[root] = data.clone();
            Case { exchange: Exchange::broadcast(count, root, bytes), inputs, outputs: vec![data; count] }
        }
    }
}

fn random_reduction(random: &mut Random) -> (Combiner, DType) {
    loop {
        let (combiner, dtype) = (Combiner::ALL[random.below(6)], DType::ALL[random.below(13)]);
        if combiner.is_defined_on(dtype) {
            return (combiner, dtype);
        }
    }
}

/// The reference of all-to-all uses coordinates: it maps each element of each input to its
/// position.
fn all_to_all_case(random: &mut Random, count: usize) -> Case {
    let dims = 1 + random.below(4);
    let (split, concat) = (random.below(dims), random.below(dims));
    let shape: Vec<usize> = (0..dims).map(|_| random.below(4)).collect();
    let (splits, concats) = (random.extents(count, 4), random.extents(count, 4));
    let element_bytes = [1, 2, 3, 4, 8][random.below(5)];
    let exchange = Exchange::all_to_all(element_bytes, &shape, split, concat, &splits, &concats);
    let (split_total, concat_total): (usize, usize) = (splits.iter().sum(), concats.iter().sum());
    let (mut inputs, mut output_shapes) = (Vec::new(), Vec::new());
    for m in 0..count {
        let (mut input, mut output) = (shape.clone(), shape.clone());
        (input[concat], output[concat]) = (concats[m], concat_total);
        (input[split], output[split]) = (split_total, splits[m]);
        if split == concat {
            output[split] = count * splits[m];
        }
        let bytes = random.buffer(DType::U8, input.iter().product::<usize>() * element_bytes);
        inputs.push((input, bytes));
        output_shapes.push(output);
    }
    let mut outputs: Vec<Vec<u8>> =
        output_shapes.iter().map(|s| vec![0xee; s.iter().product::<usize>() * element_bytes]).collect();
    for (source, (shape, data)) in inputs.iter().enumerate() {
        for (flat, element) in data.chunks(element_bytes).enumerate() {
            let mut place = vec![0; dims];
            let mut rest = flat;
            for d in (0..dims).rev() {
                (place[d], rest) = (rest % shape[d], rest / shape[d]);
            }
            let mut target = 0;
            while place[split] >= splits[target] {
                place[split] -= splits[target];
                target += 1;
            }
            let before =
                if split == concat { source * splits[target] } else { concats[..source].iter().sum() };
            place[concat] += before;
            let at = place.iter().zip(&output_shapes[target]).fold(0, |at, (p, extent)| at * extent + p);
            outputs[target][at * element_bytes..][..element_bytes].copy_from_slice(element);
        }
    }
    Case { exchange, inputs: inputs.into_iter().map(|i| i.1).collect(), outputs }
}

/// Bytes at an address aligned for every element type.
struct Aligned(Vec<u64>, usize);

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        let mut aligned = Aligned(vec![0xabab_abab_abab_abab; bytes.len().div_ceil(8) + 1], bytes.len());
        aligned.bytes_mut().copy_from_slice(bytes);
        aligned
    }
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..self.1]
    }
}

fn garbage_outputs(cases: &[Case], member: usize) -> Vec<Aligned> {
    cases.iter().map(|c| Aligned::new(&vec![0xcd; c.outputs[member].len()])).collect()
}

fn aligned_inputs(cases: &[Case], member: usize) -> Vec<Aligned> {
    cases.iter().map(|c| Aligned::new(&c.inputs[member])).collect()
}

fn bucket(random: &mut Random, rank_count: usize) -> (CollectiveSpec, Vec<Case>) {
    let count = 1 + random.below(rank_count.min(5));
    let members = random.members(rank_count, count);
    let cases: Vec<Case> = (0..1 + random.below(3)).map(|_| random_case(random, count)).collect();
    let exchanges = cases.iter().map(|c| c.exchange.clone()).collect();
    (CollectiveSpec::new("random bucket", members, exchanges), cases)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn ranks_on_threads_of_their_own_get_what_the_twin_gets(seed in any::<u64>()) {
        let random = &mut Random(seed);
        let rank_count = 5;
        let buckets: Vec<_> = (0..3).map(|_| bucket(random, rank_count)).collect();
        let specs = buckets.iter().map(|b| b.0.clone()).collect();
        run_ranks(rank_count, specs, |rank| {
            // Twice, so that slots are reused.
            for (id, (spec, cases)) in buckets.iter().enumerate().chain(buckets.iter().enumerate()) {
                let Some(member) = spec.members.iter().position(|&r| r == rank.rank()) else { continue };
                let inputs = aligned_inputs(cases, member);
                let mut outputs = garbage_outputs(cases, member);
                let input_bytes: Vec<&[u8]> = inputs.iter().map(Aligned::bytes).collect();
                let mut output_bytes: Vec<&mut [u8]> = outputs.iter_mut().map(Aligned::bytes_mut).collect();
                rank.complete(CollectiveId::new(id), &input_bytes, &mut output_bytes)?;
                for (case, output) in cases.iter().zip(&outputs) {
                    assert_eq!(case.outputs[member], output.bytes(), "{:?}", case.exchange);
                }
            }
            Ok(())
        }).unwrap();
    }

    #[test]
    fn one_thread_plays_all_ranks_in_any_order(seed in any::<u64>()) {
        let random = &mut Random(seed);
        let (spec, cases) = bucket(random, 6);
        let members = spec.members.clone();
        let world = World::in_process(6, vec![spec]).unwrap();
        let world = world.transport();
        let id = CollectiveId::new(0);
        for _ in 0..2 {
            let inputs: Vec<_> = (0..members.len()).map(|m| aligned_inputs(&cases, m)).collect();
            let mut outputs: Vec<_> = (0..members.len()).map(|m| garbage_outputs(&cases, m)).collect();
            let mut started = vec![false; members.len()];
            let mut ready = vec![false; members.len()];
            for turn in 0.. {
                if ready.iter().all(|r| *r) {
                    break;
                }
                prop_assert!(turn < 1000, "no progress");
                let member = random.below(members.len());
                if !started[member] {
                    let i: Vec<*const [u8]> = inputs[member].iter().map(|b| b.bytes() as *const [u8]).collect();
                    let o: Vec<*mut [u8]> =
                        outputs[member].iter_mut().map(|b| b.bytes_mut() as *mut [u8]).collect();
                    // SAFETY: the buffers live and are not accessed until all members are ready.
                    unsafe { world.start(id, members[member], &i, &o) };
                    started[member] = true;
                } else {
                    ready[member] |= world.poll(id, members[member]) == Poll::Ready;
                }
            }
            for (case, exchange) in cases.iter().enumerate() {
                for (expected, found) in exchange.outputs.iter().zip(&outputs) {
                    prop_assert_eq!(expected, found[case].bytes());
                }
            }
        }
    }
}

#[test]
fn collectives_that_make_no_sense_are_refused_with_a_code() {
    let code = |spec: CollectiveSpec| World::in_process(3, vec![spec]).err().map(|d| d.code);
    let with = |exchange: Exchange| CollectiveSpec::new("c", vec![0, 1], vec![exchange]);
    assert_eq!(code(CollectiveSpec::barrier(vec![])), Some("E440"));
    assert_eq!(code(CollectiveSpec::barrier(vec![0, 3])), Some("E440"));
    assert_eq!(code(CollectiveSpec::barrier(vec![1, 1])), Some("E440"));
    assert_eq!(code(with(Exchange::all_reduce(Combiner::And, DType::BF16, 1))), Some("E441"));
    assert_eq!(code(with(Exchange::reduce_scatter(Combiner::Sum, DType::F32, 1, vec![1; 3]))), Some("E442"));
    assert_eq!(code(with(Exchange::collective_permute(&[(0, 2)], &[1; 2], &[1; 2]))), Some("E442"));
    assert_eq!(code(with(Exchange::collective_permute(&[(0, 1)], &[2; 2], &[1; 2]))), Some("E442"));
    assert_eq!(code(with(Exchange::collective_permute(&[(0, 1), (1, 1)], &[2; 2], &[2; 2]))), Some("E442"));
    assert_eq!(code(with(Exchange::collective_permute(&[(0, 1), (1, 0)], &[2; 2], &[2; 2]))), None);
}
