//! SSA form of a chain: a list of entries, each of which computes one value from earlier values.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::chain::steps::{Action, Kind, Step};
use crate::math::{self, Single, Whole};

/// Identifies a value of a [`Tape`].
pub(super) type Name = usize;

/// An operation on two values; integers and floats share their registers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Pair {
    Add,
    Sub,
    Mul,
    Div,
    /// The larger value; the second if either is NaN.
    Larger,
    /// The smaller value; the second if either is NaN.
    Smaller,
    WholeSub,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Relation {
    Less,
    AtMost,
    Equal,
    Unordered,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Entry {
    /// Loads the memory operand with this index.
    Load(u8),
    /// A constant in every element, given by its bits.
    Constant(u32),
    Pair(Pair, Name, Name),
    /// The first times the second plus the third.
    MulAdd(Name, Name, Name),
    Root(Name),
    /// Converts an integer to a float.
    FromWhole(Name),
    Left(Name, u8),
    Right(Name, u8),
    /// A mask, which only [`Entry::Select`] reads.
    Compare(Relation, Name, Name),
    /// By the mask, the second value or the third.
    Select(Name, Name, Name),
    /// Stores to the memory operand with this index.
    Store(u8, Name),
}

impl Entry {
    /// The values that the entry reads.
    pub fn reads(&self) -> impl Iterator<Item = Name> + use<> {
        let reads = match *self {
            Entry::Load(_) | Entry::Constant(_) => [None; 3],
            Entry::Root(a) | Entry::FromWhole(a) | Entry::Left(a, _) | Entry::Right(a, _) => {
                [Some(a), None, None]
            }
            Entry::Store(_, a) => [Some(a), None, None],
            Entry::Pair(_, a, b) | Entry::Compare(_, a, b) => [Some(a), Some(b), None],
            Entry::MulAdd(a, b, c) | Entry::Select(a, b, c) => [Some(a), Some(b), Some(c)],
        };
        reads.into_iter().flatten()
    }
}

/// Entries in order; the name of a value is the index of its entry.
#[derive(Default)]
pub(super) struct Tape {
    entries: RefCell<Vec<Entry>>,
    /// Entries that exist already, for value numbering. Loads are not among them, because memory changes.
    known: RefCell<BTreeMap<Entry, Name>>,
}

impl Tape {
    /// The entries of a chain whose operands are of these kinds.
    pub fn of(steps: &[Step], kinds: &[Kind]) -> Vec<Entry> {
        let tape = Tape::default();
        let mut held: Option<Traced<'_>> = None;
        // The value in each operand, once it is known.
        let mut inside: Vec<Option<Traced<'_>>> = vec![None; kinds.len()];
        for &Step(step) in steps {
            let [load, code, operand, store] = step.to_le_bytes();
            let mut read = |number: u8| {
                *inside[usize::from(number)].get_or_insert_with(|| match kinds[usize::from(number)] {
                    Kind::Number(value) => tape.made(Entry::Constant(value.to_bits())),
                    Kind::Memory | Kind::Between => tape.written(Entry::Load(number)),
                })
            };
            if load != Step::NOTHING {
                held = Some(read(load));
            }
            let x = held.expect("a chain begins by loading");
            let action = Action::of_code(code);
            let result = match operand {
                Step::NOTHING => alone(action, x),
                operand => with(action, x, read(operand)),
            };
            if store != Step::NOTHING {
                inside[usize::from(store)] = Some(result);
                if kinds[usize::from(store)] == Kind::Memory {
                    tape.written(Entry::Store(store, result.name));
                }
            }
            held = Some(result);
        }
        tape.entries.into_inner()
    }

    /// The value of an entry, shared with an equal earlier entry.
    fn made(&self, entry: Entry) -> Traced<'_> {
        if let Some(&name) = self.known.borrow().get(&entry) {
            return Traced { tape: self, name };
        }
        let traced = self.written(entry);
        self.known.borrow_mut().insert(entry, traced.name);
        traced
    }

    fn written(&self, entry: Entry) -> Traced<'_> {
        let mut entries = self.entries.borrow_mut();
        entries.push(entry);
        Traced { tape: self, name: entries.len() - 1 }
    }
}

