//! One batch job of size 1, as a stub.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::super::local::last_lines;
use super::answers;
use super::book::{Sight, StubPhase};
use super::keeper::{Keeper, StubOrder};
use super::script;
use crate::{LocalFuture, NodeRequest, ProviderError, Stub, StubEnd, StubEvent, StubId};

/// How often a script is looked after that is to start another program.
const LOOK: Duration = Duration::from_millis(20);
/// A script that listens starts another program so soon after the end of the one before.
const TAKE_WITHIN: Duration = Duration::from_secs(10);
/// One that was killed and is still there is killed again after this time: the order may have been lost.
const KILL_AGAIN: Duration = Duration::from_secs(5);
/// A stub that should leave or end is told again after this time, and then after twice the time each,
const AGAIN: Duration = Duration::from_secs(2);
/// up to this.
const AGAIN_MOST: Duration = Duration::from_secs(60);

/// A batch job of size 1.
pub(super) struct SlurmStub {
    keeper: Rc<Keeper>,
    id: u64,
    sights: watch::Receiver<Sight>,
    /// What the names of the files begin with by which its script is told things.
    base: PathBuf,
    /// The number of its next other program.
    next: u32,
    log: PathBuf,
    /// Where this life's lines begin in the log.
    begin: u64,
    /// Why it waits, as that was said.
    waits: Option<String>,
    /// That it is active was said,
    active: bool,
    /// and that its processor will be taken.
    warned: bool,
    ended: Option<StubEnd>,
    killed: bool,
    left: bool,
}

impl SlurmStub {
    /// Of a job that is in the keeper's book.
    pub fn new(
        keeper: Rc<Keeper>,
        id: u64,
        sights: watch::Receiver<Sight>,
        base: PathBuf,
        log: PathBuf,
        begin: u64,
    ) -> Self {
        let mut next = 1;
        while is_there(&answers::program_file(&base, "ran", id, next)) {
            next += 1;
        }
        let (active, warned, killed, left) = (false, false, false, false);
        Self {
            keeper,
            id,
            sights,
            base,
            next,
            log,
            begin,
            waits: None,
            active,
            warned,
            ended: None,
            killed,
            left,
        }
    }

    fn phase(&self) -> StubPhase {
        self.sights.borrow().phase.clone()
    }

    /// Waits for its end.
    async fn ended(&mut self) -> StubEnd {
        loop {
            if let Some(ended) = &self.ended {
                return ended.clone();
            }
            if let StubPhase::Ended(how) = self.phase() {
                let last_lines = last_lines(&self.log, self.begin);
                self.ended = Some(StubEnd { status: how, last_lines });
                self.tidy();
            } else if self.sights.changed().await.is_err() {
                // Of two who had it the other has ended or left it: no more is heard of it, and its files are that one's.
                let how = format!("batch job {} is followed by nobody any more", self.id);
                let last_lines = last_lines(&self.log, self.begin);
                self.ended = Some(StubEnd { status: how, last_lines });
            }
        }
    }

    /// Ends it, and waits until its processor is free. That is not known while Slurm does not answer: then this takes as long as
    /// that does.
    async fn end(&mut self, grace: Duration) -> StubEnd {
        // What was to be started next is not.
        self.withdraw();
        let begun = Instant::now();
        let mut again = AGAIN;
        loop {
            let waiting = self.phase() == StubPhase::Pending;
            let order = match begun.elapsed() < grace {
                true if waiting => StubOrder::Cancel,
                true => StubOrder::Leave,
                false => StubOrder::Kill,
            };
            if self.ended.is_none() && !matches!(self.phase(), StubPhase::Ended(_)) {
                self.keeper.order(self.id, order);
            }
            let rest = grace.saturating_sub(begun.elapsed());
            let wait = if rest.is_zero() { again } else { again.min(rest) };
            if let Ok(ended) = timeout(wait, self.ended()).await {
                return ended;
            }
            again = (again * 2).min(AGAIN_MOST);
        }
    }

