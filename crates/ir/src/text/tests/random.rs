//! Random graphs print and read back; damaged texts are refused.

use super::*;

/// A random straight-line program.
fn random_graph(choices: &[(u8, u8, u8)]) -> Graph {
    let mut builder = GraphBuilder::new("main");
    let ty = TensorType::new(DType::F32, [2, 3]);
    let mut values: Vec<ValueId> = (0..3)
        .map(|i| {
            builder.input(&format!("in.{i}"), ty.clone(), if i == 0 { Role::Param } else { Role::Input })
        })
        .collect();
    let phases = [Phase::Forward, Phase::InputGrad, Phase::WeightGrad, Phase::Update];
    for &(kind, a, b) in choices {
        let a_id = values[a as usize % values.len()];
        let b_id = values[b as usize % values.len()];
        builder.path = if b % 3 == 0 { String::new() } else { format!("layers.{}.x", b % 5) };
        builder.phase = phases[(a % 4) as usize];
        builder.microbatch = (a % 5 == 0).then_some(b as usize);
        builder.remat = (a % 7 == 0).then_some(a as usize);
        builder.location = (b % 4 == 1).then(|| Location { file: "m.py".into(), line: a as u32 });
        let result = match kind % 9 {
            0 => builder.add(a_id, b_id).unwrap(),
            1 => builder.unary(UnaryKind::Erf, a_id).unwrap(),
            2 => {
                let flipped = builder.transpose(a_id, &[1, 0]).unwrap();
                builder.transpose(flipped, &[1, 0]).unwrap()
            }
            3 => {
                let reduced = builder.reduce(Combiner::ALL[(b % 4) as usize], a_id, &[1]).unwrap();
                builder.broadcast_in_dim(reduced, &[2, 3], &[0]).unwrap()
            }
            4 => {
                let less = builder.compare(Direction::Le, a_id, b_id).unwrap();
                builder.select(less, a_id, b_id).unwrap()
            }
            5 => {
                let data: Vec<f32> =
                    (0..6).map(|i| f32::from_bits((a as u32) << 20 | (b as u32) << 9 | i)).collect();
                builder.constant(Literal { ty: ty.clone(), data: Storage::F32(data) })
            }
            6 => {
                let piece = builder.slice_dim(a_id, 1, 0, 1).unwrap();
                let rest = builder.slice_dim(b_id, 1, 1, 3).unwrap();
                builder.concatenate(&[piece, rest], 1).unwrap()
            }
            7 => {
                let joined = builder.concatenate(&[a_id, b_id], 0).unwrap();
                builder.annotate(joined, layout(&[&[], &[]], &[a % 2 == 0, b % 2 == 0]));
                builder.slice_dim(joined, 0, 1, 3).unwrap()
            }
            _ => {
                let half = builder.convert(a_id, DType::BF16).unwrap();
                builder.graph_mut().value_mut(half).name = format!("half.{b}");
                builder.graph_mut().value_mut(half).role =
                    if a % 2 == 0 { Role::GradOf(b_id) } else { Role::RematOf(b_id) };
                builder.convert(half, DType::F32).unwrap()
            }
        };
        values.push(result);
    }
    builder.graph_mut().meshes = vec![mesh()];
    let last = *values.last().expect("inputs at least");
    builder.finish_named(vec![("out".into(), last), ("first".into(), values[1])])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_survive_printing_and_reading(choices in prop::collection::vec(any::<(u8, u8, u8)>(), 0..25)) {
        let graph = random_graph(&choices);
        let text = print(&graph);
        let read = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(print(&read), text);
        // NaN constants are equal in bits, which the texts show, but not to themselves.
        let has_nan = graph.nodes.iter().any(|n| matches!(&n.op, Op::Constant(c) if c.value.to_f64().iter().any(|v| v.is_nan())));
        prop_assert!(has_nan || read == canonical(&graph));
    }

    #[test]
    fn damaged_texts_are_refused_or_read_but_never_panic(
        which in 0usize..100,
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..7, any::<prop::sample::Index>()), 1..4),
    ) {
        let texts = damage_base();
        let mut text = texts[which % texts.len()].clone();
        for (at, kind, from) in edits {
            text = damage(&text, at.index(text.len().max(1)), kind, from.index(text.len().max(1)));
        }
        if let Ok(graph) = parse(&text) {
            let printed = print(&graph);
            let again = parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
            prop_assert_eq!(print(&again), printed);
        }
    }
}

/// Small modules to damage: every op, annotations, and the sharded recordings.
fn damage_base() -> Vec<String> {
    let mut texts: Vec<String> = OPS.iter().map(|(arguments, op)| op_module(arguments, op)).collect();
    texts.push(print(&annotated_graph()));
    texts.extend(fixture("sharded_manual").split("// -----").map(str::to_string));
    texts
}

/// Deletes or doubles a character, replaces it by another or by a token of the text, truncates, or changes a digit.
fn damage(text: &str, at: usize, kind: usize, from: usize) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    if characters.is_empty() {
        return String::new();
    }
    let (at, from) = (at % characters.len(), from % characters.len());
    match kind {
        0 => {
            characters.remove(at);
        }
        1 => characters.insert(at, characters[from]),
        2 => characters[at] = characters[from],
        3 => characters.truncate(at),
        4 => {
            let piece: Vec<char> = characters[from..(from + 12).min(characters.len())].to_vec();
            characters.splice(at..at, piece);
        }
        5 => {
            let end = (at + 9).min(characters.len());
            characters.drain(at..end);
        }
        _ => {
            let digit = (at..characters.len()).find(|&i| characters[i].is_ascii_digit());
            if let Some(digit) = digit {
                characters[digit] = char::from(b'0' + (from % 10) as u8);
                if from % 3 == 0 {
                    characters.splice(digit..digit, "99999999".chars());
                }
            }
        }
    }
    characters.into_iter().collect()
}
