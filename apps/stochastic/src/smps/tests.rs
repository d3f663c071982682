//! Every form of every section, and every error and note with file, line and text.

use super::*;
use crate::fixtures;
use crate::model::{Block, Place, Realisation};

const CORE: &str = "\
NAME          SMALL
ROWS
 N  COST
 L  A
 G  R1
 E  R2
COLUMNS
    X1        COST               1.0   A                  1.0
    X1        R1                 2.0
    X2        COST               2.0   A                  1.0
    X2        R2                -1.0
    Y1        COST               3.0   R1                 1.0
    Y2        COST               4.0   R2                 1.0
RHS
    RHS       A                 10.0   R1                 4.0
    RHS       R2                 5.0
ENDATA
";

const TIME: &str = "\
TIME          SMALL
PERIODS       LP
    X1        A                        T1
    Y1        R1                       T2
ENDATA
";

const STOCH: &str = "\
STOCH         SMALL
INDEP         DISCRETE
    RHS       R1                 4.0   T2                 0.5
    RHS       R1                 6.0   T2                 0.5
ENDATA
";

fn names() -> Files {
    Files::new("small.cor", "small.tim", "small.sto")
}

#[track_caller]
fn read_with_notes(core: &str, time: &str, stoch: &str) -> (TwoStage, Vec<String>) {
    let contents = [core, time, stoch].map(str::as_bytes);
    let (program, notes) = read_bytes(contents, &names()).unwrap_or_else(|error| panic!("{error}"));
    (program, notes.iter().map(Note::to_string).collect())
}

#[track_caller]
fn read_clean(core: &str, time: &str, stoch: &str) -> TwoStage {
    let (program, notes) = read_with_notes(core, time, stoch);
    assert_eq!(notes, [""; 0]);
    program
}

#[track_caller]
fn assert_fails(core: &str, time: &str, stoch: &str, message: &str) {
    match read_bytes([core, time, stoch].map(str::as_bytes), &names()) {
        Ok((program, _)) => panic!("no error {message}, but {program:?}"),
        Err(error) => assert!(error.to_string().starts_with(message), "{error}\nnot\n{message}"),
    }
}

/// A text with its first occurrence of `from` replaced.
#[track_caller]
fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

/// The core file with lines added at its end. They begin at line 17.
fn append(more: &str) -> String {
    replace(CORE, "ENDATA", &format!("{more}\nENDATA"))
}

/// A stochastic file with these sections, which begin at line 2.
fn stoch_file(sections: &str) -> String {
    format!("STOCH\n{sections}\nENDATA\n")
}

fn read_blocks(sections: &str) -> Vec<Block> {
    read_clean(CORE, TIME, &stoch_file(sections)).random
}

fn block(places: &[Place], outcomes: &[(f64, &[f64])]) -> Block {
    let outcomes = outcomes.iter().map(|(probability, values)| Realisation {
        probability: *probability,
        values: values.to_vec(),
    });
    Block { places: places.to_vec(), outcomes: outcomes.collect() }
}

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
        random: vec![block(&[Place::Rhs(0)], &[(0.5, &[4.0]), (0.5, &[6.0])])],
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
    let yields = [Place::Technology(0, 0), Place::Technology(1, 1), Place::Technology(2, 2)];
    let weather: &[(f64, &[f64])] =
        &[(0.5, &[2.2, 3.2, -1.8]), (0.3, &[1.7, 2.3, -1.2]), (0.2, &[2.2, 3.9, -1.8])];
    let cattle: &[(f64, &[f64])] = &[(0.75, &[110.0, 180.0]), (0.25, &[110.0, 230.0])];
    assert_eq!(
        farm.random,
        [block(&yields, weather), block(&[Place::Rhs(0), Place::Rhs(1)], cattle)]
    );
    let reservoir = fixtures::reservoir();
    assert_eq!(dims(&reservoir), ((1, 2, 2), (3, 3, 5), 1));
    assert_eq!(reservoir.second.below, [0.0, 0.0, 60.0]);
    let places = [Place::Rhs(0), Place::Rhs(1), Place::Technology(0, 1)];
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
fn the_objective_has_a_constant_and_a_sense() {
    let program = read_clean(&append("RHS\n RHS COST 7"), TIME, STOCH);
    assert_eq!(program.offset, -7.0);
    let core =
        |lines: &str| replace(&append("RHS\n RHS COST 7"), "ROWS", &format!("{lines}\nROWS"));
    for lines in [
        "OBJSENSE MAX",
        "OBJSENSE\n    MAXIMIZE",
        "objsense\n max",
        "OBJSENSE\nMAX",
        "  OBJSENSE  Maximise",
    ] {
        let (program, notes) = read_with_notes(&core(lines), TIME, STOCH);
        assert!(program.maximise);
        assert_eq!((program.offset, &*program.second.cost), (7.0, &[-3.0, -4.0][..]), "{lines}");
        let note = "small.cor: the objective is maximised: results are in the sense of the file";
        assert_eq!(notes.last().unwrap(), note);
    }
    for lines in ["OBJSENSE MIN", "OBJSENSE\n MINIMIZE", "OBJSENSE MAX\nOBJSENSE MIN"] {
        assert_eq!(read_clean(&core(lines), TIME, STOCH).offset, -7.0);
    }
    let message = "small.cor:2: the objective sense \"UP\" is not known, only MIN and MAX";
    assert_fails(&core("OBJSENSE UP"), TIME, STOCH, message);
    assert_fails(
        &replace(CORE, " N  COST", " G  COST"),
        TIME,
        STOCH,
        "small.cor: has no objective: one row must be of type N",
    );
}

