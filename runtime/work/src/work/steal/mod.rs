//! The steal protocol between nodes: messages and two state machines without I/O, the thief's and
//! the victim's.
//!
//! Cluster-aware random stealing (van Nieuwpoort et al., PPoPP 2001) with lifelines (Saraswat et
//! al., PPoPP 2011) instead of spinning. A victim without work remembers its thieves, and sends one
//! hint to each when it has some.

mod messages;
mod thief;
mod waiting_thieves;

pub use messages::{
    Abandon, StealReply, StealRequest, StolenTask, TaskOutcome, TaskResult, TaskReturn, WorkHint,
};
pub use thief::{StealPolicy, Thief, ThiefAction};

pub use crate::event::StealScope;
pub use waiting_thieves::WaitingThieves;
