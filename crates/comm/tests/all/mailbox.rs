//! Messages between threads that stand for processes, each of which takes a random number of tests
//! to complete: what a message-passing library may do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use partita_comm::{Handle, MessageProcesses, Messages, Processes};

/// From, to and tag.
type Key = (usize, usize, usize);

/// The messages of all processes. Those of a key match its receives in order.
#[derive(Debug, Default)]
struct Post {
    sent: BTreeMap<Key, Vec<Option<Vec<u8>>>>,
    received: BTreeMap<Key, usize>,
    random: u64,
    /// Bytes by sender, without those of heartbeats, notices and the control channel.
    bytes: BTreeMap<usize, usize>,
}

/// Tags before those of the collectives of the first world: heartbeats, notices, the control channel.
const OWN_TAGS: usize = 3;

const HEARTBEATS: usize = 0;

impl Post {
    fn draw(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 60
    }
}

#[derive(Debug)]
struct OnItsWay {
    is_sent: bool,
    key: Key,
    /// Its place among the messages of the key.
    number: usize,
    address: usize,
    bytes: usize,
    /// Tests that it takes at least.
    tests: u64,
}

#[derive(Debug)]
struct Mailbox {
    index: usize,
    count: usize,
    post: Arc<Mutex<Post>>,
    open: Mutex<BTreeMap<Handle, OnItsWay>>,
}

impl Mailbox {
    fn begin(&self, is_sent: bool, key: Key, address: usize, bytes: usize) -> Handle {
        let mut post = self.post.lock().unwrap();
        let number = match is_sent {
            true => {
                *post.bytes.entry(key.0).or_default() += if key.2 < OWN_TAGS { 0 } else { bytes };
                let sent = post.sent.entry(key).or_default();
                sent.push(None);
                sent.len() - 1
            }
            false => {
                let received = post.received.entry(key).or_default();
                *received += 1;
                *received - 1
            }
        };
        // Heartbeats are tested once in a while only.
        let tests = if key.2 == HEARTBEATS { 0 } else { post.draw() };
        // `test` holds the other lock first.
        drop(post);
        let mut open = self.open.lock().unwrap();
        let handle = open.last_key_value().map_or(1, |(last, _)| last + 1);
        open.insert(handle, OnItsWay { is_sent, key, number, address, bytes, tests });
        handle
    }
}

impl Messages for Mailbox {
    fn index(&self) -> usize {
        self.index
    }

    fn count(&self) -> usize {
        self.count
    }

    fn tags(&self) -> usize {
        1 << 20
    }

    unsafe fn send(&self, process: usize, tag: usize, bytes: *const [u8]) -> Handle {
        self.begin(true, (self.index, process, tag), bytes.cast::<u8>().expose_provenance(), bytes.len())
    }

    unsafe fn receive(&self, process: usize, tag: usize, bytes: *mut [u8]) -> Handle {
        self.begin(false, (process, self.index, tag), bytes.cast::<u8>().expose_provenance(), bytes.len())
    }

    fn test(&self, handle: Handle) -> bool {
        let mut open = self.open.lock().unwrap();
        let message = open.get_mut(&handle).expect("a message on its way");
        if message.tests > 0 {
            message.tests -= 1;
            return false;
        }
        let mut post = self.post.lock().unwrap();
        let sent = post.sent.entry(message.key).or_default();
        if message.is_sent {
            let from = std::ptr::with_exposed_provenance::<u8>(message.address);
            // SAFETY: the bytes are valid until this has returned true.
            sent[message.number] = Some(unsafe { std::slice::from_raw_parts(from, message.bytes) }.to_vec());
        } else {
            let Some(Some(bytes)) = sent.get(message.number) else { return false };
            assert_eq!(bytes.len(), message.bytes, "a message of another size than was expected");
            let to = std::ptr::with_exposed_provenance_mut::<u8>(message.address);
            // SAFETY: as above.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        open.remove(&handle);
        true
    }

    fn cancel(&self, handle: Handle) {
        assert!(self.open.lock().unwrap().remove(&handle).is_some());
    }
}

/// So many processes.
pub fn join(count: usize, seed: u64) -> Vec<Arc<dyn Processes>> {
    counted(count, seed).0
}

/// So many processes, and how many bytes each has sent in the collectives of its first world.
pub fn counted(count: usize, seed: u64) -> (Vec<Arc<dyn Processes>>, impl Fn(usize) -> usize) {
    let post = Arc::new(Mutex::new(Post { random: seed, ..Post::default() }));
    let mailbox = |index| Mailbox { index, count, post: post.clone(), open: Mutex::default() };
    let all = (0..count).map(|index| MessageProcesses::join(Arc::new(mailbox(index)))).collect();
    (all, move |process| post.lock().unwrap().bytes.get(&process).copied().unwrap_or(0))
}
