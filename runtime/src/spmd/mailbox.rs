//! Mail for one process: kept in the order in which each sender said it, by configuration.
//!
//! What one sender may have there unread is bounded: what is beyond is dropped, and its reader fails. A data structure without I/O.
//! Must not know who waits for what.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::message::Mail;

/// The most bytes that one sender may have unread in one configuration: two messages of the longest kind.
pub(crate) const UNREAD_MAX: usize = 2 << 30;
/// Each message counts for so many bytes besides those in it, for empty ones take memory, too.
pub(crate) const MESSAGE_COST: usize = 256;

/// What was said to one process and has not been read.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// Configurations before this one are over.
    floor: u32,
    /// By configuration, sender and tag.
    lines: BTreeMap<(u32, u32, u32), Line>,
    /// Bytes unread by configuration and sender, where there are any; see [`MESSAGE_COST`].
    unread: BTreeMap<(u32, u32), usize>,
    /// Of whose mail, in which configuration, some was dropped for want of room, and under which tag.
    overflow: Option<(u32, u32, u32)>,
    stale: u64,
}

/// Stays when all in it was read, for what comes next is known by its number: so senders are to use few tags.
#[derive(Debug, Default)]
struct Line {
    /// The number of what is read next.
    next: u64,
    unread: BTreeMap<u64, Bytes>,
}

impl Mailbox {
    /// Takes mail in. What belongs to a configuration that is over is dropped and counted; what came before is kept once.
    pub(crate) fn put(&mut self, mail: Mail) {
        let Mail { generation, from, tag, number, body } = mail;
        if generation < self.floor {
            self.stale += 1;
            return;
        }
        let line = self.lines.entry((generation, from, tag)).or_default();
        if number < line.next || line.unread.contains_key(&number) {
            return;
        }
        let unread = self.unread.entry((generation, from)).or_default();
        let cost = body.len() + MESSAGE_COST;
        // A single one is taken however long it is: what a node's processes give to each other is in no frame.
        if *unread > 0 && cost > UNREAD_MAX.saturating_sub(*unread) {
            self.overflow.get_or_insert((generation, from, tag));
            return;
        }
        *unread += cost;
        line.unread.insert(number, body);
    }

    /// Whose mail was dropped for want of room, and under which tag: then what this process gets is not whole.
    pub(crate) fn overflow(&self) -> Option<(u32, u32)> {
        self.overflow.map(|(_, from, tag)| (from, tag))
    }

    /// Whether the next so many pieces of mail of this sender under this tag are there.
    pub(crate) fn has(&self, generation: u32, from: u32, tag: u32, count: u64) -> bool {
        let line = self.lines.get(&(generation, from, tag));
        line.is_some_and(|line| {
            (line.next..line.next + count).all(|number| line.unread.contains_key(&number))
        })
    }

    /// Takes it out.
    pub(crate) fn take(&mut self, generation: u32, from: u32, tag: u32) -> Option<Bytes> {
        let line = self.lines.get_mut(&(generation, from, tag))?;
        let body = line.unread.remove(&line.next)?;
        line.next += 1;
        if let Some(unread) = self.unread.get_mut(&(generation, from)) {
            *unread = unread.saturating_sub(body.len() + MESSAGE_COST);
        }
        Some(body)
    }

    /// From here on mail of earlier configurations is dropped.
    pub(crate) fn begin(&mut self, generation: u32) {
        if generation > self.floor {
            self.floor = generation;
            self.unread = self.unread.split_off(&(generation, 0));
            self.overflow.take_if(|(of, ..)| *of < generation);
            let over: Vec<_> = self.lines.range(..(generation, 0, 0)).map(|(at, _)| *at).collect();
            for at in over {
                let line = self.lines.remove(&at).unwrap_or_default();
                self.stale += line.unread.len() as u64;
            }
        }
    }

