//! What moves between ranks: collectives wait for their members, for the queues of these, and for links that ranks share.
//!
//! A rank has a queue for each level of links. Those within nodes and those between nodes are other wires, and libraries run
//! the collectives of each group of ranks on a stream of its own, so these overlap; over the same links they take turns.
//!
//! A collective over links that the ranks of a node share takes its turn at them: of those that could begin, the first one
//! has them until its bytes are over. Those over links of their own begin as soon as their members can.

use crate::link::{Exchange, exchange, levels};
use indexmap::IndexMap;
use partita_base::CollectiveId;
use partita_cost::{Cluster, Port};
use partita_program::{CollectiveKind, ProgramSet};
use std::collections::{BTreeMap, VecDeque};

/// Names one collective as alike classes see it: its bucket, and the classes that take part.
pub(crate) type CollectiveKey = (usize, Vec<usize>);

/// A collective that some of its classes have started.
pub(crate) struct StartedCollective {
    pub collective: CollectiveId,
    /// Whether it has several members, so that something moves.
    pub is_real: bool,
    /// The levels of links that it uses.
    levels: Vec<usize>,
    pub starts: IndexMap<usize, f64>,
    pub begin_s: f64,
    pub end_s: Option<f64>,
}

/// Things that are used by one after another, such as cores and links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// When each is free.
    free_s: Vec<f64>,
}

impl Turns {
    pub fn new(count: usize) -> Turns {
        Turns { free_s: vec![0.0; count] }
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.free_s.len()
    }

    /// When so many of them are free, from now on.
    pub fn begin_s(&mut self, wanted: usize, now_s: f64) -> f64 {
        self.free_s.sort_by(f64::total_cmp);
        let last = wanted.min(self.free_s.len()).checked_sub(1);
        last.map_or(now_s, |last| now_s.max(self.free_s[last]))
    }

    /// Uses so many of those that are free first.
    pub fn take(&mut self, wanted: usize, end_s: f64) {
        self.free_s.sort_by(f64::total_cmp);
        let count = wanted.min(self.free_s.len());
        self.free_s[..count].fill(end_s);
    }
}

/// What moves between ranks.
pub(crate) struct Links<'a> {
    set: &'a ProgramSet,
    cluster: &'a Cluster,
    class_of: Vec<usize>,
    /// When the queue of each class is empty, by level of links.
    queue_free_s: Vec<Vec<f64>>,
    /// The collectives that each class has started and that have not begun, in order, by level of links. Messages between
    /// slices are not among them.
    queues: Vec<Vec<VecDeque<CollectiveKey>>>,
    pub meetings: IndexMap<CollectiveKey, StartedCollective>,
    /// The alike groups of each collective, where links are shared.
    groups: IndexMap<CollectiveKey, Vec<CollectiveId>>,
    /// Collectives that all members have started and that have no times yet, in the order of their last starts.
    waiting: Vec<(CollectiveKey, Exchange)>,
    ports: BTreeMap<Port, Turns>,
}

