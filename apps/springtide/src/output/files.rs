//! Texts about input files.

use serde_json::json;
use springtide_actors::files::catalogue::FileStatus;
use springtide_cli::format::{SCHEMA, size};

use springtide_operations::inputs::places;

/// Files as the object of `--json`.
pub fn list_object(files: &[FileStatus]) -> String {
    let one = |file: &FileStatus| {
        let clusters = file.clusters.iter().map(|(cluster, entry)| {
            (cluster.to_string(), json!({ "bytes": entry.bytes, "sha256": entry.sum }))
        });
        let clusters: serde_json::Map<_, _> = clusters.collect();
        json!({ "name": file.name, "clusters": clusters, "differs": file.differs() })
    };
    let files: Vec<_> = files.iter().map(one).collect();
    format!("{}\n", json!({ "schema": SCHEMA, "files": files }))
}

/// Files as a table.
pub fn list_text(files: &[FileStatus]) -> String {
    if files.is_empty() {
        return "no files\n".to_owned();
    }
    let rows: Vec<[String; 3]> = files
        .iter()
        .map(|file| match file.differs() {
            Some(differs) => [file.name.clone(), "differs".to_owned(), differs],
            None => {
                let bytes = file.entry().map_or(0, |entry| entry.bytes);
                [file.name.clone(), size(bytes), places(file)]
            }
        })
        .collect();
    let heads = ["FILE", "LENGTH", "CLUSTERS"].map(str::to_owned);
    let all = || std::iter::once(&heads).chain(&rows);
    let width = |i: usize| all().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let (name, length) = (width(0), width(1));
    all().map(|row| format!("{:name$}  {:>length$}  {}\n", row[0], row[1], row[2])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use springtide_actors::files::FileEntry;

    fn file(name: &str, clusters: &[(&str, u64)]) -> FileStatus {
        let one = |&(cluster, bytes): &(&str, u64)| {
            let sum = format!("{bytes:064}");
            (cluster.into(), FileEntry { name: name.to_owned(), bytes, sum })
        };
        FileStatus { name: name.to_owned(), clusters: clusters.iter().map(one).collect() }
    }

    #[test]
    fn files_are_listed_with_their_places() {
        let files = [
            file("bodies.csv", &[("ams", 1500), ("del", 1500)]),
            file("text", &[("ams", 7), ("del", 8)]),
        ];
        let expected = "\
FILE         LENGTH  CLUSTERS
bodies.csv  1.50 kB  ams, del
text        differs  ams has 7 bytes (000000000000), del has 8 bytes (000000000000); \
            remove the wrong ones, or give them other names
";
        assert_eq!(list_text(&files), expected, "{}", list_text(&files));
        assert_eq!(list_text(&[]), "no files\n");
        let object: serde_json::Value = serde_json::from_str(&list_object(&files)).unwrap();
        assert_eq!(object["files"][0]["clusters"]["del"]["bytes"], 1500);
    }
}
