//! Where the state of a step is: every parameter and optimizer state as one global tensor, the parts in which programs keep
//! it, and the ranks that have their shards.
//!
//! It is computed and checked when a loop is made, before anything runs and without any data. Saving, resuming and reading
//! go by it alone, so what was checked is what they do.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::port::{state_name, state_of};
use partita_ir::{InputKind, Pieces};

use super::TensorLayout;

/// The state of a step, in the order of its inputs.
#[derive(Clone, Debug, Default)]
pub struct StateLayout {
    tensors: IndexMap<String, Whole>,
}

/// A global tensor of the state.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// What programs keep of it: boxes that cover it once.
    pub parts: Vec<Part>,
}

/// A part of a global tensor: an input of programs.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The input's name in the programs.
    pub input: String,
    /// Positions of its layouts among those of all inputs: one for each mesh that has a copy.
    pub places: Vec<usize>,
    /// The index of its first element in the global tensor.
    pub offset: Vec<usize>,
    pub shape: Vec<usize>,
}

impl StateLayout {
    /// The state of a step with these inputs, of these kinds. A parameter in `pieces` is one global tensor, and so is each
    /// of its states that has the extents of the pieces.
    ///
    /// # Errors
    /// E432 if a global tensor could not be saved and read back: its parts or the shards of one do not cover it exactly
    /// once, or copies differ. E419 if ranks hold partial values.
    pub fn new(inputs: &[TensorLayout], kinds: &[InputKind], pieces: &[Pieces]) -> Result<StateLayout> {
        let mut parts: IndexMap<&str, Vec<usize>> = IndexMap::new();
        for (place, layout) in inputs.iter().enumerate().filter(|(place, _)| kinds[*place].is_kept()) {
            parts.entry(&layout.name).or_default().push(place);
        }
        let mut tensors: IndexMap<String, Whole> = IndexMap::new();
        for (name, places) in parts {
            let layout = &inputs[places[0]];
            places.iter().try_for_each(|&place| is_copy(layout, &inputs[place]))?;
            let (whole, shape, offset) = home(layout, &kinds[places[0]], pieces);
            let (input, of) = (name.to_string(), layout.shape.clone());
            let tensor = tensors.entry(whole).or_insert_with(|| Whole {
                dtype: layout.dtype,
                shape: shape.clone(),
                parts: Vec::new(),
            });
            if (tensor.dtype, &tensor.shape) != (layout.dtype, &shape) {
                return Err(unsaved(name, "two tensors have its name")
                    .expected(format!("{}{:?}", tensor.dtype, tensor.shape))
                    .found(format!("{}{shape:?}", layout.dtype)));
            }
            tensor.parts.push(Part { input, places, offset, shape: of });
        }
        for (name, Whole { shape, parts, .. }) in &tensors {
            let boxes: Vec<_> = parts.iter().map(|part| (part.offset.clone(), part.shape.clone())).collect();
            covers(name, "its parts", shape, &boxes)?;
            for &place in parts.iter().flat_map(|part| &part.places) {
                is_whole_on_ranks(&inputs[place])?;
            }
        }
        Ok(StateLayout { tensors })
    }

    /// The names of the global tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a global tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Name, type and global shape of every tensor: those of a checkpoint.
    pub fn types(&self) -> Vec<(String, DType, Vec<usize>)> {
        let ty = |(name, whole): (&String, &Whole)| (name.clone(), whole.dtype, whole.shape.clone());
        self.tensors.iter().map(ty).collect()
    }

    /// That another step can take its state from this one: each of its tensors is one here.
    ///
    /// # Errors
    /// E432 names the first tensor that is missing or has another type or shape.
    pub fn gives(&self, other: &StateLayout) -> Result<()> {
        let what = "another step of the same model reads it in another form";
        other.types().iter().try_for_each(|wanted| self.has_type(wanted, what))
    }

    /// That a runner of another kind, which keeps and saves these tensors, has the state of this step: the same tensors.
    ///
    /// # Errors
    /// E432 names the first tensor that only one of the two has, or that has another type or shape.
    pub fn is_kept_as(&self, saved: &[(String, DType, Vec<usize>)]) -> Result<()> {
        let what = "its runner keeps it in another form";
        saved.iter().try_for_each(|wanted| self.has_type(wanted, what))?;
        match self.names().find(|name| saved.iter().all(|(own, ..)| own != name)) {
            None => Ok(()),
            Some(name) => Err(unsaved(name, "its runner does not keep it")),
        }
    }

