//! Tables of a report.

use super::{layers, ranks_name};
use crate::layouts::origin;
use crate::profile::{self, By, Profiled, Row, Sort};
use crate::session::Session;
use crate::stage_table::StageRow;
use indexmap::IndexMap;
use partita_base::{format_bytes, format_count, format_flops, format_parameters, format_seconds as seconds};
use partita_cost::Device;
use partita_ir::Role;
use partita_mesh::rank_list;
use partita_program::{Action, BufferKind, Program, ProgramSet};
use partita_report::{Body, Point};
use partita_schedule::Built;
use partita_simulate::{Simulation, work};

/// Rows of the longest tables.
const MOST_ROWS: usize = 15;

fn names<const N: usize>(header: [&str; N]) -> Vec<String> {
    header.map(String::from).to_vec()
}

/// What each slice of a pipeline runs.
pub fn stages(stages: &[StageRow]) -> Body {
    let header =
        names(["slice", "stages", "mesh", "ranks", "parameters", "forward FLOP", "held", "modules", "cut"]);
    let row = |stage: &StageRow| {
        vec![
            stage.stage.to_string(),
            rank_list(&stage.stages),
            stage.mesh.clone(),
            ranks_name(&stage.ranks),
            format_parameters(stage.parameters as f64),
            format_count(stage.forward_flops),
            stage.in_flight.to_string(),
            layers::names(&stage.modules).join(", "),
            stage.because.clone(),
        ]
    };
    Body::Table { header, rows: stages.iter().map(row).collect() }
}

/// The largest buffers that are live when most bytes are; those of equal layers together.
pub fn owners(program: &Program) -> Body {
    let mut change = vec![0isize; program.instructions.len() + 2];
    let of_arena = || program.buffers.iter().filter(|buffer| buffer.kind != BufferKind::Host);
    for buffer in of_arena() {
        change[buffer.first] += buffer.bytes as isize;
        change[buffer.last + 1] -= buffer.bytes as isize;
    }
    let (mut now, mut peak, mut at) = (0, 0, 0);
    for (instruction, change) in change.iter().enumerate() {
        now += change;
        if now > peak {
            (peak, at) = (now, instruction);
        }
    }
    let mut live: Vec<_> = of_arena().filter(|b| b.first <= at && at <= b.last).collect();
    live.sort_by_key(|buffer| buffer.offset_bytes);
    let ty = |buffer: &partita_program::Buffer| {
        let shape: Vec<String> = buffer.ty.shape.iter().map(usize::to_string).collect();
        format!("{}[{}]", buffer.ty.dtype, shape.join(", "))
    };
    let owners: Vec<&str> = live.iter().map(|buffer| buffer.what.as_str()).collect();
    let mut groups = layers::groups(&owners, |position| ty(live[position]));
    let bytes =
        |group: &layers::Group| group.members.iter().map(|&position| live[position].bytes).sum::<usize>();
    groups.sort_by_key(|group| std::cmp::Reverse(bytes(group)));
    let row = |group: &layers::Group| {
        let share = 100.0 * bytes(group) as f64 / peak.max(1) as f64;
        vec![
            group.name.clone(),
            group.members.len().to_string(),
            format_bytes(bytes(group) as u64),
            format!("{share:.1}%"),
            ty(live[group.members[0]]),
        ]
    };
    let rows = groups.iter().take(MOST_ROWS).map(row).collect();
    Body::Table { header: names(["buffer", "how many", "bytes", "share", "type of each"]), rows }
}