/// A value on a tape: a float, an integer or a mask.
#[derive(Clone, Copy)]
struct Traced<'a> {
    tape: &'a Tape,
    name: Name,
}

impl Traced<'_> {
    fn pair(self, pair: Pair, other: Self) -> Self {
        self.tape.made(Entry::Pair(pair, self.name, other.name))
    }

    fn compare(self, relation: Relation, other: Self) -> Self {
        self.tape.made(Entry::Compare(relation, self.name, other.name))
    }
}

macro_rules! operators {
    ($($operator:ident $method:ident)*) => {$(
        impl $operator for Traced<'_> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.pair(Pair::$operator, other)
            }
        }
    )*};
}
operators! { Add add Sub sub Mul mul Div div }

impl Neg for Traced<'_> {
    type Output = Self;
    fn neg(self) -> Self {
        let sign = Whole::of(self, i32::MIN);
        self.pair(Pair::Xor, sign)
    }
}

impl<'a> Single for Traced<'a> {
    type Whole = Traced<'a>;
    type Truth = Traced<'a>;
    fn of(self, value: f32) -> Self {
        self.tape.made(Entry::Constant(value.to_bits()))
    }
    fn mul_add(self, by: Self, and: Self) -> Self {
        self.tape.made(Entry::MulAdd(self.name, by.name, and.name))
    }
    fn root(self) -> Self {
        self.tape.made(Entry::Root(self.name))
    }
    fn to_whole_bits(self) -> Self {
        self
    }
    fn from_whole_bits(bits: Self) -> Self {
        bits
    }
    fn from_whole(value: Self) -> Self {
        value.tape.made(Entry::FromWhole(value.name))
    }
    fn is_less(self, other: Self) -> Self {
        self.compare(Relation::Less, other)
    }
    fn is_at_most(self, other: Self) -> Self {
        self.compare(Relation::AtMost, other)
    }
    fn is_equal(self, other: Self) -> Self {
        self.compare(Relation::Equal, other)
    }
    fn is_unordered(self, other: Self) -> Self {
        self.compare(Relation::Unordered, other)
    }
    fn at_least(self, bound: f32) -> Self {
        Single::of(self, bound).pair(Pair::Larger, self)
    }
    fn at_most(self, bound: f32) -> Self {
        Single::of(self, bound).pair(Pair::Smaller, self)
    }
    fn select(truth: Self, yes: Self, no: Self) -> Self {
        truth.tape.made(Entry::Select(truth.name, yes.name, no.name))
    }
}

impl Whole for Traced<'_> {
    fn of(self, value: i32) -> Self {
        self.tape.made(Entry::Constant(value as u32))
    }
    fn minus(self, other: Self) -> Self {
        self.pair(Pair::WholeSub, other)
    }
    fn and(self, other: Self) -> Self {
        self.pair(Pair::And, other)
    }
    fn or(self, other: Self) -> Self {
        self.pair(Pair::Or, other)
    }
    fn left<const BITS: u32>(self) -> Self {
        self.tape.made(Entry::Left(self.name, BITS as u8))
    }
    fn right<const BITS: u32>(self) -> Self {
        self.tape.made(Entry::Right(self.name, BITS as u8))
    }
}

/// Traces an action without an operand.
fn alone<F: Single>(action: Action, x: F) -> F {
    match action {
        Action::Square => x * x,
        Action::Neg => -x,
        Action::Abs => x.magnitude(),
        Action::Sqrt => x.root(),
        Action::Rsqrt => x.of(1.0) / x.root(),
        Action::Exp => math::exp(x),
        Action::Log => math::ln(x),
        Action::Tanh => math::tanh(x),
        Action::Logistic => math::logistic(x),
        _ => unreachable!("{action:?} has an operand"),
    }
}

/// Traces an action with an operand.
fn with<F: Single>(action: Action, x: F, y: F) -> F {
    match action {
        Action::Add => x + y,
        Action::Sub => x - y,
        Action::SubFrom => y - x,
        Action::Mul => x * y,
        Action::Div => x / y,
        Action::DivFrom => y / x,
        Action::Max => math::maximum(x, y),
        Action::Min => math::minimum(x, y),
        _ => unreachable!("{action:?} has no operand"),
    }
}
