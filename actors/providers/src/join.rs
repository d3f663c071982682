//! Provider of nodes that join by themselves, with a token, from any machine.
//!
//! It holds nothing; the site learns of its nodes by their registrations and links.

use super::{LocalFuture, NodeRequest, Provider, ProviderError, Stub};

/// Provider of a cluster whose nodes join by themselves.
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
