//! What is read and what is not: every form of every section, and every error with its file, its line and its words.

use std::path::PathBuf;

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
    let file = |ending: &str| PathBuf::from(format!("small.{ending}"));
    Files { core: file("cor"), time: file("tim"), stoch: file("sto") }
}

#[track_caller]
fn noted(core: &str, time: &str, stoch: &str) -> (TwoStage, Vec<String>) {
    let (program, notes) =
        read_texts(core, time, stoch, &names()).unwrap_or_else(|error| panic!("{error}"));
    (program, notes.iter().map(Note::to_string).collect())
}

#[track_caller]
fn is(core: &str, time: &str, stoch: &str) -> TwoStage {
    let (program, notes) = noted(core, time, stoch);
    assert_eq!(notes, [""; 0]);
    program
}

#[track_caller]
fn fails(core: &str, time: &str, stoch: &str, says: &str) {
    match read_texts(core, time, stoch, &names()) {
        Ok((program, _)) => panic!("{program:?} was read, without\n{says}"),
        Err(error) => assert!(error.to_string().starts_with(says), "{error}\nis not\n{says}"),
    }
}

/// The core file with lines instead of others.
#[track_caller]
fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

/// Lines added to the core file's end.
fn and(more: &str) -> String {
    changed(CORE, "ENDATA", &format!("{more}\nENDATA"))
}

/// A stochastic file with this after its first line, which so is line 2.
fn stoch(sections: &str) -> String {
    format!("STOCH\n{sections}\nENDATA\n")
}

fn random(sections: &str) -> Vec<Block> {
    is(CORE, TIME, &stoch(sections)).random
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
    assert_eq!(is(CORE, TIME, STOCH), expected);
    // The same with tabs, carriage returns, comments, a mark of byte order and lower-case sections.
    let odd = |text: &str| {
        let text = text
            .replace("    ", "\t")
            .replace("DISCRETE", "discrete")
            .replace("PERIODS", "periods");
        format!("\u{feff}* comment\n\n{}", text.replace('\n', "\r\n*\r\n  \r\n"))
    };
    assert_eq!(is(&odd(CORE), &odd(TIME), &odd(STOCH)), expected);
    // A column that comes again.
    let moved = changed(CORE, "    X1        R1                 2.0\n", "");
    let moved = changed(&moved, "RHS\n", " X1 R1 2.0\nRHS\n");
    assert_eq!(is(&moved, TIME, STOCH), expected);
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
    let program = is(&names(CORE), &names(TIME), &names(STOCH));
    let plain = is(CORE, TIME, STOCH);
    assert_eq!((&*program.first.columns[0], &*program.second.rows[0]), ("X 1", "R 1"));
    assert_eq!((program.random, program.technology), (plain.random, plain.technology));
}

#[test]
fn names_of_programs_may_lack_but_not_differ() {
    let unnamed = changed(CORE, "NAME          SMALL", "NAME");
    assert_eq!(is(&unnamed, TIME, STOCH).name, "");
    assert_eq!(is(CORE, &changed(TIME, "TIME          SMALL", "TIME  "), STOCH).name, "SMALL");
    let (_, notes) = noted(CORE, &changed(TIME, "SMALL", "LARGE"), STOCH);
    assert_eq!(notes, ["small.tim: is of \"LARGE\", and the core file of \"SMALL\""]);
    let spaced = changed(CORE, "NAME          SMALL", "NAME          a small one");
    assert_eq!(
        is(&spaced, &changed(TIME, "SMALL", ""), &changed(STOCH, "SMALL", "")).name,
        "a small one"
    );
}

#[test]
fn the_objective_has_a_constant_and_a_sense() {
    let program = is(&and("RHS\n RHS COST 7"), TIME, STOCH);
    assert_eq!(program.offset, -7.0);
    for sense in ["OBJSENSE MAX\n", "OBJSENSE\n    MAXIMIZE\n", "objsense\n max\n"] {
        let core = changed(&and("RHS\n RHS COST 7"), "ROWS", &format!("{sense}ROWS"));
        let (program, notes) = noted(&core, TIME, STOCH);
        assert_eq!((program.offset, &*program.second.cost), (7.0, &[-3.0, -4.0][..]));
        assert!(notes[0].contains("is to be maximised: it is minimised"), "{notes:?}");
    }
    let core = |sense| changed(CORE, "ROWS", &format!("OBJSENSE {sense}\nROWS"));
    assert_eq!(is(&core("MIN"), TIME, STOCH), is(CORE, TIME, STOCH));
    fails(&core("UP"), TIME, STOCH, "small.cor:2: the sense \"UP\" is not known, only MIN and MAX");
    fails(
        &changed(CORE, " N  COST", " G  COST"),
        TIME,
        STOCH,
        "small.cor: has no objective: one row must be of type N",
    );
}