    fn has_type(&self, (name, dtype, shape): &(String, DType, Vec<usize>), what: &str) -> Result<()> {
        match self.tensors.get(name) {
            Some(own) if (own.dtype, &own.shape) == (*dtype, shape) => Ok(()),
            own => {
                let found = own.map(|own| format!("{}{:?}", own.dtype, own.shape));
                Err(unsaved(name, what)
                    .expected(format!("{dtype}{shape:?}"))
                    .found(found.unwrap_or_else(|| "no such tensor".to_string())))
            }
        }
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = (&String, &Whole)> {
        self.tensors.iter()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Whole> {
        self.tensors.get(name)
    }
}

/// E432: the state of a step that could not be saved and read back.
fn unsaved(name: &str, what: &str) -> Box<Diagnostic> {
    Diagnostic::new("E432", format!("`{name}` could not be saved and read back: {what}"))
        .note("this is checked before the first step")
        .help("this is a bug in partita; please report it with the plan and the config")
}

/// The global tensor that an input is a part of: its name and shape, and the index of the part's first element.
fn home(layout: &TensorLayout, kind: &InputKind, pieces: &[Pieces]) -> (String, Vec<usize>, Vec<usize>) {
    let (slot, parameter) = match kind {
        InputKind::State(name) => match state_of(name) {
            Some((slot, parameter)) => (Some(slot), parameter),
            None => (None, name.as_str()),
        },
        _ => (None, layout.name.as_str()),
    };
    let (mut shape, mut offset) = (layout.shape.clone(), vec![0; layout.shape.len()]);
    for pieces in pieces {
        let Some((_, start, limit)) = pieces.limits.iter().find(|(piece, ..)| piece == parameter) else {
            continue;
        };
        // State of another shape than its parameter cannot be joined along the parameter's dimension.
        if shape.get(pieces.dim) == Some(&(limit - start)) {
            (shape[pieces.dim], offset[pieces.dim]) = (pieces.extent(), *start);
            return (
                slot.map_or_else(|| pieces.name.clone(), |slot| state_name(slot, &pieces.name)),
                shape,
                offset,
            );
        }
    }
    (layout.name.clone(), shape, offset)
}

/// E432 unless a layout is that of a copy of the same tensor on another mesh.
fn is_copy(first: &TensorLayout, other: &TensorLayout) -> Result<()> {
    if (first.dtype, &first.shape) == (other.dtype, &other.shape) {
        return Ok(());
    }
    Err(unsaved(&first.name, "its copies on several meshes differ")
        .expected(format!("{}{:?}", first.dtype, first.shape))
        .found(format!("{}{:?}", other.dtype, other.shape)))
}

/// E419 for partial values, E432 unless the shards on the ranks of a mesh cover the tensor once; ranks may have the same.
fn is_whole_on_ranks(layout: &TensorLayout) -> Result<()> {
    let TensorLayout { name, shape, sharding, mesh, ranks, .. } = layout;
    if sharding.is_partial() {
        return Err(super::partial(layout));
    }
    if ranks.len() != mesh.rank_count() {
        return Err(unsaved(name, "its ranks are not those of its mesh")
            .expected(format!("{} ranks", mesh.rank_count()))
            .found(format!("{} ranks", ranks.len())));
    }
    let mut shards: Vec<(Vec<usize>, Vec<usize>)> = (0..ranks.len())
        .map(|position| {
            (sharding.local_offset(mesh, shape, position), sharding.local_shape(mesh, shape, position))
        })
        .collect();
    shards.sort();
    shards.dedup();
    covers(name, "its shards", shape, &shards)
}

/// E432 unless boxes, each with its offset and its extents, cover a tensor of this shape exactly once, as a grid.
fn covers(name: &str, what: &str, shape: &[usize], boxes: &[(Vec<usize>, Vec<usize>)]) -> Result<()> {
    let filled: BTreeSet<_> = boxes.iter().filter(|(_, extents)| !extents.contains(&0)).collect();
    // Along each dimension, the boxes are between the same marks.
    let marks = |d: usize| -> Option<usize> {
        let span = |(offset, extents): &&(Vec<usize>, Vec<usize>)| Some((*offset.get(d)?, *extents.get(d)?));
        let spans = filled.iter().map(span).collect::<Option<BTreeSet<_>>>()?;
        let end = spans.iter().try_fold(0, |end, &(start, extent)| (start == end).then_some(start + extent));
        (end == Some(shape[d])).then_some(spans.len())
    };
    let cells = (0..shape.len()).map(marks).product::<Option<usize>>();
    let is_once = boxes.iter().filter(|(_, extents)| !extents.contains(&0)).count() == filled.len();
    if shape.contains(&0) && filled.is_empty() || is_once && cells == Some(filled.len()) {
        return Ok(());
    }
    let found: Vec<String> =
        boxes.iter().take(8).map(|(offset, extents)| format!("{extents:?} at {offset:?}")).collect();
    Err(unsaved(name, &format!("{what} do not cover it exactly once"))
        .expected(format!("{shape:?}"))
        .found(found.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_mesh::{Mesh, Sharding};
    use std::sync::Arc;

    fn layout(name: &str, shape: &[usize], axes: usize) -> TensorLayout {
        let mesh = Arc::new(Mesh::new("m", &[("a", 3)]));
        let whole = Sharding::replicated(shape.len());
        let sharding = if axes > 0 { whole.with_dim(0, [mesh.full_axis(0)]) } else { whole };
        let (name, shape) = (name.to_string(), shape.to_vec());
        TensorLayout { name, dtype: DType::F32, shape, sharding, mesh, ranks: vec![0, 1, 2] }
    }

    fn kind(layout: &TensorLayout) -> InputKind {
        let name = layout.name.clone();
        if name.starts_with("optimizer.") { InputKind::State(name) } else { InputKind::Parameter(name) }
    }

    fn state(layouts: &[TensorLayout], pieces: &[Pieces]) -> Result<StateLayout> {
        StateLayout::new(layouts, &layouts.iter().map(kind).collect::<Vec<_>>(), pieces)
    }

    fn pieces() -> Vec<Pieces> {
        vec![Pieces { name: "w".into(), dim: 1, limits: vec![("w#0".into(), 0, 2), ("w#1".into(), 2, 5)] }]
    }

    #[test]
    fn parts_of_a_parameter_and_of_its_states_are_one_tensor() {
        let layouts = [
            layout("w#0", &[7, 2], 1),
            layout("w#1", &[7, 3], 0),
            layout("optimizer.m.w#0", &[7, 2], 1),
            layout("optimizer.m.w#1", &[7, 3], 0),
            layout("optimizer.rows.w#0", &[7], 0),
            layout("b", &[2], 1),
        ];
        let found = state(&layouts, &pieces()).unwrap();
        let types: Vec<String> =
            found.types().into_iter().map(|(name, _, shape)| format!("{name} {shape:?}")).collect();
        assert_eq!(types, ["w [7, 5]", "optimizer.m.w [7, 5]", "optimizer.rows.w#0 [7]", "b [2]"]);
    }

    #[test]
    fn a_state_that_could_not_be_read_back_is_refused_before_anything_runs() {
        let refused = |layouts: &[TensorLayout], words: &str| {
            let error = state(layouts, &pieces()).unwrap_err();
            assert!(error.code == "E432" && error.to_string().contains(words), "{error}");
        };
        // A part is missing; a parameter beside the parts of its own name; copies of different shapes.
        refused(&[layout("w#0", &[7, 2], 1)], "`w` could not be saved and read back: its parts do not cover");
        refused(
            &[layout("w#0", &[7, 2], 1), layout("w#1", &[7, 3], 0), layout("w", &[7, 5], 0)],
            "its parts do not cover it",
        );
        refused(&[layout("w#0", &[7, 2], 1), layout("w", &[7, 4], 0)], "two tensors have its name");
        refused(&[layout("b", &[4], 0), layout("b", &[5], 0)], "its copies on several meshes differ");
        let fewer = TensorLayout { ranks: vec![0], ..layout("b", &[4], 1) };
        refused(&[fewer], "its ranks are not those of its mesh");
    }

    #[test]
    fn a_step_gives_its_state_to_another_with_the_same_tensors() {
        let whole = state(&[layout("w", &[7, 5], 0)], &[]).unwrap();
        let parts = state(&[layout("w#0", &[7, 2], 1), layout("w#1", &[7, 3], 0)], &pieces()).unwrap();
        whole.gives(&parts).unwrap();
        parts.gives(&whole).unwrap();
        let other = state(&[layout("v", &[7, 5], 0)], &[]).unwrap();
        let error = whole.gives(&other).unwrap_err();
        assert!(error.code == "E432" && error.to_string().contains("`v`"), "{error}");
        whole.is_kept_as(&parts.types()).unwrap();
        let error = whole.is_kept_as(&[]).unwrap_err();
        assert!(
            error.to_string().contains("`w`") && error.to_string().contains("does not keep it"),
            "{error}"
        );
    }
}
