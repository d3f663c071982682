//! The unread messages of one process, by configuration and in the order of sending.
//!
//! The unread bytes of each sender are bounded. Messages beyond the bound are dropped, and the
//! receiver fails. A data structure without I/O, independent of who waits for which message.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::message::DataMessage;

/// The most unread bytes of one sender in one configuration: two messages of the longest kind.
pub(crate) const UNREAD_MAX: usize = 2 << 30;
/// Bytes added to the length of each message, for empty messages take memory too.
pub(crate) const MESSAGE_COST: usize = 256;

/// The messages to one process that it has not read.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// Configurations before this one have ended.
    first: u32,
    /// The queues, by configuration, sender and tag.
    queues: BTreeMap<(u32, u32, u32), Queue>,
    /// Unread bytes by configuration and sender, where there are any; see [`MESSAGE_COST`].
    unread: BTreeMap<(u32, u32), usize>,
    /// Configuration, sender and tag of the first message dropped for lack of room.
    overflow: Option<(u32, u32, u32)>,
    stale: u64,
}

/// The messages of one sender under one tag. It remains when all are read, since it knows the next
/// number, so senders should use few tags.
#[derive(Debug, Default)]
struct Queue {
    /// The number of the message to read next.
    next: u64,
    unread: BTreeMap<u64, Bytes>,
}

impl Mailbox {
    /// Adds a message. Messages of ended configurations are dropped and counted; duplicates are
    /// ignored.
    pub(crate) fn put(&mut self, mail: DataMessage) {
        let DataMessage { generation, from, tag, number, body } = mail;
        if generation < self.first {
            self.stale += 1;
            return;
        }
        let queue = self.queues.entry((generation, from, tag)).or_default();
        if number < queue.next || queue.unread.contains_key(&number) {
            return;
        }
        let unread = self.unread.entry((generation, from)).or_default();
        let cost = body.len() + MESSAGE_COST;
        // A single message may have any length: messages within a node are in no frame.
        if *unread > 0 && cost > UNREAD_MAX.saturating_sub(*unread) {
            self.overflow.get_or_insert((generation, from, tag));
            return;
        }
        *unread += cost;
        queue.unread.insert(number, body);
    }

    /// Sender and tag of the first message dropped for lack of room. The process then misses
    /// messages.
    pub(crate) fn overflow(&self) -> Option<(u32, u32)> {
        self.overflow.map(|(_, from, tag)| (from, tag))
    }

    /// Whether the next `count` messages of this sender under this tag are here.
    pub(crate) fn has(&self, generation: u32, from: u32, tag: u32, count: u64) -> bool {
        let queue = self.queues.get(&(generation, from, tag));
        queue.is_some_and(|queue| {
            (queue.next..queue.next + count).all(|number| queue.unread.contains_key(&number))
        })
    }

    /// Removes the next message.
    pub(crate) fn take(&mut self, generation: u32, from: u32, tag: u32) -> Option<Bytes> {
        let queue = self.queues.get_mut(&(generation, from, tag))?;
        let body = queue.unread.remove(&queue.next)?;
        queue.next += 1;
        if let Some(unread) = self.unread.get_mut(&(generation, from)) {
            *unread = unread.saturating_sub(body.len() + MESSAGE_COST);
        }
        Some(body)
    }

    /// Drops messages of earlier configurations, from now on.
    pub(crate) fn begin(&mut self, generation: u32) {
        if generation > self.first {
            self.first = generation;
            self.unread = self.unread.split_off(&(generation, 0));
            self.overflow.take_if(|(overflowed, ..)| *overflowed < generation);
            let over: Vec<_> =
                self.queues.range(..(generation, 0, 0)).map(|(key, _)| *key).collect();
            for key in over {
                let queue = self.queues.remove(&key).unwrap_or_default();
                self.stale += queue.unread.len() as u64;
            }
        }
    }

    /// The number of messages dropped because their configuration had ended.
    pub(crate) fn stale(&self) -> u64 {
        self.stale
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mail(generation: u32, from: u32, tag: u32, number: u64) -> DataMessage {
        let body = Bytes::from(format!("{generation} {from} {tag} {number}"));
        DataMessage { generation, from, tag, number, body }
    }

    /// A sender without a reader cannot fill the memory, and others' messages arrive.
    #[test]
    fn unread_bytes_of_a_sender_are_bounded() {
        let mut mailbox = Mailbox::default();
        // One allocation, which all messages share.
        let long = Bytes::from(vec![0; 1 << 20]);
        let send = |mailbox: &mut Mailbox, generation, number| {
            mailbox.put(DataMessage { generation, from: 1, tag: 5, number, body: long.clone() });
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
        // The next configuration starts with an empty mailbox.
        mailbox.begin(2);
        assert_eq!(mailbox.overflow(), None);
        (0..2047).for_each(|number| send(&mut mailbox, 2, number));
        assert_eq!(mailbox.overflow(), None);
    }

    /// Empty messages are bounded as well.
    #[test]
    fn empty_messages_are_bounded_as_well() {
        let mut mailbox = Mailbox::default();
        let last = (UNREAD_MAX / MESSAGE_COST) as u64;
        // As if all earlier messages were here.
        mailbox.unread.insert((1, 1), UNREAD_MAX - 2 * MESSAGE_COST);
        for number in last - 2..last {
            mailbox.put(DataMessage { generation: 1, from: 1, tag: 5, number, body: Bytes::new() });
            assert_eq!(mailbox.overflow(), None);
        }
        mailbox.put(DataMessage {
            generation: 1,
            from: 1,
            tag: 5,
            number: last,
            body: Bytes::new(),
        });
        assert_eq!(mailbox.overflow(), Some((1, 5)));
    }

    /// A process may send more than two frames hold to itself, in one piece.
    #[test]
    fn a_single_message_may_have_any_length() {
        let mut mailbox = Mailbox::default();
        // Untouched pages, so it takes no memory.
        let body = Bytes::from(vec![0; UNREAD_MAX + 1]);
        mailbox.put(DataMessage { generation: 1, from: 1, tag: 5, number: 0, body });
        assert_eq!(mailbox.overflow(), None);
        assert_eq!(mailbox.take(1, 1, 5).map(|body| body.len()), Some(UNREAD_MAX + 1));
        mailbox.put(mail(1, 1, 5, 1));
        assert_eq!(mailbox.overflow(), None);
    }

    proptest! {
        /// In any order of arrival and with duplicates, each line is read once and in order. No
        /// message of an ended configuration is read.
        #[test]
        fn each_queue_is_read_once_and_in_order(
            shuffled in Just((0..60u64).chain(0..20).collect::<Vec<_>>()).prop_shuffle(),
            over_after in 0..80usize,
        ) {
            let mut mailbox = Mailbox::default();
            let mut read: BTreeMap<(u32, u32), u64> = BTreeMap::new();
            let mut read_of_first = 0;
            for (at, n) in shuffled.iter().enumerate() {
                if at == over_after {
                    mailbox.begin(2);
                }
                // Two configurations, senders and tags.
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
                            read_of_first += u64::from(generation == 1);
                        }
                    }
                }
            }
            for from in 0..2 {
                prop_assert_eq!(read.get(&(2, from)), Some(&15));
            }
            // Unread messages of the first configuration were dropped at its end; duplicates count
            // too.
            prop_assert!(read_of_first + mailbox.stale() >= 30 || over_after >= 80);
        }
    }
}
