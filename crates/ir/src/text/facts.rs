//! Attributes beyond the op itself: names, roles and layouts of values, and origins of composites.

use super::attributes::{Attributes, Value};
use super::parser::Parser;
use super::sharding::ShardingText;
use crate::composite::{self, CompositeDefinition};
use crate::graph::{Annotation, Graph, Role, ValueId};
use crate::types::TensorType;
use partita_base::Result;
use partita_mesh::Sharding;
use std::sync::Arc;

impl Parser<'_> {
    // ---- discardable attributes ------------------------------------------------------------------------

    /// Names, roles and layouts that attributes give to values.
    pub fn describe_values(&mut self, values: &[ValueId], attributes: &Attributes, at: usize) -> Result<()> {
        if attributes.list.is_empty() {
            return Ok(());
        }
        let texts = |key: &str| -> Vec<String> {
            match attributes.get(key) {
                Some(Value::Text(text)) => vec![text.clone()],
                Some(Value::List(list)) => list
                    .iter()
                    .map(|v| if let Value::Text(text) = v { text.clone() } else { String::new() })
                    .collect(),
                _ => Vec::new(),
            }
        };
        for (&value, name) in values.iter().zip(texts("partita.name")) {
            self.frame().graph.value_mut(value).name = name;
        }
        for (&value, role) in values.iter().zip(texts("partita.role")) {
            self.frame().roles.push((value, role, at));
        }
        let annotations = self.annotations(attributes, values.len(), at)?;
        for (&value, annotation) in values.iter().zip(annotations) {
            if let Some(mut annotation) = annotation {
                self.use_meshes();
                self.fit_rank(&mut annotation, self.graph().ty(value), at)?;
                self.frame().graph.value_mut(value).annotation = Some(annotation);
            }
        }
        Ok(())
    }

    /// `sdy.sharding` with its units and origins, for `count` values.
    pub fn annotations(
        &mut self,
        attributes: &Attributes,
        count: usize,
        at: usize,
    ) -> Result<Vec<Option<Annotation>>> {
        let Some(Value::Shardings(list)) = attributes.get("sdy.sharding") else {
            return Ok(vec![None; count]);
        };
        let places: Vec<usize> = match attributes.get("partita.annotated") {
            Some(Value::Ints(places)) => {
                places.iter().map(|&p| usize::try_from(p).unwrap_or(count)).collect()
            }
            _ => (0..count).collect(),
        };
        if places.len() != list.len() || places.iter().any(|&p| p >= count) {
            return Err(self
                .error_at(at, "E148", "`sdy.sharding` does not have one sharding for each value")
                .expected(places.len().to_string())
                .found(list.len().to_string()));
        }
        let mut annotations = vec![None; count];
        for (number, (&place, text)) in places.iter().zip(list).enumerate() {
            annotations[place] = Some(self.annotation(text.clone(), attributes, number));
        }
        Ok(annotations)
    }

    /// The annotation of sharding `number` of an attribute list.
    pub fn annotation(&mut self, text: ShardingText, attributes: &Attributes, number: usize) -> Annotation {
        let pick = |key: &str| match attributes.get(key) {
            Some(Value::List(list)) => list.get(number),
            one if number == 0 => one,
            _ => None,
        };
        let origin = match pick("partita.origin") {
            Some(Value::Text(origin)) => origin.clone(),
            _ => format!("{}:{}", self.source.file, self.line(text.token)),
        };
        let mut annotation = text.annotation(origin);
        if let Some(Value::Ints(units)) = pick("partita.units") {
            set_units(&mut annotation.sharding, units);
        }
        if let Some(Value::Ints(counts)) = pick("partita.by_element") {
            for (dim, &count) in annotation.sharding.dims.iter_mut().zip(counts) {
                dim.by_element = usize::try_from(count).unwrap_or(0).min(dim.axes.len());
            }
        }
        annotation
    }

    /// Gives a layout on one device alone, which is written without dimensions, those of its value. E148 when
    /// another layout does not have the rank of its value.
    pub fn fit_rank(&self, annotation: &mut Annotation, ty: &TensorType, at: usize) -> Result<()> {
        if annotation.sharding.dims.is_empty() && self.meshes[annotation.mesh].only_device().is_some() {
            annotation.sharding = Sharding::replicated(ty.rank());
            annotation.open = vec![false; ty.rank()];
        }
        if annotation.sharding.dims.len() == ty.rank() {
            return Ok(());
        }
        Err(self
            .error_at(at, "E148", "a sharding must have an entry for each dimension")
            .expected(format!("{} dimensions for {ty}", ty.rank()))
            .found(annotation.sharding.dims.len().to_string()))
    }

    /// Makes the module's meshes those of the current graph.
    pub fn use_meshes(&mut self) {
        if self.graph().meshes.len() < self.meshes.len() {
            self.frame().graph.meshes = self.meshes.clone();
        }
    }

    pub fn role(&mut self, text: &str, at: usize) -> Result<Role> {
        Ok(match text {
            "" | "activation" => Role::Activation,
            "input" => Role::Input,
            "param" => Role::Param,
            _ => {
                match text.split_once(' ') {
                    Some(("state_of", name)) => Role::StateOf(self.resolve(name, at)?),
                    Some(("grad_of", name)) => Role::GradOf(self.resolve(name, at)?),
                    Some(("remat_of", name)) => Role::RematOf(self.resolve(name, at)?),
                    _ => {
                        return Err(self
                        .error_at(at, "E147", "unknown role")
                        .expected("activation, input, param, state_of %value, grad_of %value or remat_of %value")
                        .found(format!("`{text}`")));
                    }
                }
            }
        })
    }

    // ---- composites
    // ------------------------------------------------------------------------------------

    /// The definition of a composite. The function defines its meaning. It counts as a template or
    /// a gradient only if rebuilding it from there gives the same function; otherwise it is an
    /// ordinary subgraph.
    pub fn definition(
        &mut self,
        name: &str,
        function: &str,
        attributes: &composite::Attributes,
        vjp: Option<&Attributes>,
        at: usize,
    ) -> Result<Arc<CompositeDefinition>> {
        self.enter()?;
        let decomposition = self.function(function, at)?;
        let built = match vjp {
            Some(fields) => self.gradient_definition(name, attributes, fields, at)?,
            None => self.registry.template(name).and_then(|template| {
                let types: Vec<TensorType> =
                    decomposition.inputs.iter().map(|&v| decomposition.ty(v).clone()).collect();
                CompositeDefinition::from_template(template, attributes, &types).ok()
            }),
        };
        let alike = |graph: &Graph| {
            let options = super::PrintOptions { locations: false, ..Default::default() };
            super::print_with(graph, &options) == super::print_with(&decomposition, &options)
        };
        let definition = match built.filter(|b| alike(&b.decomposition)) {
            Some(built) => built,
            None => CompositeDefinition {
                name: name.to_string(),
                decomposition: (*decomposition).clone(),
                origin: composite::Origin::Outlined,
            },
        };
        self.leave();
        // Applications of one composite share their definition.
        if let Some(met) = self.definitions.iter().find(|d| ***d == definition) {
            return Ok(met.clone());
        }
        let definition = Arc::new(definition);
        self.definitions.push(definition.clone());
        let depth = self.definition_extent(&definition).depth;
        self.check_depth(1 + depth, at)?;
        Ok(definition)
    }

    /// The gradient that `partita.vjp` describes; `None` if it cannot be built.
    fn gradient_definition(
        &mut self,
        name: &str,
        attributes: &composite::Attributes,
        fields: &Attributes,
        at: usize,
    ) -> Result<Option<CompositeDefinition>> {
        let positions = |key: &str| match fields.get(key) {
            Some(Value::Ints(list)) => list.iter().map(|&i| usize::try_from(i).ok()).collect(),
            _ => None,
        };
        let (Some(Value::Symbol(base)), Some(base_name)) = (fields.get("base"), fields.text("name")) else {
            return Ok(None);
        };
        let (Some(seeded), Some(wanted)): (Option<Vec<usize>>, Option<Vec<usize>>) =
            (positions("seeded"), positions("wanted"))
        else {
            return Ok(None);
        };
        let inner = match fields.get("vjp") {
            Some(Value::Dictionary(inner)) => Some(inner.clone()),
            _ => None,
        };
        let (base, base_name) = (base.clone(), base_name.to_string());
        let base = self.definition(&base_name, &base, attributes, inner.as_ref(), at)?;
        let graph = &base.decomposition;
        let within =
            seeded.iter().all(|&s| s < graph.outputs.len()) && wanted.iter().all(|&w| w < graph.inputs.len());
        let ascending = |list: &[usize]| list.windows(2).all(|w| w[0] < w[1]);
        if !within || !ascending(&seeded) || !ascending(&wanted) {
            return Ok(None);
        }
        Ok(base.vjp(attributes, &seeded, &wanted).ok().filter(|built| built.name == name))
    }
}

/// Sets the unit of each dimension; invalid ones stay 1.
pub(crate) fn set_units(sharding: &mut Sharding, units: &[i64]) {
    for (dim, &unit) in sharding.dims.iter_mut().zip(units) {
        dim.unit = usize::try_from(unit).unwrap_or(1).max(1);
    }
}
