//! Messages among the processes of a group and its root. Data only.
//!
//! The contents of programs' messages are opaque here.

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::id::{Incarnation, JobId, NodeId, Peer};
use crate::wire::{self, Kind};

/// Identifies a group of processes: its root's node, and a number that no other group of that
/// incarnation has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId {
    /// The root's node, which receives all reports about the group.
    pub(crate) root: Peer,
    /// The number of the group among those of this incarnation of the node.
    pub(crate) number: u64,
}

/// A frame: one message for one process of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) job: JobId,
    pub(crate) group: GroupId,
    /// The number of the receiving process. The root is 0, and also receives what concerns the
    /// whole group.
    pub(crate) to: u32,
    pub(crate) word: ProcessMessage,
}

/// A member of a configuration and its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankAssignment {
    pub(crate) process: u32,
    pub(crate) peer: Peer,
}

/// A configuration of the group: its members in order of rank, and the layout of the state.
///
/// Generations increase. Each data message carries one, and is delivered only in that
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Configuration {
    pub(crate) generation: u32,
    pub(crate) members: Vec<RankAssignment>,
    /// The program's layout, encoded.
    pub(crate) layout: Bytes,
}

impl Configuration {
    pub(crate) fn rank_of(&self, process: u32) -> Option<u32> {
        let at = self.members.iter().position(|seated| seated.process == process)?;
        u32::try_from(at).ok()
    }

    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }
}

/// The source of the state of a new configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StateSource {
    /// None: the program starts.
    Start,
    /// The members of the previous configuration, under this layout.
    From { givers: u32, layout: Bytes },
}

/// Invites a waiting process into a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Invitation {
    #[serde(rename = "roster")]
    pub(crate) configuration: Configuration,
    pub(crate) origin: StateSource,
    /// The point of progress at which it starts.
    pub(crate) point: u64,
}

/// An action that all processes execute at one agreed point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CollectiveAction {
    /// Each sends the root its part of a checkpoint, and continues.
    Save,
    /// They redistribute the state over the members of this configuration.
    Change(Configuration),
    /// The root decides at this point, since processes came or leave. The others wait here for its
    /// next proposal.
    Decide,
    /// They continue: the root decided to change nothing.
    Continue,
}

impl CollectiveAction {
    /// Whether it has no effect but the wait at its point. The next proposal may replace it.
    pub(crate) fn only_waits(&self) -> bool {
        matches!(self, Self::Decide | Self::Continue)
    }
}

/// A data message between two processes of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataMessage {
    pub(crate) generation: u32,
    /// The sender's rank.
    pub(crate) from: u32,
    pub(crate) tag: u32,
    /// Numbers the messages of this sender to this receiver under this tag, from 0. Long messages
    /// may arrive out of order.
    pub(crate) number: u64,
    pub(crate) body: Bytes,
}

/// A further receiver of a forwarded message, with the number that the message has for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardTarget {
    pub(crate) node: NodeId,
    pub(crate) process: u32,
    pub(crate) number: u64,
}