#[test]
fn the_objective_may_be_any_row_and_other_n_rows_are_ignored() {
    let core = replace(CORE, " N  COST\n", "");
    let core = replace(&core, " E  R2\n", " E  R2\n N  COST\n N  OTHER\n");
    let core = replace(
        &core,
        "RHS\n",
        "    Y2        OTHER            9.0\nRHS\n    RHS       OTHER            1.0\n",
    );
    let stoch = replace(
        STOCH,
        "ENDATA",
        "    Y2        OTHER            9.0   T2               0.4\nENDATA",
    );
    let (program, notes) = read_with_notes(&core, TIME, &stoch);
    assert_eq!(program, read_clean(CORE, TIME, STOCH));
    assert_eq!(
        notes,
        ["small.cor:7: row \"OTHER\" of type N is ignored: row \"COST\" is the objective"]
    );
    // A time file may begin with the objective, and its first stage have no rows.
    let time = replace(&replace(TIME, " A   ", " COST"), "R1", "A ");
    let core = append("COLUMNS\n Y1 A 2");
    let program = read_clean(&core, &time, STOCH);
    assert_eq!((program.first.rows.len(), program.second.rows.len()), (0, 3));
    assert_eq!(program.random[0].places, [Place::Rhs(1)]);
}

#[test]
fn ranges_depend_on_type_and_sign() {
    let inf = f64::INFINITY;
    let slack = |ranges: &str| {
        let program = read_clean(&append(&format!("RANGES\n{ranges}")), TIME, STOCH);
        let of = |stage: &Stage| {
            stage.below.iter().copied().zip(stage.above.iter().copied()).collect::<Vec<_>>()
        };
        [of(&program.first), of(&program.second)].concat()
    };
    assert_eq!(slack(""), [(inf, 0.0), (0.0, inf), (0.0, 0.0)]);
    assert_eq!(slack(" RNG A 3 R1 4\n RNG R2 5"), [(3.0, 0.0), (0.0, 4.0), (0.0, 5.0)]);
    assert_eq!(slack(" A -3 R1 -4\n R2 -5"), [(3.0, 0.0), (0.0, 4.0), (5.0, 0.0)]);
    assert_eq!(slack(" R2 0"), [(inf, 0.0), (0.0, inf), (0.0, 0.0)]);
    let core = append("RANGES\n RNG COST 3\n RNG A 3\n RNG A 3");
    let (program, notes) = read_with_notes(&core, TIME, STOCH);
    assert_eq!(program.first.below, [3.0]);
    assert_eq!(
        notes,
        [
            "small.cor:18: the range of row \"COST\" is ignored: it has type N",
            "small.cor:20: the range of row \"A\" repeats line 19",
        ]
    );
    assert_fails(
        &append("RANGES\n RNG A 3\n RNG A 4"),
        TIME,
        STOCH,
        "small.cor:19: the range of row \"A\" is already given in line 18",
    );
}

#[test]
fn bounds_of_every_type() {
    let inf = f64::INFINITY;
    let bounds = |lines: &str| {
        let (program, notes) = read_with_notes(&append(&format!("BOUNDS\n{lines}")), TIME, STOCH);
        ((program.first.lower[0], program.first.upper[0]), notes)
    };
    for (lines, expected) in [
        (" UP BND X1 4", (0.0, 4.0)),
        (" up X1 4", (0.0, 4.0)),
        (" LO BND X1 -4", (-4.0, inf)),
        (" LO BND X1 -1e30", (-inf, inf)),
        (" UP BND X1 1e20", (0.0, inf)),
        (" UP BND X1 Inf", (0.0, inf)),
        (" LO BND X1 -inf\n UP BND X1 3", (-inf, 3.0)),
        (" UP BND X1 0", (0.0, 0.0)),
        (" FX BND X1 2.5", (2.5, 2.5)),
        (" FR BND X1", (-inf, inf)),
        (" FR X1", (-inf, inf)),
        (" FR BND X1 0", (-inf, inf)),
        (" FR X1 0", (-inf, inf)),
        (" MI BND X1\n UP BND X1 4", (-inf, 4.0)),
        (" PL BND X1", (0.0, inf)),
        (" UP X1 -3\n LO X1 -4", (-4.0, -3.0)),
        (" MI X1", (-inf, inf)),
        (" fx bnd X1 1D1", (10.0, 10.0)),
    ] {
        assert_eq!(bounds(lines), (expected, vec![]), "{lines}");
    }
    let (negative, notes) = bounds(" UP BND X1 -3");
    assert_eq!(negative, (-inf, -3.0));
    assert_eq!(
        notes,
        ["small.cor:18: column \"X1\" has a negative upper bound and no lower bound: its \
            lower bound is minus infinity"]
    );
    for (lines, says) in [
        (" UP BND X1", "18: \"X1\" is not a finite number"),
        (
            " UP BND X1 4 5",
            "18: the line has 5 fields, but must have 3 or 4: type, set, column and value",
        ),
        (" UP BND X1 four", "18: \"four\" is not a finite number"),
        (" UP BND X1 nan", "18: \"nan\" is not a finite number"),
        (" LO BND X1 1e30", "18: \"1e30\" is not a finite number"),
        (
            " UP BND X1 4\n FX BND X1 5",
            "19: the upper bound of column \"X1\" is already given in line 18",
        ),
        (
            " LO BND X1 0\n UP BND X1 -1",
            "19: column \"X1\" has the lower bound 0, which exceeds its upper bound -1",
        ),
        (
            " BV BND X1",
            "18: integer variables are not supported: remove the bounds BV, LI and UI to read",
        ),
        (" UI BND X1 4", "18: integer variables are not supported"),
        (" SC BND X1 4", "18: semi-continuous variables are not supported"),
        (
            " XX BND X1 4",
            "18: the bound type \"XX\" is not supported, only UP, LO, FX, FR, MI and PL",
        ),
        (" FR BND", "18: there is no column \"BND\""),
    ] {
        assert_fails(
            &append(&format!("BOUNDS\n{lines}")),
            TIME,
            STOCH,
            &format!("small.cor:{says}"),
        );
    }
}

