//! What processes of a group, and the group's root, say to each other. Data only.
//!
//! Must not know what programs put into their mail, nor when anything is said.

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::id::{Incarnation, JobId, NodeId, Peer};
use crate::wire::{self, Kind};

/// A group of processes: where its root runs, and which of that life's groups it is. No two roots of a job have the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId {
    /// The root's node, which is told of all that concerns the group.
    pub(crate) root: Peer,
    /// Tells the groups of that life of the node apart.
    pub(crate) number: u64,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Letter {
    pub(crate) job: JobId,
    pub(crate) group: GroupId,
    /// The number of the process it is for; the root's process is 0, and what concerns the group goes there, too.
    pub(crate) to: u32,
    pub(crate) word: Word,
}

/// A process that takes part in a configuration, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seated {
    pub(crate) process: u32,
    pub(crate) peer: Peer,
}

/// A configuration of the group: who takes part, in order of rank, and who has what. Each has a higher number than the one
/// before it, which mail carries: what is said in one is not heard in another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roster {
    pub(crate) generation: u32,
    pub(crate) members: Vec<Seated>,
    /// The program's layout, encoded.
    pub(crate) layout: Bytes,
}

impl Roster {
    pub(crate) fn rank_of(&self, process: u32) -> Option<u32> {
        let at = self.members.iter().position(|seated| seated.process == process)?;
        u32::try_from(at).ok()
    }

    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }
}

/// Where the state of a new configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Origin {
    /// Nowhere: the program starts.
    Start,
    /// From so many processes, under this layout.
    From { givers: u32, layout: Bytes },
}

/// What a process that waits is called to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recruit {
    pub(crate) roster: Roster,
    pub(crate) origin: Origin,
    /// The point of progress at which it begins.
    pub(crate) point: u64,
}

/// What all processes do at one agreed point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Deed {
    /// They give the root what makes a checkpoint, and go on.
    Save,
    /// They redistribute the state over these.
    Change(Roster),
}

/// From one process to another of the same configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mail {
    pub(crate) generation: u32,
    /// The sender's rank.
    pub(crate) from: u32,
    pub(crate) tag: u32,
    /// Counts what the sender says to the receiver under this tag: what is long may be overtaken on its way.
    pub(crate) number: u64,
    pub(crate) body: Bytes,
}

/// Whom mail is passed on to: a process, its node, and the number that the mail has for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Onward {
    pub(crate) node: NodeId,
    pub(crate) process: u32,
    pub(crate) number: u64,
}

/// How fast a process goes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Seconds that a step takes it, without what it waits for others: the mean since it told last.
    pub step_s: f64,
    /// The share of its node's processor time that others use, from 0 to 1; absent where the system does not tell.
    pub foreign: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Word {
    // --- to the root ---
    /// A process is there, and takes part in this configuration; 0: it waits to be recruited.
    Here {
        process: u32,
        generation: u32,
    },
    /// The next point at which this process can do what is proposed. It does not go beyond before it hears what is agreed.
    Reach {
        process: u32,
        change: u32,
        point: u64,
    },
    /// A process has its state, and computes.
    Whole {
        process: u32,
        generation: u32,
    },
    /// How fast it does.
    Going {
        process: u32,
        generation: u32,
        pace: Pace,
    },
    /// The link from this node to that one broke: mail between processes on the two may be lost. Absent: whatever life of that.
    Broken {
        node: NodeId,
        #[serde(default)]
        incarnation: Option<Incarnation>,
    },
    /// A process has ended.
    Over {
        process: u32,
    },
    /// A process is through with what comes after the last step, and the root has heard all that it reported.
    Done {
        process: u32,
        generation: u32,
    },
    /// A line for whoever watches the job, by this process: the so-and-so-manieth report of it, from 1.
    Say {
        text: String,
        #[serde(default)]
        process: u32,
        #[serde(default)]
        number: u64,
    },
    /// A file for the run's directory; else as a line.
    Artifact {
        name: String,
        bytes: Bytes,
        #[serde(default)]
        process: u32,
        #[serde(default)]
        number: u64,
    },
    /// A process that takes orders is there, and has all of them up to this number. It says so when it begins, for each order, and
    /// while it waits.
    Ready {
        process: u32,
        /// Tells the times apart that this process began: orders are for one of them.
        sitting: u64,
        heard: u64,
    },
    /// What a process found by its orders. It keeps it until the root has heard this number: so it may come twice.
    Answer {
        process: u32,
        number: u64,
        body: Bytes,
    },
    // --- from the root ---
    /// Do this, after what has the number before it. For processes that take orders, outside of configurations.
    Order {
        sitting: u64,
        number: u64,
        body: Bytes,
    },
    /// Take part in a configuration.
    Recruit(Recruit),
    /// Something is to be done: when could you?
    Propose {
        generation: u32,
        change: u32,
        deed: Deed,
    },
    /// It is done at this point.
    Agreed {
        change: u32,
        point: u64,
    },
    /// All configurations up to this one are over.
    Apart {
        generation: u32,
    },
    /// Nobody needs you any more.
    Dismiss,
    /// Your report of this number is here.
    Heard {
        number: u64,
    },
    // --- among processes ---
    Mail(Mail),
    /// Mail for this process, which its node passes on to others of the cluster. The node knows no configurations, so it is said where these are.
    Pass {
        mail: Mail,
        on: Vec<Onward>,
    },
}