/// The measured speed of a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRate {
    /// Seconds per step without waiting, as a mean since the previous report.
    pub step_s: f64,
    /// The share of the node's processor time that other programs use, from 0 to 1. Absent where
    /// the system does not report it.
    pub foreign: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ProcessMessage {
    // --- to the root ---
    /// The process runs and takes part in this configuration. Generation 0: it waits to be
    /// recruited.
    Here {
        process: u32,
        generation: u32,
    },
    /// The next point at which this process can execute the proposed action. The process does not
    /// pass it until it receives the agreement.
    Reach {
        process: u32,
        change: u32,
        point: u64,
    },
    /// The process has its state and computes.
    Whole {
        process: u32,
        generation: u32,
    },
    /// The measured speed of the process.
    Going {
        process: u32,
        generation: u32,
        pace: StepRate,
    },
    /// The link from the sender to `node` broke, so messages between their processes may be lost.
    /// Without an incarnation it concerns every incarnation of `node`.
    Broken {
        node: NodeId,
        #[serde(default)]
        incarnation: Option<Incarnation>,
    },
    /// The process has ended.
    Over {
        process: u32,
    },
    /// The process has finished the work after its last step, and the root has all of its reports.
    Done {
        process: u32,
        generation: u32,
    },
    /// A line of output for the job's client. `number` counts the reports of this process, from 1.
    Say {
        text: String,
        #[serde(default)]
        process: u32,
        #[serde(default)]
        number: u64,
    },
    /// A file for the run directory. Otherwise like a line.
    Artifact {
        name: String,
        bytes: Bytes,
        #[serde(default)]
        process: u32,
        #[serde(default)]
        number: u64,
    },
    /// The process takes orders, and has all of them up to the given number. Sent at the start,
    /// after each order, and periodically while the process waits.
    Ready {
        process: u32,
        /// Distinguishes successive starts of the process. Orders are valid for one of them.
        session: u64,
        received: u64,
    },
    /// The result of orders. The process repeats it until the root acknowledges the number, so it
    /// may arrive twice.
    Answer {
        process: u32,
        number: u64,
        body: Bytes,
    },
    // --- from the root ---
    /// An order, to be executed after the one with the preceding number. For processes outside of
    /// configurations.
    Order {
        session: u64,
        number: u64,
        body: Bytes,
    },
    /// Invites the process into a configuration.
    Recruit(Invitation),
    /// Proposes an action and asks for the next point at which the process can execute it.
    Propose {
        generation: u32,
        change: u32,
        #[serde(rename = "deed")]
        action: CollectiveAction,
    },
    /// The processes execute the action at this point.
    Agreed {
        change: u32,
        point: u64,
    },
    /// All configurations up to this generation have ended.
    Apart {
        generation: u32,
    },
    /// The process is obsolete and ends.
    Dismiss,
    /// Acknowledges the report of this number.
    Acknowledge {
        number: u64,
    },
    // --- among processes ---
    Mail(DataMessage),
    /// A message for this process, whose node forwards it to others of its cluster. The node knows
    /// no configurations, so the message names the receivers' nodes.
    Pass {
        mail: DataMessage,
        on: Vec<ForwardTarget>,
    },
}

/// The group and configuration of an encoded data message; none for other messages. The contents
/// are not copied.
pub(crate) fn data_message_header(letter: &[u8]) -> Option<(GroupId, u32)> {
    #[derive(Deserialize)]
    struct MessageHeader<'a> {
        #[serde(rename = "job")]
        _job: JobId,
        group: GroupId,
        #[serde(rename = "to")]
        _to: u32,
        #[serde(borrow)]
        word: WordHead<'a>,
    }
    #[derive(Deserialize)]
    enum WordHead<'a> {
        #[serde(borrow)]
        Mail(MailHead<'a>),
        Pass {
            #[serde(borrow)]
            mail: MailHead<'a>,
            #[serde(rename = "on")]
            _on: IgnoredAny,
        },
    }
    #[derive(Deserialize)]
    struct MailHead<'a> {
        generation: u32,
        #[serde(rename = "from")]
        _from: u32,
        #[serde(rename = "tag")]
        _tag: u32,
        #[serde(rename = "number")]
        _number: u64,
        #[serde(rename = "body", borrow)]
        _body: &'a [u8],
    }
    let MessageHeader { group, word: WordHead::Mail(mail) | WordHead::Pass { mail, .. }, .. } =
        wire::decode(Kind::PROCESS, letter).ok()?;
    Some((group, mail.generation))
}

