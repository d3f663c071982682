//! Messages to and from the scheduler, by sender: clients and sites, jobs, brokers. Data only.

mod exchange;
mod messages;
mod need;
mod slots;

pub use self::exchange::*;
pub use self::messages::*;
pub use self::need::{DEPENDENCIES_MAX, JobDependency, JobPhase, JobRequirements, JobView, Kind};
pub use self::slots::*;