#[test]
fn core_files_with_errors() {
    let fail =
        |core: &str, says: &str| assert_fails(core, TIME, STOCH, &format!("small.cor{says}"));
    fail(
        &append("RHS\n RHS A 1"),
        ":18: the right-hand side of row \"A\" is already given in line 15: remove one",
    );
    fail(
        &append("COLUMNS\n Y1 R1 2"),
        ":18: the entry in row \"R1\", column \"Y1\" is already given in line 12",
    );
    fail(&append("ROWS\n G A"), ":18: row \"A\" is already given in line 4");
    fail(&append("ROWS\n D A2"), ":18: the row type \"D\" is not known, only N, E, L and G");
    fail(&append("ROWS\n L"), ":18: the line has 1 field, but must have 2: type and row");
    fail(&append("COLUMNS\n Y1 R9 1"), ":18: there is no row \"R9\"");
    fail(
        &append("COLUMNS\n Y1 R2 1 R1"),
        ":18: the line has 4 fields, but must have 3 or 5: column, row, value",
    );
    fail(&append("COLUMNS\n Y1 R2 1.0.0"), ":18: \"1.0.0\" is not a finite number");
    fail(&append("COLUMNS\n Y1 R2 1e999"), ":18: \"1e999\" is not a finite number");
    fail(
        &append("COLUMNS\n M 'MARKER' 'INTORG'"),
        ":18: integer variables are not supported: remove the MARKER lines",
    );
    fail(
        &append("RHS\n RHS A 1 R2 2 3"),
        ":18: the line has 6 fields, but must have 3 or 5: set, row, value",
    );
    fail(&append("RHS\n RHS R9 1"), ":18: there is no row \"R9\"");
    fail(
        &append("QUADOBJ\n X1 X1 1"),
        ":17: there is no section \"QUADOBJ\" in this file, only NAME, OBJSENSE, OBJECT, ROWS,",
    );
    fail(&append("X1 A 1"), ":17: there is no section \"X1\" in this file");
    fail("", ": has no section: it must begin with NAME");
    fail("NAME", ": has no objective");
    // Data in the first column would be taken for a header, and be lost.
    let says = "the section name \"RHS\" has text after it: indent lines of data by a blank";
    fail(&append("RHS RHS A 1"), &format!(":17: {says}"));
    fail(" N COST\nENDATA", ":1: this line of data must follow the NAME line");
    fail("NAME\n N COST\nENDATA", ":2: this line of data must follow the ROWS line");
    fail(
        &append("COLUMNS\n Y1 A 3"),
        ":18: row \"A\" belongs to the first stage and column \"Y1\" to the second",
    );
    let (_, notes) = read_with_notes(&format!("{CORE}* more\nmore"), TIME, STOCH);
    assert_eq!(notes, ["small.cor:19: text after ENDATA is ignored"]);
    // Nothing in it is nothing wrong.
    read_clean(&append("COLUMNS\n Y1 A 0"), TIME, STOCH);
}

#[test]
fn periods_are_implicit_or_explicit() {
    let time = |periods: &str| format!("TIME\n{periods}\nENDATA");
    let implicit = read_clean(CORE, TIME, STOCH);
    for header in ["PERIODS", "PERIODS IMPLICIT", "PERIODS LP"] {
        assert_eq!(
            read_clean(CORE, &time(&format!("{header}\n X1 A T1\n Y1 R1 T2")), STOCH),
            implicit
        );
    }
    let listed = "PERIODS EXPLICIT\n T1\n T2\nROWS\n A T1\n R1 T2\n R2 T2\n COST T1\nCOLUMNS\n \
    X1 T1\n X2 T1\n Y1 T2\n Y2 T2";
    assert_eq!(read_clean(CORE, &time(listed), STOCH), implicit);
    // Listed in any order, and in none in the core file.
    let core = "NAME SMALL\nROWS\n G R1\n L A\n N COST\n E R2\nCOLUMNS\n Y1 COST 3 R1 1\n X1 \
    COST 1 A 1\n X1 R1 2\n Y2 COST 4 R2 1\n \
        X2 COST 2 A 1\n X2 R2 -1\nRHS\n RHS A 10 R1 4\n RHS R2 5\nENDATA";
    assert_eq!(read_clean(core, &time(listed), STOCH), implicit);
    assert_fails(core, TIME, STOCH, "small.tim:4: row \"R1\" is out of the order of the periods");
    for (periods, says) in [
        (
            "PERIODS\n X1 A T1",
            ": has 1 period (\"T1\"), but must have 2: only two-stage programs are supported",
        ),
        (
            "PERIODS\n X1 A T1\n X2 R1 T2\n Y1 R2 T3",
            ":5: has 3 periods (\"T1\", \"T2\", \"T3\"), but must have 2: only two-stage \
            programs are",
        ),
        ("PERIODS\n X1 A T1\n Y1 R1 T1", ":4: period \"T1\" is already given in line 3"),
        (
            "PERIODS\n X1 A\n Y1 R1",
            ":3: the line has 2 fields, but must have 3: first column, first row and period",
        ),
        ("PERIODS\n X1 A T1\n Y9 R1 T2", ":4: there is no column \"Y9\""),
        ("PERIODS\n X1 A T1\n Y1 R9 T2", ":4: there is no row \"R9\""),
        ("PERIODS\n X2 A T1\n Y1 R1 T2", ":3: column \"X1\" is out of the order"),
        (
            "PERIODS\n X1 R1 T1\n Y1 R2 T2",
            ":3: row \"A\" is out of the order of the periods: order the core file",
        ),
        ("PERIODS\n X1 R1 T1\n Y1 A T2", ":4: row \"A\" is out of the order"),
        ("PERIODS\n X1 A T1\n X1 R1 T2", ": the first stage has no columns"),
        (
            "PERIODS NLP\n X1 A T1",
            ":2: PERIODS \"NLP\" is not supported, only LP, IMPLICIT and EXPLICIT",
        ),
        (
            "STAGES\n X1 A T1",
            ":2: there is no section \"STAGES\" in this file, only TIME, PERIODS, ROWS, COLUMNS \
            and ENDATA",
        ),
        (
            "PERIODS\n X1 A T1\n Y1 R1 T2\nROWS\n A T1",
            ":5: section ROWS must follow PERIODS EXPLICIT",
        ),
        (" X1 A T1", ":2: this line of data must follow the PERIODS line"),
        (
            "PERIODS EXPLICIT\n T1\n T2\nROWS\n A T1\n A T2",
            ":7: the period of row \"A\" is already given in line 6",
        ),
        ("PERIODS EXPLICIT\n T1\n T2\nROWS\n A T3", ":6: there is no period \"T3\""),
        (
            "PERIODS EXPLICIT\n T1\n T2\nROWS\n A T1\n R1 T2\n R2 T2",
            ": column \"X1\" has no period: add it to the COLUMNS section",
        ),
        (
            "PERIODS EXPLICIT\n T1\n T2\nROWS\n A T1\n R1 T2",
            ": row \"R2\" has no period: add it to the ROWS section",
        ),
    ] {
        assert_fails(CORE, &time(periods), STOCH, &format!("small.tim{says}"));
    }
}

