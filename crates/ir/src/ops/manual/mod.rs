//! Sharding constraints, and manual computations (bodies written for one shard).

mod reshard;
mod text;

pub(crate) use text::parsers;

use super::AllReduce;
use super::checks::{operand_count, shapes};
use super::control::shapes_of;
use super::reduce::{Numbers, refused, region_signature};
use crate::autodiff;
use crate::builder::{GraphBuilder, identity};
use crate::graph::{Annotation, Graph, Node, Role, ValueId};
use crate::interpret;
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation};
use crate::rule::Rule;
use crate::traits::{Traits, ViewMap};
use crate::types::TensorType;
use partita_base::{Diagnostic, Result};
use partita_mesh::{AxisList, AxisRef, Combiner, Mesh, Sharding};
use std::collections::BTreeSet;

/// The identity with a requested layout of the result. Its gradient requests the same layout for
/// the cotangent.
#[derive(Clone, PartialEq, Debug)]
pub struct ShardingConstraint {
    /// The layout.
    pub annotation: Annotation,
}

/// A body that sees one shard of each operand over the manual axes and may contain explicit
/// collectives over them. Groups of these collectives name ranks of the whole mesh.
#[derive(Clone, PartialEq, Debug)]
pub struct ManualComputation {
    /// Index into the graph's meshes.
    pub mesh: usize,
    /// The mesh at that index.
    pub mesh_value: Mesh,
    /// Layout of each operand; only manual axes count.
    pub in_shardings: Vec<Sharding>,
    /// Layout of each result; only manual axes count.
    pub out_shardings: Vec<Sharding>,
    /// Names of the axes that the body handles itself.
    pub manual_axes: Vec<String>,
    /// Global types of the results.
    pub result_types: Vec<TensorType>,
    /// The body over local shapes.
    pub body: Box<Graph>,
}

const CONSTRAINT: &str = "sdy.sharding_constraint";
const MANUAL: &str = "sdy.manual_computation";

impl Op {
    /// The requested layout, if the op is a sharding constraint.
    pub fn constraint(&self) -> Option<&Annotation> {
        if let Op::ShardingConstraint(constraint) = self { Some(&constraint.annotation) } else { None }
    }
}

impl Operation for ShardingConstraint {
    fn name(&self) -> &str {
        CONSTRAINT
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(CONSTRAINT, operands, 1)?;
        shapes(
            self.annotation.sharding.dims.len() == operands[0].rank(),
            format!("the layout of `{CONSTRAINT}` has another number of dimensions than its operand"),
            format!("{} dimensions", operands[0].rank()),
            format!("{} dimensions", self.annotation.sharding.dims.len()),
        )?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        Rule::pointwise(&operands[0].shape, 1, 1).transparent_in(&[0])
    }

    fn cost(&self, _: &[&TensorType], _: &[&TensorType]) -> Cost {
        Cost::default()
    }

    /// The cotangent of a value requested as partial is requested as replicated over those axes.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let (Some(cotangent), true) = (context.cotangents[0], context.wanted[0]) else {
            return Ok(vec![None]);
        };
        let mut op = self.clone();
        op.annotation.sharding.partial.clear();
        Ok(vec![Some(context.builder.push1(op, &[cotangent])?)])
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(vec![operands[0].clone()])
    }

    /// Layouts are assigned earlier; nothing is left to do.
    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::View(ViewMap::Identity)
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Ok(context.operands().to_vec())
    }
}

impl ManualComputation {
    fn is_manual(&self, axis: &AxisRef) -> bool {
        self.manual_axes.contains(&self.mesh_value.axes[axis.axis].name)
    }

    /// A layout without the axes that the body does not handle.
    fn over_manual_axes(&self, sharding: &Sharding) -> Sharding {
        let mut sharding = sharding.clone();
        for dim in &mut sharding.dims {
            dim.axes.retain(|axis| self.is_manual(axis));
        }
        sharding.partial.retain(|(axis, _)| self.is_manual(axis));
        sharding
    }

