//! Counts the words of a text: a job that reads a file.
//!
//! New here: input that is too large to send. The root gets the path of the file from
//! [`Context::input_file`], and makes tasks that name only their parts of it. Each task reads its
//! part on its own node, from its cluster's copy. A job that is submitted with `--file NAME` starts
//! where the file is, or after a transfer.
//!
//! A part may end within a word. The task that has the beginning of a word reads on to its end, and
//! a task that starts within a word skips it. Counts are merged on the way up, so messages are only
//! as long as the number of different words.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::files::check_name;
use springtide_runtime::work::{Context, InputError, Job, Outcome, Registry, Stop, Task};

/// The job: `springtide run words --text FILE`.
#[derive(Args, Serialize, Deserialize, Clone, Debug)]
pub struct Words {
    /// The file's name in the directory of input files.
    #[arg(long, value_name = "NAME")]
    pub text: String,
    /// Maximum number of bytes that one task reads.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub grain: u64,
    /// Number of most frequent words to report.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
}

impl Job for Words {
    const NAME: &'static str = "words";
    const ABOUT: &'static str = "How often each word stands in a text: input files";

    fn register(registry: &mut Registry) {
        registry.task::<TextPart>();
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        check_name(&self.text).map_err(|error| InputError::new(format!("--text: {error}")))?;
        InputError::check("--grain", self.grain, 64..=1 << 30, "a task reads its part at once")
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let Words { text, grain, top } = self;
        let end = cx.input_file(&text)?.metadata()?.len();
        let counts = cx.call(TextPart { text: text.clone(), length: end, from: 0, end, grain })?;
        let words: u64 = counts.values().sum();
        let bytes = counts.iter().flat_map(|(word, count)| {
            word.bytes().chain(std::iter::once(0)).chain(count.to_le_bytes())
        });
        let checksum = springtide_runtime::work::checksum(bytes);
        let mut most: Vec<(&String, &u64)> = counts.iter().collect();
        most.sort_by_key(|(word, count)| (std::cmp::Reverse(**count), *word));
        most.truncate(top);
        let result = serde_json::json!({
            "text": text, "bytes": end, "words": words, "different": counts.len(), "most": most,
        });
        Ok(Outcome { checksum, result })
    }
}

/// The task: the words that start in a part of the file.
#[derive(Serialize, Deserialize)]
struct TextPart {
    text: String,
    /// The length of the whole file on the root's node.
    length: u64,
    from: u64,
    end: u64,
    grain: u64,
}

impl Task for TextPart {
    type Output = BTreeMap<String, u64>;
    const NAME: &'static str = "words.part";

    fn run(self, cx: &Context) -> Result<Self::Output, Stop> {
        let TextPart { text, length, from, end, grain } = self;
        if end - from <= grain {
            let path = cx.input_file(&text)?;
            check_length(&path, length)?;
            return Ok(count(&path, from, end)?);
        }
        let middle = from + (end - from) / 2;
        let (mut left, right) = cx.join(
            TextPart { text: text.clone(), length, from, end: middle, grain },
            TextPart { text, length, from: middle, end, grain },
        )?;
        for (word, count) in right {
            *left.entry(word).or_default() += count;
        }
        Ok(left)
    }
}

/// Refuses another file of the same name in another cluster: words would be missed or counted
/// wrongly.
fn check_length(path: &Path, length: u64) -> Result<(), Stop> {
    let here = path.metadata()?.len();
    if here == length {
        return Ok(());
    }
    let path = path.display();
    Err(Stop::fail(format_args!(
        "{path} has {here} bytes, and {length} where the job's root runs: put the same file into \
         each cluster's directory"
    )))
}

/// Whether a byte belongs to a word: letters, digits, and all that is not ASCII, so no character is
/// cut.
fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// Counts the words that start from `from` on and before `end`, in lower case.
fn count(path: &Path, from: u64, end: u64) -> std::io::Result<BTreeMap<String, u64>> {
    let mut file = File::open(path)?;
    // One byte more in front shows whether a word continues here.
    let first = from.saturating_sub(1);
    file.seek(SeekFrom::Start(first))?;
    let mut bytes = Vec::new();
    file.by_ref().take(end - first).read_to_end(&mut bytes)?;
    if bytes.last().is_some_and(|last| in_word(*last)) {
        let mut rest = BufReader::new(file);
        loop {
            let ahead = rest.fill_buf()?;
            let more = ahead.iter().take_while(|byte| in_word(**byte)).count();
            bytes.extend_from_slice(&ahead[..more]);
            let ended = more < ahead.len() || ahead.is_empty();
            rest.consume(more);
            if ended {
                break;
            }
        }
    }
    let skip = match from {
        0 => 0,
        _ => bytes.iter().take_while(|byte| in_word(**byte)).count(),
    };
    // A word that starts before and ends after this part is not counted, nor is one that starts at
    // its end.
    let length = usize::try_from(end - first).unwrap_or(usize::MAX);
    let mut counts = BTreeMap::new();
    if skip >= length {
        return Ok(counts);
    }
    for word in bytes[skip..].split(|byte| !in_word(*byte)).filter(|word| !word.is_empty()) {
        let word = String::from_utf8_lossy(word).to_lowercase();
        *counts.entry(word).or_default() += 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_length_have_all_words_once() {
        let temp = std::env::temp_dir().join(format!("springtide-words-{}", std::process::id()));
        let text = "One two, two; Strasse straße x \n\n a-b STRASSE 3.14 verylongwordindeed end";
        std::fs::write(&temp, text).unwrap();
        let length = text.len() as u64;
        let whole = count(&temp, 0, length).unwrap();
        assert_eq!((whole["two"], whole["strasse"], whole["14"], whole["end"]), (2, 2, 1, 1));
        assert_eq!(whole.values().sum::<u64>(), 13);
        for step in 1..=length {
            let mut all = BTreeMap::<String, u64>::new();
            for from in (0..length).step_by(step as usize) {
                for (word, n) in count(&temp, from, length.min(from + step)).unwrap() {
                    *all.entry(word).or_default() += n;
                }
            }
            assert_eq!(all, whole, "in steps of {step}");
        }
        std::fs::remove_file(&temp).unwrap();
    }

    #[test]
    fn a_copy_of_another_length_is_refused_with_its_path() {
        let temp = std::env::temp_dir().join(format!("springtide-copy-{}", std::process::id()));
        std::fs::write(&temp, "one two").unwrap();
        assert!(check_length(&temp, 7).is_ok());
        let message = format!("{:?}", check_length(&temp, 9).unwrap_err());
        let (path, lengths) = (temp.display().to_string(), "has 7 bytes, and 9 where");
        assert!(message.contains(&path) && message.contains(lengths), "{message}");
        std::fs::remove_file(&temp).unwrap();
    }
}