impl<'a> Links<'a> {
    pub fn new(set: &'a ProgramSet, cluster: &'a Cluster, class_of: Vec<usize>, classes: usize) -> Links<'a> {
        let levels = cluster.levels.len();
        let mut links = Links {
            set,
            cluster,
            class_of,
            queue_free_s: vec![vec![0.0; levels]; classes],
            queues: vec![vec![VecDeque::new(); levels]; classes],
            meetings: IndexMap::new(),
            groups: IndexMap::new(),
            waiting: Vec::new(),
            ports: BTreeMap::new(),
        };
        if cluster.shares_links() {
            for number in 0..set.collectives.len() {
                let collective = CollectiveId::new(number);
                links.groups.entry(links.key(collective)).or_default().push(collective);
            }
        }
        links
    }

    pub fn key(&self, collective: CollectiveId) -> CollectiveKey {
        let collective = &self.set.collectives[collective.index()];
        let mut classes: Vec<usize> = collective.members.iter().map(|&rank| self.class_of[rank]).collect();
        classes.sort_unstable();
        classes.dedup();
        (collective.bucket, classes)
    }

    /// A class starts a collective; with the last one it may begin.
    pub fn start(&mut self, class: usize, collective: CollectiveId, now_s: f64) {
        let key = self.key(collective);
        let (set, cluster) = (self.set, self.cluster);
        let started = &set.collectives[collective.index()];
        let meeting = self.meetings.entry(key.clone()).or_insert_with(|| StartedCollective {
            collective,
            is_real: started.members.len() > 1,
            levels: levels(started, cluster),
            starts: IndexMap::new(),
            begin_s: 0.0,
            end_s: None,
        });
        meeting.starts.insert(class, now_s);
        if started.kind != CollectiveKind::Send {
            meeting.levels.iter().for_each(|&level| self.queues[class][level].push_back(key.clone()));
        }
        if meeting.starts.len() < key.1.len() {
            return;
        }
        let first = [meeting.collective];
        let groups = self.groups.get(&key).map_or(&first[..], Vec::as_slice);
        let exchange = exchange(set, groups, meeting.collective, cluster);
        self.waiting.push((key, exchange));
        self.begin_those_with_own_links();
    }

    /// The queues in which a collective takes its turn: its classes, each with the levels of its links.
    fn places<'k>(&'k self, key: &'k CollectiveKey) -> impl Iterator<Item = (usize, usize)> + 'k {
        let levels = &self.meetings[key].levels;
        key.1.iter().flat_map(move |&class| levels.iter().map(move |&level| (class, level)))
    }

    /// Of the collectives that wait, with shared links or without, the position of the one that could begin first, and when:
    /// nothing is before it in the queues of its members.
    fn next(&self, is_shared: bool) -> Option<(usize, f64)> {
        let mut next: Option<(usize, f64)> = None;
        // A collective that a member started earlier goes first, even if other members have not started it yet.
        let is_first = |key: &CollectiveKey| {
            self.places(key).all(|(class, level)| {
                let queue = &self.queues[class][level];
                queue.front() == Some(key) || !queue.contains(key)
            })
        };
        let mut before: Vec<&CollectiveKey> = Vec::new();
        for (at, (key, exchange)) in self.waiting.iter().enumerate().filter(|(_, (key, _))| is_first(key)) {
            let meets = |other: &&CollectiveKey| {
                self.places(other).any(|place| self.places(key).any(|own| own == place))
            };
            let is_behind = before.iter().any(meets);
            before.push(key);
            if exchange.occupied.is_empty() == is_shared || is_behind {
                continue;
            }
            let queues = self.places(key).map(|(class, level)| self.queue_free_s[class][level]);
            let ready_s = self.meetings[key].starts.values().copied().chain(queues).fold(0.0, f64::max);
            if next.is_none_or(|(_, other_s)| ready_s < other_s) {
                next = Some((at, ready_s));
            }
        }
        next
    }

    /// When the next collective over shared links could begin.
    pub fn next_shared_s(&self) -> Option<f64> {
        self.next(true).map(|(_, ready_s)| ready_s)
    }

    /// The next collective over shared links takes its turn.
    pub fn begin_shared(&mut self) {
        if let Some((at, ready_s)) = self.next(true) {
            self.begin(at, ready_s);
            self.begin_those_with_own_links();
        }
    }

    fn begin_those_with_own_links(&mut self) {
        while let Some((at, ready_s)) = self.next(false) {
            self.begin(at, ready_s);
        }
    }

    /// Begins one of those that wait when its links are free.
    fn begin(&mut self, at: usize, ready_s: f64) {
        let (key, Exchange { seconds, occupied }) = self.waiting.remove(at);
        let places: Vec<(usize, usize)> = self.places(&key).collect();
        places.iter().for_each(|&(class, level)| self.queues[class][level].retain(|other| *other != key));
        let mut begin_s = ready_s;
        for one in &occupied {
            let links = self.cluster.levels[one.port.level].links.unwrap_or(1).min(self.class_of.len());
            let port = self.ports.entry(one.port).or_insert_with(|| Turns::new(links));
            begin_s = port.begin_s(one.links, begin_s);
        }
        for one in &occupied {
            if let Some(port) = self.ports.get_mut(&one.port) {
                port.take(one.links, begin_s + one.seconds);
            }
        }
        let end_s = begin_s + seconds;
        let meeting = &mut self.meetings[&key];
        (meeting.begin_s, meeting.end_s) = (begin_s, Some(end_s));
        if meeting.is_real {
            places.iter().for_each(|&(class, level)| self.queue_free_s[class][level] = end_s);
        }
    }
}
