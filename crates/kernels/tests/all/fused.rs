//! A fused program gives the bits of its functions run one by one.

use crate::common::*;
use partita_base::DType;
use partita_kernels::KernelOptions;
use partita_kernels::*;
use proptest::prelude::*;

/// A random well-typed program over a few types, with at most `most` instructions.
fn random_program(draw: &mut Draw, rank: usize, types: &[DType], most: usize) -> ElementwiseProgram {
    let input_count = 1 + draw.below(4);
    let mut registers: Vec<DType> = (0..input_count).map(|_| draw.pick(types)).collect();
    let mut instructions = Vec::new();
    for _ in 0..1 + draw.below(most) {
        let any = |draw: &mut Draw, registers: &[DType]| draw.below(registers.len());
        let same = |draw: &mut Draw, registers: &[DType], dtype: DType| {
            let fitting: Vec<usize> = (0..registers.len()).filter(|&r| registers[r] == dtype).collect();
            draw.pick(&fitting)
        };
        let first = any(draw, &registers);
        let dtype = registers[first];
        let (op, args, result) = match draw.below(8) {
            0 => (ElementwiseOp::Constant(Scalar::from_f64(dtype, draw.unit() * 3.0)), vec![], dtype),
            1 if rank > 0 => (ElementwiseOp::Iota { dim: draw.below(rank) }, vec![], dtype),
            2 => (ElementwiseOp::Convert, vec![first], draw.pick(types)),
            3 => {
                let second = same(draw, &registers, dtype);
                // The total order would distinguish the signs of NaNs.
                let op = ElementwiseOp::Compare { direction: draw.pick(&Direction::ALL), total_order: false };
                (op, vec![first, second], DType::Bool)
            }
            4 if registers.contains(&DType::Bool) => {
                let pred = same(draw, &registers, DType::Bool);
                (ElementwiseOp::Select, vec![pred, first, same(draw, &registers, dtype)], dtype)
            }
            5 => {
                let (low, high) = (same(draw, &registers, dtype), same(draw, &registers, dtype));
                (ElementwiseOp::Clamp, vec![low, first, high], dtype)
            }
            6 => {
                let op = draw.pick(&Unary::ALL);
                let Some(result) = op.result_dtype(dtype) else { continue };
                (ElementwiseOp::Unary(op), vec![first], result)
            }
            _ => {
                let op = draw.pick(&Binary::ALL);
                if !op.supports(dtype) {
                    continue;
                }
                (ElementwiseOp::Binary(op), vec![first, same(draw, &registers, dtype)], dtype)
            }
        };
        instructions.push(EwInstr { op, args, out: registers.len() });
        registers.push(result);
    }
    let outputs = (0..1 + draw.below(4)).map(|_| draw.below(registers.len())).collect();
    ElementwiseProgram::new(registers, input_count, instructions, outputs).unwrap()
}

/// The bits of all elements, with equal bits for all NaNs, whose signs are unspecified.
fn number_bits(tensor: &Tensor) -> Vec<u64> {
    let dtype = tensor.view().dtype();
    let one = |bits: u64| {
        let nan = match dtype {
            DType::F32 => f32::from_bits(bits as u32).is_nan(),
            DType::F64 => f64::from_bits(bits).is_nan(),
            DType::BF16 => bits & 0x7fff > 0x7f80,
            _ => false,
        };
        if nan { u64::MAX } else { bits }
    };
    tensor.all_bits().into_iter().map(one).collect()
}

