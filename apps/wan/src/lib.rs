//! An emulated wide-area network on one machine, for real processes: a router in user space on TUN devices, in network namespaces of its
//! own; or the kernel's own queues between them; or, for this program's own processes and without any privilege, sockets that delay, lose and limit what they send, by a table of
//! links that the processes share. The links are those of `springtide_runtime::topology`, so that all, and the simulator, mean the same
//! by a file.
//!
//! Real time is what this crate is about: it is no part of what is simulated. It never touches the namespace it was started in,
//! nor a real interface. What needs Linux is there on Linux alone.

#[cfg(target_os = "linux")]
pub mod awake;
#[cfg(target_os = "linux")]
pub mod fabric;
#[cfg(target_os = "linux")]
pub mod hold;
#[cfg(target_os = "linux")]
pub mod kernel;
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
