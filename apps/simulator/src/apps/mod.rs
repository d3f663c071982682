//! Applications as cost models: real jobs with real tasks whose answers can be checked, and whose compute is declared.

mod tree;

pub use self::tree::Tree;