/// Of mail, encoded as a [`Letter`], the group and the configuration; of other letters nothing. What is in it is not copied.
pub(crate) fn mail_of(letter: &[u8]) -> Option<(GroupId, u32)> {
    #[derive(Deserialize)]
    struct Head<'a> {
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
    let Head { group, word: WordHead::Mail(mail) | WordHead::Pass { mail, .. }, .. } =
        wire::decode(Kind::PROCESS, letter).ok()?;
    Some((group, mail.generation))
}

impl Word {
    /// Whether it is an order, which the group's root alone gives.
    pub(crate) fn is_order(&self) -> bool {
        match self {
            Self::Recruit(_)
            | Self::Propose { .. }
            | Self::Agreed { .. }
            | Self::Apart { .. }
            | Self::Dismiss
            | Self::Order { .. }
            | Self::Heard { .. } => true,
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
            [(Kind::PROCESS, |b| decode::<Letter>(Kind::PROCESS, b).is_ok())];
        let tally = fuzz::run(&golden::corpus(env!("CARGO_MANIFEST_DIR")), &decoders, 5);
        assert!(tally.accepted > 0 && tally.refused > 0, "{tally:?}");
    }

    /// Some of each direction, as in the golden files.
    #[test]
    fn the_wire_form_is_the_golden_one() {
        let peer = |node: &str| Peer {
            node: node.into(),
            incarnation: Incarnation(5),
            cluster: "ams".into(),
        };
        let group = GroupId { root: peer("ams-0"), number: 3 };
        let letter = |to, word| Letter { job: JobId(7), group: group.clone(), to, word };
        let members = vec![
            Seated { process: 0, peer: peer("ams-0") },
            Seated { process: 4, peer: peer("ams-1") },
        ];
        let roster = Roster { generation: 2, members, layout: Bytes::from_static(b"\x02") };
        let origin = Origin::From { givers: 1, layout: Bytes::from_static(b"\x01") };
        let recruit = Recruit { roster: roster.clone(), origin, point: 9 };
        let body = Bytes::from_static(b"\x07\x08");
        let mail_body = body.clone();
        let mail = Mail { generation: 2, from: 1, tag: 6, number: 40, body };
        let onward = |node: &str, process, number| Onward { node: node.into(), process, number };
        let on = vec![onward("ams-2", 5, 39), onward("ams-3", 6, 0)];
        let pass = Word::Pass { mail: mail.clone(), on };
        let pace = Pace { step_s: 0.25, foreign: Some(0.5) };
        let home = env!("CARGO_MANIFEST_DIR");
        for (name, letter) in [
            ("here", letter(0, Word::Here { process: 4, generation: 0 })),
            ("going", letter(0, Word::Going { process: 4, generation: 2, pace })),
            ("recruit", letter(4, Word::Recruit(recruit))),
            (
                "propose",
                letter(4, Word::Propose { generation: 1, change: 2, deed: Deed::Change(roster) }),
            ),
            ("mail", letter(4, Word::Mail(mail))),
            ("pass", letter(4, pass)),
            ("say", letter(0, Word::Say { text: "half way".to_owned(), process: 4, number: 2 })),
            (
                "artifact",
                letter(
                    0,
                    Word::Artifact {
                        name: "map.txt".to_owned(),
                        bytes: mail_body.clone(),
                        process: 4,
                        number: 3,
                    },
                ),
            ),
            ("done", letter(0, Word::Done { process: 4, generation: 2 })),
            ("heard", letter(4, Word::Heard { number: 3 })),
            ("ready", letter(0, Word::Ready { process: 4, sitting: 9, heard: 1 })),
            ("order", letter(4, Word::Order { sitting: 9, number: 2, body: mail_body.clone() })),
            ("answer", letter(0, Word::Answer { process: 4, number: 5, body: mail_body })),
            (
                "broken",
                letter(0, Word::Broken { node: "ams-2".into(), incarnation: Some(Incarnation(5)) }),
            ),
        ] {
            golden::check(home, Kind::PROCESS, name, &letter);
            // What is kept is known for what it is without a look into it.
            let encoded = encode(Kind::PROCESS, &letter).expect("it encodes");
            let expected = ["mail", "pass"].contains(&name).then(|| (group.clone(), 2));
            assert_eq!(mail_of(&encoded), expected, "{name}");
        }
    }

    /// Fields were added at the end: what was said without them is understood.
    #[test]
    fn words_of_before_are_read() {
        #[derive(Serialize)]
        enum Before {
            Say { text: &'static str },
            Broken { node: &'static str },
        }
        let peer =
            Peer { node: "ams-0".into(), incarnation: Incarnation(5), cluster: "ams".into() };
        let group = GroupId { root: peer, number: 3 };
        let text = "half way";
        let say = Word::Say { text: text.to_owned(), process: 0, number: 0 };
        let broken = Word::Broken { node: "ams-2".into(), incarnation: None };
        for (before, now) in
            [(Before::Say { text }, say), (Before::Broken { node: "ams-2" }, broken)]
        {
            let letter = (JobId(7), &group, 0u32, before);
            let bytes = encode(Kind::PROCESS, &letter).expect("it encodes");
            let letter: Letter = decode(Kind::PROCESS, &bytes).expect("it is read");
            assert_eq!(letter.word, now);
        }
    }
}