#[test]
fn the_objective_may_stand_anywhere_and_further_n_rows_are_left_out() {
    let core = changed(CORE, " N  COST\n", "");
    let core = changed(&core, " E  R2\n", " E  R2\n N  COST\n N  OTHER\n");
    let core = changed(
        &core,
        "RHS\n",
        "    Y2        OTHER            9.0\nRHS\n    RHS       OTHER            1.0\n",
    );
    let stoch = changed(
        STOCH,
        "ENDATA",
        "    Y2        OTHER            9.0   T2               0.4\nENDATA",
    );
    let (program, notes) = noted(&core, TIME, &stoch);
    assert_eq!(program, is(CORE, TIME, STOCH));
    assert_eq!(notes, ["small.cor:7: row \"OTHER\" is left out, for \"COST\" is the objective"]);
    // A time file may begin with the objective, and its first stage have no rows.
    let time = changed(&changed(TIME, " A   ", " COST"), "R1", "A ");
    let core = and("COLUMNS\n Y1 A 2");
    let program = is(&core, &time, STOCH);
    assert_eq!((program.first.rows.len(), program.second.rows.len()), (0, 3));
    assert_eq!(program.random[0].places, [Place::Rhs(1)]);
}

#[test]
fn ranges_go_by_type_and_sign() {
    let inf = f64::INFINITY;
    let slack = |ranges: &str| {
        let program = is(&and(&format!("RANGES\n{ranges}")), TIME, STOCH);
        let of = |stage: &Stage| {
            stage.below.iter().copied().zip(stage.above.iter().copied()).collect::<Vec<_>>()
        };
        [of(&program.first), of(&program.second)].concat()
    };
    assert_eq!(slack(""), [(inf, 0.0), (0.0, inf), (0.0, 0.0)]);
    assert_eq!(slack(" RNG A 3 R1 4\n RNG R2 5"), [(3.0, 0.0), (0.0, 4.0), (0.0, 5.0)]);
    assert_eq!(slack(" A -3 R1 -4\n R2 -5"), [(3.0, 0.0), (0.0, 4.0), (5.0, 0.0)]);
    assert_eq!(slack(" R2 0"), [(inf, 0.0), (0.0, inf), (0.0, 0.0)]);
    let core = |ranges: &str| and(&format!("RANGES\n{ranges}"));
    fails(&core(" RNG COST 3"), TIME, STOCH, "small.cor:18: the objective has a range");
    fails(
        &core(" RNG A 3\n RNG A 3"),
        TIME,
        STOCH,
        "small.cor:19: the range of row \"A\" is given already, in line 18",
    );
}

#[test]
fn bounds_of_every_type() {
    let inf = f64::INFINITY;
    let bounds = |lines: &str| {
        let (program, notes) = noted(&and(&format!("BOUNDS\n{lines}")), TIME, STOCH);
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
        (" UP ONE X1 -3\n LO TWO X1 -4", (-4.0, -3.0)),
    ] {
        assert_eq!(bounds(lines), (expected, vec![]), "{lines}");
    }
    let (negative, notes) = bounds(" UP BND X1 -3");
    assert_eq!(negative, (-inf, -3.0));
    assert_eq!(
        notes,
        [
            "small.cor:18: column \"X1\" has a negative upper bound and no lower one: it has none below"
        ]
    );
    for (lines, says) in [
        (" UP BND X1", "18: \"X1\" is not a finite number"),
        (
            " UP BND X1 4 5",
            "18: a line has 5 fields here, and must have type, set, column and value",
        ),
        (" UP BND X1 four", "18: \"four\" is not a finite number"),
        (" UP BND X1 nan", "18: \"nan\" is not a finite number"),
        (" LO BND X1 1e30", "18: \"1e30\" is not a finite number"),
        (
            " UP BND X1 4\n FX BND X1 4",
            "19: the upper bound of column \"X1\" is given already, in line 18",
        ),
        (
            " LO BND X1 0\n UP BND X1 -1",
            "19: column \"X1\" has the lower bound 0 above its upper bound -1",
        ),
        (
            " BV BND X1",
            "18: integer variables are not supported: without bounds BV, LI and UI the linear relaxation",
        ),
        (" UI BND X1 4", "18: integer variables are not supported"),
        (" SC BND X1 4", "18: semi-continuous variables are not supported"),
        (
            " XX BND X1 4",
            "18: the type \"XX\" of a bound is not known, only UP, LO, FX, FR, MI and PL",
        ),
        (" FR BND", "18: there is no column \"BND\""),
    ] {
        fails(&and(&format!("BOUNDS\n{lines}")), TIME, STOCH, &format!("small.cor:{says}"));
    }
}

