//! Lines that keep tensors in host memory: which states and activations they name. Programs move them; no layout and no
//! number changes.

use crate::modules::Modules;
use crate::plan::{Entry, Plan};
use crate::primitive::{Offloaded, Primitive};
use partita_base::Result;
pub use partita_ir::Offload;
use partita_ir::{Graph, Role, ValueId};

/// What a line names.
pub(crate) enum By<'m> {
    /// The parameters whose states are kept in host memory.
    Parameters(Vec<ValueId>),
    /// The modules whose activations are.
    Modules(Vec<&'m str>),
}

/// What a line of a plan names, if it is about host memory. E221 for a pattern that matches nothing.
pub(crate) fn offloaded_by<'m>(entry: &Entry, modules: &'m Modules) -> Result<Option<By<'m>>> {
    let Primitive::Offload { what, .. } = entry.primitive else { return Ok(None) };
    Ok(Some(match what {
        Offloaded::Optimizer => {
            let parameters = modules.parameters_matching(entry.scope());
            if parameters.is_empty() {
                return Err(modules.unmatched(entry.scope(), &entry.describe()));
            }
            By::Parameters(parameters)
        }
        Offloaded::Activations => By::Modules(modules.named(entry.scope(), &entry.describe())?),
    }))
}

/// What the lines of a plan keep in host memory. Of several numbers of groups to load ahead, the largest
/// counts.
///
/// Errors: E221 a pattern that matches nothing.
pub(crate) fn offloaded(plan: &Plan, step: &Graph) -> Result<Offload> {
    let mut offload = Offload::default();
    let modules = Modules::of(step);
    for entry in &plan.entries {
        let Primitive::Offload { ahead, .. } = entry.primitive else { continue };
        offload.ahead = offload.ahead.max(ahead.unwrap_or(1));
        match offloaded_by(entry, &modules)? {
            Some(By::Parameters(parameters)) => {
                let is_state = |role: &Role| matches!(role, Role::StateOf(of) if parameters.contains(of));
                let inputs = step.inputs.iter().map(|&input| step.value(input));
                let states = inputs.filter(|value| is_state(&value.role)).map(|value| value.name.clone());
                offload.states.extend(states);
            }
            Some(By::Modules(named)) => offload.activations.extend(named.into_iter().map(str::to_string)),
            None => {}
        }
    }
    Ok(offload)
}
