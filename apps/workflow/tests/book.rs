//! The pages of the book about formats have the tables of the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use springtide_workflow::{ForeignFormat, Format, FormatField, fields};

/// The page with the table of languages.
const LANGUAGES_PAGE: &str = "workflow-formats.md";

/// The page with the table of a format's fields.
fn fields_page(format: Format) -> &'static str {
    match format {
        Format::WfFormat | Format::Own => "workflow-formats.md",
        Format::Dax | Format::Pegasus => "workflow-pegasus.md",
        Format::Dot => "workflow-graphs.md",
    }
}

/// The tables of fields of a page, in Markdown. Fields with one meaning are in one row.
fn tables(page: &str) -> String {
    let mut text = String::new();
    for format in Format::ALL.into_iter().filter(|&format| fields_page(format) == page) {
        text.push_str(&format!("### {format}\n\n| field | use | meaning |\n| --- | --- | --- |\n"));
        let mut rows: Vec<(FormatField, Vec<String>)> = Vec::new();
        for field in fields().filter(|field| field.format == format) {
            let path = format!("`{}`", field.path());
            match rows.last_mut() {
                Some((first, paths))
                    if (first.usage, first.meaning) == (field.usage, field.meaning) =>
                {
                    paths.push(path);
                }
                _ => rows.push((field, vec![path])),
            }
        }
        for (field, paths) in rows {
            let (usage, meaning) = (field.usage.word(), field.meaning);
            text.push_str(&format!("| {} | {usage} | {meaning} |\n", paths.join(", ")));
        }
        text.push('\n');
    }
    text
}

/// The table of languages that are refused, in Markdown.
fn languages() -> String {
    let mut text = "| language | instead |\n| --- | --- |\n".to_owned();
    for ForeignFormat { name, remedy, .. } in ForeignFormat::all() {
        let remedy = remedy.replace('|', "\\|");
        text.push_str(&format!("| {name} | {remedy} |\n"));
    }
    text
}

/// Replaces what is between the marks of a section.
fn replace(page: &str, section: &str, text: &str) -> String {
    let (start, end) = (format!("<!-- {section} -->\n"), format!("<!-- end of {section} -->"));
    let (before, rest) = page.split_once(&start).expect("the start of the section");
    let (_, after) = rest.split_once(&end).expect("the end of the section");
    format!("{before}{start}\n{}\n\n{end}{after}", text.trim_end())
}

#[test]
fn pages_of_formats_have_the_tables_of_the_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../springtide/book/src/launch");
    let names: BTreeSet<&str> = Format::ALL.into_iter().map(fields_page).collect();
    let advice = "write it: SPRINGTIDE_WRITE_BOOK=1 cargo test -p springtide-workflow --test book";
    for name in names {
        let page = folder.join(name);
        let found = fs::read_to_string(&page).unwrap();
        let mut expected = replace(&found, "fields", &tables(name));
        if name == LANGUAGES_PAGE {
            expected = replace(&expected, "languages", &languages());
        }
        if std::env::var_os("SPRINGTIDE_WRITE_BOOK").is_some() {
            fs::write(&page, &expected).unwrap();
        } else {
            assert!(found == expected, "{} differs from the code; {advice}", page.display());
        }
    }
}