#[test]
fn core_files_that_are_wrong() {
    let fail = |core: &str, says: &str| fails(core, TIME, STOCH, &format!("small.cor{says}"));
    fail(
        &and("RHS\n RHS A 1"),
        ":18: the right-hand side of row \"A\" is given already, in line 15",
    );
    fail(
        &and("COLUMNS\n Y1 R1 1"),
        ":18: row \"R1\" of column \"Y1\" is given already, in line 12",
    );
    fail(&and("ROWS\n L A"), ":18: row \"A\" is given already, in line 4");
    fail(&and("ROWS\n D A2"), ":18: the type \"D\" of a row is not known, only N, E, L and G");
    fail(&and("ROWS\n L"), ":18: a line has 1 field here, and must have 2: type and row");
    fail(&and("COLUMNS\n Y1 R9 1"), ":18: there is no row \"R9\"");
    fail(
        &and("COLUMNS\n Y1 R2 1 R1"),
        ":18: a line has 4 fields here, and must have 3 or 5: column, row, value",
    );
    fail(&and("COLUMNS\n Y1 R2 1.0.0"), ":18: \"1.0.0\" is not a finite number");
    fail(&and("COLUMNS\n Y1 R2 1e999"), ":18: \"1e999\" is not a finite number");
    fail(
        &and("COLUMNS\n M 'MARKER' 'INTORG'"),
        ":18: integer variables are not supported: without the MARKER lines",
    );
    fail(
        &and("RHS\n RHS A 1 R2 2 3"),
        ":18: a line has 6 fields here, and must have 3 or 5: set, row, value",
    );
    fail(&and("RHS\n RHS R9 1"), ":18: there is no row \"R9\"");
    fail(
        &and("QUADOBJ\n X1 X1 1"),
        ":17: there is no section \"QUADOBJ\" here, only NAME, OBJSENSE, ROWS,",
    );
    fail(&and("X1 A 1"), ":17: there is no section \"X1\" here");
    fail(&changed(CORE, "ENDATA", ""), ":16: has no ENDATA: was the file cut off?");
    fail("", ": has no ENDATA");
    // Data in the first column would be taken for a header, and be lost.
    let says = "RHS stands in the first column with something behind it: a line of data begins with a blank";
    fail(&and("RHS RHS A 1"), &format!(":17: {says}"));
    fail(" N COST\nENDATA", ":1: a line of data stands before the first section: begin with NAME");
    fail("NAME\n N COST\nENDATA", ":2: a line has 2 fields here, and must have none behind NAME");
    fail(
        &and("COLUMNS\n Y1 A 3"),
        ":18: row \"A\" is of the first stage and column \"Y1\" of the second",
    );
    let (_, notes) = noted(&format!("{CORE}* more\nmore"), TIME, STOCH);
    assert_eq!(notes, ["small.cor:19: what stands behind ENDATA is passed over"]);
    // Nothing in it is nothing wrong.
    is(&and("COLUMNS\n Y1 A 0"), TIME, STOCH);
}

