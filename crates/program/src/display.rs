//! Prints programs as text: one line per instruction.

use crate::program::{
    Action, Buffer, BufferId, BufferKind, MoveKind, Origin, Port, Program, ProgramSet, View,
};
use partita_base::DType;
use partita_ir::TensorType;
use std::fmt;

/// `f32[2,3]`.
fn short(dtype: DType, shape: &[usize]) -> String {
    let extents: Vec<String> = shape.iter().map(|n| n.to_string()).collect();
    format!("{dtype}[{}]", extents.join(","))
}

/// A program's listing; see [`ProgramSet::display`].
pub struct ProgramListing<'a> {
    set: &'a ProgramSet,
    program: Program,
}

impl ProgramSet {
    /// The listing of one rank's program: ports, then instructions with buffers `%n@offset` and
    /// module paths. Empty if there is no such rank.
    pub fn display(&self, rank: usize) -> ProgramListing<'_> {
        ProgramListing { set: self, program: self.program(rank).unwrap_or_default() }
    }
}

impl ProgramListing<'_> {
    fn buffer(&self, id: BufferId) -> String {
        let Buffer { ty: TensorType { dtype, shape }, offset_bytes, .. } = self.program.buffer(id);
        format!("%{}@{offset_bytes}:{}", id.index(), short(*dtype, shape))
    }

    fn buffers(&self, ids: &[BufferId]) -> String {
        ids.iter().map(|&id| self.buffer(id)).collect::<Vec<_>>().join(", ")
    }

    fn views(&self, views: &[View]) -> String {
        views.iter().map(|view| self.view(view)).collect::<Vec<_>>().join(", ")
    }

    /// The pauses before an instruction.
    fn pauses(&self, f: &mut fmt::Formatter<'_>, index: usize) -> fmt::Result {
        let here = self.program.pauses.iter().enumerate().filter(|&(_, &at)| at == index);
        here.map(|(pause, _)| pause + 1).try_for_each(|pause| writeln!(f, "  pause {pause}"))
    }

    fn view(&self, view: &View) -> String {
        let buffer = self.program.buffer(view.buffer);
        if view.is_whole(&buffer.ty) {
            return self.buffer(view.buffer);
        }
        let mut text = format!(
            "%{}@{}:{}",
            view.buffer.index(),
            buffer.offset_bytes,
            short(buffer.ty.dtype, &view.shape)
        );
        if view.offset_elements > 0 {
            text += &format!("+{}", view.offset_elements);
        }
        if !view.is_dense() {
            text += &format!(" strides {:?}", view.strides);
        }
        text
    }
}

/// At which pause the caller touches a port; nothing if he does so between steps.
fn at_pause(program: &Program, port: &Port) -> String {
    let is_at_pause = (1..=program.pauses.len()).contains(&port.at);
    if is_at_pause { format!(" at pause {}", port.at) } else { String::new() }
}

fn place(origin: &Origin) -> String {
    let path = if origin.path.is_empty() { "<root>" } else { &origin.path };
    let microbatch = origin.microbatch.map_or(String::new(), |m| format!(", microbatch {m}"));
    format!("  // {path} ({}{microbatch})", origin.phase.name())
}

impl fmt::Display for ProgramListing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &self.program;
        writeln!(
            f,
            "program of rank {}: {} instructions, {} buffers, arena {} bytes ({} persistent)",
            program.ranks.first().copied().unwrap_or_default(),
            program.instructions.len(),
            program.buffers.len(),
            program.arena_bytes,
            program.persistent_bytes()
        )?;
        if program.host_bytes > 0 {
            writeln!(f, "  host memory {} bytes", program.host_bytes)?;
        }
        for port in &program.inputs {
            let host = if program.buffer(port.buffer).kind == BufferKind::Host { "host " } else { "" };
            writeln!(
                f,
                "  in   {host}{}  {}{}",
                self.buffer(port.buffer),
                port.name,
                at_pause(program, port)
            )?;
        }
        for (buffer, _) in &program.constants {
            writeln!(f, "  load {}  constant", self.buffer(*buffer))?;
        }
        let width = program.instructions.len().to_string().len();
        for (index, instruction) in program.instructions.iter().enumerate() {
            self.pauses(f, index)?;
            write!(f, "  {index:>width$}  ")?;
            match &instruction.action {
                Action::Compute(compute) => {
                    write!(
                        f,
                        "{} = {}({})",
                        self.buffers(&compute.outputs),
                        instruction.origin.what,
                        self.views(&compute.inputs)
                    )?;
                    if let Some(workspace) = compute.workspace {
                        write!(f, " workspace {}", self.buffer(workspace))?;
                    }
                }
                Action::Start(start) => {
                    let collective = &self.set.collectives[start.collective.index()];
                    write!(
                        f,
                        "start #{} {} over {:?}: {} <- {}",
                        start.collective.index(),
                        collective.kind.name(),
                        collective.members,
                        self.buffers(&start.outputs),
                        self.views(&start.inputs)
                    )?;
                }
                Action::Wait(collective) => {
                    let kind = self.set.collectives[collective.index()].kind;
                    write!(f, "wait #{} {}", collective.index(), kind.name())?;
                }
                Action::Move(moved) => {
                    let (buffer, host) = (self.buffer(moved.buffer), self.buffer(moved.host));
                    match moved.kind {
                        MoveKind::Load => write!(f, "load {buffer} <- host {host}")?,
                        MoveKind::Store => write!(f, "store host {host} <- {buffer}")?,
                    }
                }
                Action::Moved(moved) => {
                    write!(f, "wait {} of {}", moved.kind.name(), self.buffer(moved.buffer))?
                }
            }
            writeln!(f, "{}", place(&instruction.origin))?;
        }
        self.pauses(f, program.instructions.len())?;
        for port in &program.outputs {
            write!(f, "  out  {}  {}{}", self.buffer(port.buffer), port.name, at_pause(program, port))?;
            match port.replaces {
                Some(input) => writeln!(f, " replaces {}", program.inputs[input].name)?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
