//! The profiles of Pegasus, which DAX and YAML share.
//!
//! A profile has a namespace, a key and a value. Memory is in MiB and walltimes are in minutes.

use std::collections::BTreeMap;

use super::with_position;
use crate::draft::Draft;
use crate::error::WorkflowProblem;
use crate::format::Format;
use crate::model::Position;
use crate::values::{MEBIBYTE, ProcessorCount, Scalar, size};

/// Values of profiles by namespace and key.
#[derive(Clone, Debug, Default)]
pub(super) struct Profiles(BTreeMap<String, (String, Option<Position>)>);

/// The seconds of a minute.
const MINUTE_S: f64 = 60.0;

impl Profiles {
    /// Adds a profile; one with the same namespace and key is replaced.
    pub fn insert(&mut self, namespace: &str, key: &str, value: &str, at: Option<Position>) {
        // Only names of variables depend on the case.
        let namespace = namespace.to_ascii_lowercase();
        let key = if namespace == "env" { key.to_owned() } else { key.to_ascii_lowercase() };
        self.0.insert(format!("{namespace}.{key}"), (value.to_owned(), at));
    }

    /// Adds all profiles of another set, which replace those with the same namespace and key.
    pub fn replace_by(&mut self, other: &Self) {
        self.0.extend(other.0.iter().map(|(key, value)| (key.clone(), value.clone())));
    }

    /// The first value of these keys, if there is one.
    fn first(&self, keys: &[&str]) -> Option<(Scalar, Option<Position>)> {
        let (text, at) = keys.iter().find_map(|key| self.0.get(*key))?;
        Some((Scalar::text(text), *at))
    }

    /// The runtime in seconds.
    pub fn runtime(&self) -> Option<(Scalar, Option<Position>)> {
        self.first(&["pegasus.runtime"])
    }

    /// Gives a task the resources and the environment of its profiles.
    pub fn apply(
        &self,
        draft: &mut Draft,
        task: usize,
        format: Format,
    ) -> Result<(), WorkflowProblem> {
        let id = draft.id(task).to_owned();
        for (name, (value, at)) in &self.0 {
            draft.field(format, "profile", name, &id, *at);
            if let Some(variable) = name.strip_prefix("env.") {
                let environment = &mut draft.task_mut(task).environment;
                environment.insert(variable.to_owned(), value.clone());
            }
        }
        if let Some((processors, at)) = self.processors()? {
            draft.processors(task, processors, at);
        }
        let memory = [
            "pegasus.memory",
            "condor.request_memory",
            "pegasus.pmc_request_memory",
            "globus.maxmemory",
        ];
        if let Some((value, at)) = self.first(&memory) {
            draft.memory(task, with_position(mebibytes(&value), at)?, at);
        }
        if let Some((value, at)) = self.first(&["pegasus.gpus", "condor.request_gpus"]) {
            let gpus = with_position(value.count("a task's GPUs"), at)?;
            draft.task_mut(task).resources.gpus = Some(gpus);
        }
        let walltime =
            ["pegasus.maxwalltime", "pegasus.walltime", "globus.maxwalltime", "globus.maxtime"];
        if let Some((value, at)) = self.first(&walltime) {
            let minutes = with_position(value.time("walltime", "minutes"), at)?;
            draft.walltime(task, minutes * MINUTE_S, at);
        }
        if let Some((value, at)) = self.first(&["dagman.retry"]) {
            let retries = with_position(value.count("a task's retries"), at)?;
            draft.task_mut(task).retries = Some(retries);
        }
        Ok(())
    }

    fn processors(&self) -> Result<Option<(ProcessorCount, Option<Position>)>, WorkflowProblem> {
        let number = |key: &[&str]| {
            let Some((value, at)) = self.first(key) else { return Ok(None) };
            Ok(Some((with_position(value.processors(), at)?, at)))
        };
        if let Some(cores) = number(&["pegasus.cores"])? {
            return Ok(Some(cores));
        }
        if let Some((nodes, at)) = number(&["pegasus.nodes"])? {
            let ppn = number(&["pegasus.ppn"])?.map_or(ProcessorCount::exact(1), |(ppn, _)| ppn);
            let product = nodes.times(ppn).ok_or_else(|| {
                WorkflowProblem::value("no machine has this number of processors", at)
            })?;
            return Ok(Some((product, at)));
        }
        number(&["condor.request_cpus", "pegasus.pmc_request_cpus", "globus.count"])
    }
}

/// A memory in bytes, from a number of MiB or a text with a unit; none if it is less than 0.
fn mebibytes(value: &Scalar) -> Result<Option<u64>, String> {
    if let Scalar::Text(text) = value {
        let number = text.trim().trim_end_matches(['b', 'B']).trim_end_matches('i');
        let unit = number.chars().next_back().map(|unit| unit.to_ascii_uppercase());
        if let Some(unit @ ('K' | 'M' | 'G' | 'T')) = unit {
            return size(&format!("{}{unit}iB", &number[..number.len() - 1].trim_end())).map(Some);
        }
    }
    let mebibytes = value.bytes_unless_negative().map_err(|_| {
        format!("a memory must be in MiB, or with a unit as \"2 GB\", found {value}")
    })?;
    let Some(mebibytes) = mebibytes else { return Ok(None) };
    let bytes = mebibytes.checked_mul(MEBIBYTE);
    Ok(Some(bytes.ok_or_else(|| format!("no machine has a memory of {value} MiB"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_mebibytes_unless_it_has_a_unit() {
        let bytes = |text| mebibytes(&Scalar::text(text)).unwrap();
        assert_eq!(bytes("2048"), Some(2 << 30));
        assert_eq!(bytes("2 GB"), Some(2 << 30));
        assert_eq!(bytes("1.5G"), Some(3 << 29));
        assert_eq!(bytes("512M"), Some(512 << 20));
        assert_eq!((bytes("-1"), bytes("0")), (None, Some(0)));
        assert!(mebibytes(&Scalar::text("RequestMemory * 2")).is_err());
    }
}