#[test]
fn periods_are_implicit_or_explicit() {
    let time = |periods: &str| format!("TIME\n{periods}\nENDATA");
    let implicit = is(CORE, TIME, STOCH);
    for header in ["PERIODS", "PERIODS IMPLICIT", "PERIODS LP"] {
        assert_eq!(is(CORE, &time(&format!("{header}\n X1 A T1\n Y1 R1 T2")), STOCH), implicit);
    }
    let listed = "PERIODS EXPLICIT\n T1\n T2\nROWS\n A T1\n R1 T2\n R2 T2\n COST T1\nCOLUMNS\n X1 T1\n X2 T1\n Y1 T2\n Y2 T2";
    assert_eq!(is(CORE, &time(listed), STOCH), implicit);
    // Listed in any order, and in none in the core file.
    let core = "NAME SMALL\nROWS\n G R1\n L A\n N COST\n E R2\nCOLUMNS\n Y1 COST 3 R1 1\n X1 COST 1 A 1\n X1 R1 2\n Y2 COST 4 R2 1\n \
        X2 COST 2 A 1\n X2 R2 -1\nRHS\n RHS A 10 R1 4\n RHS R2 5\nENDATA";
    assert_eq!(is(core, &time(listed), STOCH), implicit);
    fails(core, TIME, STOCH, "small.tim:4: row \"R1\" is out of the order of the periods");
    for (periods, says) in [
        (
            "PERIODS\n X1 A T1",
            ": has 1 period, and must have 2: only programs of two stages are read",
        ),
        (
            "PERIODS\n X1 A T1\n X2 R1 T2\n Y1 R2 T3",
            ":5: has 3 periods or more, and must have 2: only programs of two stages are read",
        ),
        ("PERIODS\n X1 A T1\n Y1 R1 T1", ":4: period \"T1\" is given already, in line 3"),
        (
            "PERIODS\n X1 A\n Y1 R1",
            ":3: a line has 2 fields here, and must have 3: first column, first row and period",
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
            ":2: PERIODS \"NLP\" is not known, only LP, IMPLICIT and EXPLICIT",
        ),
        (
            "STAGES\n X1 A T1",
            ":2: there is no section \"STAGES\" here, only TIME, PERIODS, ROWS, COLUMNS and ENDATA",
        ),
        (
            "PERIODS\n X1 A T1\n Y1 R1 T2\nROWS\n A T1",
            ":5: rows and columns are listed only behind PERIODS EXPLICIT",
        ),
        (" X1 A T1", ":2: a line of data stands before the first section: begin with PERIODS"),
        (
            "PERIODS EXPLICIT\n T1\n T2\nROWS\n A T1\n A T2",
            ":7: the period of this row is given already, in line 6",
        ),
        ("PERIODS EXPLICIT\n T1\n T2\nROWS\n A T3", ":6: there is no period \"T3\""),
        (
            "PERIODS EXPLICIT\n T1\n T2\nROWS\n A T1\n R1 T2\n R2 T2",
            ": column \"X1\" is in no period: list it",
        ),
        (
            "PERIODS EXPLICIT\n T1\n T2\nROWS\n A T1\n R1 T2",
            ": row \"R2\" is in no period: list it",
        ),
    ] {
        fails(CORE, &time(periods), STOCH, &format!("small.tim{says}"));
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
            random(&format!("INDEP DISCRETE\n{lines}")),
            both(Place::Rhs(0), &[1.0, 2.0]),
            "{lines}"
        );
    }
    // Technology where the core file has an entry and where it has none.
    let technology = random("INDEP DISCRETE REPLACE\n X1 R1 3 T2 0.25\n X1 R1 4 0.75");
    assert_eq!(technology, both(Place::Technology(0, 0), &[3.0, 4.0]));
    let technology = random("INDEP DISCRETE\n X1 R2 3 T2 0.25\n X1 R2 0 0.75");
    assert_eq!(technology, both(Place::Technology(1, 0), &[3.0, 0.0]));
    assert_eq!(
        random("INDEP DISCRETE ADD\n RHS R1 -1 0.25\n RHS R1 1 0.75"),
        both(Place::Rhs(0), &[3.0, 5.0])
    );
    assert_eq!(
        random("INDEP DISCRETE MULTIPLY\n RHS R1 0 0.25\n RHS R1 2 0.75"),
        both(Place::Rhs(0), &[0.0, 8.0])
    );
    // Elements that take turns.
    let turns =
        random("INDEP DISCRETE\n RHS R1 1 0.5\n RHS R2 3 0.5\n RHS R1 2 0.5\n RHS R2 4 0.5");
    let halves =
        |place, values: [f64; 2]| block(&[place], &[(0.5, &values[..1]), (0.5, &values[1..])]);
    assert_eq!(turns, [halves(Place::Rhs(0), [1.0, 2.0]), halves(Place::Rhs(1), [3.0, 4.0])]);
    // Right-hand sides may be of a set of any name, and periods and rows be named by numbers.
    let core = CORE.replace("    RHS   ", "    DEMAND").replace("R1", "12");
    let text = stoch("INDEP DISCRETE\n DEMAND 12 1 0.25\n DEMAND 12 2 0.75");
    assert_eq!(
        is(&core, &TIME.replace("R1", "12"), &text).random,
        both(Place::Rhs(0), &[1.0, 2.0])
    );
    let text = stoch("INDEP DISCRETE\n 12 1 2 0.25\n 12 2 2 0.75");
    let time = TIME.replace("R1", "12").replace("T2", "2");
    assert_eq!(is(&core, &time, &text).random, both(Place::Rhs(0), &[1.0, 2.0]));
}

