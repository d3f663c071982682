//! No input makes a reader panic or loop: damaged documents of every format, and arbitrary bytes.

mod samples;

use std::path::Path;

use proptest::prelude::*;
use samples::{RICH, SAMPLES};
use springtide_workflow::{Format, Overrides, Task, Workflow};

/// Damage of a document, at a place of it from 0 to 1.
#[derive(Clone, Debug)]
enum Damage {
    Flip(f64, u8),
    Cut(f64, f64),
    Insert(f64, Vec<u8>),
    Twice(f64, f64, f64),
}

impl Damage {
    fn apply(&self, text: &mut Vec<u8>) {
        let at = |place: &f64| ((text.len() as f64 * place) as usize).min(text.len());
        match self {
            Self::Flip(place, bits) => {
                let at = at(place);
                if let Some(byte) = text.get_mut(at) {
                    *byte ^= bits;
                }
            }
            Self::Cut(from, to) => {
                let (from, to) = (at(from), at(to));
                text.drain(from.min(to)..from.max(to));
            }
            Self::Insert(place, bytes) => {
                let at = at(place);
                text.splice(at..at, bytes.iter().copied());
            }
            Self::Twice(from, to, place) => {
                let (from, to, at) = (at(from), at(to), at(place));
                let piece = text[from.min(to)..from.max(to)].to_vec();
                text.splice(at..at, piece);
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    // Bytes with a meaning in some format.
    let signs = prop::sample::select(br#"{}[]<>"'=:;,&*!|-#/\.+0123456789e\n \t"#.to_vec());
    let bytes = prop::collection::vec(prop_oneof![4 => signs, 1 => any::<u8>()], 0..12);
    let place = || 0.0..1.0;
    // A short piece leaves more of the rest valid than one of any length.
    let piece = || {
        (place(), 0.0..0.1).prop_map(|(from, length): (f64, f64)| (from, (from + length).min(1.0)))
    };
    prop_oneof![
        (place(), 1_u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        piece().prop_map(|(from, to)| Damage::Cut(from, to)),
        (place(), bytes).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (piece(), place()).prop_map(|((from, to), at)| Damage::Twice(from, to, at)),
    ]
}

/// Reads a text, and checks that the result is a workflow.
fn try_reading(name: &str, text: &[u8], format: Format) -> Result<bool, TestCaseError> {
    let lenient = Overrides { runtime_s: Some(1.0), ..Overrides::default() };
    let file = Path::new(name);
    match Workflow::parse(file, text, format, &lenient) {
        Err(error) => {
            let message = error.to_string();
            prop_assert!(message.starts_with(name) && message.len() < 10_000, "{message}");
            if let Some(at) = error.place.at {
                let lines = text.iter().filter(|byte| **byte == b'\n').count() as u32 + 2;
                prop_assert!((1..=lines).contains(&at.line) && at.column > 0, "{message}");
            }
            Ok(false)
        }
        Ok(workflow) => {
            let mut place = vec![0; workflow.tasks.len()];
            workflow.order().iter().zip(1..).for_each(|(task, at)| place[*task] = at);
            for (parent, child, _) in workflow.edges() {
                prop_assert!(0 < place[parent] && place[parent] < place[child]);
            }
            for task in &workflow.tasks {
                prop_assert!(
                    task.runtime_s.is_some_and(|runtime| runtime > 0.0 && runtime.is_finite())
                );
                prop_assert!(task.processors != Some(0));
            }
            for task in &workflow.tasks {
                let (resources, redirects) = (task.resources, task.redirects);
                prop_assert!(resources.memory_bytes != Some(0));
                prop_assert!(resources.walltime_s.is_none_or(|walltime| walltime > 0.0));
                prop_assert!(redirects.stdin.is_none_or(|file| task.inputs.contains(&file)));
                for file in [redirects.stdout, redirects.stderr].into_iter().flatten() {
                    prop_assert!(task.outputs.contains(&file));
                }
            }
            // A workflow that was read can be written and read again.
            let written = workflow.to_toml();
            let again =
                Workflow::parse(file, written.as_bytes(), Format::Own, &Overrides::default());
            let again =
                again.map_err(|error| TestCaseError::fail(format!("{error}\n{written}")))?;
            prop_assert!(again.edges().eq(workflow.edges()));
            prop_assert_eq!(&again.files, &workflow.files);
            let bare = |task: &Task| Task { at: None, ..task.clone() };
            for (before, after) in workflow.tasks.iter().zip(&again.tasks) {
                prop_assert_eq!(bare(before), bare(after));
            }
            Ok(true)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_documents_are_read_or_refused(
        sample in prop::sample::select([&SAMPLES[..], &RICH].concat()),
        damage in prop::collection::vec(damage(), 1..6),
    ) {
        let (name, format, text) = sample;
        let mut text = text.as_bytes().to_vec();
        damage.iter().for_each(|damage| damage.apply(&mut text));
        try_reading(name, &text, format)?;
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(
        format in prop::sample::select(Format::ALL.to_vec()),
        text in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        try_reading("bytes", &text, format)?;
        let _ = Format::guess(Path::new("bytes"), &text);
    }

    #[test]
    fn damaged_traces_are_read_or_refused(damage in prop::collection::vec(damage(), 0..6)) {
        let mut text = b"task_id\tname\tstatus\trealtime\tcpus\tpeak_rss\n\
            1\tA (x)\tCOMPLETED\t1m 30s\t2\t3.5 MB\n2\tB\tCACHED\t5\t1\t-\n".to_vec();
        damage.iter().for_each(|damage| damage.apply(&mut text));
        let mut overrides = Overrides::default();
        let read = overrides.parse_table(Path::new("t.txt"), &text);
        prop_assert!(
            read.is_ok() || read.is_err_and(|error| error.to_string().starts_with("t.txt"))
        );
    }

    #[test]
    fn damaged_tables_are_read_or_refused(damage in prop::collection::vec(damage(), 0..6)) {
        let mut text = b"name,runtime_s,processors,memory_mb,gpus,walltime_s\nmAdd,1.5,4,,1,\n\
            \"a, b\",,2,3.5,,60\nx,3,,,,\n".to_vec();
        damage.iter().for_each(|damage| damage.apply(&mut text));
        let mut overrides = Overrides::default();
        let read = overrides.parse_table(Path::new("t.csv"), &text);
        prop_assert!(
            read.is_ok() || read.is_err_and(|error| error.to_string().starts_with("t.csv"))
        );
    }
}

/// A document without each single byte, and with each replaced by one with a meaning.
#[test]
fn every_place_of_a_document_can_be_damaged() {
    for (name, format, text) in SAMPLES.into_iter().chain(RICH) {
        let mut read = 0;
        for at in 0..text.len() {
            let mut without = text.as_bytes().to_vec();
            without.remove(at);
            read += usize::from(try_reading(name, &without, format).unwrap());
            for byte in *b"\"<{\n9" {
                let mut other = text.as_bytes().to_vec();
                other[at] = byte;
                read += usize::from(try_reading(name, &other, format).unwrap());
            }
            try_reading(name, &text.as_bytes()[..at], format).unwrap();
        }
        assert!(read > 0, "{name}: nothing but refusals says little");
    }
}
