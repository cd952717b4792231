//! Which outputs of a forward graph a step keeps.

use super::BuildOptions;
use partita_ir::Graph;
use partita_ir::port::LOSS;

/// The outputs of a forward graph beside its loss that the options did not request. As outputs they
/// would stay in memory until the end of the step. An output that replaces an input is no prediction: the
/// input would otherwise have to be fed.
pub(super) fn predictions(forward: &Graph, options: &BuildOptions) -> Vec<String> {
    if options.output_predictions || forward.output_position(LOSS).is_none() {
        return Vec::new();
    }
    let replaces = |place: usize| forward.aliases.iter().any(|&(_, output)| output == place);
    let is_dropped = |(place, name): &(usize, &String)| *name != LOSS && !replaces(*place);
    forward.output_names.iter().enumerate().filter(is_dropped).map(|(_, name)| name.clone()).collect()
}

/// The graph without these outputs.
pub(super) fn without_outputs(mut graph: Graph, names: &[String]) -> Graph {
    let is_kept = |place: &usize| graph.output_names.get(*place).is_none_or(|name| !names.contains(name));
    let kept: Vec<usize> = (0..graph.outputs.len()).filter(is_kept).collect();
    fn pick<T: Clone>(list: &[T], kept: &[usize]) -> Vec<T> {
        kept.iter().filter_map(|&place| list.get(place).cloned()).collect()
    }
    graph.outputs = pick(&graph.outputs, &kept);
    graph.output_annotations = pick(&graph.output_annotations, &kept);
    graph.output_names = pick(&graph.output_names, &kept);
    let now = |(input, output): &(usize, usize)| Some((*input, kept.binary_search(output).ok()?));
    graph.aliases = graph.aliases.iter().filter_map(now).collect();
    graph
}
