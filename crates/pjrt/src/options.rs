//! Compile options as the bytes of XLA's `CompileOptionsProto`.

use crate::value::Value;
use partita_base::{Diagnostic, Result};

/// For which devices a program is compiled, and with which flags of XLA.
///
/// The counts of devices come from here, whatever the text states. They are never left out: XLA would read 0, and end
/// the process by a failed check.
#[derive(Clone, PartialEq, Debug)]
pub struct CompileOptions {
    devices: Vec<i32>,
    form: Form,
    flags: Vec<(String, Value)>,
}

/// Which side distributes the program over the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Partita: the text is what each device runs.
    Replicas,
    /// XLA: the text is the program of one device with layouts of Shardy.
    Partitions,
}

impl CompileOptions {
    /// Options for the uniform form: the text is what each device runs, with collectives between replicas. Device `i`
    /// of `devices`, an id, runs as replica `i`.
    pub fn replicas(devices: &[i32]) -> CompileOptions {
        CompileOptions { devices: devices.to_vec(), form: Form::Replicas, flags: Vec::new() }
    }

    /// Options for the global form: XLA distributes the text by its Shardy layouts. Device `i` of `devices`, an id, runs
    /// as partition `i`.
    pub fn partitions(devices: &[i32]) -> CompileOptions {
        CompileOptions { devices: devices.to_vec(), form: Form::Partitions, flags: Vec::new() }
    }

    /// Adds a flag of XLA by its name without dashes, such as `xla_cpu_enable_fast_math`; `XLA_FLAGS` of the
    /// environment applies to all compilations, this one to one. The last of several values counts.
    pub fn flag(mut self, name: &str, value: impl Into<Value>) -> CompileOptions {
        self.flags.retain(|(other, _)| other != name);
        self.flags.push((name.into(), value.into()));
        self
    }

    /// The ids of the devices, in the order of replicas or partitions.
    pub fn devices(&self) -> &[i32] {
        &self.devices
    }

    /// The bytes of the message, which are also a part of the key under which a compiled program may be cached.
    ///
    /// # Errors
    ///
    /// E065 without devices, with a device given twice or a negative id, and for a flag whose value is a list.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let refused = |found: String| {
            Diagnostic::new("E065", "a program cannot be compiled for these devices")
                .expected("one or more ids of devices, each once")
                .found(found)
        };
        if self.devices.is_empty() {
            return Err(refused("no devices".into()));
        }
        for (at, id) in self.devices.iter().enumerate() {
            if *id < 0 || self.devices[..at].contains(id) {
                return Err(refused(format!("device {id} in {:?}", self.devices)));
            }
        }
        let count = self.devices.len() as u64;
        let (replicas, partitions) = match self.form {
            Form::Replicas => (count, 1),
            Form::Partitions => (1, count),
        };

        // device_assignment: a list of computations, which are partitions, each with the devices of its replicas.
        let mut assignment = Message::default().number(1, replicas).number(2, partitions);
        for computation in self.devices.chunks(replicas as usize) {
            let ids = computation.iter().fold(Message::default(), |ids, id| ids.varint(*id as u64));
            assignment = assignment.message(3, Message::default().message(1, ids));
        }
        // executable_build_options: the device ordinal -1 is "by the assignment".
        let mut build = Message::default().number(1, -1i64 as u64).number(4, replicas).number(5, partitions);
        if self.form == Form::Partitions {
            build = build.number(6, 1);
        }
        build = build.message(9, assignment);
        if self.form == Form::Partitions {
            // use_shardy_partitioner
            build = build.number(19, 1);
        }
        let mut options = Message::default().message(3, build);
        for (name, value) in &self.flags {
            let value = match value {
                Value::Text(text) => Message::default().bytes(1, text.as_bytes()),
                Value::Bool(boolean) => Message::default().number(2, u64::from(*boolean)),
                Value::Integer(integer) => Message::default().number(3, *integer as u64),
                Value::Float(float) => Message::default().double(4, f64::from(*float)),
                Value::Integers(_) => {
                    return Err(Diagnostic::new("E065", format!("the XLA flag `{name}` cannot be a list"))
                        .expected("text, an integer, a float or a boolean")
                        .found(value.to_string()));
                }
            };
            options = options.message(7, Message::default().bytes(1, name.as_bytes()).message(2, value));
        }
        Ok(options.0)
    }
}