/// Runs the program one kernel after the other.
fn one_by_one(program: &ElementwiseProgram, inputs: &[Tensor], shape: &[usize]) -> Vec<Tensor> {
    let mut registers: Vec<Tensor> =
        program.registers().iter().map(|&dtype| Tensor::zeros(dtype, shape)).collect();
    registers[..inputs.len()].clone_from_slice(inputs);
    for instruction in program.instructions() {
        let mut out = Tensor::zeros(program.registers()[instruction.out], shape);
        {
            let arg = |i: usize| registers[instruction.args[i]].view();
            let out = &mut out.view_mut();
            match instruction.op {
                ElementwiseOp::Unary(op) => unary(KernelOptions::native(), op, &arg(0), out),
                ElementwiseOp::Binary(op) => binary(KernelOptions::native(), op, &arg(0), &arg(1), out),
                ElementwiseOp::Compare { direction, total_order } => {
                    compare(KernelOptions::native(), direction, total_order, &arg(0), &arg(1), out)
                }
                ElementwiseOp::Select => select(KernelOptions::native(), &arg(0), &arg(1), &arg(2), out),
                ElementwiseOp::Clamp => clamp(KernelOptions::native(), &arg(0), &arg(1), &arg(2), out),
                ElementwiseOp::Convert => convert(KernelOptions::native(), &arg(0), out),
                ElementwiseOp::Bitcast => bitcast(&arg(0), out),
                ElementwiseOp::Constant(value) => fill(out, &value),
                ElementwiseOp::Iota { dim } => iota(dim, out),
            }
        }
        registers[instruction.out] = out;
    }
    program.outputs().iter().map(|&r| registers[r].clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_fused_chain_gives_the_bits_of_its_parts(seed: u64) {
        let mut draw = Draw(seed);
        // Either many types, or almost all f32 and longer than a tile.
        let (shape, program) = if draw.chance(2) {
            let shape = draw.shape();
            let types = [DType::F32, DType::F32, DType::BF16, DType::I32, DType::Bool, DType::F64];
            let program = random_program(&mut draw, shape.len(), &types, 14);
            (shape, program)
        } else {
            let shape = vec![1 + draw.below(3), draw.below(700)];
            let types = [[DType::F32; 9].as_slice(), &[DType::BF16]].concat();
            let program = random_program(&mut draw, 2, &types, 90);
            (shape, program)
        };
        let inputs: Vec<Tensor> = (0..program.input_count())
            .map(|i| Tensor::random(&mut draw, program.registers()[i], &shape, any_float))
            .collect();
        let right = one_by_one(&program, &inputs, &shape);
        let mut outputs: Vec<Tensor> =
            program.outputs().iter().map(|&r| Tensor::zeros(program.registers()[r], &shape)).collect();
        let mut workspace = vec![0xAAu8; elementwise_workspace_bytes(&program)];
        let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
        let mut views_mut: Vec<ViewMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
        run_elementwise(KernelOptions::native(), &program, &views, &mut views_mut, &shape, &mut workspace);
        drop(views_mut);
        for (found, right) in outputs.iter().zip(&right) {
            let (found, right) = (number_bits(found), number_bits(right));
            let wrong = (0..right.len()).find(|&i| found[i] != right[i]);
            prop_assert!(wrong.is_none(), "element {wrong:?}: {:x?}, not {:x?}, of {program:?}", wrong.map(|i| found[i]), wrong.map(|i| right[i]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    /// Inputs that repeat along rows or columns are read in place if tiles fit into rows, and copied
    /// otherwise.
    #[test]
    fn repeated_rows_and_columns_give_the_bits_of_whole_inputs(seed: u64) {
        let mut draw = Draw(seed);
        let columns = draw.pick(&[256, 288, 300, 1000, 1024, 1536, 2048, 2400]);
        let shape = [1 + draw.below(4), columns];
        let types = [[DType::F32; 9].as_slice(), &[DType::BF16]].concat();
        let program = random_program(&mut draw, 2, &types, 20);
        let repeats: Vec<[bool; 2]> = (0..program.input_count()).map(|_| [draw.chance(2), draw.chance(3)]).collect();
        let own: Vec<Tensor> = (0..program.input_count())
            .map(|i| {
                let own = [0, 1].map(|d| if repeats[i][d] { 1 } else { shape[d] });
                Tensor::random(&mut draw, program.registers()[i], &own, any_float)
            })
            .collect();
        let whole = |tensor: &Tensor| {
            let mut out = Tensor::zeros(tensor.view().dtype(), &shape);
            copy(&tensor.view().broadcast_to(&shape), &mut out.view_mut());
            out
        };
        let right = one_by_one(&program, &own.iter().map(whole).collect::<Vec<_>>(), &shape);
        let mut outputs: Vec<Tensor> =
            program.outputs().iter().map(|&r| Tensor::zeros(program.registers()[r], &shape)).collect();
        let mut workspace = vec![0xAAu8; elementwise_workspace_bytes(&program)];
        let views: Vec<View<'_>> = own.iter().map(|tensor| tensor.view().broadcast_to(&shape)).collect();
        let mut views_mut: Vec<ViewMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
        run_elementwise(KernelOptions::native(), &program, &views, &mut views_mut, &shape, &mut workspace);
        drop(views_mut);
        for (found, right) in outputs.iter().zip(&right) {
            prop_assert!(number_bits(found) == number_bits(right), "{shape:?}, {repeats:?}, {program:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn outputs_may_lie_where_inputs_do(seed: u64) {
        let mut draw = Draw(seed);
        let length = draw.below(2500);
        let types = [[DType::F32; 9].as_slice(), &[DType::I32]].concat();
        let program = random_program(&mut draw, 1, &types, 30);
        let inputs: Vec<Tensor> = (0..program.input_count())
            .map(|i| Tensor::random(&mut draw, program.registers()[i], &[length], any_float))
            .collect();
        let right = one_by_one(&program, &inputs, &[length]);
        let mut memory: Vec<Vec<u32>> = inputs
            .iter()
            .map(|input| input.all_bits().into_iter().map(|bits| bits as u32).collect())
            .collect();
        // Each output with four-byte elements overwrites the next input; the others have their own memory.
        let mut own: Vec<Tensor> =
            program.outputs().iter().map(|&r| Tensor::zeros(program.registers()[r], &[length])).collect();
        let mut places = memory.iter_mut().map(|memory| memory.as_mut_ptr().cast::<u8>());
        let pointers: Vec<*mut u8> = places.by_ref().collect();
        let mut free = pointers.iter().copied();
        let shared: Vec<Option<*mut u8>> = program
            .outputs()
            .iter()
            .map(|&r| if program.registers()[r].size_bytes() == 4 { free.next() } else { None })
            .collect();
        let mut workspace = vec![0xAAu8; elementwise_workspace_bytes(&program)];
        // SAFETY: inputs and the outputs over them cover whole vectors with one layout, and nothing else uses
        // them.
        let views: Vec<View<'_>> = (0..inputs.len())
            .map(|i| unsafe { View::from_raw(pointers[i], program.registers()[i], &[length], &[1]) })
            .collect();
        let mut outputs: Vec<ViewMut<'_>> = own
            .iter_mut()
            .zip(&shared)
            .zip(program.outputs())
            .map(|((own, shared), &r)| match *shared {
                // SAFETY: as above.
                Some(at) => unsafe { ViewMut::from_raw(at, program.registers()[r], &[length], &[1]) },
                None => own.view_mut(),
            })
            .collect();
        run_elementwise(KernelOptions::native(), &program, &views, &mut outputs, &[length], &mut workspace);
        drop(outputs);
        let mut at = 0;
        for (number, (&r, right)) in program.outputs().iter().zip(&right).enumerate() {
            let mut found = own[number].clone();
            if shared[number].is_some() {
                let dtype = program.registers()[r];
                copy(&View::contiguous(bytemuck::cast_slice(&memory[at]), dtype, &[length]), &mut found.view_mut());
                at += 1;
            }
            prop_assert!(number_bits(&found) == number_bits(right), "output {number} of {program:?}");
        }
    }
}

#[test]
fn a_chain_may_write_over_its_input() {
    let length = 5000;
    let mut x: Vec<f32> = (0..length).map(|i| i as f32).collect();
    // y = x + x, z = y * x; z replaces x.
    let step =
        |op, args: [usize; 2], out| EwInstr { op: ElementwiseOp::Binary(op), args: args.to_vec(), out };
    let program = ElementwiseProgram::new(
        vec![DType::F32; 3],
        1,
        vec![step(Binary::Add, [0, 0], 1), step(Binary::Mul, [1, 0], 2)],
        vec![2],
    )
    .unwrap();
    let right: Vec<f32> = x.iter().map(|x| (x + x) * x).collect();
    let mut workspace = vec![0; elementwise_workspace_bytes(&program)];
    let pointer = x.as_mut_ptr().cast::<u8>();
    // SAFETY: both views cover `x` with one layout, and nothing else uses it meanwhile.
    let (input, out) = unsafe {
        (
            View::from_raw(pointer, DType::F32, &[length], &[1]),
            ViewMut::from_raw(pointer, DType::F32, &[length], &[1]),
        )
    };
    run_elementwise(KernelOptions::native(), &program, &[input], &mut [out], &[length], &mut workspace);
    assert_eq!(x, right);
}

#[test]
fn malformed_programs_are_refused() {
    let add = |args: Vec<usize>, out| EwInstr { op: ElementwiseOp::Binary(Binary::Add), args, out };
    let make = |registers: &[DType], instructions| {
        ElementwiseProgram::new(registers.to_vec(), 1, instructions, vec![0])
    };
    let f = DType::F32;
    for wrong in [
        make(&[f, f, f], vec![add(vec![0, 1], 2)]),
        make(&[f, f], vec![add(vec![0], 1)]),
        make(&[f, DType::F64], vec![add(vec![0, 0], 1)]),
        make(&[f, f], vec![add(vec![0, 0], 0)]),
        make(&[f], vec![add(vec![0, 0], 7)]),
        ElementwiseProgram::new(vec![f, f], 1, vec![], vec![1]),
        ElementwiseProgram::new(vec![f], 2, vec![], vec![0]),
    ] {
        assert_eq!(wrong.unwrap_err().code, "E421");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// A fold across rows, in calls of any number of rows, gives what a reduction of the whole tensor gives.
    #[test]
    fn folds_give_the_bits_of_reductions(seed: u64) {
        let mut draw = Draw(seed);
        let shape = [draw.pick(&[0, 1, 63, 64, 65, 130, 200]), 1 + draw.below(3), draw.pick(&[2, 3, 31, 70, 255, 272, 300, 1024, 1040, 1100])];
        let types = [[DType::F32; 4].as_slice(), &[DType::BF16, DType::I32, DType::F64, DType::Bool]].concat();
        let program = random_program(&mut draw, 3, &types, 20);
        let folds: Vec<EwFold> = (0..1 + draw.below(3))
            .map(|_| {
                let register = draw.below(program.registers().len());
                let init = Scalar::from_f64(program.registers()[register], 1.0);
                let is_along = draw.chance(2);
                EwFold {
                    register,
                    reduction: draw.pick(&[Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min]),
                    width: if is_along { shape[2] } else { draw.pick(&[shape[2], shape[1] * shape[2]]) },
                    direction: if is_along { FoldDirection::Along(init) } else { FoldDirection::Across },
                }
            })
            .collect();
        let with = |outputs: Vec<usize>, folds: Vec<EwFold>| {
            let (registers, instructions) = (program.registers().to_vec(), program.instructions().to_vec());
            ElementwiseProgram::with_folds(registers, program.input_count(), instructions, outputs, folds).unwrap()
        };
        // Iotas start at zero in every call.
        prop_assume!(program.instructions().iter().all(|i| i.op != ElementwiseOp::Iota { dim: 0 }));
        let inputs: Vec<Tensor> = (0..program.input_count())
            .map(|i| Tensor::random(&mut draw, program.registers()[i], &shape, any_float))
            .collect();
        let kept: Vec<usize> = (0..draw.below(3)).map(|_| draw.below(program.registers().len())).collect();
        let program = with(kept, folds.clone());
        let mut outputs: Vec<Tensor> =
            program.outputs().iter().map(|&r| Tensor::zeros(program.registers()[r], &shape)).collect();
        let dtype = |fold: &EwFold| program.registers()[fold.register];
        let rows = |fold: &EwFold| shape.iter().product::<usize>() / fold.width;
        let bytes = |fold: &EwFold| match fold.direction {
            FoldDirection::Across => block_results_bytes(dtype(fold), rows(fold), fold.width),
            FoldDirection::Along(_) => rows(fold) * dtype(fold).size_bytes(),
        };
        let mut folded: Vec<Vec<u64>> = folds.iter().map(|fold| vec![u64::MAX; bytes(fold).div_ceil(8)]).collect();
        let mut workspace = vec![0xAAu8; elementwise_workspace_bytes(&program)];
        let mut views_mut: Vec<ViewMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
        let mut start = 0;
        while start < shape[0] {
            let limit = (start + 1 + draw.below(80)).min(shape[0]);
            let some: Vec<View<'_>> = inputs.iter().map(|x| x.view().slice(0, start, limit, 1)).collect();
            let mut some_out: Vec<ViewMut<'_>> =
                views_mut.iter_mut().map(|view| view.reborrow().slice(0, start, limit, 1)).collect();
            let row = shape[1] * shape[2];
            let mut own: Vec<&mut [u8]> = Vec::new();
            for (folded, fold) in folded.iter_mut().zip(&folds) {
                let all: &mut [u8] = &mut bytemuck::cast_slice_mut(folded)[..bytes(fold)];
                // Folds along rows: only the rows of this call.
                let each = rows(fold) / shape[0] * dtype(fold).size_bytes();
                let is_across = fold.direction == FoldDirection::Across;
                own.push(if is_across { all } else { &mut all[start * each..limit * each] });
            }
            let part = Part { before: start * row, elements: shape[0] * row, folded: &mut own };
            let shape = [limit - start, shape[1], shape[2]];
            run_elementwise_part(KernelOptions::native(), &program, &some, &mut some_out, &shape, part, &mut workspace);
            start = limit;
        }
        drop(views_mut);
        for (found, right) in outputs.iter().zip(&one_by_one(&program, &inputs, &shape)) {
            prop_assert_eq!(number_bits(found), number_bits(right), "an output of {:?}", program);
        }
        let reduced = one_by_one(&with(folds.iter().map(|fold| fold.register).collect(), vec![]), &inputs, &shape);
        for ((fold, folded), x) in folds.iter().zip(&mut folded).zip(&reduced) {
            let init = Scalar::from_f64(dtype(fold), 1.0);
            let is_along = fold.direction != FoldDirection::Across;
            let is_reduced = [!is_along, !is_along && fold.width == shape[2], is_along];
            let kept: Vec<usize> =
                shape.into_iter().zip(is_reduced).filter(|(_, reduced)| !reduced).map(|(size, _)| size).collect();
            let (mut found, mut right) = (Tensor::zeros(dtype(fold), &kept), Tensor::zeros(dtype(fold), &kept));
            let folded: &mut [u8] = &mut bytemuck::cast_slice_mut(folded)[..bytes(fold)];
            if is_along {
                copy(&View::contiguous(folded, dtype(fold), &kept), &mut found.view_mut());
            } else {
                join_blocks(KernelOptions::native(), fold.reduction, &init, [folded].into_iter(), &mut found.view_mut());
            }
            reduce(KernelOptions::native(), fold.reduction, &x.view(), &is_reduced, &init, &mut right.view_mut());
            prop_assert_eq!(number_bits(&found), number_bits(&right), "{:?} of {:?}", fold, program);
        }
    }
}

/// Tiles of rows may or may not be whole cache lines, and rows may be added in the chain or later.
#[test]
fn long_outputs_may_be_reduced_along_and_across_rows() {
    let zero = Scalar::from_f64(DType::F32, 0.0);
    for (width, is_along) in [1008, 1001, 1040, 272, 40, 31].into_iter().flat_map(|w| [(w, true), (w, false)])
    {
        let rows = STREAM_BYTES / size_of::<f32>() / width + 1;
        let shape = [rows, width];
        let square = EwInstr { op: ElementwiseOp::Binary(Binary::Mul), args: vec![0, 0], out: 1 };
        let direction = if is_along { FoldDirection::Along(zero) } else { FoldDirection::Across };
        let fold = EwFold { register: 1, reduction: Reduction::Sum, width, direction };
        let program =
            ElementwiseProgram::with_folds(vec![DType::F32; 2], 1, vec![square], vec![1], vec![fold])
                .unwrap();
        let x: Vec<f32> = (0..rows * width).map(|i| (i % 1009) as f32 * 0.37 - 80.0).collect();
        let right: Vec<f32> = x.iter().map(|x| x * x).collect();
        let mut memory = vec![0f32; rows * width + 16];
        let start = memory.as_ptr().align_offset(64);
        let left = if is_along { rows } else { width };
        let results = if is_along { rows } else { block_results_bytes(DType::F32, rows, width) / 4 };
        let (mut sums, mut expected) = (vec![0f32; results], vec![0f32; left]);
        let mut outs = [ViewMut::of(&mut memory[start..], &shape)];
        let mut folded = [bytemuck::cast_slice_mut(&mut sums)];
        let part = Part { before: 0, elements: rows * width, folded: &mut folded };
        let mut workspace = vec![0u8; elementwise_workspace_bytes(&program)];
        run_elementwise_part(
            KernelOptions::native(),
            &program,
            &[View::of(&x, &shape)],
            &mut outs,
            &shape,
            part,
            &mut workspace,
        );
        if !is_along {
            let mut joined = vec![0f32; left];
            let blocks = [bytemuck::cast_slice_mut(&mut sums)].into_iter();
            join_blocks(
                KernelOptions::native(),
                Reduction::Sum,
                &zero,
                blocks,
                &mut ViewMut::of(&mut joined, &[left]),
            );
            sums = joined;
        }
        let out = &mut ViewMut::of(&mut expected, &[left]);
        reduce(
            KernelOptions::native(),
            Reduction::Sum,
            &View::of(&right, &shape),
            &[!is_along, is_along],
            &zero,
            out,
        );
        assert!(memory[start..][..right.len()] == right[..] && sums == expected, "{shape:?}, {is_along}");
    }
}

#[test]
fn long_outputs_have_the_bits_of_short_ones() {
    // x y, and x y + x: the second program reads the product again.
    let (multiply, add) = (ElementwiseOp::Binary(Binary::Mul), ElementwiseOp::Binary(Binary::Add));
    let product = EwInstr { op: multiply, args: vec![0, 1], out: 2 };
    let sum = EwInstr { op: add, args: vec![2, 0], out: 3 };
    let f32s = |count: usize| vec![DType::F32; count];
    let whole = EwFold { register: 2, reduction: Reduction::Sum, width: 1, direction: FoldDirection::Across };
    let programs = [
        ElementwiseProgram::new(f32s(3), 2, vec![product.clone()], vec![2]).unwrap(),
        ElementwiseProgram::new(f32s(3), 2, vec![product.clone()], vec![2, 2]).unwrap(),
        ElementwiseProgram::new(f32s(4), 2, vec![product.clone(), sum], vec![3, 2]).unwrap(),
        // This program reads it once more.
        ElementwiseProgram::with_folds(f32s(3), 2, vec![product], vec![2], vec![whole]).unwrap(),
    ];
    let long = STREAM_BYTES / size_of::<f32>();
    let x: Vec<f32> = (0..long + 5).map(|i| (i % 1009) as f32 * 0.37 - 80.0).collect();
    let y: Vec<f32> = (0..long + 5).map(|i| (i % 757) as f32 * 0.11 - 40.0).collect();
    for program in &programs {
        let mut workspace = vec![0u8; elementwise_workspace_bytes(program)];
        for (count, skip) in [(long - 1, 0), (long, 0), (long + 5, 0), (long, 1)] {
            // Elements before and after must not change; the memory begins `skip` elements off a cache line.
            let mut memory = [(); 2].map(|()| vec![7f32; count + 64]);
            let starts = memory.each_ref().map(|memory| memory.as_ptr().align_offset(64) + 16 + skip);
            let outputs = program.outputs().len();
            let mut outs: Vec<ViewMut<'_>> = memory
                .iter_mut()
                .zip(starts)
                .take(outputs)
                .map(|(memory, start)| ViewMut::of(&mut memory[start..], &[count]))
                .collect();
            let inputs = [View::of(&x, &[count]), View::of(&y, &[count])];
            let mut sums = vec![0f32; count.div_ceil(REDUCE_BLOCK_ROWS)];
            let mut folded = [bytemuck::cast_slice_mut(&mut sums)];
            let folded = &mut folded[..program.folds().len()];
            let part = Part { before: 0, elements: count, folded };
            run_elementwise_part(
                KernelOptions::native(),
                program,
                &inputs,
                &mut outs,
                &[count],
                part,
                &mut workspace,
            );
            let product = |i: usize| x[i] * y[i];
            let right = |output: usize, i: usize| match output {
                0 if program.instructions().len() == 2 => product(i) + x[i],
                _ => product(i),
            };
            for (output, (memory, start)) in memory.iter().zip(starts).take(outputs).enumerate() {
                let same = (0..count).all(|i| memory[start + i].to_bits() == right(output, i).to_bits());
                assert!(same, "{count} elements, {skip} off a line, output {output}");
                let around = memory[..start].iter().chain(&memory[start + count..]);
                assert!(around.clone().all(|&x| x == 7.0), "nothing else is written");
            }
        }
    }
}

/// A single chain processes several rows per call: with a bias, one number per row, an input that its output
/// overwrites, and sums across rows.
#[test]
fn a_chain_that_goes_from_row_to_row_gives_the_bits_of_its_parts() {
    let binary = |op, a, b, out| EwInstr { op: ElementwiseOp::Binary(op), args: vec![a, b], out };
    // Inputs: x, a bias, a factor and an addend. Computes (x + bias) factor, which is summed, and that plus
    // the addend.
    let instructions =
        [binary(Binary::Add, 0, 1, 4), binary(Binary::Mul, 4, 2, 5), binary(Binary::Add, 5, 3, 6)];
    let program = |outputs: &[usize], folds: Vec<EwFold>| {
        let types = vec![DType::F32; 7];
        ElementwiseProgram::with_folds(types, 4, instructions.to_vec(), outputs.to_vec(), folds).unwrap()
    };
    let sizes = [1, 2, 63, 64, 65, 130].into_iter().flat_map(|r| [256, 300, 1024, 1536].map(|c| [r, c]));
    for shape @ [rows, columns] in sizes {
        let mut draw = Draw((rows * columns) as u64);
        let own = [shape, [1, columns], [rows, 1], shape]
            .map(|shape| Tensor::random(&mut draw, DType::F32, &shape, any_float));
        let whole = own.each_ref().map(|tensor| {
            let mut out = Tensor::zeros(DType::F32, &shape);
            copy(&tensor.view().broadcast_to(&shape), &mut out.view_mut());
            out
        });
        let right = one_by_one(&program(&[5, 6], vec![]), &whole, &shape);
        let (mut sums, zero) = (Tensor::zeros(DType::F32, &[columns]), Scalar::from_f64(DType::F32, 0.0));
        reduce(
            KernelOptions::native(),
            Reduction::Sum,
            &right[0].view(),
            &[true, false],
            &zero,
            &mut sums.view_mut(),
        );

        let direction = FoldDirection::Across;
        let fold = EwFold { register: 5, reduction: Reduction::Sum, width: columns, direction };
        let program = program(&[6], vec![fold]);
        let mut folded = vec![u64::MAX; block_results_bytes(DType::F32, rows, columns) / 8];
        let mut workspace = vec![0xAAu8; elementwise_workspace_bytes(&program)];
        let mut memory: Vec<u32> = own[3].all_bits().into_iter().map(|bits| bits as u32).collect();
        let pointer = memory.as_mut_ptr().cast::<u8>();
        let strides = [columns as isize, 1];
        // SAFETY: both views cover all of it with one layout, and nothing else uses it meanwhile.
        let (added, mut out) = unsafe {
            (
                View::from_raw(pointer, DType::F32, &shape, &strides),
                ViewMut::from_raw(pointer, DType::F32, &shape, &strides),
            )
        };
        // In calls that end inside a block of rows.
        for start in (0..rows).step_by(50) {
            let limit = (start + 50).min(rows);
            let views = own[..3].iter().map(|tensor| tensor.view().broadcast_to(&shape)).chain([added]);
            let inputs: Vec<View<'_>> = views.map(|view| view.slice(0, start, limit, 1)).collect();
            let mut outputs = [out.reborrow().slice(0, start, limit, 1)];
            let mut results = [bytemuck::cast_slice_mut(&mut folded)];
            let part = Part { before: start * columns, elements: rows * columns, folded: &mut results };
            let shape = [limit - start, columns];
            run_elementwise_part(
                KernelOptions::native(),
                &program,
                &inputs,
                &mut outputs,
                &shape,
                part,
                &mut workspace,
            );
        }
        let found = View::contiguous(bytemuck::cast_slice(&memory), DType::F32, &shape);
        let mut replaced = Tensor::zeros(DType::F32, &shape);
        copy(&found, &mut replaced.view_mut());
        assert!(number_bits(&replaced) == number_bits(&right[1]), "{shape:?}");
        let mut found = Tensor::zeros(DType::F32, &[columns]);
        let folded = [bytemuck::cast_slice_mut(&mut folded)];
        join_blocks(
            KernelOptions::native(),
            Reduction::Sum,
            &zero,
            folded.into_iter(),
            &mut found.view_mut(),
        );
        assert!(number_bits(&found) == number_bits(&sums), "sums of {shape:?}");
    }
}