    /// How much was dropped.
    pub(crate) fn stale(&self) -> u64 {
        self.stale
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mail(generation: u32, from: u32, tag: u32, number: u64) -> Mail {
        let body = Bytes::from(format!("{generation} {from} {tag} {number}"));
        Mail { generation, from, tag, number, body }
    }

    /// A sender that nobody listens to does not fill the memory; the others' mail comes through.
    #[test]
    fn what_a_sender_has_unread_is_bounded_and_told() {
        let mut mailbox = Mailbox::default();
        // One allocation, of which all are views.
        let long = Bytes::from(vec![0; 1 << 20]);
        let send = |mailbox: &mut Mailbox, generation, number| {
            mailbox.put(Mail { generation, from: 1, tag: 5, number, body: long.clone() });
        };
        (0..2047).for_each(|number| send(&mut mailbox, 1, number));
        assert_eq!(mailbox.overflow(), None);
        assert!(mailbox.take(1, 1, 5).is_some());
        send(&mut mailbox, 1, 2047);
        assert_eq!(mailbox.overflow(), None, "there was room again");
        send(&mut mailbox, 1, 2048);
        assert_eq!(mailbox.overflow(), Some((1, 5)));
        mailbox.put(mail(1, 2, 5, 0));
        assert!(mailbox.has(1, 2, 5, 1));
        // The next configuration begins with an empty box.
        mailbox.begin(2);
        assert_eq!(mailbox.overflow(), None);
        (0..2047).for_each(|number| send(&mut mailbox, 2, number));
        assert_eq!(mailbox.overflow(), None);
    }

    /// Nor does one that sends nothing, very often.
    #[test]
    fn empty_messages_are_bounded_as_well() {
        let mut mailbox = Mailbox::default();
        let most = (UNREAD_MAX / MESSAGE_COST) as u64;
        // As if all before these were there.
        mailbox.unread.insert((1, 1), UNREAD_MAX - 2 * MESSAGE_COST);
        for number in most - 2..most {
            mailbox.put(Mail { generation: 1, from: 1, tag: 5, number, body: Bytes::new() });
            assert_eq!(mailbox.overflow(), None);
        }
        mailbox.put(Mail { generation: 1, from: 1, tag: 5, number: most, body: Bytes::new() });
        assert_eq!(mailbox.overflow(), Some((1, 5)));
    }

    /// A process may keep more than two frames hold, in one piece.
    #[test]
    fn a_single_message_may_have_any_length() {
        let mut mailbox = Mailbox::default();
        // Never touched, so it takes no memory.
        let body = Bytes::from(vec![0; UNREAD_MAX + 1]);
        mailbox.put(Mail { generation: 1, from: 1, tag: 5, number: 0, body });
        assert_eq!(mailbox.overflow(), None);
        assert_eq!(mailbox.take(1, 1, 5).map(|body| body.len()), Some(UNREAD_MAX + 1));
        mailbox.put(mail(1, 1, 5, 1));
        assert_eq!(mailbox.overflow(), None);
    }

    proptest! {
        /// However mail overtakes itself, and however often it is said, each line is read once and in order; and nothing of a
        /// configuration that is over is ever read.
        #[test]
        fn each_line_is_read_once_and_in_order(
            shuffled in Just((0..60u64).chain(0..20).collect::<Vec<_>>()).prop_shuffle(),
            over_after in 0..80usize,
        ) {
            let mut mailbox = Mailbox::default();
            let mut read: BTreeMap<(u32, u32), u64> = BTreeMap::new();
            let mut first = 0;
            for (at, n) in shuffled.iter().enumerate() {
                if at == over_after {
                    mailbox.begin(2);
                }
                // Of two configurations, senders and tags.
                let (generation, from) = (1 + (*n % 2) as u32, (*n / 2 % 2) as u32);
                mailbox.put(mail(generation, from, 9, *n / 4));
                for generation in 1..=2 {
                    for from in 0..2 {
                        while mailbox.has(generation, from, 9, 1) {
                            let body = mailbox.take(generation, from, 9).expect("it is there");
                            let number = read.entry((generation, from)).or_default();
                            prop_assert_eq!(&body, &mail(generation, from, 9, *number).body);
                            prop_assert!(generation == 2 || at < over_after);
                            *number += 1;
                            first += u64::from(generation == 1);
                        }
                    }
                }
            }
            for from in 0..2 {
                prop_assert_eq!(read.get(&(2, from)), Some(&15));
            }
            // What of the first was not read before its end was dropped, and counted if it came twice, too.
            prop_assert!(first + mailbox.stale() >= 30 || over_after >= 80);
        }
    }
}
