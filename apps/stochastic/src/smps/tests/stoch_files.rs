//! Sections of stochastic files: every form, error and note.

use super::*;

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
            both(RandomElement::Rhs(0), &[1.0, 2.0]),
            "{lines}"
        );
    }
    // Technology where the core file has an entry and where it has none.
    let technology = read_blocks("INDEP DISCRETE REPLACE\n X1 R1 3 T2 0.25\n X1 R1 4 0.75");
    assert_eq!(technology, both(RandomElement::Technology(0, 0), &[3.0, 4.0]));
    let technology = read_blocks("INDEP DISCRETE\n X1 R2 3 T2 0.25\n X1 R2 0 0.75");
    assert_eq!(technology, both(RandomElement::Technology(1, 0), &[3.0, 0.0]));
    assert_eq!(
        read_blocks("INDEP DISCRETE ADD\n RHS R1 -1 0.25\n RHS R1 1 0.75"),
        both(RandomElement::Rhs(0), &[3.0, 5.0])
    );
    assert_eq!(
        read_blocks("INDEP DISCRETE MULTIPLY\n RHS R1 0 0.25\n RHS R1 2 0.75"),
        both(RandomElement::Rhs(0), &[0.0, 8.0])
    );
    // Elements that take turns.
    let turns =
        read_blocks("INDEP DISCRETE\n RHS R1 1 0.5\n RHS R2 3 0.5\n RHS R1 2 0.5\n RHS R2 4 0.5");
    let halves =
        |place, values: [f64; 2]| block(&[place], &[(0.5, &values[..1]), (0.5, &values[1..])]);
    assert_eq!(
        turns,
        [halves(RandomElement::Rhs(0), [1.0, 2.0]), halves(RandomElement::Rhs(1), [3.0, 4.0])]
    );
    // Right-hand sides may be of a set of any name, and periods and rows be named by numbers.
    let core = CORE.replace("    RHS   ", "    DEMAND").replace("R1", "12");
    let text = stoch_file("INDEP DISCRETE\n DEMAND 12 1 0.25\n DEMAND 12 2 0.75");
    assert_eq!(
        read_clean(&core, &TIME.replace("R1", "12"), &text).random,
        both(RandomElement::Rhs(0), &[1.0, 2.0])
    );
    let text = stoch_file("INDEP DISCRETE\n 12 1 2 0.25\n 12 2 2 0.75");
    let time = TIME.replace("R1", "12").replace("T2", "2");
    assert_eq!(read_clean(&core, &time, &text).random, both(RandomElement::Rhs(0), &[1.0, 2.0]));
}

