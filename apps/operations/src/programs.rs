//! This process's program for a grid that is up: offered to its head before jobs are submitted.
//!
//! This module knows neither jobs nor the programs' use.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use springtide_actors::endpoint::Endpoint;
use springtide_actors::programs::{
    GetProgramTerms, OfferProgram, PROGRAMS, ProgramError, ProgramImage, ProgramServer,
    ProgramStore, ProgramTerms, describe_sending, own_image,
};
use springtide_actors::scheduler::SubmitError;
use springtide_cli::exit::Failed;
use springtide_runtime::id::NodeId;
use springtide_runtime::remote::{Remote, RemoteError};
use tokio::sync::OnceCell;
use tokio::time::{MissedTickBehavior, interval};

/// Timeout of an answer that the head gives at once.
const HEAD_TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit of an offer, as a last resort. The chunks of the transfer have time limits of their
/// own.
const OFFER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Interval of reports about an offer.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// The description of this process's program, which does not change.
static IMAGE: OnceCell<ProgramImage> = OnceCell::const_new();

/// Why a head does not take a program.
#[derive(Debug)]
pub enum OfferError {
    /// The head refuses it, or cannot receive it.
    Program(ProgramError),
    /// The head does not answer.
    Head(RemoteError),
}

impl From<OfferError> for Failed {
    fn from(error: OfferError) -> Self {
        match error {
            OfferError::Program(error) => SubmitError::Shipping(Box::new(error)).into(),
            OfferError::Head(error) => error.into(),
        }
    }
}

/// A client's program on its connection to a head.
pub struct OwnProgram {
    endpoint: Endpoint,
    store: Remote<ProgramStore>,
    fingerprint: u64,
    /// Number of bytes that the head has read, once they may be read.
    sent: RefCell<Option<Arc<AtomicU64>>>,
}

impl OwnProgram {
    /// This process's program for the head of a grid. `fingerprint` is that of its registry.
    pub fn new(endpoint: &Endpoint, head: &NodeId, fingerprint: u64) -> Self {
        let store = endpoint.hub.remote(head, PROGRAMS);
        Self { endpoint: endpoint.clone(), store, fingerprint, sent: RefCell::default() }
    }

    /// Makes the head keep the program for the jobs that this client submits next. Returns none if
    /// the grid's nodes run it, or the head is of an older version. `report` receives the state of
    /// the transfer, in words.
    ///
    /// # Errors
    /// [`OfferError`] if the head refuses the program or is lost.
    pub async fn offer(
        &self,
        mut report: impl FnMut(&str),
    ) -> Result<Option<ProgramImage>, OfferError> {
        let asked = GetProgramTerms { fingerprint: self.fingerprint };
        match self.store.send(asked).deadline(HEAD_TIMEOUT).await {
            Ok(ProgramTerms { needed: true }) => {}
            Ok(ProgramTerms { needed: false }) => return Ok(None),
            // A grid that ends with its command, or an older head.
            Err(RemoteError::NoActor { .. }) => return Ok(None),
            Err(error) => return Err(OfferError::Head(error)),
        }
        let image = match self.image().await {
            Ok(image) => image,
            Err(reason) => {
                // Sites may have it at the same path.
                tracing::warn!("this program is not sent to the grid: {reason}");
                return Ok(None);
            }
        };
        let served = self.sent.borrow().clone();
        let sent = match served {
            Some(sent) => sent,
            None => match ProgramServer::publish(image.clone(), &self.endpoint.hub) {
                Ok(sent) => self.sent.borrow_mut().insert(sent).clone(),
                Err(error) => {
                    tracing::warn!("this program is not sent to the grid: {error}");
                    return Ok(None);
                }
            },
        };
        let (path, client) = (std::env::current_exe().ok(), self.endpoint.net.contact());
        let offer = OfferProgram { image: image.clone(), path, client };
        let mut answer = Box::pin(self.store.send(offer).deadline(OFFER_TIMEOUT));
        let mut ticks = interval(REPORT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => {
                    return match answer {
                        Ok(Ok(())) => Ok(Some(image)),
                        Ok(Err(error)) => Err(OfferError::Program(error)),
                        Err(error) => Err(OfferError::Head(error)),
                    };
                }
                _ = ticks.tick() => {
                    let done = sent.load(Ordering::Relaxed);
                    // A head that has the file reads none.
                    if done > 0 {
                        report(&describe_sending(done, image.bytes, "the head"));
                    }
                }
            }
        }
    }

    async fn image(&self) -> Result<ProgramImage, String> {
        let read = || async {
            let read = tokio::task::spawn_blocking(own_image).await;
            read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
        };
        IMAGE.get_or_try_init(read).await.cloned()
    }
}
