//! The memory allocator of the `springtide` program: mimalloc.
//!
//! Each step of a job builds its trees, lists and messages anew. This allocator keeps the pages
//! that the last step freed, where others return them to the kernel.
//!
//! A crate of its own, since each allocation runs code that the compiler generates here: this
//! crate is optimised, the crate of the program is not.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
