//! Carries out what the flow of a workflow orders, on a grid.
//!
//! Must not decide which task begins where.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use springtide_actors::client::JobUpdate as JobNews;
use springtide_actors::files::{FileServer, RemoveFiles, ScanFiles};
use springtide_actors::job::{JobEndReport, JobError, JobParams};
use springtide_actors::policy::Mode;
use springtide_actors::policy::provisioning::{SECOND, Time, seconds};
use springtide_actors::reservation::{Reservation, ReservationRefusal, ReservedSlot};
use springtide_actors::scheduler::manager::{JobRequirements, Kind};
use springtide_actors::scheduler::{
    CancelClientJobs, CancelJob, GetFiles, GetStatus, GridFiles, GridSlots, GridStatus, JobGrant,
    ReleaseSlots, Scheduler, Submit, SubmitError,
};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::outdir::make_dir;
use springtide_cli::talk::Talk;
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::remote::{Remote, RemoteError};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::book::{most, parts};
use super::flow::{Agreed, Flow, News, Order};
use super::report::{CompletedRun, Reserved, write};
use super::{Prepared, target};
use crate::operations::agree::{agree, now, renew};
use crate::operations::attach::{Attachment, attach};
use crate::operations::inputs::{fetch, put, server, summed};
use crate::operations::netconf;
use crate::operations::signals::{Signals, word};
use crate::operations::slots::offers_of;
use crate::options::GlobalArgs;
use crate::output::print_early_failure;
use crate::workflow::planning::{Needs, NoPlan, dag, plan};

/// How long the head may take to answer what takes it no time.
const WITHIN: Duration = Duration::from_secs(10);
/// A task may wait this long for its nodes.
const QUEUE_WITHIN: Duration = Duration::from_secs(30 * 24 * 3600);
/// A reservation ends when its run was not heard of for so long.
const LEASE: Duration = Duration::from_secs(60);
/// From the offers to the first task: reserving takes a moment.
const LEAD: Time = SECOND;
/// A task is ended that takes so many times what is reserved for it, or this much longer.
const LIMIT: (u64, Time) = (4, 10 * SECOND);
/// Jobs that are cancelled have this long to end.
const CANCEL_WITHIN: Duration = Duration::from_secs(10);
/// A file server may take this long to look through what a task has written.
const LOOK_WITHIN: Duration = Duration::from_secs(600);
/// Whether the head knows the jobs that run is asked this often.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// A head that is silent for so long is taken to be gone.
const SILENT_MAX: Duration = Duration::from_secs(90);
/// Something is said of how it goes this often.
const TICK: Duration = Duration::from_millis(200);

/// What becomes of a submission.
type Answer = ((usize, u32), Result<Result<JobGrant, SubmitError>, RemoteError>);

/// Jobs that the head knows; nothing where it is silent.
type Jobs = Option<BTreeSet<JobId>>;

/// A cluster was looked through for these tasks.
type Looked = (ClusterId, Vec<usize>);

struct Drive<'a> {
    prepared: &'a Prepared,
    attachment: &'a mut Attachment,
    scheduler: Remote<Scheduler>,
    files: GridFiles,
    flow: Flow,
    /// Which task a job is, and which try of it.
    tasks: BTreeMap<JobId, (usize, u32)>,
    /// Jobs whose end was heard before the answer to their submission.
    early: BTreeMap<JobId, Box<JobEndReport>>,
    answers: (mpsc::UnboundedSender<Answer>, mpsc::UnboundedReceiver<Answer>),
    /// Where each task runs, or ran last.
    places: BTreeMap<usize, ClusterId>,
    /// Clusters that are being looked through, with the tasks that wait for the next look; and whom a look has come to its end for.
    looks: BTreeMap<ClusterId, Vec<usize>>,
    looked: (mpsc::UnboundedSender<Looked>, mpsc::UnboundedReceiver<Looked>),
    /// Which jobs the head knows, now and then; nothing where it is silent.
    known: (mpsc::UnboundedSender<Jobs>, mpsc::UnboundedReceiver<Jobs>),
    /// Jobs that it did not know the last time.
    unknown: BTreeSet<JobId>,
    /// It is silent since then.
    silent: Option<Instant>,
    /// Results that could not be fetched: they are not removed.
    unfetched: BTreeSet<usize>,
    /// What is reserved now, and the word that it is gone.
    reserved: Option<Reservation>,
    gone: (mpsc::UnboundedSender<ReservationRefusal>, mpsc::UnboundedReceiver<ReservationRefusal>),
    renewing: Option<tokio::task::JoinHandle<()>>,
    /// All that was reserved.
    all: Vec<Reserved>,
    talk: Talk,
}