/// The ops under the roofline of each kind of device, with the title and the description of each: as they ran if the step
/// was profiled, as predicted for the ranks with this device otherwise. The roof is that of the fastest element type in
/// which they compute.
pub fn rooflines(session: &Session, set: &ProgramSet, by_op: Option<&[Row]>) -> Vec<(String, String, Body)> {
    let cluster = &session.config().cluster;
    let mut devices: Vec<(&Device, Vec<usize>)> = Vec::new();
    for (first, count) in cluster.runs(set.rank_count()) {
        let device = cluster.device_of(first);
        let ranks = first..first + count;
        match devices.iter_mut().find(|(known, _)| *known == device) {
            Some((_, own)) => own.extend(ranks),
            None => devices.push((device, ranks.collect())),
        }
    }
    let of_kind = |(device, ranks): &(&Device, Vec<usize>)| {
        let title = match devices.len() {
            1 => "Roofline".to_string(),
            _ => format!("Roofline of ranks {}", ranks_name(ranks)),
        };
        // (operations, bytes, seconds) by op.
        let mut ops: IndexMap<String, (f64, f64, f64)> = IndexMap::new();
        let mut roof = 0.0f64;
        let is_own = |program: &&Program| program.ranks.iter().any(|rank| ranks.binary_search(rank).is_ok());
        for program in set.programs.iter().filter(is_own) {
            for instruction in &program.instructions {
                let Action::Compute(compute) = &instruction.action else { continue };
                let work = work(program, compute);
                let (flops, bytes, seconds) = ops.entry(instruction.origin.what.clone()).or_default();
                *flops += work.flops;
                *bytes += work.bytes;
                *seconds += device.op_s(&work);
                roof = roof.max(device.peak(work.dtype));
            }
        }
        let done = match by_op {
            Some(rows) => {
                ops =
                    rows.iter().map(|row| (row.what.clone(), (row.flops, row.bytes, row.seconds))).collect();
                "as they ran, of all ranks, on one thread each"
            }
            None => "as predicted, with the efficiency curves of the cluster",
        };
        let about = format!(
            "Ops {done}; the size of a circle is its share of the time. The lines are the peaks of the cluster's device, {}.",
            device.kind
        );
        (title, about, under(roof, device.memory_bytes_per_s, ops))
    };
    devices.iter().map(of_kind).collect()
}

/// Ops, each with its operations, bytes and seconds, under a roofline.
fn under(flops_per_s: f64, bytes_per_s: f64, ops: IndexMap<String, (f64, f64, f64)>) -> Body {
    let all: f64 = ops.values().map(|(_, _, seconds)| seconds).sum();
    let point = |(name, (flops, bytes, seconds)): (String, (f64, f64, f64))| Point {
        name,
        intensity: flops / bytes.max(1.0),
        flops_per_s: flops / seconds.max(f64::MIN_POSITIVE),
        share: seconds / all.max(f64::MIN_POSITIVE),
    };
    Body::Roofline { flops_per_s, bytes_per_s, points: ops.into_iter().map(point).collect() }
}

/// Predicted beside measured time of compute, by part of the step.
pub fn compared(session: &Session, simulation: &Simulation, profiled: &Profiled) -> Body {
    let cluster = &session.config().cluster;
    let (rows, totals) = profile::rows(&profiled.recording, cluster, By::Phase, Sort::Time);
    let mut lines = vec![vec![
        "step".to_string(),
        seconds(simulation.step_s),
        seconds(totals.step_s),
        format!("{:.2}", simulation.step_s / totals.step_s.max(f64::MIN_POSITIVE)),
    ]];
    for row in rows {
        let predicted = row.of_roofline * row.seconds;
        let ratio = format!("{:.2}", row.of_roofline);
        lines.push(vec![format!("compute, {}", row.what), seconds(predicted), seconds(row.seconds), ratio]);
    }
    Body::Table { header: names(["", "predicted", "measured", "ratio"]), rows: lines }
}

/// Where the time of the recorded steps went, by op.
pub fn profile(rows: &[Row]) -> Body {
    let row = |row: &Row| {
        vec![
            row.what.clone(),
            format!("{:.0}", row.calls),
            seconds(row.seconds),
            format!("{:.1}%", 100.0 * row.share),
            format_flops(row.flops / row.seconds.max(f64::MIN_POSITIVE)),
            format!("{:.0}%", 100.0 * row.of_roofline),
        ]
    };
    let header = names(["op", "calls", "time", "share", "speed", "of roofline"]);
    Body::Table { header, rows: rows.iter().take(2 * MOST_ROWS).map(row).collect() }
}

/// The parameters with their layouts; those of equal layers in one row.
pub fn parameters(built: &Built) -> Body {
    let mut rows = Vec::new();
    for (number, stage) in built.stages.iter().enumerate() {
        let partitioned = &stage.partitioned;
        let (graph, mesh) = (&partitioned.graph, &partitioned.mesh);
        for (&input, sharding) in graph.inputs.iter().zip(&partitioned.inputs) {
            let value = graph.value(input);
            if value.role != Role::Param {
                continue;
            }
            let local = sharding.local_shape(mesh, &value.ty.shape, 0);
            let sizes = |shape: &[usize]| shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
            rows.push(vec![
                value.name.clone(),
                sizes(&value.ty.shape),
                sharding.display(mesh),
                sizes(&local),
                format_bytes(value.ty.with_shape(local).bytes() as u64),
                if built.stages.len() > 1 { number.to_string() } else { "-".to_string() },
                origin(graph, &partitioned.layouts, input),
            ]);
        }
    }
    let header =
        names(["parameter", "shape", "layout", "on the first rank", "bytes of each", "slice", "why"]);
    Body::Table { header, rows: layers::rows(rows) }
}
