//! Files of users' programs: workflows, stochastic programs, traces and bodies. What is read is
//! written and read again, where a writer exists.

use std::path::Path;

use springtide_barnes_hut::bodies::Bodies;
use springtide_barnes_hut::{gadget, generate, read, write};
use springtide_runtime::fuzz::{Target, run};
use springtide_simulator::workload::swf;
use springtide_stochastic::sample::{Sampler, Sampling, Scenario};
use springtide_stochastic::smps::{Files, read_bytes};
use springtide_workflow::{Format, Overrides, Workflow};

use super::{file, target};

fn workflow(bytes: &[u8], format: Format) -> Result<(), String> {
    let lenient = Overrides { runtime_s: Some(1.0), ..Overrides::default() };
    let path = Path::new("x");
    let _ = Format::guess(path, bytes);
    let read = Workflow::parse(path, bytes, format, &lenient).map_err(|error| error.to_string())?;
    let mut place = vec![0; read.tasks.len()];
    read.order().iter().zip(1..).for_each(|(task, at)| place[*task] = at);
    for (parent, child, _) in read.edges() {
        assert!(0 < place[parent] && place[parent] < place[child]);
    }
    let written = read.to_toml();
    let again = Workflow::parse(path, written.as_bytes(), Format::Own, &Overrides::default());
    let again = again.unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert!(again.edges().eq(read.edges()));
    assert_eq!(again.files, read.files);
    assert_eq!(again.to_toml(), written);
    Ok(())
}

macro_rules! workflows {
    ($($name:ident $format:ident [$($seed:literal),*] [$($word:literal),*];)*) => {
        $(#[test]
        fn $name() {
            let read = |bytes: &[u8]| workflow(bytes, Format::$format);
            let target = target(concat!("fuzz::programs::", stringify!($name)), read);
            let seeds = [$($seed),*].map(|name| file(&format!("apps/workflow/tests/data/{name}")));
            run(Target { words: &[$($word),*], ..target }, seeds.to_vec());
        })*
    };
}

workflows! {
    wfformat WfFormat ["diamond-1.3.json", "diamond-1.4.json", "diamond-1.6.json"]
        ["{", "}", "[", "]", ":", ",", "\"", "null", "\"tasks\":[", "\"parents\":[", "\"files\":[",
         "\"runtime\":", "\"schemaVersion\":\"1.5\",", "\"id\":\"a\",", "\\ud800", "1e999"];
    dax Dax ["diamond-3.6.dax", "profiles.dax"]
        ["<", ">", "</", "/>", "<job ", "</job>", "<uses ", "<child ref=\"a\">", "\"", "<!--",
         "<parent ref=\"b\"/>", "-->", "<![CDATA[", "]]>", "&lt;", "&#x110000;", "&b;",
         "<!DOCTYPE a [<!ENTITY b \"c\">]>", "xmlns:p=\"q\" "];
    pegasus Pegasus ["diamond-pegasus.yml", "catalog.yml"]
        ["- ", ":\n  ", "&a ", "*a", "!!str ", "<<: *a\n", "|\n", ">\n", "---\n", "? ", "{", "}",
         "[", "]", "jobs:\n", "uses:\n", "jobDependencies:\n", "\t", "~", "\"", "'"];
    dot Dot ["diamond.dot", "nextflow.dot", "snakemake.dot"]
        ["digraph ", "{", "}", "->", "--", "[", "]", ";", "\"", "size=", "alpha=", "/*", "*/", "//",
         "subgraph ", "strict ", "a -> b;", "<b>", "\\\""];
    own Own ["diamond.toml"]
        ["[[task]]\n", "[[file]]\n", "name = ", "after = [", "reads = [", "writes = [", "\"", "=",
         "[", "]", "runtime_s = ", "processors = ", "{", "}", "'''"];
}