#[test]
fn blocks_say_what_differs_from_their_first_realisation() {
    let places = [Place::Rhs(0), Place::Technology(1, 0)];
    let lines = "BLOCKS DISCRETE\n BL B T2 0.5\n RHS R1 1\n X1 R2 2\n BL B T2 0.25\n RHS R1 3\n BL B T2 0.25\n X1 R2 4";
    let expected =
        [block(&places, &[(0.5, &[1.0, 2.0]), (0.25, &[3.0, 2.0]), (0.25, &[1.0, 4.0])])];
    assert_eq!(random(lines), expected);
    assert_eq!(random(&lines.replace("B T2", "B")), expected);
    // Realisations of two blocks take turns; right-hand sides without the name of a set, two in a line.
    let turns = random(
        "BLOCKS DISCRETE\n BL B 0.5\n R1 1 R2 2\n BL C 0.5\n X1 R1 7\n BL B 0.5\n R1 3\n BL C 0.5\n X1 R1 8",
    );
    let both = [(0.5, &[1.0, 2.0][..]), (0.5, &[3.0, 2.0])];
    assert_eq!(turns[0], block(&[Place::Rhs(0), Place::Rhs(1)], &both));
    assert_eq!(turns[1], block(&[Place::Technology(0, 0)], &[(0.5, &[7.0]), (0.5, &[8.0])]));
    let add = random("BLOCKS DISCRETE ADD\n BL B 0.5\n RHS R1 1 R2 1\n BL B 0.5\n RHS R1 2");
    assert_eq!(add[0].outcomes[1].values, [6.0, 6.0]);
    // Beside independent elements.
    assert_eq!(random("INDEP DISCRETE\n RHS R1 1 1\nBLOCKS DISCRETE\n BL B 1\n RHS R2 1").len(), 2);
    // What the first realisation lacks.
    let late = stoch("BLOCKS DISCRETE\n BL B 0.5\n RHS R1 1\n BL B 0.5\n RHS R2 2");
    let (program, notes) = noted(CORE, TIME, &late);
    assert_eq!(program.random[0].outcomes[0].values, [1.0, 5.0]);
    assert_eq!(
        notes,
        [
            "small.sto:6: the right-hand side of row \"R2\" is not in the first realisation of the block: there it is as in the core file"
        ]
    );
}

#[test]
fn scenarios_say_what_differs_from_their_parents() {
    let lines = "SCENARIOS DISCRETE\n SC ONE 'ROOT' 0.5 T1\n RHS R1 1\n SC TWO ONE 0.25 T2\n RHS R2 2\n SC THREE TWO 0.125 T2\n \
        RHS R1 3\n SC FOUR ROOT 0.125 T2\n RHS R2 9";
    let expected = [block(
        &[Place::Rhs(0), Place::Rhs(1)],
        &[(0.5, &[1.0, 5.0]), (0.25, &[1.0, 2.0]), (0.125, &[3.0, 2.0]), (0.125, &[4.0, 9.0])],
    )];
    assert_eq!(random(lines), expected);
    let bare = lines.replace(" T1", "").replace(" T2", "").replace("DISCRETE", "DISCRETE REPLACE");
    assert_eq!(random(&bare.replace("'ROOT'", "root")), expected);
    // The file may call itself NAME, as a core file.
    assert_eq!(is(CORE, TIME, &format!("NAME SMALL\n{lines}\nENDATA")).random, expected);
}

