//! The reshards of one emission, each searched once: the layers of a model move alike.

use indexmap::{Equivalent, IndexMap};
use partita_cost::Cluster;
use partita_ir::TensorType;
use partita_mesh::{LinkCost, Mesh, ReshardStep, Sharding};
use std::rc::Rc;

/// The cheapest steps found from one layout to another, and their seconds.
pub(super) struct Route {
    pub steps: Vec<ReshardStep>,
    pub seconds: f64,
}

/// Routes by shape, bytes of an element, and both layouts.
#[derive(Default)]
pub(super) struct Routes {
    known: IndexMap<Key, Rc<Route>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    shape: Vec<usize>,
    element_bytes: usize,
    from: Sharding,
    to: Sharding,
}

/// A [`Key`] that borrows its parts; both hash alike, since their fields do.
#[derive(Hash)]
struct Asked<'a> {
    shape: &'a [usize],
    element_bytes: usize,
    from: &'a Sharding,
    to: &'a Sharding,
}

impl Equivalent<Key> for Asked<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.shape == key.shape
            && self.element_bytes == key.element_bytes
            && self.from == &key.from
            && self.to == &key.to
    }
}

impl Routes {
    /// The route of a tensor of this global type.
    pub fn of(
        &mut self,
        cluster: &Cluster,
        mesh: &Mesh,
        ty: &TensorType,
        [from, to]: [&Sharding; 2],
    ) -> Rc<Route> {
        let (shape, element_bytes) = (&ty.shape[..], ty.dtype.size_bytes());
        if let Some(known) = self.known.get(&Asked { shape, element_bytes, from, to }) {
            return known.clone();
        }
        let cost = cluster.reshard_cost(mesh, shape, element_bytes);
        let steps = cost.steps(from, to);
        let route = Rc::new(Route { seconds: cost.path_s(from, &steps), steps });
        let key = Key { shape: shape.to_vec(), element_bytes, from: from.clone(), to: to.clone() };
        self.known.insert(key, route.clone());
        route
    }
}