impl ProcessMessage {
    /// Whether only the group's root may send it.
    pub(crate) fn is_order(&self) -> bool {
        match self {
            Self::Recruit(_)
            | Self::Propose { .. }
            | Self::Agreed { .. }
            | Self::Apart { .. }
            | Self::Dismiss
            | Self::Order { .. }
            | Self::Acknowledge { .. } => true,
            Self::Here { .. }
            | Self::Reach { .. }
            | Self::Whole { .. }
            | Self::Going { .. }
            | Self::Broken { .. }
            | Self::Over { .. }
            | Self::Done { .. }
            | Self::Say { .. }
            | Self::Artifact { .. }
            | Self::Ready { .. }
            | Self::Answer { .. }
            | Self::Mail(_)
            | Self::Pass { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode, fuzz, golden};

    #[test]
    fn mutated_frames_are_values_or_typed_errors() {
        let decoders: [fuzz::Decoder; 1] =
            [(Kind::PROCESS, |b| decode::<Envelope>(Kind::PROCESS, b).is_ok())];
        let tally = fuzz::run(&golden::corpus(env!("CARGO_MANIFEST_DIR")), &decoders, 5);
        assert!(tally.accepted > 0 && tally.refused > 0, "{tally:?}");
    }

    /// Messages of each direction, as in the golden files.
    #[test]
    fn the_wire_form_is_the_golden_one() {
        let peer = |node: &str| Peer {
            node: node.into(),
            incarnation: Incarnation(5),
            cluster: "ams".into(),
        };
        let group = GroupId { root: peer("ams-0"), number: 3 };
        let letter = |to, word| Envelope { job: JobId(7), group: group.clone(), to, word };
        let members = vec![
            RankAssignment { process: 0, peer: peer("ams-0") },
            RankAssignment { process: 4, peer: peer("ams-1") },
        ];
        let configuration =
            Configuration { generation: 2, members, layout: Bytes::from_static(b"\x02") };
        let origin = StateSource::From { givers: 1, layout: Bytes::from_static(b"\x01") };
        let recruit = Invitation { configuration: configuration.clone(), origin, point: 9 };
        let body = Bytes::from_static(b"\x07\x08");
        let mail_body = body.clone();
        let mail = DataMessage { generation: 2, from: 1, tag: 6, number: 40, body };
        let onward =
            |node: &str, process, number| ForwardTarget { node: node.into(), process, number };
        let on = vec![onward("ams-2", 5, 39), onward("ams-3", 6, 0)];
        let pass = ProcessMessage::Pass { mail: mail.clone(), on };
        let pace = StepRate { step_s: 0.25, foreign: Some(0.5) };
        let home = env!("CARGO_MANIFEST_DIR");
        for (name, letter) in [
            ("here", letter(0, ProcessMessage::Here { process: 4, generation: 0 })),
            ("going", letter(0, ProcessMessage::Going { process: 4, generation: 2, pace })),
            ("recruit", letter(4, ProcessMessage::Recruit(recruit))),
            (
                "propose",
                letter(
                    4,
                    ProcessMessage::Propose {
                        generation: 1,
                        change: 2,
                        action: CollectiveAction::Change(configuration),
                    },
                ),
            ),
            ("mail", letter(4, ProcessMessage::Mail(mail))),
            ("pass", letter(4, pass)),
            (
                "say",
                letter(
                    0,
                    ProcessMessage::Say { text: "half way".to_owned(), process: 4, number: 2 },
                ),
            ),
            (
                "artifact",
                letter(
                    0,
                    ProcessMessage::Artifact {
                        name: "map.txt".to_owned(),
                        bytes: mail_body.clone(),
                        process: 4,
                        number: 3,
                    },
                ),
            ),
            ("done", letter(0, ProcessMessage::Done { process: 4, generation: 2 })),
            ("acknowledge", letter(4, ProcessMessage::Acknowledge { number: 3 })),
            ("ready", letter(0, ProcessMessage::Ready { process: 4, session: 9, received: 1 })),
            (
                "order",
                letter(4, ProcessMessage::Order { session: 9, number: 2, body: mail_body.clone() }),
            ),
            (
                "answer",
                letter(0, ProcessMessage::Answer { process: 4, number: 5, body: mail_body }),
            ),
            (
                "broken",
                letter(
                    0,
                    ProcessMessage::Broken {
                        node: "ams-2".into(),
                        incarnation: Some(Incarnation(5)),
                    },
                ),
            ),
        ] {
            golden::check(home, Kind::PROCESS, name, &letter);
            // An unsent message is recognised by its head, without decoding the rest.
            let encoded = encode(Kind::PROCESS, &letter).expect("it encodes");
            let expected = ["mail", "pass"].contains(&name).then(|| (group.clone(), 2));
            assert_eq!(data_message_header(&encoded), expected, "{name}");
        }
    }

    /// Fields were added at the end, so messages without them still decode.
    #[test]
    fn messages_without_the_later_fields_are_decoded() {
        #[derive(Serialize)]
        enum EarlierWord {
            Say { text: &'static str },
            Broken { node: &'static str },
        }
        let peer =
            Peer { node: "ams-0".into(), incarnation: Incarnation(5), cluster: "ams".into() };
        let group = GroupId { root: peer, number: 3 };
        let text = "half way";
        let say = ProcessMessage::Say { text: text.to_owned(), process: 0, number: 0 };
        let broken = ProcessMessage::Broken { node: "ams-2".into(), incarnation: None };
        for (before, now) in
            [(EarlierWord::Say { text }, say), (EarlierWord::Broken { node: "ams-2" }, broken)]
        {
            let letter = (JobId(7), &group, 0u32, before);
            let bytes = encode(Kind::PROCESS, &letter).expect("it encodes");
            let letter: Envelope = decode(Kind::PROCESS, &bytes).expect("it is read");
            assert_eq!(letter.word, now);
        }
    }
}
