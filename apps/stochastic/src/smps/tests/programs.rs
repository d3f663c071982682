//! Whole programs, their names and their files.

use super::*;
use crate::fixtures;

#[test]
fn a_program_is_read() {
    let inf = f64::INFINITY;
    let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let expected = TwoStage {
        name: "SMALL".to_owned(),
        maximise: false,
        offset: 0.0,
        first: Stage {
            columns: text(&["X1", "X2"]),
            cost: vec![1.0, 2.0],
            lower: vec![0.0; 2],
            upper: vec![inf; 2],
            rows: text(&["A"]),
            rhs: vec![10.0],
            below: vec![inf],
            above: vec![0.0],
            matrix: Columns::of(1, 2, [(0, 0, 1.0), (0, 1, 1.0)]),
        },
        second: Stage {
            columns: text(&["Y1", "Y2"]),
            cost: vec![3.0, 4.0],
            lower: vec![0.0; 2],
            upper: vec![inf; 2],
            rows: text(&["R1", "R2"]),
            rhs: vec![4.0, 5.0],
            below: vec![0.0, 0.0],
            above: vec![inf, 0.0],
            matrix: Columns::of(2, 2, [(0, 0, 1.0), (1, 1, 1.0)]),
        },
        technology: Columns::of(2, 2, [(0, 0, 2.0), (1, 1, -1.0)]),
        random: vec![block(&[RandomElement::Rhs(0)], &[(0.5, &[4.0]), (0.5, &[6.0])])],
    };
    assert_eq!(read_clean(CORE, TIME, STOCH), expected);
    // The same with tabs, carriage returns, comments, a mark of byte order and lower-case sections.
    let odd = |text: &str| {
        let text = text
            .replace("    ", "\t")
            .replace("DISCRETE", "discrete")
            .replace("PERIODS", "periods");
        format!("\u{feff}* comment\n\n{}", text.replace('\n', "\r\n*\r\n  \r\n"))
    };
    assert_eq!(read_clean(&odd(CORE), &odd(TIME), &odd(STOCH)), expected);
    // A column that comes again.
    let moved = replace(CORE, "    X1        R1                 2.0\n", "");
    let moved = replace(&moved, "RHS\n", " X1 R1 2.0\nRHS\n");
    assert_eq!(read_clean(&moved, TIME, STOCH), expected);
}

#[test]
fn fixtures_are_read() {
    let plants = fixtures::plants();
    let dims = |program: &TwoStage| {
        let stage = |stage: &Stage| (stage.rows.len(), stage.columns.len(), stage.matrix.entries());
        (stage(&program.first), stage(&program.second), program.technology.entries())
    };
    assert_eq!(dims(&plants), ((2, 3, 6), (6, 9, 18), 3));
    assert_eq!(plants.scenarios(), Some(27));
    assert_eq!(plants.first.upper, [f64::INFINITY, f64::INFINITY, 6.0]);
    let farm = fixtures::farm();
    assert_eq!(dims(&farm), ((1, 3, 3), (3, 6, 6), 3));
    assert_eq!(farm.first.columns[0], "F OATS");
    let yields = [
        RandomElement::Technology(0, 0),
        RandomElement::Technology(1, 1),
        RandomElement::Technology(2, 2),
    ];
    let weather: &[(f64, &[f64])] =
        &[(0.5, &[2.2, 3.2, -1.8]), (0.3, &[1.7, 2.3, -1.2]), (0.2, &[2.2, 3.9, -1.8])];
    let cattle: &[(f64, &[f64])] = &[(0.75, &[110.0, 180.0]), (0.25, &[110.0, 230.0])];
    assert_eq!(
        farm.random,
        [block(&yields, weather), block(&[RandomElement::Rhs(0), RandomElement::Rhs(1)], cattle)]
    );
    let reservoir = fixtures::reservoir();
    assert_eq!(dims(&reservoir), ((1, 2, 2), (3, 3, 5), 1));
    assert_eq!(reservoir.second.below, [0.0, 0.0, 60.0]);
    let places = [RandomElement::Rhs(0), RandomElement::Rhs(1), RandomElement::Technology(0, 1)];
    let scenarios: &[(f64, &[f64])] = &[
        (0.5, &[20.0, 45.0, -0.95]),
        (0.2, &[35.0, 45.0, -0.98]),
        (0.2, &[8.0, 45.0, -0.85]),
        (0.1, &[8.0, 60.0, -0.85]),
    ];
    assert_eq!(reservoir.random, [block(&places, scenarios)]);
}

#[test]
fn names_may_have_blanks_in_fixed_form() {
    let names = |text: &str| {
        text.replace("R1  ", "R 1 ").replace("X1  ", "X 1 ").replace(" G  R1", " G  R 1")
    };
    let program = read_clean(&names(CORE), &names(TIME), &names(STOCH));
    let plain = read_clean(CORE, TIME, STOCH);
    assert_eq!((&*program.first.columns[0], &*program.second.rows[0]), ("X 1", "R 1"));
    assert_eq!((program.random, program.technology), (plain.random, plain.technology));
}

