//! The memory allocator of the `springtide` program: mimalloc.
//!
//! Each step of a job builds new trees, lists and messages. This allocator keeps the pages that the
//! last step freed, where other allocators return them to the kernel.
//!
//! The allocator is a crate of its own because each allocation runs code that the compiler
//! generates here. This crate is optimised; the crate of the program is not.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