    /// The types inside the body: E104 unless they are equal on every rank.
    fn local_types(
        &self,
        what: &str,
        shardings: &[Sharding],
        types: &[&TensorType],
    ) -> Result<Vec<TensorType>> {
        if shardings.len() != types.len() {
            return Err(Diagnostic::new("E101", format!("`{MANUAL}` needs a layout for each {what}"))
                .expected(types.len().to_string())
                .found(shardings.len().to_string()));
        }
        let mut local = Vec::new();
        for (number, (sharding, ty)) in shardings.iter().zip(types).enumerate() {
            sharding.validate(&self.mesh_value, &ty.shape)?;
            let manual = self.over_manual_axes(sharding);
            shapes(
                manual.is_even(&ty.shape),
                format!(
                    "{what} {number} of `{MANUAL}` is split unevenly, but its body has one shape for all ranks"
                ),
                "extents that the manual axes divide",
                format!("{ty} as {}", manual.display(&self.mesh_value)),
            )?;
            local.push(ty.with_shape(manual.local_shape(&self.mesh_value, &ty.shape, 0)));
        }
        Ok(local)
    }

    /// The manual axes that do not shard a value of this layout.
    fn unused_axes(&self, sharding: &Sharding) -> Result<AxisList> {
        let mut unused = AxisList::new();
        for name in &self.manual_axes {
            let axis = self.mesh_value.find_axis(name)?;
            if axis.size == 1 {
                continue;
            }
            let uses: Vec<AxisRef> =
                sharding.sharded_axes().into_iter().filter(|used| used.overlaps(axis)).collect();
            match uses[..] {
                [] => unused.push(axis),
                [used] if used == axis => {}
                _ => return Err(refused(MANUAL, "a layout over part of an axis")),
            }
        }
        Ok(unused)
    }

    /// The operand as `rank` sees it: its shard; a partial value is given to the first rank, zeros
    /// to the others.
    fn shard(&self, operand: &Literal, sharding: &Sharding, rank: usize) -> Literal {
        let (mesh, shape) = (&self.mesh_value, &operand.ty.shape);
        let local = sharding.local_shape(mesh, shape, rank);
        match sharding.combiner() {
            Some(combiner) if mesh.position(rank, &sharding.partial_axes()) > 0 => {
                let ty = operand.ty.with_shape(local);
                Numbers::repeat(&identity(combiner, ty.dtype), ty.element_count()).literal(&ty)
            }
            _ => operand.window(&sharding.local_offset(mesh, shape, rank), &local),
        }
    }

    /// The global value from its shards by rank.
    fn assemble(&self, ty: &TensorType, sharding: &Sharding, shards: &[&Literal]) -> Literal {
        let mesh = &self.mesh_value;
        let combiner = sharding.combiner().unwrap_or(Combiner::Sum);
        let strides = ty.strides();
        let mut sums = Numbers::repeat(&identity(combiner, ty.dtype), ty.element_count());
        let mut seen = BTreeSet::new();
        for (rank, shard) in shards.iter().enumerate() {
            let place = mesh.position(rank, &sharding.sharded_axes());
            if !seen.insert((place, mesh.position(rank, &sharding.partial_axes()))) {
                continue;
            }
            let offset = sharding.local_offset(mesh, &ty.shape, rank);
            let values = Numbers::of(shard);
            for (from, index) in indices(&shard.ty.shape).enumerate() {
                let to = index.iter().zip(&offset).zip(&strides).map(|((i, o), s)| (i + o) * s).sum();
                sums.combine(combiner, to, &values, from);
            }
        }
        sums.literal(ty)
    }
}

impl Operation for ManualComputation {
    fn name(&self) -> &str {
        MANUAL
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        for name in &self.manual_axes {
            self.mesh_value.find_axis(name)?;
        }
        let results: Vec<&TensorType> = self.result_types.iter().collect();
        let inputs = self.local_types("operand", &self.in_shardings, operands)?;
        let outputs = self.local_types("result", &self.out_shardings, &results)?;
        region_signature(MANUAL, "body", &self.body, &inputs, &outputs)?;
        Ok(self.result_types.clone())
    }