/// Runs it, and tells how it went.
pub async fn drive(prepared: Prepared, global: GlobalArgs) -> Result<(), Failed> {
    let json = prepared.args.json;
    let mut signals = Signals::take()?;
    let began = now();
    let attached = attach(&prepared.args.config, &prepared.config).await;
    let mut attachment = match attached {
        Ok(attachment) => attachment,
        Err(failed) => return print_early_failure(json, None, failed),
    };
    let scheduler = attachment.scheduler();
    let files = scheduler.send(GetFiles {}).deadline(WITHIN).await;
    let args = &prepared.args;
    let flow = Flow::new(prepared.bag.steps.clone(), !args.best_effort, args.retries, args.plans);
    let mut drive = Drive {
        prepared: &prepared,
        scheduler,
        files: GridFiles::default(),
        flow,
        tasks: BTreeMap::new(),
        early: BTreeMap::new(),
        answers: mpsc::unbounded_channel(),
        places: BTreeMap::new(),
        looks: BTreeMap::new(),
        looked: mpsc::unbounded_channel(),
        known: mpsc::unbounded_channel(),
        unknown: BTreeSet::new(),
        silent: None,
        unfetched: BTreeSet::new(),
        reserved: None,
        gone: mpsc::unbounded_channel(),
        renewing: None,
        all: Vec::new(),
        talk: Talk::new(global.quiet || json),
        attachment: &mut attachment,
    };
    let done = match files {
        Ok(files) => {
            drive.files = files;
            let limit = async {
                match args.timeout {
                    Some(time) => sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                exit = signals.next() => Err(Failed::new(exit, format!("ended by {}", word(exit)))),
                () = limit => Err(Failed::new(Exit::Timeout, "it took longer than --timeout")),
                done = drive.whole() => done,
            }
        }
        Err(error) => Err(error.into()),
    };
    let kept = drive.unfetched_names();
    let done = done.map_err(|failed| {
        if kept.is_empty() {
            failed
        } else {
            let message = format!(
                "{}; what was not fetched is left in the clusters: {}",
                failed.message,
                kept.join(", ")
            );
            Failed { message, ..failed }
        }
    });
    tokio::select! {
        biased;
        // A second word is one too many: what is left ends with this process's link and with the lease.
        _ = signals.next() => {}
        () = drive.leave(done.as_ref().err()) => {}
    }
    drive.talk.done();
    let ended = CompletedRun {
        name: prepared.read.name(),
        began,
        ended: now(),
        steps: &prepared.bag.steps,
        ran: drive.flow.ran(),
        reserved: &drive.all,
        best_effort: args.best_effort,
        failed: done.as_ref().err(),
    };
    let written = write(&ended, json, args.out.as_deref());
    attachment.endpoint.net.close("done").await;
    done.and(written)
}

impl Drive<'_> {
    /// From its beginning to the end of its last task.
    async fn whole(&mut self) -> Result<(), Failed> {
        let bag = &self.prepared.bag;
        if bag.passes && self.files.servers.is_empty() {
            return Err(Failed::usage(
                "tasks pass files, and no cluster of the grid keeps any: set `files` of its [[cluster]] tables to a directory that their \
                 nodes share",
            ));
        }
        self.bring().await?;
        let check = self.check();
        let done = self.go().await;
        check.abort();
        done
    }

    async fn go(&mut self) -> Result<(), Failed> {
        let mut orders: VecDeque<Order> = self.flow.handle(News::Tick, now()).into();
        loop {
            while let Some(order) = orders.pop_front() {
                match order {
                    Order::Submit { task, cluster, attempt } => {
                        self.submit((task, attempt), cluster)
                    }
                    Order::Plan { tasks, why } => {
                        let agreed = self.plan(&tasks, &why).await?;
                        orders.extend(self.flow.handle(News::Agreed(agreed), now()));
                    }
                    Order::Finished => {
                        // Nothing is needed any more but what is fetched.
                        self.release().await;
                        return self.fetch_results().await;
                    }
                    Order::GiveUp { task, why } => {
                        let id = &self.prepared.bag.steps[task].id;
                        let why = if why.contains(id.as_str()) {
                            why
                        } else {
                            format!("task {id}: {why}")
                        };
                        return Err(Failed::failure(why));
                    }
                }
            }
            for news in self.hear().await? {
                orders.extend(self.flow.handle(news, now()));
            }
        }
    }

    /// Waits until something happens.
    async fn hear(&mut self) -> Result<Vec<News>, Failed> {
        let (done, all) = (self.flow.done() as u64, self.prepared.bag.steps.len() as u64);
        let what = format!("tasks, {} run", self.flow.submitted());
        self.talk.progress(done, all, &what);
        let at = now();
        let due = self.flow.due(at).map(|due| Instant::now() + Duration::from_micros(due - at));
        let due = due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        loop {
            tokio::select! {
                biased;
                Some((job, news, _)) = self.attachment.news() => {
                    if let JobNews::Ended(ended) = news {
                        match self.tasks.remove(&job) {
                            Some(of) => return Ok(self.ended(of, *ended)),
                            None => drop(self.early.insert(job, ended)),
                        }
                    }
                }
                Some((of, answer)) = self.answers.1.recv() => return Ok(self.answered(of, answer).await),
                Some((cluster, tasks)) = self.looked.1.recv() => {
                    self.look_again(cluster);
                    return Ok(tasks.into_iter().map(News::Done).collect());
                }
                Some(refusal) = self.gone.1.recv() => return Ok(vec![News::Gone(refusal.to_string())]),
                Some(known) = self.known.1.recv() => return self.checked(known),
                () = sleep_until(due) => return Ok(vec![News::Tick]),
                () = sleep(TICK) => self.talk.tick(),
            }
        }
    }

    /// Asks the head now and then which jobs it knows: those of a head that has ended are told of by nobody.
    fn check(&self) -> tokio::task::JoinHandle<()> {
        let (scheduler, tell) = (self.scheduler.clone(), self.known.0.clone());
        tokio::task::spawn_local(async move {
            loop {
                sleep(CHECK_EVERY).await;
                let status = scheduler.send(GetStatus {}).deadline(WITHIN).await.ok();
                let jobs = |status: GridStatus| status.jobs.iter().map(|job| job.job).collect();
                if tell.send(status.map(jobs)).is_err() {
                    return;
                }
            }
        })
    }

    /// What follows from what the head knows. A job that it has not known twice is over, and nobody will say so.
    fn checked(&mut self, known: Jobs) -> Result<Vec<News>, Failed> {
        let Some(known) = known else {
            let since = *self.silent.get_or_insert_with(Instant::now);
            if since.elapsed() >= SILENT_MAX {
                return Err(Failed::failure(format!(
                    "the grid's head has not answered for {SILENT_MAX:?}: is it up, and reached from here?"
                )));
            }
            return Ok(Vec::new());
        };
        self.silent = None;
        let missing: BTreeSet<JobId> =
            self.tasks.keys().filter(|job| !known.contains(job)).copied().collect();
        let over: Vec<JobId> = missing.intersection(&self.unknown).copied().collect();
        self.unknown = missing;
        let mut news = Vec::new();
        for job in over {
            if let Some(of) = self.tasks.remove(&job) {
                news.extend(self.refused(of, format!("the grid does not know {job} any more")));
            }
        }
        Ok(news)
    }

    fn submit(&mut self, (task, attempt): (usize, u32), cluster: Option<ClusterId>) {
        let (bag, config) = (&self.prepared.bag, &self.prepared.config);
        let (step, job) = (&bag.steps[task], &bag.jobs[task]);
        let mut need =
            JobRequirements::one(Kind::Rigid, step.processors, step.processors, step.processors);
        need.placement = if job.files.is_empty() {
            config.scheduling.placement
        } else {
            springtide_runtime::config::Placing::CloseToFiles
        };
        need.components[0].files = job.files.clone();
        need.components[0].clusters = match cluster {
            Some(cluster) => [cluster].into(),
            // What it writes others must find.
            None if job.writes => self.files.servers.keys().cloned().collect(),
            None => BTreeSet::new(),
        };
        if let Some(reserved) = &self.reserved {
            need.reservation = Some(reserved.id);
            let limit = (step.lasts * LIMIT.0).max(step.lasts + LIMIT.1);
            need.time_ms = Some(limit / (SECOND / 1000));
        }
        let mut params: JobParams = netconf::job_params(config);
        params.mode = Mode::Static;
        params.min_processors = step.processors.into();
        params.max_processors = Some(step.processors.into());
        let submit = Submit {
            name: job.name.to_owned(),
            body: job.body.clone(),
            fingerprint: self.prepared.fingerprint,
            params,
            clusters: None,
            client: self.attachment.endpoint.net.contact(),
            program: std::env::current_exe().ok(),
            need: Some(need),
            principal: None,
        };
        let (scheduler, tell) = (self.scheduler.clone(), self.answers.0.clone());
        // What an earlier try may have left, there or elsewhere, would be another file of the same name.
        let before = if attempt > 1 && job.writes { self.servers() } else { Vec::new() };
        let writers = bag.writers.iter().zip(&bag.kept);
        let names =
            writers.filter(|(writer, _)| **writer == Some(task)).map(|(_, name)| name.clone());
        let names: Vec<String> = if before.is_empty() { Vec::new() } else { names.collect() };
        tokio::task::spawn_local(async move {
            for server in before {
                let _ = server.send(RemoveFiles { names: names.clone() }).deadline(WITHIN).await;
            }
            let answer = scheduler.send(submit).deadline(QUEUE_WITHIN).await;
            // Nobody listens any more: the run is over.
            let _ = tell.send(((task, attempt), answer));
        });
    }

    /// A submission was answered.
    async fn answered(
        &mut self,
        (task, attempt): (usize, u32),
        answer: Result<Result<JobGrant, SubmitError>, RemoteError>,
    ) -> Vec<News> {
        match answer {
            // It was given up while it waited.
            Ok(Ok(JobGrant { job, .. })) if !self.flow.is_current(task, attempt) => {
                let reason = "its workflow was planned anew".to_owned();
                let _ = self.scheduler.send(CancelJob { job, reason }).deadline(WITHIN).await;
                Vec::new()
            }
            Ok(Ok(granted)) => {
                let members = granted.view.members.values();
                let cluster = members.map(|member| member.cluster.clone()).next();
                self.places.extend(cluster.clone().map(|cluster| (task, cluster)));
                let mut news = vec![News::Began { task, attempt, cluster }];
                match self.early.remove(&granted.job) {
                    Some(ended) => news.extend(self.ended((task, attempt), *ended)),
                    None => drop(self.tasks.insert(granted.job, (task, attempt))),
                }
                news
            }
            // It has no place now, nor later.
            Ok(Err(error @ (SubmitError::NotPlaced { .. } | SubmitError::Program { .. })))
                if self.prepared.args.best_effort && self.flow.is_current(task, attempt) =>
            {
                let why = error.to_string();
                self.talk.say(&format!("task {}: {why}", self.prepared.bag.steps[task].id));
                vec![News::Failed { task, why }]
            }
            Ok(Err(error)) => self.refused((task, attempt), error.to_string()),
            Err(error) => self.refused((task, attempt), error.to_string()),
        }
    }

    /// The grid is in the way of a task, not the task.
    fn refused(&self, (task, attempt): (usize, u32), why: String) -> Vec<News> {
        if !self.flow.is_current(task, attempt) {
            return Vec::new(); // it was given up already
        }
        self.talk.say(&format!("task {}: {why}", self.prepared.bag.steps[task].id));
        vec![News::Refused { task, attempt, why }]
    }

    /// A task's job has ended.
    fn ended(&mut self, (task, attempt): (usize, u32), ended: JobEndReport) -> Vec<News> {
        match ended.outcome {
            Ok(_) => {
                if self.prepared.bag.jobs[task].writes {
                    self.look(task);
                    Vec::new()
                } else {
                    vec![News::Done(task)]
                }
            }
            Err(
                error @ (JobError::Start { .. }
                | JobError::NodeLost { .. }
                | JobError::Cancelled { .. }),
            ) => self.refused((task, attempt), error.to_string()),
            Err(error) => {
                // Of a failure only what the task says: its place in the job's tree says nothing.
                let why = match error {
                    JobError::Task(failure) => failure.message,
                    error => error.to_string(),
                };
                self.talk.say(&why);
                vec![News::Failed { task, why }]
            }
        }
    }

    fn servers(&self) -> Vec<Remote<FileServer>> {
        let clusters = self.files.servers.keys();
        clusters.filter_map(|cluster| server(self.attachment, &self.files, cluster).ok()).collect()
    }

    /// A task is done when what it has written is known: those that read it are submitted then. One look is enough for all that come to
    /// their end before it begins.
    fn look(&mut self, task: usize) {
        let Some(cluster) = self.places.get(&task).cloned() else {
            let _ = self.looked.0.send((ClusterId::from(""), vec![task]));
            return;
        };
        match self.looks.get_mut(&cluster) {
            Some(next) => next.push(task),
            None => self.look_for(cluster, vec![task]),
        }
    }

    fn look_for(&mut self, cluster: ClusterId, tasks: Vec<usize>) {
        self.looks.insert(cluster.clone(), Vec::new());
        let at = server(self.attachment, &self.files, &cluster).ok();
        let tell = self.looked.0.clone();
        tokio::task::spawn_local(async move {
            if let Some(at) = at {
                // Who does not hear it looks by itself after a while.
                let _ = at.send(ScanFiles {}).deadline(LOOK_WITHIN).await;
            }
            let _ = tell.send((cluster, tasks));
        });
    }

    fn look_again(&mut self, cluster: ClusterId) {
        match self.looks.remove(&cluster) {
            Some(next) if !next.is_empty() => self.look_for(cluster, next),
            _ => {}
        }
    }

    /// Files that tasks read and none writes are brought to the first cluster that keeps files; from there they go where they are read.
    async fn bring(&mut self) -> Result<(), Failed> {
        let bag = &self.prepared.bag;
        let names = &self.prepared.read.workflow.files;
        let Some(&first) = bag.given.first() else { return Ok(()) };
        let Some(dir) = &self.prepared.args.inputs else {
            return Err(Failed::usage(format!(
                "tasks read {} files that none writes, such as {}: name the directory that has them with --inputs DIR, or run stand-ins with \
                 --pretend 0.01",
                bag.given.len(),
                names[first].name
            )));
        };
        let Some(cluster) = self.files.servers.keys().next() else { return Ok(()) };
        let server = server(self.attachment, &self.files, cluster)?;
        for &file in &bag.given {
            let path = target(dir, &names[file].name);
            if !path.is_file() {
                let shown = path.display();
                return Err(Failed::usage(format!("{shown} is not there, and tasks read it")));
            }
            let entry = summed(&path, &bag.kept[file]).await?;
            put(&server, &path, &entry, &mut self.talk).await?;
        }
        Ok(())
    }

    /// Plans tasks on what is offered now, and reserves that.
    async fn plan(&mut self, tasks: &BTreeSet<usize>, why: &str) -> Result<Agreed, Failed> {
        self.release().await;
        if self.flow.plans() > 1 {
            self.talk.say(&format!("the rest, {} tasks, is planned anew: {why}", tasks.len()));
        }
        let prepared = self.prepared;
        let bag = &prepared.bag;
        let order: Vec<usize> = tasks.iter().copied().collect();
        let at: BTreeMap<usize, usize> =
            order.iter().enumerate().map(|(at, &task)| (task, at)).collect();
        let servers: BTreeSet<&ClusterId> = self.files.servers.keys().collect();
        // Where data passes, only clusters that keep files will do.
        let without = |cluster: &ClusterId| bag.passes && !servers.contains(cluster);
        let chosen = RefCell::new(None);
        let mut planner = |slots: &GridSlots, but: &BTreeMap<ClusterId, String>| {
            let origin = slots.now.max(now()) + LEAD;
            let mut offers = offers_of(slots, origin);
            for site in &mut offers.sites {
                let cluster = ClusterId::from(site.name.as_str());
                if but.contains_key(&cluster) || without(&cluster) {
                    site.slots.clear();
                }
            }
            let needs = |&task: &usize| Needs {
                name: bag.steps[task].id.clone(),
                runtime_s: bag.planned[task].0,
                processors: bag.planned[task].1,
            };
            let edges = bag
                .edges
                .iter()
                .filter_map(|(from, to, bytes)| Some((*at.get(from)?, *at.get(to)?, *bytes)));
            let speeds: Vec<f64> = offers.sites.iter().map(|site| site.speed).collect();
            let dag = dag(order.iter().map(needs), edges, &speeds).map_err(|e| e.to_string())?;
            let wish = prepared.args.choice.wish(order.len(), &offers).map_err(|f| f.message)?;
            let plan = plan(&dag, &offers, &wish).map_err(|no| told(&no))?;
            let parts = parts(&plan, &offers, origin);
            let places = plan.schedule.tasks.iter().zip(&order).map(|(place, &task)| {
                let cluster = ClusterId::from(offers.sites[place.site].name.as_str());
                (task, (cluster, origin.saturating_add(place.start)))
            });
            let agreed = Agreed { places: places.collect(), parts: parts.clone() };
            let is = plan.is();
            *chosen.borrow_mut() = Some((agreed, seconds(is.makespan), is.cost));
            // By the time that they are asked for, prices of what begins later may have risen by a hair.
            Ok((parts, is.cost))
        };
        self.talk.wait_for("reserving slots");
        let name = prepared.read.name();
        let one = agree(&self.scheduler, &name, Some(LEASE), &mut planner).await?;
        let Some((agreed, makespan_s, planned_cost)) = chosen.into_inner() else {
            return Err(Failed::failure("a reservation without a plan"));
        };
        self.talk.say(&format!(
            "{} holds {} for {} tasks: planned to end in {}, costs {:.2}",
            one.id,
            where_at(&one.parts),
            tasks.len(),
            springtide_cli::format::seconds(makespan_s),
            one.cost
        ));
        self.all.push(Reserved {
            id: one.id,
            at: now(),
            why: why.to_owned(),
            tasks: tasks.len(),
            makespan_s,
            planned_cost,
            cost: one.cost,
            parts: one.parts.clone(),
        });
        let (scheduler, tell, mine) = (self.scheduler.clone(), self.gone.0.clone(), one.clone());
        self.renewing = Some(tokio::task::spawn_local(async move {
            let refusal = renew(scheduler, mine).await;
            let _ = tell.send(refusal);
        }));
        self.reserved = Some(one);
        Ok(agreed)
    }

    async fn release(&mut self) {
        if let Some(renewing) = self.renewing.take() {
            renewing.abort();
        }
        // What was said of the last one is of no concern to the next.
        while self.gone.1.try_recv().is_ok() {}
        if let Some(one) = self.reserved.take() {
            // Where nobody hears it, it runs out.
            let word = ReleaseSlots { id: one.id, token: Some(one.token) };
            let _ = self.scheduler.send(word).deadline(WITHIN).await;
        }
    }

    /// Brings what no task reads to this machine.
    async fn fetch_results(&mut self) -> Result<(), Failed> {
        let Some(dir) = &self.prepared.args.fetch else { return Ok(()) };
        let bag = &self.prepared.bag;
        self.unfetched = bag.results.iter().copied().collect();
        let found = self.scheduler.send(GetFiles {}).deadline(WITHIN).await?;
        for &file in &bag.results {
            let name = &self.prepared.read.workflow.files[file].name;
            let status = found.files.iter().find(|status| status.name == bag.kept[file]);
            // Where its task ran; elsewhere may be what an earlier try left.
            let at = bag.writers[file].and_then(|task| self.places.get(&task));
            let there = |cluster: &ClusterId| {
                Some((cluster.clone(), status?.clusters.get(cluster)?.clone()))
            };
            let entry = at.and_then(there).or_else(|| status?.anywhere());
            let Some((cluster, entry)) = entry else {
                return Err(Failed::failure(format!("{name} is in no cluster any more")));
            };
            let out = target(dir, name);
            if let Some(parent) = out.parent() {
                make_dir(parent)?;
            }
            let server = server(self.attachment, &self.files, &cluster)?;
            fetch(&server, &entry, &out, &mut self.talk).await?;
            self.unfetched.remove(&file);
        }
        Ok(())
    }

    fn unfetched_names(&self) -> Vec<String> {
        self.unfetched.iter().map(|&file| self.prepared.bag.kept[file].clone()).collect()
    }

    /// Ends what runs, and leaves nothing behind.
    async fn leave(&mut self, failed: Option<&Failed>) {
        if let Some(failed) = failed {
            self.talk.wait_for("ending what runs");
            let reason = format!("its workflow has ended: {}", failed.message);
            let client = self.attachment.endpoint.net.me().node.clone();
            // Those that wait as well.
            let word = CancelClientJobs { client, reason };
            let _ = self.scheduler.send(word).deadline(WITHIN).await;
            let quiet = async {
                while !self.tasks.is_empty() {
                    let Some((job, news, _)) = self.attachment.news().await else { return };
                    if let JobNews::Ended(_) = news {
                        self.tasks.remove(&job);
                    }
                }
            };
            let _ = timeout(CANCEL_WITHIN, quiet).await;
        }
        self.release().await;
        if !self.prepared.args.keep {
            let kept = self.prepared.bag.kept.iter().enumerate();
            let names = kept.filter(|(file, _)| !self.unfetched.contains(file));
            let names: Vec<String> = names.map(|(_, name)| name.clone()).collect();
            for server in self.servers() {
                for names in names.chunks(1000) {
                    let word = RemoveFiles { names: names.to_vec() };
                    let _ = server.send(word).deadline(WITHIN).await;
                }
            }
        }
    }
}

/// Most processors of each cluster at once, for people.
fn where_at(parts: &[ReservedSlot]) -> String {
    let all = most(parts).into_iter().map(|(cluster, most)| format!("{most} of {cluster}"));
    all.collect::<Vec<_>>().join(", ")
}

/// Why there is no plan, in a sentence; `workflow plan` says more.
fn told(no: &NoPlan) -> String {
    match no {
        NoPlan::NoSlots => {
            "no cluster that would do offers any slot: `slots list` shows what is taken".to_owned()
        }
        NoPlan::Blocked(blocked) => blocked.why.to_string(),
        NoPlan::Missed(missed) => format!(
            "no plan holds to what was asked for: the fastest takes {} and costs {:.2}, the cheapest takes {} and costs {:.2}",
            springtide_cli::format::seconds(seconds(missed.fastest.makespan)),
            missed.fastest.cost,
            springtide_cli::format::seconds(seconds(missed.cheapest.makespan)),
            missed.cheapest.cost
        ),
    }
}
