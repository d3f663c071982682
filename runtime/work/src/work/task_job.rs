//! A job that only runs tasks, and sends their outputs to its client in parts.
//!
//! It lets a program run a task without a job of its own. Only the client's side knows the type of
//! the outputs again; nothing here depends on how the client receives messages.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::context::Context;
use super::outcome::{Outcome, Stop};
use super::registry::Registry;
use super::task::{Job, Task};
use crate::checksum::checksum;
use crate::wire;

/// The maximum length of all encoded outputs of a [`TaskJob`], in bytes.
pub const OUTPUT_MAX: usize = 256 << 20;
/// The length of a part of the outputs, in bytes. The link stays free for heartbeats between parts.
const PART_BYTES: usize = 1 << 20;

/// The prefix of the job's name, before the name of its task.
const PREFIX: &str = "run:";
/// The maximum length of the job's name.
const NAME_MAX: usize = 256;

/// A job that runs independent tasks of one type, and returns their outputs in order.
///
/// The outcome's checksum is that of the encoded outputs. The outputs travel to the client as
/// messages, which [`OutputAssembler`] puts together.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "T: Task")]
pub struct TaskJob<T> {
    /// The tasks, at least one.
    pub tasks: Vec<T>,
}

/// The job's name, which is derived from its task's: the bytes and their number.
const fn job_name(task: &str) -> ([u8; NAME_MAX], usize) {
    let (prefix, task) = (PREFIX.as_bytes(), task.as_bytes());
    assert!(prefix.len() + task.len() <= NAME_MAX, "the NAME of a task is longer than 250 bytes");
    let (mut name, mut len) = ([0; NAME_MAX], 0);
    while len < prefix.len() {
        name[len] = prefix[len];
        len += 1;
    }
    while len < prefix.len() + task.len() {
        name[len] = task[len - prefix.len()];
        len += 1;
    }
    (name, len)
}

impl<T: Task> TaskJob<T> {
    const NAME_BYTES: &'static ([u8; NAME_MAX], usize) = &job_name(T::NAME);
}

impl<T: Task> Job for TaskJob<T> {
    const NAME: &'static str =
        match std::str::from_utf8(Self::NAME_BYTES.0.split_at(Self::NAME_BYTES.1).0) {
            Ok(name) => name,
            Err(_) => panic!("the name is made of two texts"),
        };
    const ABOUT: &'static str = "Tasks that a program runs by themselves";

    fn register(registry: &mut Registry) {
        registry.task::<T>();
    }

    fn run(mut self, cx: &Context) -> Result<Outcome, Stop> {
        let outputs = match self.tasks.len() {
            1 => vec![cx.call(self.tasks.remove(0))?],
            _ => cx.join_all(self.tasks)?,
        };
        let outputs = wire::encode_payload(&outputs)?;
        let bytes = outputs.len();
        if bytes > OUTPUT_MAX {
            return Err(Stop::fail(format_args!(
                "the output is {bytes} bytes long, more than {OUTPUT_MAX}: return less, write it \
                 to files (Context::artifact), or divide the work among several jobs"
            )));
        }
        for (index, part) in outputs.chunks(PART_BYTES).enumerate() {
            let part = OutputPart {
                offset: (index * PART_BYTES) as u64,
                bytes: Bytes::copy_from_slice(part),
            };
            cx.send_to_client(wire::encode_payload(&part)?);
        }
        let result = serde_json::json!({ "bytes": bytes });
        Ok(Outcome { checksum: checksum(outputs), result })
    }
}

/// A part of the encoded outputs.
#[derive(Serialize, Deserialize)]
struct OutputPart {
    /// Offset of its first byte.
    offset: u64,
    bytes: Bytes,
}

/// Puts the parts of a [`TaskJob`]'s outputs together, on the side of the client.
///
/// A root that runs again sends all parts again, from the first one.
#[derive(Debug, Default)]
pub struct OutputAssembler {
    bytes: Vec<u8>,
}