    /// Partitioning places the body itself, so propagation skips it.
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    /// Work of all ranks.
    fn cost(&self, _: &[&TensorType], _: &[&TensorType]) -> Cost {
        let mut total = Cost::default();
        let ranks =
            self.mesh_value.axes.iter().filter(|a| self.manual_axes.contains(&a.name)).map(|a| a.size);
        let ranks = ranks.product::<usize>() as f64;
        for node in &self.body.nodes {
            let cost = node.op.cost(&self.body.operand_types(node), &self.body.result_types(node));
            total.flops += ranks * cost.flops;
            total.bytes += ranks * cost.bytes;
        }
        total
    }

    /// A manual computation that runs the body again and differentiates it. Ranks that hold one
    /// replicated result share its cotangent, so each gets an equal part, and the parts of the
    /// cotangent of a replicated operand are summed. E120 if a layout is partial or shards over a
    /// part of an axis, or if the body contains an op without a gradient.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        if self.in_shardings.iter().chain(&self.out_shardings).any(|s| s.is_partial()) {
            return Err(refused(MANUAL, "partial operands or results"));
        }
        let wanted: Vec<usize> = (0..context.operands.len()).filter(|&i| context.wanted[i]).collect();
        let mut body = GraphBuilder::new(&format!("{}.vjp", self.body.name));
        body.graph_mut().meshes = self.body.meshes.clone();
        (body.path, body.phase) = (context.builder.path.clone(), context.builder.phase);
        let body_input = |body: &mut GraphBuilder, ty: &TensorType| body.input("", ty.clone(), Role::Input);
        let inputs: Vec<ValueId> =
            self.body.inputs.iter().map(|&v| body_input(&mut body, self.body.ty(v))).collect();
        let mut operands = context.operands.to_vec();
        let mut in_shardings = self.in_shardings.clone();
        let mut parts = Vec::new();
        for (number, cotangent) in context.cotangents.iter().enumerate() {
            let Some(cotangent) = cotangent else { continue };
            let sharding = self.over_manual_axes(&self.out_shardings[number]);
            let holders = self.mesh_value.axes_size(&self.unused_axes(&sharding)?);
            operands.push(*cotangent);
            in_shardings.push(self.out_shardings[number].clone());
            let part = body_input(&mut body, self.body.ty(self.body.outputs[number]));
            parts.push((number, part, holders));
        }
        if parts.is_empty() || wanted.is_empty() {
            return Ok(vec![None; context.operands.len()]);
        }
        let outputs = body.inline(&self.body, &inputs, false)?;
        let mut seeds = Vec::new();
        for (number, part, holders) in parts {
            let part = if holders > 1 { body.scale(part, 1.0 / holders as f64)? } else { part };
            seeds.push((outputs[number], part));
        }
        let wrt: Vec<ValueId> = wanted.iter().map(|&i| inputs[i]).collect();
        let mut results = Vec::new();
        for (gradient, &number) in autodiff::backward(&mut body, &seeds, &wrt)?.into_iter().zip(&wanted) {
            let ty = self.body.ty(self.body.inputs[number]).clone();
            let unused = self.unused_axes(&self.over_manual_axes(&self.in_shardings[number]))?;
            results.push(match gradient {
                Some(gradient) if !unused.is_empty() => {
                    let groups = self.mesh_value.groups(&unused);
                    body.push1(AllReduce { groups: groups.into(), combiner: Combiner::Sum }, &[gradient])?
                }
                Some(gradient) => gradient,
                None => body.full(&ty, 0.0)?,
            });
        }
        let op = ManualComputation {
            in_shardings,
            out_shardings: wanted.iter().map(|&i| self.in_shardings[i].clone()).collect(),
            result_types: wanted.iter().map(|&i| context.builder.ty(context.operands[i]).clone()).collect(),
            body: Box::new(body.finish(results)),
            ..self.clone()
        };
        let mut gradients = vec![None; context.operands.len()];
        for (number, gradient) in wanted.into_iter().zip(context.builder.push(op, &operands)?) {
            gradients[number] = Some(gradient);
        }
        Ok(gradients)
    }

    /// Runs the body on every rank of the mesh in lock step.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let manual = |shardings: &[Sharding]| -> Vec<Sharding> {
            shardings.iter().map(|s| self.over_manual_axes(s)).collect()
        };
        let (ins, outs) = (manual(&self.in_shardings), manual(&self.out_shardings));
        let ranks = self.mesh_value.rank_count();
        let inputs: Vec<Vec<Literal>> = (0..ranks)
            .map(|rank| operands.iter().zip(&ins).map(|(x, s)| self.shard(x, s, rank)).collect())
            .collect();
        let shards = interpret::evaluate_ranks(&vec![&*self.body; ranks], &inputs)?;
        let assemble = |(number, ty): (usize, &TensorType)| {
            let shards: Vec<&Literal> = shards.iter().map(|shards| &shards[number]).collect();
            self.assemble(ty, &outs[number], &shards)
        };
        Ok(results.iter().enumerate().map(assemble).collect())
    }

    /// E119: partitioning places the body instead.
    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Refused
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(Diagnostic::new("E119", format!("`{MANUAL}` cannot be rewritten for one rank"))
            .expected("its body in the per-rank graph")
            .found("the op itself"))
    }

    fn regions(&self) -> Vec<&Graph> {
        vec![&self.body]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::DotGeneral;
    use crate::testing::{apply, assert_close, check_gradient, check_rule, random};
    use partita_base::DType;

    fn mesh() -> Mesh {
        Mesh::new("mesh", &[("dp", 2), ("tp", 3), ("pp", 2)])
    }

    fn ty(shape: &[usize]) -> TensorType {
        TensorType::new(DType::F64, shape)
    }

    fn matmul() -> DotGeneral {
        DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() }
    }

    /// `x[4, 6] w[6, 5] bias[5]`: rows of x over dp, the inner dimension over tp, an explicit sum over tp. `pp` is
    /// not manual.
    fn row_parallel() -> ManualComputation {
        let m = mesh();
        let (dp, tp, pp) = (m.full_axis(0), m.full_axis(1), m.full_axis(2));
        let mut b = GraphBuilder::new("body");
        let x = b.input("x", ty(&[2, 2]), Role::Input);
        let w = b.input("w", ty(&[2, 5]), Role::Input);
        let bias = b.input("bias", ty(&[5]), Role::Input);
        let product = b.dot_general(x, w, matmul()).unwrap();
        let sum = AllReduce { groups: m.groups(&[tp]).into(), combiner: Combiner::Sum };
        let sum = b.push1(sum, &[product]).unwrap();
        let bias = b.broadcast_in_dim(bias, &[2, 5], &[1]).unwrap();
        let y = b.add(sum, bias).unwrap();
        let square = b.multiply(y, y).unwrap();
        ManualComputation {
            mesh: 0,
            in_shardings: vec![
                Sharding::replicated(2).with_dim(0, [dp]).with_dim(1, [tp]),
                Sharding::replicated(2).with_dim(0, [tp]).with_dim(1, [pp]),
                Sharding::replicated(1),
            ],
            out_shardings: vec![Sharding::replicated(2).with_dim(0, [dp])],
            manual_axes: vec!["dp".into(), "tp".into()],
            result_types: vec![ty(&[4, 5])],
            body: Box::new(b.finish(vec![square])),
            mesh_value: m,
        }
    }

    fn inputs() -> Vec<Literal> {
        vec![random(1, &[4, 6]), random(2, &[6, 5]), random(3, &[5])]
    }

    #[test]
    fn shards_of_a_body_make_up_the_whole() {
        let mut b = GraphBuilder::new("whole");
        let operands: Vec<ValueId> =
            inputs().iter().map(|x| b.input("", x.ty.clone(), Role::Input)).collect();
        let product = b.dot_general(operands[0], operands[1], matmul()).unwrap();
        let bias = b.broadcast_in_dim(operands[2], &[4, 5], &[1]).unwrap();
        let y = b.add(product, bias).unwrap();
        let square = b.multiply(y, y).unwrap();
        let expected = interpret::evaluate(&b.finish(vec![square]), &inputs()).unwrap();
        assert_close(&apply(row_parallel(), &inputs())[0], &expected[0], "row parallel");
    }

    #[test]
    fn partial_results_add_up_and_partial_operands_count_once() {
        let m = mesh();
        let (dp, tp) = (m.full_axis(0), m.full_axis(1));
        let mut b = GraphBuilder::new("body");
        let x = b.input("x", ty(&[2]), Role::Input);
        let two = b.scale(x, 2.0).unwrap();
        let op = ManualComputation {
            mesh: 0,
            in_shardings: vec![Sharding::replicated(1).with_dim(0, [dp]).with_partial([tp], Combiner::Sum)],
            out_shardings: vec![Sharding::replicated(1).with_dim(0, [dp]).with_partial([tp], Combiner::Sum)],
            manual_axes: vec!["dp".into(), "tp".into()],
            result_types: vec![ty(&[4])],
            body: Box::new(b.finish(vec![two])),
            mesh_value: m,
        };
        let x = random(1, &[4]);
        let twice = Literal::from_f64(&x.ty, x.to_f64().into_iter().map(|v| 2.0 * v));
        assert_eq!(apply(op.clone(), std::slice::from_ref(&x)), [twice]);
        let replicated =
            ManualComputation { in_shardings: vec![Sharding::replicated(1).with_dim(0, [dp])], ..op };
        let six = Literal::from_f64(&x.ty, x.to_f64().into_iter().map(|v| 6.0 * v));
        assert_close(&apply(replicated, &[x])[0], &six, "each of three ranks adds its part");
    }

    #[test]
    fn gradients_match_finite_differences() {
        check_gradient(row_parallel(), inputs(), &[true, true, true]);
        check_gradient(row_parallel(), inputs(), &[false, false, true]);
    }

    #[test]
    fn constraints_change_nothing() {
        let m = mesh();
        let sharding = Sharding::replicated(2).with_dim(0, [m.full_axis(0)]);
        let annotation =
            Annotation { mesh: 0, sharding, open: vec![false; 2], replicated: vec![], origin: "test".into() };
        let op = ShardingConstraint { annotation };
        let x = random(1, &[3, 2]);
        assert_eq!(apply(op.clone(), std::slice::from_ref(&x))[0], x);
        check_rule(op.clone(), std::slice::from_ref(&x));
        check_gradient(op.clone(), vec![x], &[true]);
        assert_eq!(op.infer(&[&ty(&[3])]).unwrap_err().code, "E104");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let op = row_parallel();
        let types = [ty(&[4, 6]), ty(&[6, 5]), ty(&[5])];
        let code = |op: &ManualComputation, types: &[TensorType]| {
            op.infer(&types.iter().collect::<Vec<_>>()).unwrap_err().code
        };
        assert!(op.infer(&types.iter().collect::<Vec<_>>()).is_ok());
        assert_eq!(code(&op, &types[..2]), "E101");
        assert_eq!(code(&op, &[ty(&[4, 7]), ty(&[6, 5]), ty(&[5])]), "E104");
        assert_eq!(code(&op, &[ty(&[4, 9]), ty(&[6, 5]), ty(&[5])]), "E107");
        let unknown = ManualComputation { manual_axes: vec!["xp".into()], ..op.clone() };
        assert_eq!(code(&unknown, &types), "E208");
    }
}
