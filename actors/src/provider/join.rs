//! Nodes that nobody starts: they join by themselves, with a token, from wherever they run.
//!
//! There is nothing to hold; the site learns of its nodes from their own words and their links.

use super::{LocalFuture, NodeRequest, Provider, ProviderError, Stub};

/// Of a cluster whose nodes join by themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct JoinProvider;

impl Provider for JoinProvider {
    fn hold<'a>(
        &'a self,
        _: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(async { Err(ProviderError::Joins) })
    }

    fn starts_programs(&self) -> bool {
        false
    }

    fn joins(&self) -> bool {
        true
    }
}
