//! The frames of the runner protocol, and of the protocol between a client and its bridge.
//!
//! Data without I/O. A frame is a length in four bytes, the most significant first, and then that
//! many bytes of MessagePack: a map with one entry, whose key is the kind and whose value is a map
//! of fields. Readers ignore unknown fields.

use bytes::{Buf as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::wire::{self, WireError};

/// The version of the protocol.
pub const PROTOCOL_VERSION: u32 = 1;
/// The most bytes of a frame, without the bytes of its length.
pub const FRAME_BYTES_MAX: usize = 512 << 20;
/// The number of bytes of a frame's length.
const LENGTH_BYTES: usize = 4;

/// Identifies the code of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionName {
    /// The shared object that contains the code; absent if the runner has it.
    #[serde(default)]
    pub object: Option<u32>,
    /// The name of the function in that object, or among those of the runner.
    pub name: String,
}

/// A task as data: its function and arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function to call.
    pub function: FunctionName,
    /// The arguments, in the encoding of the runner.
    pub arguments: Bytes,
    /// Large parts of the arguments, which the encoding refers to.
    #[serde(default)]
    pub buffers: Vec<Bytes>,
    /// The shared objects that the task and its children read.
    #[serde(default)]
    pub objects: Vec<u32>,
}

/// The failure of a task in its own code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFailure {
    /// The type of the error in the runner's language. Types of the runtime begin with
    /// `springtide.`
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of the error.
    pub message: String,
    /// The place of the error, as the runner's language prints it; empty if unknown.
    #[serde(default)]
    pub traceback: String,
    /// The error in the encoding of the runner; absent if it has none.
    #[serde(default)]
    pub value: Option<Bytes>,
}

impl TaskFailure {
    /// The failure of a task outside of its own code. `kind` follows `springtide.` in its type.
    pub(super) fn of_runtime(kind: &str, message: impl Into<String>) -> Self {
        Self { kind: format!("springtide.{kind}"), message: message.into(), ..Self::default() }
    }
}

/// The end of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallOutcome {
    /// The task returned a value.
    Result {
        /// The value, in the encoding of the runner.
        value: Bytes,
        /// Large parts of the value, which the encoding refers to.
        #[serde(default)]
        buffers: Vec<Bytes>,
    },
    /// The task failed.
    Failure(TaskFailure),
}

impl CallOutcome {
    /// The bytes of values, without their encoding.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Result { value, buffers } => {
                value.len() + buffers.iter().map(Bytes::len).sum::<usize>()
            }
            Self::Failure(failure) => {
                let value = failure.value.as_ref().map_or(0, Bytes::len);
                failure.message.len() + failure.traceback.len() + value
            }
        }
    }
}

/// A frame from a node to a runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeFrame {
    /// Answers the runner's hello.
    Welcome {
        /// The version of the protocol that both use.
        version: u32,
        /// The name of the node.
        node: String,
        /// The name of the node's cluster.
        cluster: String,
    },
    /// Run a task, and answer with its result or failure. A runner gets it when it is idle, or on
    /// top of a task that waits for a child.
    Task {
        /// The number of the task for this runner.
        task: u64,
        /// The function and its arguments.
        call: FunctionCall,
    },
    /// Answers a join.
    Joined {
        /// The task that waits.
        task: u64,
        /// The child that has ended.
        child: u32,
        /// The end of the child.
        outcome: CallOutcome,
    },
    /// Answers a get.
    Object {
        /// The task that waits.
        task: u64,
        /// The object.
        object: u32,
        /// Its bytes; absent if the task did not name the object.
        data: Option<Bytes>,
    },
    /// The node has no use for this task, which is the last one that began. The runner may end it
    /// early with a failure; else the node ends the runner.
    Cancel {
        /// The task.
        task: u64,
    },
    /// No task follows. The runner ends.
    End {},
}