#[test]
fn what_has_no_probability_is_left_out_and_still_a_parent() {
    let lines = "SCENARIOS DISCRETE\n SC ONE ROOT 0.0\n RHS R1 1\n SC TWO ONE 1.0\n RHS R2 2";
    let (program, notes) = noted(CORE, TIME, &stoch(lines));
    assert_eq!(program.random, [block(&[Place::Rhs(0), Place::Rhs(1)], &[(1.0, &[1.0, 2.0])])]);
    assert_eq!(
        notes,
        ["small.sto:3: this realisation of the scenarios has no probability and is left out"]
    );
    let (program, _) = noted(CORE, TIME, &stoch("INDEP DISCRETE\n RHS R1 1 0\n RHS R1 2 1"));
    assert_eq!(program.random, [block(&[Place::Rhs(0)], &[(1.0, &[2.0])])]);
}

#[test]
fn probabilities_add_up_to_1() {
    let hundred: String = (0..100).map(|at| format!(" RHS R1 {at} 0.01\n")).collect();
    let outcomes = &random(&format!("INDEP DISCRETE\n{hundred}"))[0].outcomes;
    assert!(outcomes.iter().all(|outcome| outcome.probability == 0.01));
    let thirds = &random("INDEP DISCRETE\n RHS R1 1 0.3333333\n RHS R1 2 0.6666666")[0].outcomes;
    assert_eq!(thirds.iter().map(|outcome| outcome.probability).sum::<f64>(), 1.0);
    for (lines, says) in [
        (
            "INDEP DISCRETE\n RHS R2 1 1\n RHS R1 1 0.5\n RHS R1 2 0.4",
            "4: the probabilities of the right-hand side of row \"R1\" add up to 0.9:",
        ),
        (
            "INDEP DISCRETE\n X1 R1 1 0.5\n X1 R1 2 0.500002",
            "3: the probabilities of row \"R1\" of column \"X1\" add up to 1.00000",
        ),
        (
            "INDEP DISCRETE\n RHS R1 1 0",
            "3: the probabilities of the right-hand side of row \"R1\" add up to 0",
        ),
        (
            "BLOCKS DISCRETE\n BL B 0.5\n RHS R1 1",
            "3: the probabilities of block \"B\" add up to 0.5: they must add up to 1 within 1e-6",
        ),
        (
            "SCENARIOS DISCRETE\n SC S ROOT 0.5\n RHS R1 1",
            "2: the probabilities of the scenarios add up to 0.5",
        ),
        ("SCENARIOS DISCRETE", "2: the probabilities of the scenarios add up to 0"),
        ("INDEP DISCRETE\n RHS R1 1 1.5", "3: 1.5 is not a probability: it must be from 0 to 1"),
        ("INDEP DISCRETE\n RHS R1 1 -0.5", "3: -0.5 is not a probability"),
        ("INDEP DISCRETE\n RHS R1 1 nan", "3: \"nan\" is not a finite number"),
    ] {
        fails(CORE, TIME, &stoch(lines), &format!("small.sto:{says}"));
    }
}