/// Why the outputs of a [`TaskJob`] cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The parts are not those of the outcome.
    #[error("{received} bytes of the output arrived, whose checksum is not the job's")]
    Incomplete {
        /// The number of bytes that arrived.
        received: usize,
    },
    /// The outputs do not decode as the type that the client expects.
    #[error("the output does not decode: {0}")]
    Malformed(#[from] wire::WireError),
}

impl OutputAssembler {
    /// Adds a message of the job. Parts of a root that was replaced have no effect.
    ///
    /// # Errors
    /// The message is not part of an output.
    pub fn add(&mut self, message: &[u8]) -> Result<(), OutputError> {
        let part: OutputPart = wire::decode_payload(message)?;
        if part.offset == 0 {
            self.bytes.clear();
        }
        if part.offset == self.bytes.len() as u64 {
            self.bytes.extend_from_slice(&part.bytes);
        }
        Ok(())
    }

    /// Decodes the outputs of the tasks, once the job has this outcome.
    ///
    /// # Errors
    /// Parts are missing, or the outputs have another type.
    pub fn finish<T: Task>(self, outcome: &Outcome) -> Result<Vec<T::Output>, OutputError> {
        let received = self.bytes.len();
        if checksum(self.bytes.iter().copied()) != outcome.checksum {
            return Err(OutputError::Incomplete { received });
        }
        Ok(wire::decode_payload(&self.bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::{PoolConfig, ProgressReport, encode_job, solo};
    use super::*;

    /// A task whose output is a number of bytes.
    #[derive(Serialize, Deserialize)]
    struct Fill(u8, usize);

    impl Task for Fill {
        type Output = Vec<u8>;
        const NAME: &'static str = "fill";

        fn run(self, _: &Context) -> Result<Vec<u8>, Stop> {
            Ok(vec![self.0; self.1])
        }
    }

    /// Runs tasks, and returns the outcome and the messages to the client.
    fn run(tasks: Vec<Fill>) -> (Outcome, Vec<Bytes>) {
        let mut registry = Registry::new();
        registry.job::<TaskJob<Fill>>();
        let body = encode_job(TaskJob { tasks }).unwrap();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let received = messages.clone();
        let config = PoolConfig { threads: 2, ..PoolConfig::default() };
        let ended = solo::run(Arc::new(registry), "run:fill", body, &config, move |note| {
            if let ProgressReport::ClientMessage { body } = note {
                received.lock().unwrap().push(body);
            }
        });
        let messages = std::mem::take(&mut *messages.lock().unwrap());
        (ended.unwrap().outcome.unwrap(), messages)
    }

    #[test]
    fn outputs_arrive_in_order_and_in_parts() {
        let sizes: &[usize] = if cfg!(miri) { &[3, 0, 7] } else { &[3, 0, PART_BYTES, 7] };
        let tasks = sizes.iter().zip(1..).map(|(&size, byte)| Fill(byte, size)).collect();
        let (outcome, messages) = run(tasks);
        assert!(messages.len() > usize::from(!cfg!(miri)), "{}", messages.len());
        let mut outputs = OutputAssembler::default();
        // A root that is lost after its first part sends that again.
        outputs.add(&messages[0]).unwrap();
        messages.iter().for_each(|message| outputs.add(message).unwrap());
        let outputs = outputs.finish::<Fill>(&outcome).unwrap();
        let expected: Vec<_> =
            sizes.iter().zip(1..).map(|(&size, byte)| vec![byte; size]).collect();
        assert!(outputs == expected);
    }

    #[test]
    fn a_missing_part_is_an_error() {
        let (outcome, messages) = run(vec![Fill(1, 5)]);
        let missing = OutputAssembler::default().finish::<Fill>(&outcome);
        assert!(matches!(missing, Err(OutputError::Incomplete { received: 0 })), "{missing:?}");
        let mut outputs = OutputAssembler::default();
        outputs.add(&messages[0]).unwrap();
        assert!(outputs.add(b"no part").is_err());
        assert_eq!(outputs.finish::<Fill>(&outcome).unwrap(), [[1; 5]]);
    }
}
