//! Messages of a site to its nodes. Data only.

use serde::{Deserialize, Serialize};
use springtide_remote::remote_message;

/// To a node, by its site: register again, with the current job. The scheduler may have been
/// restarted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegisterAgain {}

remote_message! {
    "register-again" => RegisterAgain;
}
