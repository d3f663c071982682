//! Workflow languages that are not read, with what to do instead.

use std::path::Path;

use crate::format::{BOM, START};

/// A language of workflows that is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignFormat {
    /// The name of the language.
    pub name: &'static str,
    /// What to do instead.
    pub remedy: &'static str,
    /// The endings of names of files, in lower case.
    endings: &'static [&'static str],
    /// The names of files, in lower case.
    names: &'static [&'static str],
    /// Texts of which all are in a file: keys of JSON anywhere, and others at the start of a line.
    /// A text that begins with a space may be indented.
    marks: &'static [&'static [&'static str]],
}

/// The remedy where a language has no export.
const BY_HAND: &str = "describe its tasks in workflow TOML, or export a graph of them as DOT";

/// The remedy for programs that are workflows.
const PROGRAM: &str = "export the graph of its tasks as DOT, or write WfFormat from it";

const fn foreign(name: &'static str, remedy: &'static str) -> ForeignFormat {
    ForeignFormat { name, remedy, endings: &[], names: &[], marks: &[] }
}

/// All of them. The first that fits counts.
const FOREIGN: &[ForeignFormat] = &[
    ForeignFormat {
        endings: &["cwl"],
        marks: &[&["cwlVersion:"], &["\"cwlVersion\":"]],
        ..foreign("CWL", "export its graph with `cwltool --print-dot FILE > flow.dot`")
    },
    ForeignFormat {
        endings: &["wdl"],
        marks: &[&["version 1", "workflow "], &["version draft", "workflow "]],
        ..foreign("WDL", "export its graph with `womtool graph FILE > flow.dot`")
    },
    ForeignFormat {
        endings: &["smk", "snakefile"],
        names: &["snakefile"],
        marks: &[&["rule ", " input:"], &["rule ", " output:"]],
        ..foreign("a Snakefile", "export its graph with `snakemake --dag > flow.dot`")
    },
    ForeignFormat {
        endings: &["nf"],
        marks: &[&["#!/usr/bin/env nextflow"], &["nextflow.enable.dsl"]],
        ..foreign(
            "a Nextflow script",
            "run it once with `nextflow run FILE -with-dag flow.dot -with-trace trace.txt`, read \
             flow.dot, and give the trace to --overrides",
        )
    },
    ForeignFormat {
        endings: &["ga"],
        marks: &[&["\"a_galaxy_workflow\":"], &["class: GalaxyWorkflow"]],
        ..foreign("a Galaxy workflow", BY_HAND)
    },
    ForeignFormat {
        marks: &[&["from airflow"], &["import airflow"]],
        ..foreign(
            "an Airflow program",
            "export its graph with `airflow dags show DAG_ID --save flow.dot`",
        )
    },
    ForeignFormat {
        marks: &[&["from prefect"], &["import prefect"]],
        ..foreign("a Prefect program", PROGRAM)
    },
    ForeignFormat {
        marks: &[&["from Pegasus"], &["import Pegasus"]],
        ..foreign("a Pegasus program", "run it, and read the workflow.yml that it writes")
    },
    ForeignFormat { endings: &["py"], ..foreign("a Python program", PROGRAM) },
    ForeignFormat { endings: &["r", "rmd"], ..foreign("an R program", PROGRAM) },
    ForeignFormat {
        marks: &[&["apiVersion: argoproj.io", "kind: "]],
        ..foreign("an Argo workflow", BY_HAND)
    },
    ForeignFormat {
        marks: &[&["apiVersion: tekton.dev", "kind: "]],
        ..foreign("a Tekton pipeline", BY_HAND)
    },
    ForeignFormat {
        marks: &[&["pipelineInfo:", "deploymentSpec:"]],
        ..foreign("a Kubeflow pipeline", BY_HAND)
    },
    ForeignFormat {
        marks: &[&["on:", "jobs:", " runs-on:"]],
        ..foreign("a workflow of GitHub Actions", BY_HAND)
    },
    ForeignFormat {
        marks: &[&["\"StartAt\":", "\"States\":"]],
        ..foreign("a state machine of AWS Step Functions", BY_HAND)
    },
    ForeignFormat {
        endings: &["mk", "mak"],
        names: &["makefile", "gnumakefile"],
        ..foreign("a Makefile", "export its graph with `make -Bnd | make2graph > flow.dot`")
    },
    ForeignFormat {
        endings: &["makeflow", "mf"],
        names: &["makeflow"],
        ..foreign("a Makeflow", "export its graph with `makeflow_viz -D dot FILE > flow.dot`")
    },
    ForeignFormat {
        endings: &["ninja"],
        ..foreign("a Ninja file", "export its graph with `ninja -t graph > flow.dot`")
    },
    ForeignFormat {
        endings: &["dag"],
        marks: &[&["JOB ", "PARENT "], &["Job ", "Parent "], &["SUBDAG EXTERNAL"]],
        ..foreign(
            "a DAG of HTCondor",
            "read the workflow.yml or DAX that it was planned from, or describe its tasks in \
             workflow TOML",
        )
    },
    ForeignFormat {
        endings: &["mmd", "mermaid"],
        marks: &[&["flowchart TB"], &["flowchart TD"], &["graph TD"], &["graph LR"]],
        ..foreign("a Mermaid diagram", "export it as DOT; Nextflow does for a name flow.dot")
    },
    ForeignFormat {
        endings: &["graphml"],
        marks: &[&[" <graphml"]],
        ..foreign("GraphML", "convert it with `graphml2gv FILE > flow.dot`")
    },
    ForeignFormat {
        endings: &["gml"],
        ..foreign("GML", "convert it with `gml2gv FILE > flow.dot`")
    },
    ForeignFormat {
        endings: &["t2flow", "scufl", "scufl2", "wfbundle"],
        ..foreign("a Taverna workflow", BY_HAND)
    },
    ForeignFormat { endings: &["knwf"], ..foreign("a KNIME workflow", BY_HAND) },
    ForeignFormat {
        endings: &["bpmn"],
        marks: &[&[" <bpmn:definitions"], &[" <definitions"]],
        ..foreign("BPMN", BY_HAND)
    },
    ForeignFormat {
        endings: &["html", "htm"],
        marks: &[&["<!DOCTYPE html"], &["<!doctype html"], &["<html"]],
        ..foreign("HTML", "export the graph as DOT; Nextflow does for a name flow.dot")
    },
    ForeignFormat {
        marks: &[&["transformations:"], &["replicas:"], &["sites:", "- name:"]],
        ..foreign(
            "a catalog of Pegasus",
            "read the workflow.yml, which may have the transformationCatalog in it",
        )
    },
];