#[test]
fn recourse_is_fixed() {
    let only = "is random: only right-hand sides of second-stage rows and the technology matrix";
    for (line, element) in [
        ("Y1 R1 2 T2 1", "an entry of the recourse matrix, row \"R1\" of column \"Y1\","),
        ("Y1 COST 2 T2 1", "the cost of column \"Y1\""),
        ("X1 COST 2 T2 1", "the cost of column \"X1\""),
        ("X1 A 2 T2 1", "an entry of the first stage, row \"A\" of column \"X1\","),
        ("RHS A 2 T2 1", "the right-hand side of the first-stage row \"A\""),
        ("RHS COST 2 T2 1", "the constant of the objective"),
        ("UP BND Y1 2 1", "a bound of column \"Y1\""),
        ("UP BND Y1 2 T2 1", "a bound of column \"Y1\""),
        ("RNG R1 2 T2 1", "the range of row \"R1\""),
    ] {
        let core = and("RANGES\n RNG R1 1");
        let text = stoch(&format!("INDEP DISCRETE\n {line}"));
        fails(&core, TIME, &text, &format!("small.sto:3: {element} {only}"));
    }
    let text = stoch("BLOCKS DISCRETE\n BL B 1\n UP BND Y1 2");
    fails(CORE, TIME, &text, &format!("small.sto:4: a bound of column \"Y1\" {only}"));
    // What only repeats the core file is not random.
    let repeats = "SCENARIOS DISCRETE\n SC S ROOT 1\n Y1 COST 3 R1 1\n RHS R1 4\n X1 A 1";
    let (program, notes) = noted(CORE, TIME, &stoch(repeats));
    assert_eq!(program.random, [block(&[Place::Rhs(0)], &[(1.0, &[4.0])])]);
    assert_eq!(notes.len(), 3);
    assert_eq!(
        notes[0],
        "small.sto:4: the cost of column \"Y1\" is as in the core file: it is not taken to be random"
    );
    let (program, notes) = noted(CORE, TIME, &stoch("BLOCKS DISCRETE\n BL B 1"));
    assert!(program.random.is_empty());
    assert_eq!(
        notes,
        ["small.sto:3: nothing is random in block \"B\"", "small.sto: nothing is random"]
    );
}

#[test]
fn stochastic_files_that_are_wrong() {
    for (lines, says) in [
        (
            "INDEP NORMAL\n RHS R1 1 2",
            "2: INDEP \"NORMAL\" is not read, only INDEP DISCRETE; continuous distributions are not read: discretise it",
        ),
        ("INDEP UNIFORM", "2: INDEP \"UNIFORM\" is not read"),
        ("INDEP", "2: INDEP \"\" is not read, only INDEP DISCRETE"),
        ("BLOCKS LINTR", "2: BLOCKS \"LINTR\" is not read"),
        (
            "INDEP DISCRETE POWER",
            "2: the modifier \"POWER\" is not known, only REPLACE, ADD and MULTIPLY",
        ),
        (
            "SCENARIOS DISCRETE ADD",
            "2: SCENARIOS DISCRETE \"ADD\" is not read: write values with REPLACE",
        ),
        (
            "NODES DISCRETE",
            "2: there is no section \"NODES\" here, only STOCH, INDEP, BLOCKS, SCENARIOS and ENDATA",
        ),
        (
            " RHS R1 1 1",
            "2: a line of data stands before the first section: begin with INDEP, BLOCKS or SCENARIOS",
        ),
        (
            "INDEP DISCRETE\n RHS R1",
            "3: a line has 2 fields here, and must have 4 or 5: column or RHS, row, value",
        ),
        ("INDEP DISCRETE\n RHS R1 x 1", "3: \"x\" is not a finite number"),
        ("INDEP DISCRETE\n RHS R9 1 1", "3: there is no row \"R9\""),
        ("INDEP DISCRETE\n Z R1 1 1", "3: there is no column \"Z\""),
        ("INDEP DISCRETE\n RHSX R1 1 1", "3: there is no column \"RHSX\""),
        ("INDEP DISCRETE\n RHS R1 1 T3 1", "3: there is no period \"T3\""),
        ("INDEP DISCRETE MULTIPLY\n RHS R1 1e308 1", "3: \"inf\" is not a finite number"),
        (
            "BLOCKS DISCRETE\n RHS R1 1",
            "3: a line of data stands before the first section: begin with a BL line",
        ),
        (
            "SCENARIOS DISCRETE\n RHS R1 1",
            "3: a line of data stands before the first section: begin with an SC line",
        ),
        ("BLOCKS DISCRETE\n BL B", "3: a line has 2 fields here, and must have 3 or 4: BL, block,"),
        ("BLOCKS DISCRETE\n BL B T3 1", "3: there is no period \"T3\""),
        (
            "BLOCKS DISCRETE\n BL B 1\n RHS R1 1 R2 2 3",
            "4: a line has 6 fields here, and must have 3 or 5: column or RHS",
        ),
        (
            "SCENARIOS DISCRETE\n SC S ROOT",
            "3: a line has 3 fields here, and must have 4 or 5: SC, scenario,",
        ),
        ("SCENARIOS DISCRETE\n SC S T 1 T2", "3: there is no scenario \"T\""),
        ("SCENARIOS DISCRETE\n SC S ROOT 1 T9", "3: there is no period \"T9\""),
        (
            "SCENARIOS DISCRETE\n SC S ROOT 0.5\n SC S ROOT 0.5",
            "4: scenario \"S\" is given already, in line 3",
        ),
        (
            "BLOCKS DISCRETE\n BL B 1\n RHS R1 1\n RHS R1 2",
            "5: the right-hand side of row \"R1\" is given already, in line 4",
        ),
        (
            "BLOCKS DISCRETE\n BL B 1\n RHS R1 1\n BL C 1\n RHS R1 2",
            "6: the right-hand side of row \"R1\" is given already, in line 4",
        ),
        (
            "INDEP DISCRETE\n X1 R1 1 1\nBLOCKS DISCRETE\n BL B 1\n X1 R1 2",
            "6: row \"R1\" of column \"X1\" is given already, in line 3",
        ),
        (
            "BLOCKS DISCRETE\n BL B 1\n X1 R1 2\nINDEP DISCRETE\n X1 R1 1 1",
            "6: row \"R1\" of column \"X1\" is given already, in line 4",
        ),
        (
            "INDEP DISCRETE\n RHS R1 1 1\nSCENARIOS DISCRETE",
            "4: SCENARIOS stand for all that is random: one such section alone",
        ),
        ("SCENARIOS DISCRETE\nBLOCKS DISCRETE", "3: SCENARIOS stand for all that is random"),
    ] {
        fails(CORE, TIME, &stoch(lines), &format!("small.sto:{says}"));
    }
    fails(CORE, TIME, "STOCH\nINDEP DISCRETE\n RHS R1 1 1", "small.sto:3: has no ENDATA");
}

