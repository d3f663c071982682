//! Requests of a process for the roots of others, and their form in messages.
//!
//! This module does not know the distribution of bodies.

use super::state::Unsound;
use crate::partial::Subscriber;
use crate::smooth::{put_number, take_number};

/// A request, which all processes receive.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Request {
    /// The roots that the process requests.
    pub roots: Vec<u32>,
    /// Own blocks, by number from the first, with their extent and reach from now on.
    pub subscribers: Vec<(u32, Subscriber)>,
}

impl Request {
    /// Whether any root is requested.
    pub(crate) fn is_some(&self) -> bool {
        !self.roots.is_empty()
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(self.roots.len() as u32, &mut out);
        self.roots.iter().for_each(|root| put_number(*root, &mut out));
        for (block, subscriber) in &self.subscribers {
            put_number(*block, &mut out);
            subscriber.write(&mut out);
        }
        out
    }

    pub(crate) fn read(mut bytes: &[u8]) -> Result<Self, Unsound> {
        let mut read = || {
            let count = take_number(&mut bytes)?;
            let roots = (0..count).map(|_| take_number(&mut bytes)).collect::<Option<_>>()?;
            let mut subscribers = Vec::new();
            while !bytes.is_empty() {
                subscribers.push((take_number(&mut bytes)?, Subscriber::take(&mut bytes)?));
            }
            Some(Self { roots, subscribers })
        };
        read().ok_or(Unsound { what: "requests" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subscriber() -> impl Strategy<Value = Subscriber> {
        let extent = prop::array::uniform2(prop::array::uniform3(-1f32..1.0));
        (extent, 0f32..9.0).prop_map(|(extent, scale)| Subscriber { extent, scale })
    }

    proptest! {
        #[test]
        fn requests_are_read_as_they_were_written(
            roots in prop::collection::vec(any::<u32>(), 0..9),
            subscribers in prop::collection::vec((any::<u32>(), subscriber()), 0..9),
            cut in any::<prop::sample::Index>(),
        ) {
            let request = Request { roots, subscribers };
            let bytes = request.write();
            prop_assert_eq!(&Request::read(&bytes).unwrap(), &request);
            // A cut request is another one or an error, and never a panic.
            let _ = Request::read(&bytes[..cut.index(bytes.len())]);
        }
    }
}
