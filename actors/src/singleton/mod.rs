//! Singletons: users' actors that exist once in a grid.
//!
//! The head's `directory` decides on which node a singleton is. It creates the first instance when
//! a client asks for it, and another one when the instance or its node has ended. Each node has a
//! `host`, which starts instances by order of the head. A `handle` asks the directory, and sends
//! messages to the instance.
//!
//! An instance has a generation, which is part of its published name. So a message reaches no other
//! instance than the one whose state its sender knows. The state is lost with the instance: actors
//! that need it longer store it elsewhere.
//!
//! During a cut of the network, the head may declare a node lost that still lives. Then two
//! instances exist until that node ends, at the latest after the time for which it waits for its
//! head. The directory names the newer one only.

mod directory;
mod handle;
mod host;
#[cfg(test)]
mod tests;

pub use self::directory::SingletonDirectory;
pub use self::handle::{Singleton, SingletonError};
pub use self::host::{SingletonFactory, SingletonHost};