#[test]
fn independent_elements_in_every_form() {
    let both = |places, values: &[f64]| {
        vec![block(&[places], &[(0.25, &values[..1]), (0.75, &values[1..])])]
    };
    for lines in [
        " RHS R1 1 0.25\n RHS R1 2 0.75",
        " RHS R1 1 T2 0.25\n RHS R1 2 T2 0.75",
        " R1 1 0.25\n R1 2 0.75",
        " R1 1 T2 0.25\n R1 2 T2 0.75",
        " RHS1 R1 1 0.25\n rhs R1 2 0.75",
        " RIGHT R1 1 .25D0\n RIGHT R1 2 75.E-2",
    ] {
        assert_eq!(
            read_blocks(&format!("INDEP DISCRETE\n{lines}")),
            both(Place::Rhs(0), &[1.0, 2.0]),
            "{lines}"
        );
    }
    // Technology where the core file has an entry and where it has none.
    let technology = read_blocks("INDEP DISCRETE REPLACE\n X1 R1 3 T2 0.25\n X1 R1 4 0.75");
    assert_eq!(technology, both(Place::Technology(0, 0), &[3.0, 4.0]));
    let technology = read_blocks("INDEP DISCRETE\n X1 R2 3 T2 0.25\n X1 R2 0 0.75");
    assert_eq!(technology, both(Place::Technology(1, 0), &[3.0, 0.0]));
    assert_eq!(
        read_blocks("INDEP DISCRETE ADD\n RHS R1 -1 0.25\n RHS R1 1 0.75"),
        both(Place::Rhs(0), &[3.0, 5.0])
    );
    assert_eq!(
        read_blocks("INDEP DISCRETE MULTIPLY\n RHS R1 0 0.25\n RHS R1 2 0.75"),
        both(Place::Rhs(0), &[0.0, 8.0])
    );
    // Elements that take turns.
    let turns =
        read_blocks("INDEP DISCRETE\n RHS R1 1 0.5\n RHS R2 3 0.5\n RHS R1 2 0.5\n RHS R2 4 0.5");
    let halves =
        |place, values: [f64; 2]| block(&[place], &[(0.5, &values[..1]), (0.5, &values[1..])]);
    assert_eq!(turns, [halves(Place::Rhs(0), [1.0, 2.0]), halves(Place::Rhs(1), [3.0, 4.0])]);
    // Right-hand sides may be of a set of any name, and periods and rows be named by numbers.
    let core = CORE.replace("    RHS   ", "    DEMAND").replace("R1", "12");
    let text = stoch_file("INDEP DISCRETE\n DEMAND 12 1 0.25\n DEMAND 12 2 0.75");
    assert_eq!(
        read_clean(&core, &TIME.replace("R1", "12"), &text).random,
        both(Place::Rhs(0), &[1.0, 2.0])
    );
    let text = stoch_file("INDEP DISCRETE\n 12 1 2 0.25\n 12 2 2 0.75");
    let time = TIME.replace("R1", "12").replace("T2", "2");
    assert_eq!(read_clean(&core, &time, &text).random, both(Place::Rhs(0), &[1.0, 2.0]));
}

#[test]
fn blocks_change_their_first_outcome() {
    let places = [Place::Rhs(0), Place::Technology(1, 0)];
    let lines = "BLOCKS DISCRETE\n BL B T2 0.5\n RHS R1 1\n X1 R2 2\n BL B T2 0.25\n RHS R1 3\n \
    BL B T2 0.25\n X1 R2 4";
    let expected =
        [block(&places, &[(0.5, &[1.0, 2.0]), (0.25, &[3.0, 2.0]), (0.25, &[1.0, 4.0])])];
    assert_eq!(read_blocks(lines), expected);
    assert_eq!(read_blocks(&lines.replace("B T2", "B")), expected);
    // Outcomes of two blocks alternate; lines have two right-hand sides without the name of a set.
    let turns = read_blocks(
        "BLOCKS DISCRETE\n BL B 0.5\n R1 1 R2 2\n BL C 0.5\n X1 R1 7\n BL B 0.5\n R1 3\n BL C \
        0.5\n X1 R1 8",
    );
    let both = [(0.5, &[1.0, 2.0][..]), (0.5, &[3.0, 2.0])];
    assert_eq!(turns[0], block(&[Place::Rhs(0), Place::Rhs(1)], &both));
    assert_eq!(turns[1], block(&[Place::Technology(0, 0)], &[(0.5, &[7.0]), (0.5, &[8.0])]));
    let add = read_blocks("BLOCKS DISCRETE ADD\n BL B 0.5\n RHS R1 1 R2 1\n BL B 0.5\n RHS R1 2");
    assert_eq!(add[0].outcomes[1].values, [6.0, 6.0]);
    // Beside independent elements.
    assert_eq!(
        read_blocks("INDEP DISCRETE\n RHS R1 1 1\nBLOCKS DISCRETE\n BL B 1\n RHS R2 1").len(),
        2
    );
    // What the first realisation lacks.
    let late = stoch_file("BLOCKS DISCRETE\n BL B 0.5\n RHS R1 1\n BL B 0.5\n RHS R2 2");
    let (program, notes) = read_with_notes(CORE, TIME, &late);
    assert_eq!(program.random[0].outcomes[0].values, [1.0, 5.0]);
    assert_eq!(
        notes,
        ["small.sto:6: the right-hand side of row \"R2\" is missing in the first outcome of \
            the block, which has the core file's value"]
    );
}

