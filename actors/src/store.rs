//! A small append-only file that survives crashes: what the scheduler must not forget.
//!
//! Each record is a line `CRC32 JSON`; it counts from when it is synced. A last line cut short by a crash is dropped; any
//! other damage is refused, never guessed. Whole submissions are files of their own, written before the record that speaks of
//! them. Whoever has the store open has the grid's lease. Must not know what the records mean to the scheduler.
//!
//! ```text
//! scheduler.log        the records
//! scheduler.lease      who may write them
//! scheduler.jobs/N     what was submitted as job N, as long as it has not ended
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use springtide_runtime::event::write_atomic;
use springtide_runtime::id::{Epoch, JobId, NodeId};

use crate::lease::{Lease, LeaseError};
use crate::reservation::{Reservation, ReservationId};
use crate::scheduler::Submit;
use crate::scheduler::core::{Begun, Recovered};

/// A file of so many records is written anew when it is opened.
const COMPACT_FROM: usize = 1000;

/// What is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Entry {
    /// This epoch of this job was given out.
    Epoch {
        /// The job.
        job: JobId,
        /// Its ownership generation.
        epoch: Epoch,
    },
    /// This job was submitted by somebody who does not wait for it; the rest is in a file of its own.
    Submitted {
        /// The job.
        job: JobId,
    },
    /// It is being started.
    Begun {
        /// The job.
        job: JobId,
        /// Where.
        begun: Begun,
    },
    /// Its owner lets it have so many processors at most, or as many as it can use.
    Limit {
        /// The job.
        job: JobId,
        /// How many.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most: Option<u32>,
    },
    /// It has ended.
    Over {
        /// The job.
        job: JobId,
    },
    /// A node was taken out of service, for this reason, or put back.
    Drained {
        /// The node.
        node: NodeId,
        /// Why; absent: it is in service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A reservation is committed, or agreed on.
    Reserved {
        /// It.
        reservation: Box<Reservation>,
    },
    /// It is no more.
    Unreserved {
        /// Which.
        id: ReservationId,
    },
}

impl Entry {
    fn job(&self) -> Option<JobId> {
        match self {
            Self::Epoch { job, .. }
            | Self::Submitted { job }
            | Self::Begun { job, .. }
            | Self::Limit { job, .. }
            | Self::Over { job } => Some(*job),
            Self::Drained { .. } | Self::Reserved { .. } | Self::Unreserved { .. } => None,
        }
    }
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// A line that is not the last one is damaged: what was given out before is not known for sure.
    #[error(
        "{}, line {line}: {reason}; restore the file, or move it away to begin a new grid: jobs that have not ended are lost then", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Another scheduler may write it.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// The open store.
#[derive(Debug)]
pub struct Store {
    /// Absent: it is in memory.
    kept: Option<Kept>,
    last_job: u64,
    /// Jobs that have not ended and that nobody waits for.
    open: BTreeMap<JobId, Open>,
    /// Nodes out of service, and why.
    drained: BTreeMap<NodeId, String>,
    /// Reservations that have not ended.
    reserved: BTreeMap<ReservationId, Reservation>,
    /// The last number of one.
    last_reservation: ReservationId,
}

/// What is known of a job that has not ended.
#[derive(Clone, Debug, Default)]
struct Open {
    epoch: Epoch,
    begun: Option<Begun>,
    limit: Option<u32>,
    submitted: bool,
}

/// Where records are written.
#[derive(Debug)]
struct Kept {
    path: PathBuf,
    file: File,
    /// Where the next record goes: the end of the last whole one.
    end: u64,
    /// Where submissions are.
    jobs: PathBuf,
    lease: Lease,
}

impl Store {
    /// Opens the store, makes it when it is not there, and reads what it holds. Nobody else can open it meanwhile.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let io = |source| StoreError::Io { path: path.to_owned(), source };
        let lease = Lease::take(&path.with_extension("lease"))?;
        let mut options = OpenOptions::new();
        let mut options = options.read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(path).map_err(io)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let (entries, mut end) = parse(&bytes).map_err(|(line, reason)| StoreError::Damaged {
            path: path.to_owned(),
            line,
            reason,
        })?;
        let last_job = entries.iter().filter_map(|entry| Some(entry.job()?.0)).max().unwrap_or(0);
        let (open, drained) = (still_open(&entries), still_drained(&entries));
        let reserved = still_reserved(&entries);
        let last_reservation = last_reservation(&entries);
        if entries.len() >= COMPACT_FROM {
            let text = compacted(last_job, &open, &drained, (&reserved, last_reservation));
            write_atomic(path, text.as_bytes()).map_err(io)?;
            file = options.create(false).open(path).map_err(io)?;
            end = text.len();
        }
        file.set_len(end as u64).map_err(io)?;
        let jobs = path.with_extension("jobs");
        let kept = Kept { path: path.to_owned(), file, end: end as u64, jobs, lease };
        Ok(Self { kept: Some(kept), last_job, open, drained, reserved, last_reservation })
    }