#[test]
fn runtimes() {
    let read = |bytes: &[u8]| {
        let mut overrides = Overrides::default();
        overrides.parse_table(Path::new("t.csv"), bytes).map_err(|error| error.to_string())
    };
    let target = target("fuzz::programs::runtimes", read);
    let seeds = vec![b"name,runtime_s,processors\nmAdd,1.5,4\n\"a, b\",,2\nx,3,\n".to_vec()];
    run(
        Target {
            words: &[",", "\"", "\n", "\r", "#", "name", "runtime_s", "processors"],
            ..target
        },
        seeds,
    );
}

/// Between the three files of a stochastic program in one input.
const NEXT_FILE: u8 = 0x1c;

fn smps(bytes: &[u8]) -> Result<(), String> {
    let mut files = bytes.split(|byte| *byte == NEXT_FILE);
    let contents = [(); 3].map(|()| files.next().unwrap_or_default());
    let names = Files { core: "a.cor".into(), time: "a.tim".into(), stoch: "a.sto".into() };
    let (program, _) = read_bytes(contents, &names).map_err(|error| error.to_string())?;
    let sampling = if program.scenarios().is_some_and(|all| all <= 30) {
        Sampling::All
    } else {
        Sampling::MonteCarlo
    };
    let sampler = Sampler::new(&program, sampling, 1, 3).map_err(|error| error.to_string())?;
    let mut scenario = Scenario::default();
    let mut rhs = vec![0.0; program.second.rhs.len()];
    for number in 0..3.min(program.scenarios().unwrap_or(3)) {
        sampler.scenario(number, &mut scenario);
        scenario.rhs(&program, &mut rhs);
        assert!(rhs.iter().all(|value| value.is_finite()));
    }
    Ok(())
}

#[test]
fn stochastic_programs() {
    let mut seeds = Vec::new();
    let data = "apps/stochastic/tests/data";
    for (folder, [core, time, stoch]) in [
        ("farm/farm", ["cor", "tim", "sto"]),
        ("plants/plants", ["cor", "tim", "sto"]),
        ("reservoir/reservoir", ["core", "time", "stoch"]),
        ("verdicts/maxi/maxi", ["cor", "tim", "sto"]),
        ("verdicts/base/m", ["cor", "tim", "sto"]),
        ("verdicts/no-recourse/m", ["cor", "tim", "sto"]),
        ("verdicts/rare-demand/m", ["cor", "tim", "sto"]),
    ] {
        let parts = [core, time, stoch].map(|ending| file(&format!("{data}/{folder}.{ending}")));
        seeds.push(parts.join(&NEXT_FILE));
    }
    let words = &[
        "NAME",
        "ROWS\n",
        "COLUMNS\n",
        "RHS\n",
        "BOUNDS\n",
        "RANGES\n",
        "ENDATA\n",
        "OBJSENSE\n",
        "MAX\n",
        " N ",
        " L ",
        " G ",
        " E ",
        " UP ",
        " LO ",
        " FX ",
        " FR ",
        " MI ",
        " PL ",
        " BV ",
        "TIME\n",
        "PERIODS",
        "STOCH\n",
        "INDEP",
        "BLOCKS",
        "SCENARIOS",
        " SC ",
        " BL ",
        "DISCRETE",
        "UNIFORM",
        "NORMAL",
        "'MARKER'",
        "'INTORG'",
        "ROOT",
        "'ROOT'",
        "ADD",
        "MULTIPLY",
        "REPLACE",
        " 1e30",
        " -1e300",
        "IMPLICIT",
        "EXPLICIT",
        "\t",
        "\u{1c}",
    ];
    run(
        Target { words, max_len: 12 << 10, ..target("fuzz::programs::stochastic_programs", smps) },
        seeds,
    );
}