impl ForeignFormat {
    /// The language of a file, by its name or its content; none if it is not known.
    pub(crate) fn guess(file: &Path, text: &[u8]) -> Option<&'static Self> {
        let text = text.strip_prefix(&BOM).unwrap_or(text);
        let start = String::from_utf8_lossy(text.get(..START).unwrap_or(text));
        let lower = |part: Option<&std::ffi::OsStr>| {
            part.map(|part| part.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
        };
        let (ending, name) = (lower(file.extension()), lower(file.file_name()));
        let has = |mark: &&str| {
            start.lines().any(|line| match mark.strip_prefix(' ') {
                Some(mark) => line.trim_start().starts_with(mark),
                None if mark.starts_with('"') => line.contains(mark),
                None => line.starts_with(mark),
            })
        };
        let fits = |foreign: &&Self| {
            foreign.endings.contains(&ending.as_str())
                || foreign.names.contains(&name.as_str())
                || foreign.marks.iter().any(|marks| marks.iter().all(has))
        };
        FOREIGN.iter().find(fits)
    }

    /// All languages that are refused by name.
    pub fn all() -> &'static [Self] {
        FOREIGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_recognised_by_name_or_content() {
        for (file, text, name) in [
            ("a.cwl", "", "CWL"),
            ("a.yml", "#!/usr/bin/env cwl-runner\ncwlVersion: v1.2\n", "CWL"),
            ("a.json", "{\"cwlVersion\": \"v1.0\"}", "CWL"),
            ("a", "version 1.0\nworkflow x {\n}", "WDL"),
            ("Snakefile", "", "a Snakefile"),
            ("rules", "rule all:\n    input: 'a'", "a Snakefile"),
            ("main.nf", "", "a Nextflow script"),
            ("x.ga", "{}", "a Galaxy workflow"),
            ("dag.py", "import os\nfrom airflow import DAG\n", "an Airflow program"),
            ("flow.py", "from prefect import flow\n", "a Prefect program"),
            ("x.py", "", "a Python program"),
            ("a.yaml", "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\n", "an Argo workflow"),
            ("ci.yml", "on: push\njobs:\n  a:\n    runs-on: x", "a workflow of GitHub Actions"),
            ("Makefile", "", "a Makefile"),
            ("x.dag", "", "a DAG of HTCondor"),
            ("a.xml", "<?xml version='1.0'?>\n<graphml xmlns='x'>", "GraphML"),
            ("tc.yml", "pegasus: '5.0'\ntransformations:\n", "a catalog of Pegasus"),
        ] {
            let found = ForeignFormat::guess(Path::new(file), text.as_bytes());
            assert_eq!(found.map(|foreign| foreign.name), Some(name), "{file} {text}");
        }
        for (file, text) in [
            ("a.txt", "to be done"),
            ("w.yml", "pegasus: '5.0'\ntransformationCatalog:\n  transformations:\njobs: 7"),
        ] {
            assert_eq!(ForeignFormat::guess(Path::new(file), text.as_bytes()), None, "{file}");
        }
    }
}