    /// Numbers up to this one were given out, whatever the store says: it may be younger than what is left of jobs.
    pub fn begin_above(&mut self, last: JobId) {
        // The first number that is given out notes it.
        self.last_job = self.last_job.max(last.0);
    }

    /// A store that lasts as long as the process, for grids that do: those of tests and simulations.
    pub fn in_memory() -> Self {
        let (open, drained, reserved) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let last_reservation = ReservationId(0);
        Self { kept: None, last_job: 0, open, drained, reserved, last_reservation }
    }

    /// Whether this is still the only scheduler of the grid.
    ///
    /// # Errors
    /// [`StoreError::Lease`].
    pub fn check(&self) -> Result<(), StoreError> {
        Ok(self.kept.as_ref().map_or(Ok(()), |kept| kept.lease.check())?)
    }

    /// Gives out a job number never given out before, with its first epoch. Both are on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the number must not be used and is not given out again.
    pub fn new_job(&mut self) -> Result<(JobId, Epoch), StoreError> {
        self.last_job += 1;
        let (job, epoch) = (JobId(self.last_job), Epoch(1));
        self.append(Entry::Epoch { job, epoch })?;
        Ok((job, epoch))
    }

    /// Gives out the epoch after `known` of a job. It is on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the epoch must not be used.
    pub fn new_epoch(&mut self, job: JobId, known: Epoch) -> Result<Epoch, StoreError> {
        let epoch = Epoch(known.0 + 1);
        self.append(Entry::Epoch { job, epoch })?;
        if let Some(open) = self.open.get_mut(&job) {
            open.epoch = epoch;
        }
        Ok(epoch)
    }

    /// Keeps what was submitted until the job has [ended](Store::over).
    ///
    /// # Errors
    /// [`StoreError`]: it is not kept.
    pub fn keep(&mut self, job: JobId, epoch: Epoch, submit: &Submit) -> Result<(), StoreError> {
        if let Some(Kept { jobs, .. }) = &self.kept {
            let path = jobs.join(job.0.to_string());
            let io = |source| StoreError::Io { path: path.clone(), source };
            let bytes = rmp_serde::to_vec_named(submit).map_err(|e| io(io::Error::other(e)))?;
            fs::create_dir_all(jobs).and_then(|()| write_atomic(&path, &bytes)).map_err(io)?;
        }
        self.append(Entry::Submitted { job })?;
        self.open.insert(job, Open { epoch, submitted: true, ..Open::default() });
        Ok(())
    }

    /// Notes that a job is being started. Of jobs that are not [kept](Store::keep) nothing is noted.
    ///
    /// # Errors
    /// [`StoreError`]: it is not noted.
    pub fn begun(&mut self, job: JobId, begun: Begun) -> Result<(), StoreError> {
        if self.open.contains_key(&job) {
            self.append(Entry::Begun { job, begun: begun.clone() })?;
            if let Some(open) = self.open.get_mut(&job) {
                open.begun = Some(begun);
            }
        }
        Ok(())
    }

    /// Notes how many processors a job's owner lets it have at most. Of jobs that are not [kept](Store::keep) nothing is noted.
    ///
    /// # Errors
    /// [`StoreError`]: it is not noted.
    pub fn limit(&mut self, job: JobId, most: Option<u32>) -> Result<(), StoreError> {
        if self.open.get(&job).is_some_and(|open| open.limit != most) {
            self.append(Entry::Limit { job, most })?;
            if let Some(open) = self.open.get_mut(&job) {
                open.limit = most;
            }
        }
        Ok(())
    }

