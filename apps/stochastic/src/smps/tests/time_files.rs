//! Time files: every form, error and note.

use super::*;

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