/// A frame from a runner to its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunnerFrame {
    /// The first frame of a runner.
    Hello {
        /// The version of the protocol that the runner uses.
        version: u32,
        /// The names of its functions; absent if it cannot list them.
        #[serde(default)]
        tasks: Option<Vec<String>>,
    },
    /// A task has returned a value.
    Result {
        /// The task, which is the last one that began.
        task: u64,
        /// The value.
        value: Bytes,
        /// Large parts of the value.
        #[serde(default)]
        buffers: Vec<Bytes>,
    },
    /// A task has failed.
    Failure {
        /// The task, which is the last one that began.
        task: u64,
        /// The failure.
        failure: TaskFailure,
    },
    /// Create a child, which may run anywhere. It has no answer.
    Spawn {
        /// The parent.
        task: u64,
        /// The number of the child among those of its parent: 0, 1, 2 and so on.
        child: u32,
        /// The function and its arguments.
        call: FunctionCall,
    },
    /// Wait for a child, once.
    Join {
        /// The parent.
        task: u64,
        /// The child.
        child: u32,
    },
    /// Read a shared object.
    Get {
        /// The task that reads it.
        task: u64,
        /// The object.
        object: u32,
    },
    /// A line for the log of the node and for the client.
    Log {
        /// The level: `error`, `warn`, `info` or `debug`.
        level: String,
        /// The line.
        text: String,
    },
    /// The progress of the last task that began, for the log of the node and for the client.
    Progress {
        /// The amount done so far.
        done: u64,
        /// The total amount.
        total: u64,
        /// The unit of both amounts.
        what: String,
    },
}

/// A frame from a client to its bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientFrame {
    /// Publish a shared object before tasks that read it.
    Put {
        /// The number of the object, from 1, which no other object of this client has.
        object: u32,
        /// Its bytes.
        data: Bytes,
    },
    /// Run a task.
    Submit {
        /// The number of the task among those of this client.
        task: u64,
        /// The function and its arguments.
        call: FunctionCall,
    },
    /// Do not run a task, or end it if it has started.
    Cancel {
        /// The task.
        task: u64,
    },
    /// End the job. The same as the end of the input.
    End {},
}

/// A frame from a bridge to its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BridgeFrame {
    /// The job has started, or has started again.
    Ready {
        /// The version of the protocol.
        version: u32,
        /// The node of the job's root.
        node: String,
        /// The processors of the job.
        processors: u32,
    },
    /// A task has ended.
    Done {
        /// The task.
        task: u64,
        /// Its end.
        outcome: CallOutcome,
    },
    /// Lines that a runner has written to its standard output or standard error.
    Output {
        /// The node of the runner.
        node: String,
        /// Whole lines.
        text: String,
    },
    /// A log record of a task.
    Log {
        /// The node of the task.
        node: String,
        /// The level: `error`, `warn`, `info` or `debug`.
        level: String,
        /// The text of the record.
        text: String,
    },
    /// The progress of a task, or of one of its descendants.
    Progress {
        /// The node of the task.
        node: String,
        /// The task of the client.
        task: u64,
        /// The amount done so far.
        done: u64,
        /// The total amount.
        total: u64,
        /// The unit of both amounts.
        what: String,
    },
    /// The job has grown or shrunk.
    Processors {
        /// The processors of the job.
        processors: u32,
    },
    /// The job has ended, and nothing follows.
    Closed {
        /// The reason; absent if the client ended the job.
        reason: Option<String>,
    },
}

/// The reason why bytes are not a frame, or a value makes none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// The frame is longer than [`FRAME_BYTES_MAX`].
    #[error("a frame of {0} bytes is over the limit of {FRAME_BYTES_MAX} bytes")]
    TooLong(usize),
    /// The contents are not a frame of the expected direction.
    #[error("{0}")]
    Encoding(#[from] WireError),
}

/// Encodes a frame with its length.
///
/// # Errors
/// The frame is too long.
pub fn encode_frame<F: Serialize>(frame: &F) -> Result<Vec<u8>, FrameFault> {
    let mut buffer = vec![0; LENGTH_BYTES];
    wire::encode_named_into(&mut buffer, frame)?;
    let length = buffer.len() - LENGTH_BYTES;
    let fits = u32::try_from(length).ok().filter(|_| length <= FRAME_BYTES_MAX);
    let prefix = fits.ok_or(FrameFault::TooLong(length))?.to_be_bytes();
    buffer[..LENGTH_BYTES].copy_from_slice(&prefix);
    Ok(buffer)
}

/// Collects the bytes of a stream, and takes frames from them.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: BytesMut,
}

impl FrameBuffer {
    /// Adds bytes of the stream.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next frame, if it is complete.
    ///
    /// # Errors
    /// The stream is damaged; nothing that follows in it is valid.
    pub fn next_frame<F: DeserializeOwned>(&mut self) -> Result<Option<F>, FrameFault> {
        let Some(prefix) = self.bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        if length > FRAME_BYTES_MAX {
            return Err(FrameFault::TooLong(length));
        }
        if self.bytes.len() < LENGTH_BYTES + length {
            self.bytes.reserve(LENGTH_BYTES + length - self.bytes.len());
            return Ok(None);
        }
        self.bytes.advance(LENGTH_BYTES);
        let frame = self.bytes.split_to(length);
        Ok(Some(wire::decode_payload(&frame)?))
    }
}