    /// Notes that a node is out of service, and why, or in it.
    ///
    /// # Errors
    /// [`StoreError`]: it is not noted.
    pub fn drained(&mut self, node: &NodeId, reason: Option<&str>) -> Result<(), StoreError> {
        if self.drained.get(node).map(String::as_str) == reason {
            return Ok(());
        }
        let entry = Entry::Drained { node: node.clone(), reason: reason.map(str::to_owned) };
        self.append(entry)?;
        match reason {
            Some(reason) => drop(self.drained.insert(node.clone(), reason.to_owned())),
            None => drop(self.drained.remove(node)),
        }
        Ok(())
    }

    /// Nodes that are out of service, and why.
    pub fn drained_nodes(&self) -> &BTreeMap<NodeId, String> {
        &self.drained
    }

    /// Keeps a reservation, as it is now, until it is [no more](Store::unreserved).
    ///
    /// # Errors
    /// [`StoreError`]: it is not kept.
    pub fn reserved(&mut self, one: &Reservation) -> Result<(), StoreError> {
        self.append(Entry::Reserved { reservation: Box::new(one.clone()) })?;
        self.reserved.insert(one.id, one.clone());
        self.last_reservation = self.last_reservation.max(one.id);
        Ok(())
    }

    /// Forgets a reservation.
    ///
    /// # Errors
    /// [`StoreError`]: the next scheduler finds it, and that it has run out.
    pub fn unreserved(&mut self, id: ReservationId) -> Result<(), StoreError> {
        if self.reserved.contains_key(&id) {
            self.append(Entry::Unreserved { id })?;
            self.reserved.remove(&id);
        }
        Ok(())
    }

    /// The last number of a reservation that was noted.
    pub fn last_reservation(&self) -> ReservationId {
        self.last_reservation
    }

    /// Reservations that have not ended, as far as was noted.
    pub fn reservations(&self) -> &BTreeMap<ReservationId, Reservation> {
        &self.reserved
    }

    /// Forgets a job.
    ///
    /// # Errors
    /// [`StoreError`]: the next scheduler finds it.
    pub fn over(&mut self, job: JobId) -> Result<(), StoreError> {
        if self.open.remove(&job).is_none() {
            return Ok(());
        }
        self.append(Entry::Over { job })?;
        if let Some(Kept { jobs, .. }) = &self.kept {
            // What is left of it is found and removed when the store is opened the next time.
            let _ = fs::remove_file(jobs.join(job.0.to_string()));
        }
        Ok(())
    }