#[test]
fn names_of_programs_are_optional_and_compared() {
    let unnamed = replace(CORE, "NAME          SMALL", "NAME");
    assert_eq!(read_clean(&unnamed, TIME, STOCH).name, "");
    assert_eq!(
        read_clean(CORE, &replace(TIME, "TIME          SMALL", "TIME  "), STOCH).name,
        "SMALL"
    );
    read_clean(
        &replace(CORE, "SMALL", "small program"),
        TIME.replace("SMALL", "SMALL PRO").as_str(),
        &replace(STOCH, "SMALL", ""),
    );
    let (_, notes) = read_with_notes(CORE, &replace(TIME, "SMALL", "LARGE"), STOCH);
    assert_eq!(
        notes,
        ["small.tim: has the name \"LARGE\", but the core file has the name \"SMALL\""]
    );
    let spaced = replace(CORE, "NAME          SMALL", "NAME          a small one");
    assert_eq!(
        read_clean(&spaced, &replace(TIME, "SMALL", ""), &replace(STOCH, "SMALL", "")).name,
        "a small one"
    );
}

#[test]
fn notes_of_a_file_are_limited() {
    let rows: String = (0..1000).map(|at| format!(" N N{at}\n")).collect();
    let (_, notes) = read_with_notes(&replace(CORE, " L  A", &format!("{rows} L  A")), TIME, STOCH);
    assert_eq!(notes.len(), 51);
    assert_eq!(notes[50], "small.cor: 950 more notes");
}

#[test]
fn files_are_found_by_directory_common_path_and_separately() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let says = |path: &Path| Files::find(path).unwrap_err().to_string();
    for (name, text) in [("a.b.COR", CORE), ("a.b.tim", TIME), ("notes.txt", "")] {
        std::fs::write(at(name), text).unwrap();
    }
    let error = says(dir.path());
    assert!(
        error.contains(
            ": no stochastic file is here: name a directory that has one (ending in .sto or .stoch)"
        ),
        "{error}"
    );
    std::fs::write(at("a.b.Stoch"), STOCH).unwrap();
    let files = Files { core: at("a.b.COR"), time: at("a.b.tim"), stoch: at("a.b.Stoch") };
    for path in [dir.path(), &at("a.b"), &at("a.b.tim")] {
        assert_eq!(Files::find(path).unwrap(), files);
    }
    assert_eq!(read(&files).unwrap().0, read_clean(CORE, TIME, STOCH));
    std::fs::write(at("c.mps"), CORE).unwrap();
    let error = says(dir.path());
    assert!(
        error.ends_with(
            "both \"a.b.COR\" and \"c.mps\" are here, each a core file: name the \
    common path of one program's files without an ending, or each file by itself"
        ),
        "{error}"
    );
    assert_eq!(Files::find(&at("a.b")).unwrap(), files);
    assert!(says(&at("c")).contains("c: no time file is here"));
    assert!(says(&at("none/here")).contains("here: cannot be read: "));

    // Separate names with any ending.
    std::fs::write(at("time"), TIME).unwrap();
    let separate = Files::new(at("c.mps"), at("time"), at("a.b.Stoch"));
    assert_eq!(read(&separate).unwrap().0, read_clean(CORE, TIME, STOCH));
    std::fs::File::create(at("a.b.tim")).unwrap().set_len(TEXT_MAX + 1).unwrap();
    assert!(
        read(&files)
            .unwrap_err()
            .to_string()
            .ends_with("is larger than 512 MiB, the largest size that is read")
    );
    std::fs::remove_file(at("a.b.tim")).unwrap();
    assert!(matches!(*read(&files).unwrap_err().cause, SmpsErrorKind::Unreadable(_)));
}

#[test]
fn files_that_are_not_utf_8_are_latin_1() {
    let texts = [CORE, TIME, STOCH].map(|text| text.replace("R1", "R\u{e9}"));
    let latin_1 = |text: &String| -> Vec<u8> {
        format!("* \u{fc}\n{text}").chars().map(|character| character as u8).collect()
    };
    let [core, time, stoch] = [0, 1, 2].map(|file| latin_1(&texts[file]));
    let (program, notes) = read_bytes([&core, &time, &stoch], &names()).unwrap();
    assert_eq!(program, read_clean(&texts[0], &texts[1], &texts[2]));
    assert_eq!(program.second.rows[0], "R\u{e9}");
    assert_eq!(notes.len(), 3);
    assert_eq!(notes[0].to_string(), "small.cor: is not UTF-8: it is read as Latin-1");
}