#[test]
fn scenarios_change_their_parents() {
    let lines = "SCENARIOS DISCRETE\n SC ONE 'ROOT' 0.5 T1\n RHS R1 1\n SC TWO ONE 0.25 T2\n RHS \
    R2 2\n SC THREE TWO 0.125 T2\n \
        RHS R1 3\n SC FOUR ROOT 0.125 T2\n RHS R2 9";
    let expected = [block(
        &[Place::Rhs(0), Place::Rhs(1)],
        &[(0.5, &[1.0, 5.0]), (0.25, &[1.0, 2.0]), (0.125, &[3.0, 2.0]), (0.125, &[4.0, 9.0])],
    )];
    assert_eq!(read_blocks(lines), expected);
    let bare = lines.replace(" T1", "").replace(" T2", "").replace("DISCRETE", "DISCRETE REPLACE");
    assert_eq!(read_blocks(&bare.replace("'ROOT'", "root")), expected);
    // The file may call itself NAME, as a core file.
    assert_eq!(read_clean(CORE, TIME, &format!("NAME SMALL\n{lines}\nENDATA")).random, expected);
}

#[test]
fn outcomes_of_probability_0_are_ignored_but_may_be_parents() {
    let lines = "SCENARIOS DISCRETE\n SC ONE ROOT 0.0\n RHS R1 1\n SC TWO ONE 1.0\n RHS R2 2";
    let (program, notes) = read_with_notes(CORE, TIME, &stoch_file(lines));
    assert_eq!(program.random, [block(&[Place::Rhs(0), Place::Rhs(1)], &[(1.0, &[1.0, 2.0])])]);
    assert_eq!(
        notes,
        ["small.sto:3: an outcome of the scenarios has probability 0 and is ignored"]
    );
    let (program, _) =
        read_with_notes(CORE, TIME, &stoch_file("INDEP DISCRETE\n RHS R1 1 0\n RHS R1 2 1"));
    assert_eq!(program.random, [block(&[Place::Rhs(0)], &[(1.0, &[2.0])])]);
}

#[test]
fn probabilities_sum_to_1() {
    let hundred: String = (0..100).map(|at| format!(" RHS R1 {at} 0.01\n")).collect();
    let outcomes = &read_blocks(&format!("INDEP DISCRETE\n{hundred}"))[0].outcomes;
    assert!(outcomes.iter().all(|outcome| outcome.probability == 0.01));
    let thirds =
        &read_blocks("INDEP DISCRETE\n RHS R1 1 0.3333333\n RHS R1 2 0.6666666")[0].outcomes;
    assert_eq!(thirds.iter().map(|outcome| outcome.probability).sum::<f64>(), 1.0);
    for (lines, says) in [
        (
            "INDEP DISCRETE\n RHS R2 1 1\n RHS R1 1 0.5\n RHS R1 2 0.4",
            "4: the probabilities of the right-hand side of row \"R1\" sum to 0.9,",
        ),
        (
            "INDEP DISCRETE\n X1 R1 1 0.5\n X1 R1 2 0.5011",
            "3: the probabilities of the entry in row \"R1\", column \"X1\" sum to 1.0011",
        ),
        (
            "INDEP DISCRETE\n RHS R1 1 0",
            "3: the probabilities of the right-hand side of row \"R1\" sum to 0",
        ),
        (
            "BLOCKS DISCRETE\n BL B 0.5\n RHS R1 1",
            "3: the probabilities of block \"B\" sum to 0.5, but must sum to 1 within 1e-3",
        ),
        (
            "SCENARIOS DISCRETE\n SC S ROOT 0.5\n RHS R1 1",
            "2: the probabilities of the scenarios sum to 0.5",
        ),
        ("SCENARIOS DISCRETE", "2: the probabilities of the scenarios sum to 0"),
        ("INDEP DISCRETE\n RHS R1 1 1.5", "3: 1.5 is not a probability: it must be from 0 to 1"),
        ("INDEP DISCRETE\n RHS R1 1 -0.5", "3: -0.5 is not a probability"),
        ("INDEP DISCRETE\n RHS R1 1 nan", "3: \"nan\" is not a finite number"),
    ] {
        assert_fails(CORE, TIME, &stoch_file(lines), &format!("small.sto:{says}"));
    }
}

#[test]
fn costs_and_recourse_may_be_random() {
    let text = stoch_file(
        "BLOCKS DISCRETE\n BL B 0.5\n Y1 COST 3.5 R1 2\n Y2 R1 7\n BL B 0.5\n Y1 COST 2.5\n \
        Y1 R1 0\nINDEP DISCRETE MULTIPLY\n Y2 COST 1 0.5\n Y2 COST -2 0.5",
    );
    let places = [Place::Cost(0), Place::Recourse(0, 0), Place::Recourse(0, 1)];
    let outcomes: [(f64, &[f64]); 2] = [(0.5, &[3.5, 2.0, 7.0]), (0.5, &[2.5, 0.0, 7.0])];
    let other: [(f64, &[f64]); 2] = [(0.5, &[4.0]), (0.5, &[-8.0])];
    let random = read_clean(CORE, TIME, &text).random;
    assert_eq!(random, [block(&places, &outcomes), block(&[Place::Cost(1)], &other)]);
    // The sign of random costs follows that of the others.
    let core = replace(CORE, "ROWS", "OBJSENSE MAX\nROWS");
    let random = read_with_notes(&core, TIME, &text).0.random;
    let outcomes: [(f64, &[f64]); 2] = [(0.5, &[-3.5, 2.0, 7.0]), (0.5, &[-2.5, 0.0, 7.0])];
    let other: [(f64, &[f64]); 2] = [(0.5, &[-4.0]), (0.5, &[8.0])];
    assert_eq!(random, [block(&places, &outcomes), block(&[Place::Cost(1)], &other)]);
}

#[test]
fn first_stage_data_and_bounds_must_be_certain() {
    let only = "is random: only right-hand sides, costs and matrix entries of the second stage";
    for (line, element) in [
        ("X1 COST 2 T2 1", "the cost of the first-stage column \"X1\""),
        ("X1 A 2 T2 1", "the entry in the first-stage row \"A\", column \"X1\","),
        ("RHS A 2 T2 1", "the right-hand side of the first-stage row \"A\""),
        ("RHS COST 2 T2 1", "the constant of the objective"),
        ("UP BND Y1 2 1", "a bound of column \"Y1\""),
        ("UP BND Y1 2 T2 1", "a bound of column \"Y1\""),
        ("lo Y1 2 T2 1", "a bound of column \"Y1\""),
        ("RNG R1 2 T2 1", "the range of row \"R1\""),
    ] {
        let core = append("RANGES\n RNG R1 1");
        let text = stoch_file(&format!("INDEP DISCRETE\n {line}"));
        assert_fails(&core, TIME, &text, &format!("small.sto:3: {element} {only}"));
    }
    let text = stoch_file("BLOCKS DISCRETE\n BL B 1\n UP BND Y1 2");
    assert_fails(CORE, TIME, &text, &format!("small.sto:4: a bound of column \"Y1\" {only}"));
}