    async fn swap(&mut self, request: &NodeRequest, grace: Duration) -> Result<(), ProviderError> {
        script::check(request)?;
        // One that still waits to be started is replaced.
        let before = answers::program_file(&self.base, "next", self.id, self.next - 1);
        let replaces = is_there(&before);
        let next = if replaces {
            before
        } else {
            answers::program_file(&self.base, "next", self.id, self.next)
        };
        let begin = length(&request.log);
        let written = script::next(request).and_then(|text| write(&next, &text));
        written.map_err(|source| ProviderError::Log { log: next.clone(), source })?;
        self.next += u32::from(!replaces);
        let begun = Instant::now();
        // Told so often, and when.
        let mut told: (u32, Option<Instant>) = (0, None);
        while is_there(&next) {
            // Asked first: a script that is not there yet finds this program when it begins.
            let listens = is_there(&answers::listening(&self.base, self.id));
            match self.phase() {
                StubPhase::Ended(how) => {
                    return Err(self.lost("ended before its new program began", &how));
                }
                StubPhase::Pending if !listens => break, // its script begins with this program
                // What was last seen of the queue may be old: a script that listens runs.
                StubPhase::Pending | StubPhase::Active | StubPhase::Ending => {}
            }
            if listens {
                // The first asks for an orderly end of the present program, the second kills it.
                let late = |since: Instant| since.elapsed() >= grace.max(LOOK);
                if told.0 == 0 || told.0 == 1 && told.1.is_some_and(late) {
                    self.keeper.order(self.id, StubOrder::Swap);
                    told = (told.0 + 1, Some(Instant::now()));
                }
            } else if told.0 == 0 && begun.elapsed() > TAKE_WITHIN {
                break; // a slow start: its script will begin with this program
            }
            if begun.elapsed() > grace + TAKE_WITHIN {
                return Err(self.lost("did not start its new program", "it does not listen"));
            }
            sleep(LOOK).await;
        }
        (self.log, self.begin) = (request.log.clone(), begin);
        Ok(())
    }

    fn lost(&self, what: &str, how: &str) -> ProviderError {
        let lines = last_lines(&self.log, self.begin).join("\n");
        let command = format!("sbatch (job {})", self.id);
        ProviderError::Failed { command, how: what.to_owned(), said: format!("{how}\n{lines}") }
    }

    /// What waits to be started in it does so no more.
    fn withdraw(&self) {
        // An error: there is none.
        let _ = fs::remove_file(answers::program_file(&self.base, "next", self.id, self.next - 1));
    }

    /// Takes away its files: a script that was killed could not.
    fn tidy(&self) {
        let _ = fs::remove_file(answers::listening(&self.base, self.id));
        self.withdraw();
        for n in 1..self.next {
            let _ = fs::remove_file(answers::program_file(&self.base, "ran", self.id, n));
        }
    }
}

impl Stub for SlurmStub {
    fn id(&self) -> Option<StubId> {
        let there = !matches!(self.phase(), StubPhase::Ended(_));
        there.then(|| StubId(self.id.to_string()))
    }

    fn last_lines(&self) -> Vec<String> {
        last_lines(&self.log, self.begin)
    }

    fn news(&mut self) -> LocalFuture<'_, StubEvent> {
        Box::pin(async {
            loop {
                let sight = self.sights.borrow_and_update().clone();
                match sight.phase {
                    StubPhase::Ended(_) => return StubEvent::Ended(self.ended().await),
                    StubPhase::Active if !std::mem::replace(&mut self.active, true) => {
                        return StubEvent::Active;
                    }
                    StubPhase::Pending if sight.waits.is_some() && sight.waits != self.waits => {
                        self.waits = sight.waits;
                        let reason = self.waits.clone().unwrap_or_default();
                        return StubEvent::Waits { reason };
                    }
                    _ => {}
                }
                if let Some((within, reason)) = sight.warned
                    && !std::mem::replace(&mut self.warned, true)
                {
                    return StubEvent::Warned { within, reason };
                }
                let changed = self.sights.changed();
                let changed = if self.killed {
                    timeout(KILL_AGAIN, changed).await
                } else {
                    Ok(changed.await)
                };
                match changed {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return StubEvent::Ended(self.ended().await),
                    Err(_) => self.keeper.order(self.id, StubOrder::Kill),
                }
            }
        })
    }

    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            let swapped = self.swap(request, grace).await;
            if swapped.is_err() {
                self.withdraw();
                self.kill();
            }
            swapped
        })
    }

    fn release(&mut self, grace: Duration) -> LocalFuture<'_, StubEnd> {
        Box::pin(self.end(grace))
    }

    fn kill(&mut self) {
        if self.id().is_some() {
            self.killed = true;
            self.keeper.order(self.id, StubOrder::Kill);
        }
    }

    fn leave(mut self: Box<Self>) {
        self.left = true;
        self.keeper.leave(self.id);
    }
}

impl Drop for SlurmStub {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        match self.id() {
            Some(_) => {
                self.withdraw();
                self.keeper.discard(self.id);
            }
            None => {
                self.keeper.leave(self.id);
                self.tidy();
            }
        }
    }
}

/// Whether a file is there. Opened, for a file system of several machines may answer from memory whether it exists, and not whether
/// it can be opened.
fn is_there(file: &Path) -> bool {
    File::open(file).is_ok()
}

/// Writes a file that is there as a whole or not at all. Others must not read it: it holds a node's environment.
fn write(file: &Path, text: &[u8]) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&new)?.write_all(text)?;
    fs::rename(&new, file)
}

/// How long a log is, in bytes; 0 where there is none.
pub(super) fn length(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |log| log.len())
}
