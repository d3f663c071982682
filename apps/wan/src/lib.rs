//! An emulated wide-area network on one machine, for real processes in real time.
//!
//! There are three implementations:
//!
//! - a router in user space on TUN devices, in network namespaces of its own;
//! - the kernel's own queues between such namespaces;
//! - sockets that delay, lose and limit what they send, by a table of links that processes share.
//!   They need no privilege and serve this program's own processes alone.
//!
//! Their links are those of `springtide_runtime::topology`, so that a file means the same for all
//! three and for the simulator. The crate never changes the namespace it was started in, nor a real
//! interface. Modules that need Linux exist on Linux alone.

#[cfg(target_os = "linux")]
pub mod awake;
pub mod border;
#[cfg(target_os = "linux")]
pub mod fabric;
#[cfg(target_os = "linux")]
pub mod hold;
pub mod impair;
#[cfg(target_os = "linux")]
pub mod kernel;
pub mod pcap;
#[cfg(target_os = "linux")]
pub mod place;
#[cfg(target_os = "linux")]
pub mod quota;
pub mod router;
#[cfg(target_os = "linux")]
pub mod set;
#[cfg(target_os = "linux")]
pub mod shaped;
pub mod shipped;
#[cfg(target_os = "linux")]
pub mod sys;
#[cfg(target_os = "linux")]
pub mod table;