#[test]
fn blocks_change_their_first_outcome() {
    let places = [RandomElement::Rhs(0), RandomElement::Technology(1, 0)];
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
    assert_eq!(turns[0], block(&[RandomElement::Rhs(0), RandomElement::Rhs(1)], &both));
    assert_eq!(
        turns[1],
        block(&[RandomElement::Technology(0, 0)], &[(0.5, &[7.0]), (0.5, &[8.0])])
    );
    let add = read_blocks("BLOCKS DISCRETE ADD\n BL B 0.5\n RHS R1 1 R2 1\n BL B 0.5\n RHS R1 2");
    assert_eq!(add[0].outcomes[1].values, [6.0, 6.0]);
    // Together with independent elements.
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
        &[RandomElement::Rhs(0), RandomElement::Rhs(1)],
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
    assert_eq!(
        program.random,
        [block(&[RandomElement::Rhs(0), RandomElement::Rhs(1)], &[(1.0, &[1.0, 2.0])])]
    );
    assert_eq!(
        notes,
        ["small.sto:3: an outcome of the scenarios has probability 0 and is ignored"]
    );
    let (program, _) =
        read_with_notes(CORE, TIME, &stoch_file("INDEP DISCRETE\n RHS R1 1 0\n RHS R1 2 1"));
    assert_eq!(program.random, [block(&[RandomElement::Rhs(0)], &[(1.0, &[2.0])])]);
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
    let places =
        [RandomElement::Cost(0), RandomElement::Recourse(0, 0), RandomElement::Recourse(0, 1)];
    let outcomes: [(f64, &[f64]); 2] = [(0.5, &[3.5, 2.0, 7.0]), (0.5, &[2.5, 0.0, 7.0])];
    let other: [(f64, &[f64]); 2] = [(0.5, &[4.0]), (0.5, &[-8.0])];
    let random = read_clean(CORE, TIME, &text).random;
    assert_eq!(random, [block(&places, &outcomes), block(&[RandomElement::Cost(1)], &other)]);
    // The sign of random costs follows that of the others.
    let core = replace(CORE, "ROWS", "OBJSENSE MAX\nROWS");
    let random = read_with_notes(&core, TIME, &text).0.random;
    let outcomes: [(f64, &[f64]); 2] = [(0.5, &[-3.5, 2.0, 7.0]), (0.5, &[-2.5, 0.0, 7.0])];
    let other: [(f64, &[f64]); 2] = [(0.5, &[-4.0]), (0.5, &[8.0])];
    assert_eq!(random, [block(&places, &outcomes), block(&[RandomElement::Cost(1)], &other)]);
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
    let random = [block(&[RandomElement::Rhs(0)], &[(1.0, &[4.0])])];
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

/// Forms of published stochastic files: the same block, with notes or without.
#[test]
fn stochastic_files_in_other_forms() {
    let rhs = block(&[RandomElement::Rhs(0)], &[(0.5, &[4.0]), (0.5, &[6.0])]);
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

#[test]
fn bounds_follow_the_modifier() {
    let core = append("BOUNDS\n UP BND Y1 2");
    let random = "INDEP DISCRETE\n RHS R1 4 1\nBLOCKS DISCRETE";
    for (lines, is_certain) in [
        ("\n BL B 1\n UP BND Y1 2", true),
        (" ADD\n BL B 1\n UP BND Y1 0", true),
        (" MULTIPLY\n BL B 1\n UP BND Y1 1", true),
        (" ADD\n BL B 1\n UP BND Y1 2", false),
        (" MULTIPLY\n BL B 1\n UP BND Y1 2", false),
        (" ADD\n BL B 1\n MI BND Y1", false),
    ] {
        let text = stoch_file(&format!("{random}{lines}"));
        if is_certain {
            assert_eq!(read_with_notes(&core, TIME, &text).0.random.len(), 1, "{lines}")
        } else {
            assert_fails(&core, TIME, &text, "small.sto:6: a bound of column \"Y1\" is random");
        }
    }
}

#[test]
fn names_with_two_meanings_are_refused() {
    let rename = |text: &str, name: &str| text.replace("X1 ", &format!("{name} "));
    let fail = |name: &str, lines: &str, says: &str| {
        let (core, time) = (rename(CORE, name), rename(TIME, name));
        assert_fails(&core, &time, &stoch_file(lines), &format!("small.sto:{says}"));
    };
    fail(
        "RHS",
        "INDEP DISCRETE\n RHS R1 4 1",
        "3: \"RHS\" is a column and the set of right-hand sides: rename one of the two",
    );
    fail(
        "BL",
        "BLOCKS DISCRETE\n BL B 1\n BL R1 0.5",
        "4: \"BL\" is a column and the word that begins an outcome: rename one of the two",
    );
    fail("SC", "SCENARIOS DISCRETE\n SC S ROOT 1\n SC R1 5 R2 6", "4: \"SC\" is a column and");
    // Lines with one meaning.
    for (name, lines) in [
        ("RHS2", "INDEP DISCRETE\n RHS2 R1 4 1"),
        ("BL", "BLOCKS DISCRETE\n BL B 1\n BL R1 4 R2 5"),
        ("SC", "SCENARIOS DISCRETE\n SC S ROOT 1\n SC R1 5"),
    ] {
        let program = read_clean(&rename(CORE, name), &rename(TIME, name), &stoch_file(lines));
        assert_eq!(program.random[0].places[0], RandomElement::Technology(0, 0), "{name}");
    }
}

#[test]
fn periods_and_rows_that_are_probably_wrong() {
    let text = stoch_file("INDEP DISCRETE\n RHS R1 4 T1 0.5\n RHS R1 6 T1 0.5");
    let (program, notes) = read_with_notes(CORE, TIME, &text);
    assert_eq!(program.random, read_clean(CORE, TIME, STOCH).random);
    let note = "small.sto:3: the period \"T1\" is the first: the element is random in the second";
    assert_eq!(notes, [note]);
    let text = stoch_file("INDEP DISCRETE\n R9 4 T2 1");
    assert_fails(CORE, TIME, &text, "small.sto:3: there is no row \"R9\"");
    // A row DISCRETE under a column with the name of a section.
    let rename = |text: &str| text.replace("X1    ", "BLOCKS").replace("R2      ", "DISCRETE");
    let core = replace(&rename(CORE), " E  R2", " E  DISCRETE");
    let lines = "SCENARIOS DISCRETE\n SC S ROOT 1\n BLOCKS DISCRETE 7";
    let program = read_clean(&core, &rename(TIME), &stoch_file(lines));
    assert_eq!(program.random, [block(&[RandomElement::Technology(1, 0)], &[(1.0, &[7.0])])]);
}