#[test]
fn traces() {
    let read = |bytes: &[u8]| {
        let trace = swf::parse(Path::new("x.swf"), bytes).map_err(|error| error.to_string())?;
        let _ = trace.processors();
        assert!(!trace.jobs.is_empty());
        Ok(())
    };
    let text = "; Version: 2.2\n; MaxProcs: 64\n; UnixStartTime: 1\n\
                1 0 5 100 4 -1 -1 4 200 -1 1 3 1 -1 1 -1 -1 -1\n\
                2 10 -1 30.5 1 -1 -1 1 60 -1 1 3 1 -1 1 -1 1 5\n";
    let words = &[";", " ", "\t", "\n", "-1", "MaxProcs:", "MaxNodes:", "UnixStartTime:", "\r"];
    let target = target("fuzz::programs::traces", read);
    run(Target { words, ..target }, vec![text.as_bytes().to_vec()]);
}

/// Bodies that were read are whole.
fn check(bodies: &Bodies) {
    assert!(!bodies.is_empty() && bodies.second <= bodies.len());
    assert!(bodies.velocity.len() == bodies.len() && bodies.mass.len() == bodies.len());
    assert_eq!(bodies.first_not_finite(), None);
}

/// Positions, velocities and masses, bit for bit.
fn bits(bodies: &Bodies) -> Vec<u64> {
    let vectors = bodies.position.iter().chain(&bodies.velocity).flatten();
    vectors.chain(&bodies.mass).map(|value| value.to_bits()).collect()
}

#[test]
fn bodies_in_csv() {
    let read = |bytes: &[u8]| {
        let bodies = read::csv(bytes).map_err(|error| format!("{error:?}"))?;
        check(&bodies);
        let again = read::csv(&write::csv(&bodies)).unwrap();
        assert_eq!(bits(&again), bits(&bodies));
        Ok(())
    };
    let seeds =
        vec![write::csv(&generate::plummer(3, 1)), b"x,y,z,vx,vy,vz,m\n1,2,3,4,5,6,7\n".to_vec()];
    let words = &[",", "\n", "\"", "x", "vx", "m", "\r\n", "#", "\u{feff}", "e308"];
    run(Target { words, ..target("fuzz::programs::bodies_in_csv", read) }, seeds);
}

#[test]
fn bodies_in_npy() {
    let read = |bytes: &[u8]| {
        let bodies = read::npy(bytes).map_err(|error| format!("{error:?}"))?;
        check(&bodies);
        let again = read::npy(&write::npy(&bodies)).unwrap();
        assert_eq!(bits(&again), bits(&bodies));
        Ok(())
    };
    let words = &[
        "'descr': ",
        "'<f8'",
        "'<f4'",
        "'>f8'",
        "'fortran_order': True",
        "'shape': (",
        "(",
        ")",
        ",",
        "[",
        "]",
        "{",
        "}",
        "\\",
        "'x'",
        "'|O'",
        "L",
        "\u{1}\u{0}",
    ];
    let seeds = vec![write::npy(&generate::plummer(3, 1)), write::npy(&generate::plummer(40, 2))];
    run(Target { words, ..target("fuzz::programs::bodies_in_npy", read) }, seeds);
}

#[test]
fn bodies_in_gadget() {
    let read = |bytes: &[u8]| {
        let bodies = gadget::read(bytes).map_err(|error| format!("{error:?}"))?;
        check(&bodies);
        // The writer stores single precision, in which a value may be infinite.
        let is_finite = |value: &u64| (f64::from_bits(*value) as f32).is_finite();
        if !bits(&bodies).iter().all(is_finite) {
            return Ok(());
        }
        if let Ok(written) = gadget::write(&bodies, 0.0) {
            let again = gadget::read(&written).map_err(|error| format!("{error:?}")).unwrap();
            assert!(gadget::write(&again, 0.0).is_ok_and(|again| again == written));
        }
        Ok(())
    };
    let words =
        &["HEAD", "POS ", "VEL ", "ID  ", "MASS", "\u{8}\u{0}\u{0}\u{0}", "\u{0}\u{1}\u{0}\u{0}"];
    let snapshot = |bodies| gadget::write(&generate::plummer(bodies, 1), 0.0).unwrap();
    let seeds = vec![snapshot(3), snapshot(20)];
    run(Target { words, ..target("fuzz::programs::bodies_in_gadget", read) }, seeds);
}
