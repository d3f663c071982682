//! `workflow formats`: the fields of each format and their use, and the languages that are refused.

use clap::Args;
use serde_json::{Value, json};
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::print::print;
use springtide_workflow::{FieldUsage, ForeignFormat, Format, FormatField, fields};

/// Options of `workflow formats`.
#[derive(Args, Clone, Debug)]
pub struct FormatsArgs {
    /// Format to show: wfformat, dax, pegasus, dot or toml [default: all]
    #[arg(value_name = "FORMAT", value_parser = str::parse::<Format>)]
    format: Option<Format>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the tables.
///
/// # Errors
/// The output cannot be written.
pub fn formats(args: &FormatsArgs) -> Result<(), Failed> {
    let shown: Vec<Format> = Format::ALL
        .into_iter()
        .filter(|format| args.format.is_none_or(|one| one == *format))
        .collect();
    if args.json {
        let object = json!({
            "schema": SCHEMA,
            "formats": shown.iter().map(|format| object(*format)).collect::<Vec<_>>(),
            "refused": ForeignFormat::all().iter().map(refused).collect::<Vec<_>>(),
        });
        return print(&format!("{object}\n"));
    }
    let mut text = String::new();
    for format in shown {
        text.push_str(&format!("{format} ({})\n", format.word()));
        let width = fields_of(format).map(|field| field.path().len()).max().unwrap_or(0);
        for field in fields_of(format) {
            let (usage, path) = (field.usage.word(), field.path());
            text.push_str(&format!("  {usage:12}{path:width$}  {}\n", field.meaning));
        }
    }
    if args.format.is_none() {
        text.push_str("refused by name\n");
        for foreign in ForeignFormat::all() {
            text.push_str(&format!("  {}: {}\n", foreign.name, foreign.remedy));
        }
    }
    print(&text)
}

fn fields_of(format: Format) -> impl Iterator<Item = FormatField> {
    fields().filter(move |field| field.format == format)
}

fn object(format: Format) -> Value {
    let field = |field: FormatField| {
        json!({
            "field": field.path(),
            "use": field.usage.word(),
            "warns": field.usage == FieldUsage::Noted,
            "meaning": field.meaning,
        })
    };
    json!({
        "format": format.word(),
        "name": format.to_string(),
        "fields": fields_of(format).map(field).collect::<Vec<_>>(),
    })
}

fn refused(foreign: &ForeignFormat) -> Value {
    json!({ "name": foreign.name, "remedy": foreign.remedy })
}
