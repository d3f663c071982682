//! The status lists hosts with more compute threads than processors.

use super::*;
use crate::hardware::UsableProcessors;
use crate::scheduler::CrowdedHost;

#[test]
fn nodes_of_one_host_are_added_up() {
    let mut grid = CoreTestGrid::of(2, 1);
    let usable =
        |host: &str, key, processors| UsableProcessors { host: host.into(), key, processors };
    let mut register = |node: &str, threads, usable: UsableProcessors| {
        grid.put(SchedulerEvent::Registered(NodeRegistration {
            threads,
            fingerprint: 1,
            hardware: Hardware { usable, ..Hardware::default() },
            ..registration(node, 2)
        }));
        grid.core.status().crowded
    };
    assert_eq!(register("ams-1", 1, usable("one", 7, 2)), []);
    assert_eq!(register("ams-2", 4, usable("two", 8, 4)), []);
    // An unknown host is not counted.
    assert_eq!(register("del-1", 64, UsableProcessors::default()), []);
    let crowded = register("del-2", 2, usable("one", 7, 2));
    let one = CrowdedHost { host: "one".into(), nodes: 2, threads: 3, processors: 2 };
    assert_eq!(crowded, [one]);
    assert_eq!(
        crowded[0].to_string(),
        "host one has 2 processors for 3 compute threads of 2 nodes: times of work include waiting \
         for a processor"
    );
}