#[test]
fn elements_that_repeat_the_core_file_are_not_random() {
    let core = append("RANGES\n RNG A 1\nBOUNDS\n UP BND Y1 2");
    let random = [block(&[Place::Rhs(0)], &[(1.0, &[4.0])])];
    for (first, lines) in [
        ("the entry in the first-stage row \"A\", column \"X1\",", "X1 A 1\n RNG A 1\n RHS A 10"),
        ("a bound of column \"Y1\"", "UP BND Y1 2\n LO Y1 0\n X1 COST 1"),
        ("the cost of column \"Y1\"", "Y1 COST 3 R1 1\n Y2 R1 0"),
    ] {
        let text = format!("SCENARIOS DISCRETE\n SC S ROOT 1\n RHS R1 4\n {lines}");
        let (program, notes) = read_with_notes(&core, TIME, &stoch_file(&text));
        assert_eq!(program.random, random);
        assert_eq!(notes.len(), 1, "{notes:?}");
        let text =
            format!("{first} has the value of the core file and is not random (and so on, 3");
        assert!(notes[0].contains(&text), "{notes:?}");
    }
    let (program, notes) =
        read_with_notes(CORE, TIME, &stoch_file("INDEP DISCRETE\n Y1 COST 3 T2 1"));
    assert!(program.random.is_empty());
    assert_eq!(
        notes,
        [
            "small.sto:3: nothing is random in the cost of column \"Y1\"",
            "small.sto:3: the cost of column \"Y1\" has the value of the core file and is not \
            random",
            "small.sto: nothing is random"
        ]
    );
    let (program, notes) = read_with_notes(CORE, TIME, &stoch_file("BLOCKS DISCRETE\n BL B 1"));
    assert!(program.random.is_empty());
    assert_eq!(
        notes,
        ["small.sto:3: nothing is random in block \"B\"", "small.sto: nothing is random"]
    );
}

#[test]
fn stochastic_files_with_errors() {
    for (lines, says) in [
        (
            "INDEP NORMAL\n RHS R1 1 2",
            "2: INDEP \"NORMAL\" is not supported, only INDEP DISCRETE: replace a continuous \
            distribution by a discrete one",
        ),
        ("INDEP UNIFORM", "2: INDEP \"UNIFORM\" is not supported"),
        ("INDEP", "2: INDEP \"\" is not supported, only INDEP DISCRETE"),
        ("BLOCKS LINTR", "2: BLOCKS \"LINTR\" is not supported"),
        (
            "INDEP DISCRETE POWER",
            "2: the modifier \"POWER\" is not known, only REPLACE, ADD and MULTIPLY",
        ),
        ("SCENARIOS DISCRETE ADD", "2: SCENARIOS DISCRETE \"ADD\" is not supported: use REPLACE"),
        (
            "TREE DISCRETE",
            "2: there is no section \"TREE\" in this file, only STOCH, INDEP, BLOCKS, SCENARIOS \
            and ENDATA",
        ),
        ("CHANCE", "2: chance constraints are not supported"),
        ("NODES", "2: section NODES is not supported: use SCENARIOS DISCRETE"),
        (
            "DISTRIB DISCRETE",
            "2: section DISTRIB is not supported: use INDEP, BLOCKS or SCENARIOS DISCRETE",
        ),
        (" RHS R1 1 1", "2: this line of data must follow an INDEP, BLOCKS or SCENARIOS line"),
        (
            "INDEP DISCRETE\n RHS R1",
            "3: the line has 2 fields, but must have 4 or 5: column or RHS, row, value",
        ),
        ("INDEP DISCRETE\n RHS R1 x 1", "3: \"x\" is not a finite number"),
        ("INDEP DISCRETE\n RHS R9 1 1", "3: there is no row \"R9\""),
        ("INDEP DISCRETE\n Z R1 1 1", "3: there is no column \"Z\""),
        ("INDEP DISCRETE\n RHSX R1 1 1", "3: there is no column \"RHSX\""),
        ("INDEP DISCRETE MULTIPLY\n RHS R1 1e308 1", "3: \"inf\" is not a finite number"),
        ("BLOCKS DISCRETE\n RHS R1 1", "3: this line of data must follow a BL line"),
        ("SCENARIOS DISCRETE\n RHS R1 1", "3: this line of data must follow an SC line"),
        ("BLOCKS DISCRETE\n BL B", "3: the line has 2 fields, but must have 3 or 4: BL, block,"),
        (
            "BLOCKS DISCRETE\n BL B 1\n RHS R1 1 R2 2 3",
            "4: the line has 6 fields, but must have 3 or 5: column or RHS",
        ),
        (
            "SCENARIOS DISCRETE\n SC S ROOT",
            "3: the line has 3 fields, but must have 4 or 5: SC, scenario,",
        ),
        ("SCENARIOS DISCRETE\n SC S T 1 T2", "3: there is no scenario \"T\""),
        (
            "SCENARIOS DISCRETE\n SC S ROOT 0.5\n SC S ROOT 0.5",
            "4: scenario \"S\" is already given in line 3",
        ),
        (
            "BLOCKS DISCRETE\n BL B 1\n RHS R1 1\n RHS R1 2",
            "5: the right-hand side of row \"R1\" is already given in line 4",
        ),
        (
            "BLOCKS DISCRETE\n BL B 1\n RHS R1 1\n BL C 1\n RHS R1 1",
            "6: the right-hand side of row \"R1\" is already given in line 4",
        ),
        (
            "INDEP DISCRETE\n X1 R1 1 1\nBLOCKS DISCRETE\n BL B 1\n X1 R1 2",
            "6: the entry in row \"R1\", column \"X1\" is already given in line 3",
        ),
        (
            "BLOCKS DISCRETE\n BL B 1\n X1 R1 2\nINDEP DISCRETE\n X1 R1 1 1",
            "6: the entry in row \"R1\", column \"X1\" is already given in line 4",
        ),
        (
            "INDEP DISCRETE\n RHS R1 1 1\nSCENARIOS DISCRETE",
            "4: SCENARIOS describes all random elements: it excludes INDEP and BLOCKS",
        ),
        ("SCENARIOS DISCRETE\nBLOCKS DISCRETE", "3: SCENARIOS describes all random elements"),
    ] {
        assert_fails(CORE, TIME, &stoch_file(lines), &format!("small.sto:{says}"));
    }
    assert_fails(CORE, TIME, "", "small.sto: has no section: it must begin with STOCH");
}