/// The bytes of a message of Protocol Buffers: fields in ascending order of their numbers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// An integer in base 128, the least significant digits first.
    fn varint(mut self, mut value: u64) -> Message {
        while value >= 128 {
            self.0.push(value as u8 | 128);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    fn number(self, field: u64, value: u64) -> Message {
        self.varint(field << 3).varint(value)
    }

    fn double(self, field: u64, value: f64) -> Message {
        let mut it = self.varint(field << 3 | 1);
        it.0.extend(value.to_le_bytes());
        it
    }

    fn bytes(self, field: u64, bytes: &[u8]) -> Message {
        let mut it = self.varint(field << 3 | 2).varint(bytes.len() as u64);
        it.0.extend(bytes);
        it
    }

    fn message(self, field: u64, inner: Message) -> Message {
        self.bytes(field, &inner.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    }

    #[test]
    fn replicas_are_encoded_as_xla_encodes_them() {
        let right = "1a 1d  08 ff ff ff ff ff ff ff ff ff 01  20 04  28 01  4a 0c  08 04 10 01 1a 06 0a 04 00 01 02 03";
        assert_eq!(CompileOptions::replicas(&[0, 1, 2, 3]).encode().unwrap(), bytes(right));
        // Ids from 128 on take two bytes.
        let right =
            "1a 1c  08 ff ff ff ff ff ff ff ff ff 01  20 02  28 01  4a 0b  08 02 10 01 1a 05 0a 03 c8 01 07";
        assert_eq!(CompileOptions::replicas(&[200, 7]).encode().unwrap(), bytes(right));
    }

    #[test]
    fn partitions_have_a_computation_for_each_device_and_shardy() {
        let right = "1a 24  08 ff ff ff ff ff ff ff ff ff 01  20 01  28 02  30 01
            4a 0e  08 01 10 02  1a 03 0a 01 00  1a 03 0a 01 01  98 01 01";
        assert_eq!(CompileOptions::partitions(&[0, 1]).encode().unwrap(), bytes(right));
    }

    #[test]
    fn flags_follow_as_a_map() {
        let plain = CompileOptions::replicas(&[0]);
        let flags = |options: &CompileOptions| {
            let all = options.encode().unwrap();
            all[plain.encode().unwrap().len()..].to_vec()
        };
        let options = plain.clone().flag("t", "x").flag("b", false).flag("i", -1).flag("f", 0.5);
        let right = "3a 08 0a 01 74 12 03 0a 01 78   3a 07 0a 01 62 12 02 10 00
            3a 10 0a 01 69 12 0b 18 ff ff ff ff ff ff ff ff ff 01
            3a 0e 0a 01 66 12 09 21 00 00 00 00 00 00 e0 3f";
        assert_eq!(flags(&options), bytes(right));
        assert_eq!(
            flags(&plain.clone().flag("b", true).flag("b", false)),
            bytes("3a 07 0a 01 62 12 02 10 00")
        );
        let error = plain.clone().flag("l", Value::Integers(vec![1])).encode().unwrap_err();
        assert_eq!((error.code, error.found.as_deref()), ("E065", Some("[1]")));
    }

    #[test]
    fn devices_that_would_end_the_process_are_refused() {
        for (devices, found) in
            [(&[][..], "no devices"), (&[1, 1], "device 1 in [1, 1]"), (&[0, -1], "device -1 in [0, -1]")]
        {
            for options in [CompileOptions::replicas(devices), CompileOptions::partitions(devices)] {
                let error = options.encode().unwrap_err();
                assert_eq!((error.code, error.found.as_deref()), ("E065", Some(found)));
            }
        }
    }
}