#[test]
fn outcomes_do_not_outgrow_memory() {
    // 12 thousand scenarios, each with an element of its own and so a value for every element of the others.
    let count = 12_000;
    let rows: String = (0..count).map(|at| format!(" G R{at}\n")).collect();
    let core = format!("NAME\nROWS\n N COST\n{rows}COLUMNS\n X COST 1\n Y COST 1 R1 1\nENDATA");
    let time = "TIME\nPERIODS\n X COST T1\n Y R0 T2\nENDATA";
    let lines: String = (0..count).map(|at| format!(" SC S{at} ROOT 0\n RHS R{at} 1\n")).collect();
    let text = stoch(&format!("SCENARIOS DISCRETE\n{lines}"));
    fails(
        &core,
        time,
        &text,
        "small.sto:2: has more than 134217728 values of random elements, the most that is read",
    );
}

#[test]
fn a_file_has_not_more_notes_than_can_be_read() {
    let rows: String = (0..1000).map(|at| format!(" N N{at}\n")).collect();
    let (_, notes) = noted(&changed(CORE, " L  A", &format!("{rows} L  A")), TIME, STOCH);
    assert_eq!(notes.len(), 51);
    assert_eq!(notes[50], "small.cor: and 950 notes more");
}

#[test]
fn files_are_found_in_a_directory_and_by_their_common_name() {
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
    assert_eq!(read(&files).unwrap().0, is(CORE, TIME, STOCH));
    std::fs::write(at("c.mps"), CORE).unwrap();
    let error = says(dir.path());
    assert!(error.ends_with("both \"a.b.COR\" and \"c.mps\" are here, each a core file: name the path of one model without an ending"), "{error}");
    assert_eq!(Files::find(&at("a.b")).unwrap(), files);
    assert!(says(&at("c")).contains("c: no time file is here"));
    assert!(says(&at("none/here")).contains("here: cannot be read: "));

    std::fs::write(at("a.b.tim"), b"TIME\nPERIODS\xff\n").unwrap();
    assert!(
        read(&files)
            .unwrap_err()
            .to_string()
            .ends_with("a.b.tim:2: is not UTF-8 here: save it as UTF-8 text")
    );
    std::fs::File::create(at("a.b.tim")).unwrap().set_len(TEXT_MAX + 1).unwrap();
    assert!(
        read(&files)
            .unwrap_err()
            .to_string()
            .ends_with("is larger than 512 MiB, the most that is read")
    );
    std::fs::remove_file(at("a.b.tim")).unwrap();
    assert!(matches!(*read(&files).unwrap_err().cause, Cause::Unreadable(_)));
}