#[test]
fn outcomes_are_limited_by_memory() {
    // 12,000 scenarios, each with another element: every scenario has a value for all elements.
    let count = 12_000;
    let rows: String = (0..count).map(|at| format!(" G R{at}\n")).collect();
    let core = format!("NAME\nROWS\n N COST\n{rows}COLUMNS\n X COST 1\n Y COST 1 R1 1\nENDATA");
    let time = "TIME\nPERIODS\n X COST T1\n Y R0 T2\nENDATA";
    let lines: String = (0..count).map(|at| format!(" SC S{at} ROOT 0\n RHS R{at} 1\n")).collect();
    let text = stoch_file(&format!("SCENARIOS DISCRETE\n{lines}"));
    assert_fails(
        &core,
        time,
        &text,
        "small.sto:2: has more than 134217728 values of random elements, the largest number that \
        is read",
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
    assert_eq!(line_of_row(&separate.core, "R1"), Some(5));
    assert_eq!(line_of_row(&separate.core, "R9"), None);
    std::fs::File::create(at("a.b.tim")).unwrap().set_len(TEXT_MAX + 1).unwrap();
    assert!(
        read(&files)
            .unwrap_err()
            .to_string()
            .ends_with("is larger than 512 MiB, the largest size that is read")
    );
    std::fs::remove_file(at("a.b.tim")).unwrap();
    assert!(matches!(*read(&files).unwrap_err().cause, Cause::Unreadable(_)));
}

/// Blemishes of published core files: the same program with a note.
#[test]
fn core_files_with_blemishes() {
    let program = read_clean(CORE, TIME, STOCH);
    let core = |from: &str, to: &str| replace(CORE, from, to);
    for (core, note) in [
        (core("RHS\n", "RHS           RIGHT\n"), "14: the name \"RIGHT\" after RHS is ignored"),
        (append("RANGES  RNG"), "17: the name \"RNG\" after RANGES is ignored"),
        (append("BOUNDS  BND"), "17: the name \"BND\" after BOUNDS is ignored"),
        (core("ROWS\n", "  rows\n"), "2: the section name ROWS is indented"),
        (core("NAME", "\tNAME"), "1: the section name NAME is indented"),
        (core("ENDATA", " ENDATA"), "17: the section name ENDATA is indented"),
        (core("RHS\n", " RHS\n"), "14: the section name RHS is indented"),
        (core("ENDATA", ""), "16: has no ENDATA: check that the file is complete"),
        (append("ROWS\n L A"), "18: row \"A\" repeats line 4"),
        (append("RHS\n RHS A 10.0"), "18: the right-hand side of row \"A\" repeats line 15"),
        (append("COLUMNS\n Y1 R1 1"), "18: the entry in row \"R1\", column \"Y1\" repeats line 12"),
        (
            append("BOUNDS\n PL BND Y1\n PL BND Y1"),
            "19: the upper bound of column \"Y1\" repeats line 18",
        ),
        (
            core("ROWS\n", "OBJECT BOUND\n    LO BND 0.0\nROWS\n"),
            "2: section OBJECT BOUND is ignored",
        ),
        (
            append("RHS\n ALT A 11 R1 3\n ALT R9 3"),
            "18: the RHS set \"ALT\" is ignored: only the first set, \"RHS\", is read",
        ),
    ] {
        let (read, notes) = read_with_notes(&core, TIME, STOCH);
        assert_eq!(read, program, "{note}");
        assert_eq!(notes, [format!("small.cor:{note}")]);
    }
    for core in [
        core("SMALL", "SMALL  FREE"),
        core("SMALL", "SMALL     free"),
        core("SMALL", ""),
        CORE.replace("    RHS   ", "          "),
        append("BOUNDS\n PL Y1"),
    ] {
        assert_eq!(TwoStage { name: "SMALL".into(), ..read_clean(&core, TIME, STOCH) }, program);
    }
}

#[test]
fn only_the_first_set_of_a_section_is_read() {
    let core = append(
        "RANGES\n R1 A 3\n R2 A 4\nBOUNDS\n UP B1 X1 3\n UP B2 X1 4\n LO B2 Y1 4\n LO B1 X1 1",
    );
    let (program, notes) = read_with_notes(&core, TIME, STOCH);
    assert_eq!((program.first.below[0], program.first.lower[0]), (3.0, 1.0));
    assert_eq!((program.first.upper[0], program.second.lower[0]), (3.0, 0.0));
    assert_eq!(
        notes,
        [
            "small.cor:19: the RANGES set \"R2\" is ignored: only the first set, \"R1\", is read",
            "small.cor:22: the BOUNDS set \"B2\" is ignored: only the first set, \"B1\", is read",
        ]
    );
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

/// Blemishes of published time files.
#[test]
fn time_files_with_blemishes() {
    let program = read_clean(CORE, TIME, STOCH);
    let explicit = "PERIODS EXPLICIT\n T1\n T2\nROWS\n A T1\n A T1\n R1 T2\n R2 T2\nCOLUMNS\n \
        X1 T1\n X2 T1\n Y1 T2\n Y2 T2\nENDATA";
    for (time, note) in [
        (replace(TIME, "LP", "2"), ":2: the number 2 after PERIODS is ignored"),
        (replace(TIME, "PERIODS", " periods"), ":2: the section name PERIODS is indented"),
        (replace(TIME, "TIME", " TIME"), ":1: the section name TIME is indented"),
        (replace(TIME, "ENDATA", ""), ":4: has no ENDATA: check that the file is complete"),
        (
            replace(TIME, "    Y1        R1 ", "    R1        Y1 "),
            ":4: the row precedes the column",
        ),
        (explicit.to_owned(), ":6: the period of row \"A\" repeats line 5"),
    ] {
        let (read, notes) = read_with_notes(CORE, &time, STOCH);
        assert_eq!(read, program, "{note}");
        assert_eq!(notes, [format!("small.tim{note}")]);
    }
    assert_eq!(
        read_clean(CORE, &replace(TIME, "TIME          SMALL", "NAME SMALL FREE"), STOCH),
        program
    );
    // Items whose names are keywords.
    let rename = |text: &str| text.replace("X1", "TIME").replace("R1", "ROWS");
    read_clean(&rename(CORE), &rename(TIME), &rename(STOCH));
    let periods: String = (0..101).map(|period| format!(" X1 A T{period}\n")).collect();
    let message = "small.tim:103: has more than 100 periods";
    assert_fails(CORE, &format!("TIME\nPERIODS\n{periods}ENDATA"), STOCH, message);
    let periods: String = (0..9).map(|period| format!(" X1 A T{period}\n")).collect();
    let message = "small.tim:5: has 9 periods (\"T0\", \"T1\", \"T2\", \"T3\", \"T4\", \"T5\", \
    \"T6\", \
        \"T7\", ...), but must have 2";
    assert_fails(CORE, &format!("TIME\nPERIODS\n{periods}ENDATA"), STOCH, message);
}

/// Forms of published stochastic files: the same block, with notes or without.
#[test]
fn stochastic_files_in_other_forms() {
    let rhs = block(&[Place::Rhs(0)], &[(0.5, &[4.0]), (0.5, &[6.0])]);
    for lines in [
        "INDEP DISCRETE\n RHS R1 4 0.5 T2\n RHS R1 6 0.5 T2",
        "INDEP DISCRETE\n R1 4 0.5 T2\n R1 6 0.5 T2",
        "indep discrete replace\n\tRHS\tR1\t4\tT2\t0.5\n\tRHS\tR1\t6\tT2\t0.5",
        "INDEP DISCRETE\n RHS R1 4 T2 0.5\nINDEP DISCRETE\n RHS R1 6 T2 0.5",
        "INDEP DISCRETE T2\n RHS R1 4 T2 0.5\n RHS R1 6 T2 0.5",
        "BLOCKS DISCRETE\n BL B 0.5 T2\n RHS R1 4\n bl B 0.5 T2\n RHS R1 6",
        // Named after its first column, without BL.
        "BLOCKS DISCRETE\n X1 T2 0.5\n RHS R1 4\n X1 T2 0.5\n RHS R1 6",
        "BLOCKS DISCRETE\n BL B T2 0.5\n RHS R1 4\nBLOCKS DISCRETE\n BL B T2 0.5\n RHS R1 6",
        "SCENARIOS DISCRETE REPLACE\n SC S ROOT T2 0.5\n RHS R1 4\n SC T ROOT T2 0.5\n RHS R1 6",
        "SCENARIOS DISCRETE\n SC S 0.5 T2\n RHS R1 4\n SC T S 0.5 T2\n RHS R1 6",
        "SCENARIOS DISCRETE\n SC S T2 0.5\n RHS R1 4\nSCENARIOS DISCRETE\n SC T \"root\" .5\n \
        RHS R1 6",
    ] {
        assert_eq!(read_blocks(lines), *std::slice::from_ref(&rhs), "{lines}");
    }
    let message = "has no ENDATA: check that the file is complete";
    let no_period = "3: there is no period \"T9\": it is ignored";
    for (text, note) in [
        (stoch_file("INDEP DISCRETE\n R1 4 T9 .5\n RHS R1 6 .5 T9"), no_period.to_owned()),
        (
            stoch_file("BLOCKS DISCRETE\n BL B T9 .5\n R1 4\n BL B T9 .5\n R1 6"),
            no_period.to_owned(),
        ),
        (
            stoch_file("SCENARIOS DISCRETE\n SC S ROOT .5 T9\n R1 4\n SC T ROOT T9 .5\n R1 6"),
            no_period.to_owned(),
        ),
        (
            stoch_file("SCENARIOS\n SC S ROOT .5\n R1 4\n SC T ROOT .5\n R1 6"),
            "2: SCENARIOS is read as SCENARIOS DISCRETE".to_owned(),
        ),
        (replace(STOCH, "ENDATA", ""), format!("4: {message}")),
        (replace(STOCH, "INDEP", "  INDEP"), "2: the section name INDEP is indented".to_owned()),
        (
            "STOCH\n BLOCKS DISCRETE REPLACE\n BL B .5\n R1 4\n BL B .5\n R1 6\nENDATA".to_owned(),
            "2: the section name BLOCKS is indented".to_owned(),
        ),
        (
            stoch_file("BLOCKS DISCRETE\n BL B .5\n R1 4\n BL B .5\n R1 6 R1 6"),
            "6: the right-hand side of row \"R1\" repeats line 6".to_owned(),
        ),
        (
            stoch_file("INDEP DISCRETE\n R1 4 0.4996\n R1 6 0.4996"),
            "3: the probabilities of the right-hand side of row \"R1\" sum to 0.9992: they are \
             divided by it"
                .to_owned(),
        ),
    ] {
        let (program, notes) = read_with_notes(CORE, TIME, &text);
        assert_eq!(program.random, *std::slice::from_ref(&rhs));
        assert_eq!(notes, [format!("small.sto:{note}")]);
    }
    // Equal probabilities of few decimals.
    let lines: String = (0..26).map(|value| format!(" R1 {value} 0.038\n")).collect();
    let text = stoch_file(&format!("INDEP DISCRETE\n{lines}"));
    let (program, notes) = read_with_notes(CORE, TIME, &text);
    assert!(
        program.random[0].outcomes.iter().all(|one| (one.probability - 1.0 / 26.0).abs() < 1e-15)
    );
    assert!(notes[0].contains("sum to 0.988: they are divided by it"), "{notes:?}");
    let text = stoch_file("INDEP DISCRETE\n R1 1 0.32\n R1 2 0.33\n R1 3 0.34");
    assert_fails(CORE, TIME, &text, "small.sto:3: the probabilities of the right-hand side of");
}