    /// Jobs that a former scheduler had, as it left them. Those that `wanted` does not want are forgotten, and so are those
    /// whose submissions cannot be read: one that is damaged must not keep all others from going on.
    ///
    /// # Errors
    /// [`StoreError`]: it cannot be noted what is forgotten.
    pub fn recover(
        &mut self,
        wanted: impl Fn(JobId) -> bool,
    ) -> Result<Vec<Recovered>, StoreError> {
        let mut found = Vec::new();
        let Some(Kept { jobs, .. }) = &self.kept else { return Ok(found) };
        let jobs = jobs.clone();
        for (job, open) in self.open.clone() {
            if !wanted(job) {
                self.over(job)?;
                continue;
            }
            let path = jobs.join(job.0.to_string());
            let read = fs::read(&path)
                .and_then(|bytes| rmp_serde::from_slice(&bytes).map_err(io::Error::other));
            match read {
                Ok(submit) => {
                    let Open { epoch, begun, limit, .. } = open;
                    let submit = Box::new(submit);
                    found.push(Recovered { job, epoch, submit, begun, limit });
                }
                Err(error) => {
                    let shown = path.display();
                    tracing::error!(
                        "{job} is lost: its submission cannot be read ({shown}: {error})"
                    );
                    self.over(job)?;
                }
            }
        }
        // Files that no record speaks of: a crash came between.
        for entry in fs::read_dir(&jobs).into_iter().flatten().filter_map(Result::ok) {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if number.is_none_or(|number| !self.open.contains_key(&JobId(number))) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(found)
    }

    fn append(&mut self, entry: Entry) -> Result<(), StoreError> {
        let Some(Kept { path, file, end, lease, .. }) = &mut self.kept else { return Ok(()) };
        lease.check()?;
        let line = encode(&entry);
        let written = file
            .seek(SeekFrom::Start(*end))
            .and_then(|_| file.write_all(line.as_bytes()))
            .and_then(|()| file.sync_data());
        if let Err(source) = written {
            // A half-written record must not stand before a later, whole one.
            let _ = file.set_len(*end);
            return Err(StoreError::Io { path: path.clone(), source });
        }
        *end += line.len() as u64;
        Ok(())
    }
}

/// Jobs without an end that nobody waits for.
fn still_open(entries: &[Entry]) -> BTreeMap<JobId, Open> {
    let mut all: BTreeMap<JobId, Open> = BTreeMap::new();
    for entry in entries {
        let Some(job) = entry.job() else { continue };
        let open = all.entry(job).or_default();
        match entry {
            Entry::Epoch { epoch, .. } => open.epoch = open.epoch.max(*epoch),
            Entry::Submitted { .. } => open.submitted = true,
            Entry::Begun { begun, .. } => open.begun = Some(begun.clone()),
            Entry::Limit { most, .. } => open.limit = *most,
            Entry::Over { .. } => open.submitted = false,
            Entry::Drained { .. } | Entry::Reserved { .. } | Entry::Unreserved { .. } => {}
        }
    }
    all.retain(|_, open| open.submitted);
    all
}

/// Nodes that are out of service.
fn still_drained(entries: &[Entry]) -> BTreeMap<NodeId, String> {
    let mut all = BTreeMap::new();
    for entry in entries {
        match entry {
            Entry::Drained { node, reason: Some(reason) } => {
                all.insert(node.clone(), reason.clone());
            }
            Entry::Drained { node, reason: None } => drop(all.remove(node)),
            _ => {}
        }
    }
    all
}

/// Reservations that are not over.
fn still_reserved(entries: &[Entry]) -> BTreeMap<ReservationId, Reservation> {
    let mut all = BTreeMap::new();
    for entry in entries {
        match entry {
            Entry::Reserved { reservation } => {
                all.insert(reservation.id, (**reservation).clone());
            }
            Entry::Unreserved { id } => drop(all.remove(id)),
            _ => {}
        }
    }
    all
}

/// The last number of a reservation, ended or not.
fn last_reservation(entries: &[Entry]) -> ReservationId {
    let number = |entry: &Entry| match entry {
        Entry::Reserved { reservation } => Some(reservation.id),
        Entry::Unreserved { id } => Some(*id),
        _ => None,
    };
    entries.iter().filter_map(number).max().unwrap_or_default()
}

/// The records that say the same in fewer lines.
fn compacted(
    last_job: u64,
    open: &BTreeMap<JobId, Open>,
    drained: &BTreeMap<NodeId, String>,
    (reserved, last_reservation): (&BTreeMap<ReservationId, Reservation>, ReservationId),
) -> String {
    let last = JobId(last_job);
    let out_of_service = |(node, reason): (&NodeId, &String)| Entry::Drained {
        node: node.clone(),
        reason: Some(reason.clone()),
    };
    let mut entries: Vec<Entry> = drained.iter().map(out_of_service).collect();
    let kept = |one: &Reservation| Entry::Reserved { reservation: Box::new(one.clone()) };
    entries.extend(reserved.values().map(kept));
    if last_reservation.0 > 0 && !reserved.contains_key(&last_reservation) {
        entries.push(Entry::Unreserved { id: last_reservation });
    }
    for (&job, Open { epoch, begun, limit, .. }) in open {
        entries.push(Entry::Epoch { job, epoch: *epoch });
        entries.push(Entry::Submitted { job });
        entries.extend(begun.clone().map(|begun| Entry::Begun { job, begun }));
        entries.extend(limit.map(|most| Entry::Limit { job, most: Some(most) }));
    }
    if !open.contains_key(&last) && last_job > 0 {
        // So that its number is not given out again.
        entries.push(Entry::Over { job: last });
    }
    entries.iter().map(encode).collect()
}

fn encode(entry: &Entry) -> String {
    let json = serde_json::to_string(entry).expect("an entry is plain numbers and names");
    format!("{:08x} {json}\n", crc32(json.as_bytes()))
}

/// The whole records and where they end, or the damaged line.
fn parse(bytes: &[u8]) -> Result<(Vec<Entry>, usize), (usize, String)> {
    let mut entries = Vec::new();
    let mut end = 0;
    for (index, line) in bytes.split_inclusive(|&b| b == b'\n').enumerate() {
        let Some(whole) = line.strip_suffix(b"\n") else {
            break; // cut short by a crash while it was written: it was never given out
        };
        entries.push(decode(whole).map_err(|reason| (index + 1, reason))?);
        end += line.len();
    }
    Ok((entries, end))
}

fn decode(line: &[u8]) -> Result<Entry, String> {
    let text = std::str::from_utf8(line).map_err(|_| "not text".to_owned())?;
    let (crc, json) = text.split_once(' ').ok_or("no checksum")?;
    if format!("{:08x}", crc32(json.as_bytes())) != crc {
        return Err("the checksum does not fit".to_owned());
    }
    serde_json::from_str(json).map_err(|error| error.to_string())
}

/// CRC-32 (IEEE 802.3, reflected), bit by bit: records are short and rare.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_checksum_is_the_common_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn numbers_are_never_given_out_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut given = Vec::new();
        for _ in 0..3 {
            let mut store = Store::open(&path).unwrap();
            given.push(store.new_job().unwrap().0.0);
            given.push(store.new_job().unwrap().0.0);
        }
        assert_eq!(given, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn cut_at_every_byte_it_recovers_to_the_last_whole_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut ends = vec![0];
        {
            let mut store = Store::open(&path).unwrap();
            for _ in 0..3 {
                store.new_job().unwrap();
                ends.push(fs::metadata(&path).unwrap().len());
            }
        }
        let whole = fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let records = ends.iter().filter(|&&end| end <= cut as u64).count() as u64 - 1;
            let mut store = Store::open(&path).unwrap();
            assert_eq!(store.new_job().unwrap().0, JobId(records + 1), "cut at {cut}");
            drop(store);
            // What was appended after the cut reads back.
            assert_eq!(Store::open(&path).unwrap().last_job, records + 1, "cut at {cut}");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed_or_harmless() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut store = Store::open(&path).unwrap();
        store.new_job().unwrap();
        store.new_job().unwrap();
        drop(store);
        let whole = fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            match Store::open(&path) {
                // The last newline flipped looks like a record cut short.
                Ok(store) => {
                    assert!(bit / 8 == whole.len() - 1 && store.last_job == 1, "bit {bit}")
                }
                Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error}"),
            }
        }
    }

    fn submit(name: &str) -> Submit {
        Submit {
            name: name.to_owned(),
            body: bytes::Bytes::from_static(b"body"),
            fingerprint: 7,
            params: crate::job::JobParams::default(),
            clusters: None,
            client: springtide_runtime::net::Contact {
                node: "head".into(),
                cluster: "head".into(),
                address: springtide_runtime::net::Address::Memory,
            },
            program: None,
            need: None,
            principal: None,
        }
    }

    fn reservation(id: u64) -> Reservation {
        let booking = crate::policy::provisioning::Booking { processors: 2, start: 5, end: 9 };
        Reservation {
            id: ReservationId(id),
            token: 7,
            name: "montage".to_owned(),
            parts: vec![crate::reservation::Part { cluster: "vu".into(), bookings: vec![booking] }],
            cost: 8.5,
            phase: crate::reservation::Phase::Confirmed { until: None },
            lease_ms: None,
        }
    }

    fn begun() -> Begun {
        let (parts, transfers, why) = (Vec::new(), Vec::new(), "why".to_owned());
        let placed = crate::policy::malleability::Placed { parts, transfers, why };
        Begun { placed, at: Some(5) }
    }

    #[test]
    fn jobs_without_an_end_are_found_by_the_next_and_nobody_has_it_open_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut store = Store::open(&path).unwrap();
        for name in ["queued", "running", "ended", "unwanted"] {
            let (job, epoch) = store.new_job().unwrap();
            store.keep(job, epoch, &submit(name)).unwrap();
        }
        let plain = store.new_job().unwrap().0;
        store.begun(JobId(2), begun()).unwrap();
        store.begun(plain, begun()).unwrap();
        assert_eq!(store.new_epoch(JobId(2), Epoch(1)).unwrap(), Epoch(2));
        store.over(JobId(3)).unwrap();
        store.limit(JobId(1), Some(5)).unwrap();
        store.limit(JobId(2), Some(3)).unwrap();
        store.limit(JobId(2), None).unwrap();
        store.drained(&"vu-1".into(), Some("it smells")).unwrap();
        store.drained(&"vu-2".into(), Some("new fan")).unwrap();
        store.drained(&"vu-2".into(), None).unwrap();
        let refused = Store::open(&path).unwrap_err();
        assert!(matches!(refused, StoreError::Lease(LeaseError::Held { .. })), "{refused}");
        drop(store);
        // A crash between the file and its record leaves a file.
        fs::write(dir.path().join("scheduler.jobs/77"), "").unwrap();
        for _ in 0..2 {
            let mut store = Store::open(&path).unwrap();
            let found = store.recover(|job| job != JobId(4)).unwrap();
            let told: Vec<_> = found
                .iter()
                .map(|found| {
                    (found.job.0, found.epoch.0, &*found.submit.name, found.begun.is_some())
                })
                .collect();
            assert_eq!(told, [(1, 1, "queued", false), (2, 2, "running", true)]);
            assert_eq!(found[1].submit.body, &b"body"[..]);
            assert_eq!((found[0].limit, found[1].limit), (Some(5), None));
            let out_of_service = [("vu-1".into(), "it smells".to_owned())];
            assert_eq!(*store.drained_nodes(), out_of_service.into());
            let mut left: Vec<_> = fs::read_dir(dir.path().join("scheduler.jobs"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            left.sort();
            assert_eq!(left, ["1", "2"]);
        }
    }

    #[test]
    fn a_submission_that_cannot_be_read_is_lost_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut store = Store::open(&path).unwrap();
        for name in ["damaged", "missing", "whole"] {
            let (job, epoch) = store.new_job().unwrap();
            store.keep(job, epoch, &submit(name)).unwrap();
        }
        drop(store);
        fs::write(dir.path().join("scheduler.jobs/1"), b"\xc1").unwrap();
        fs::remove_file(dir.path().join("scheduler.jobs/2")).unwrap();
        for _ in 0..2 {
            let mut store = Store::open(&path).unwrap();
            let found = store.recover(|_| true).unwrap();
            assert_eq!(found.iter().map(|found| found.job.0).collect::<Vec<_>>(), [3]);
        }
    }

    #[test]
    fn numbers_begin_above_those_of_jobs_that_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut store = Store::open(&path).unwrap();
        store.begin_above(JobId(41));
        assert_eq!(store.new_job().unwrap().0, JobId(42));
        store.begin_above(JobId(7));
        assert_eq!(store.new_job().unwrap().0, JobId(43));
        drop(store);
        assert_eq!(Store::open(&path).unwrap().new_job().unwrap().0, JobId(44));
    }

    #[test]
    fn a_long_store_is_written_anew_and_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut store = Store::open(&path).unwrap();
        for _ in 0..COMPACT_FROM {
            store.new_job().unwrap();
        }
        store.keep(JobId(5), Epoch(1), &submit("fib")).unwrap();
        store.begun(JobId(5), begun()).unwrap();
        store.limit(JobId(5), Some(2)).unwrap();
        store.drained(&"vu-1".into(), Some("it smells")).unwrap();
        let kept = reservation(3);
        store.reserved(&reservation(2)).unwrap();
        store.reserved(&kept).unwrap();
        store.unreserved(ReservationId(2)).unwrap();
        store.reserved(&reservation(9)).unwrap();
        store.unreserved(ReservationId(9)).unwrap();
        drop(store);
        let before = fs::metadata(&path).unwrap().len();
        let mut store = Store::open(&path).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < before / 10);
        assert_eq!(store.recover(|_| true).unwrap().len(), 1);
        assert_eq!(store.new_job().unwrap().0, JobId(COMPACT_FROM as u64 + 1));
        drop(store);
        let mut store = Store::open(&path).unwrap();
        assert_eq!(store.new_job().unwrap().0, JobId(COMPACT_FROM as u64 + 2));
        assert_eq!(*store.reservations(), [(kept.id, kept)].into());
        assert_eq!(store.last_reservation(), ReservationId(9));
        let found = store.recover(|_| true).unwrap();
        assert!(found[0].begun.is_some() && found[0].limit == Some(2));
        assert_eq!(store.drained_nodes().len(), 1);
    }
}
