//! Sections of core files: every form, error and note.

use super::*;

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
    assert_eq!(program.random[0].places, [RandomElement::Rhs(1)]);
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
    fail("NAME\n", ": has no objective");
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
fn infinite_ranges_and_large_right_hand_sides() {
    let inf = f64::INFINITY;
    let stages = |ranges: &str| {
        let program = read_clean(&append(&format!("RANGES\n{ranges}")), TIME, STOCH);
        (program.first.below[0], program.second.below, program.second.above)
    };
    // An infinite range of an equation leaves one side.
    let expected = (inf, vec![0.0, inf], vec![inf, 0.0]);
    assert_eq!(stages(" RNG A 1e30 R1 1e20\n RNG R2 -1e31"), expected);
    assert_eq!(stages(" RNG A inf R1 Infinity\n RNG R2 -inf"), expected);
    let core = replace(CORE, "A                 10.0", "A                 1e30");
    let (program, notes) = read_with_notes(&core, TIME, STOCH);
    assert_eq!(program.first.rhs, [1e30]);
    let is = "is 1e30: it is read as this number, not as infinity";
    assert_eq!(notes, [format!("small.cor:15: the right-hand side of row \"A\" {is}")]);
    let stoch = replace(STOCH, "6.0", "1e30");
    let (_, notes) = read_with_notes(CORE, TIME, &stoch);
    assert_eq!(notes, [format!("small.sto:4: the right-hand side of row \"R1\" {is}")]);
}

#[test]
fn names_may_be_keywords() {
    // A row MARKER begins no integer variables.
    let rename = |text: &str| text.replace("R1    ", "MARKER");
    let core = replace(&rename(CORE), " G  R1", " G  MARKER");
    let program = read_clean(&core, &rename(TIME), &rename(STOCH));
    assert_eq!(program.second.rows[0], "MARKER");
    for marker in [" M MARKER INTORG", " M 'MARKER' 'INTORG'"] {
        let core = append(&format!("COLUMNS\n{marker}"));
        assert_fails(&core, TIME, STOCH, "small.cor:18: integer variables are not supported");
    }
    let core = append("OBJECT MAX");
    assert_fails(&core, TIME, STOCH, "small.cor:17: there is no section \"OBJECT\"");
    // A set of bounds with the name of a column hides no other column.
    let core = append("BOUNDS\n FR X1 X9");
    assert_fails(&core, TIME, STOCH, "small.cor:18: there is no column \"X9\"");
    let long = " RHS A 1 R1 2 R2 3 R1 4 R2 5";
    let message = "small.cor:18: the line has 11 fields, but must have 3 or 5";
    assert_fails(&append(&format!("RHS\n{long}")), TIME, STOCH, message);
}

#[test]
fn files_that_end_inside_a_line_are_refused() {
    let says = "the file ends in this line, without ENDATA, and is probably incomplete";
    for (file, text) in [CORE, TIME, STOCH].into_iter().enumerate() {
        let name = ["small.cor", "small.tim", "small.sto"][file];
        let end = text.len() - "\nENDATA\n".len();
        let mut texts = [CORE, TIME, STOCH];
        texts[file] = &text[..end];
        let line = texts[file].lines().count();
        assert_fails(texts[0], texts[1], texts[2], &format!("{name}:{line}: {says}"));
        // ENDATA needs no end of line.
        texts[file] = text.trim_end();
        read_clean(texts[0], texts[1], texts[2]);
    }
}
