use std::path::Path;

use springtide_actors::policy::provisioning::Search;
use springtide_workflow::{Task, Workflow};

use super::*;
use crate::gantt;

fn offers(sites: &str) -> Offers {
    let text = format!(r#"{{"schema":1,"origin_unix_s":1764061200.0,"sites":[{sites}]}}"#);
    Offers::parse(Path::new("o.json"), text.as_bytes()).unwrap()
}

fn of(workflow: Workflow) -> Read {
    Read::of(Path::new("w"), None, workflow)
}

fn task(id: &str, name: &str, (runtime_s, processors): (f64, u32), parents: &[usize]) -> Task {
    Task {
        name: name.to_owned(),
        runtime_s: Some(runtime_s),
        processors: Some(processors),
        parents: parents.to_vec(),
        ..Task::new(id)
    }
}

fn diamond() -> Read {
    let tasks = vec![
        task("a", "split", (10.0, 1), &[]),
        task("b", "work", (20.0, 2), &[0]),
        task("c", "work", (20.0, 2), &[0]),
        task("d", "join, all", (5.0, 1), &[1, 2]),
    ];
    of(Workflow::new("diamond", tasks, vec![]).unwrap())
}

/// The provisioning paper's CyberShake: 8,039 tasks of seven kinds, here with runtimes that differ.
fn cybershake() -> Read {
    let mut tasks = vec![
        task("xyz", "fd_grid_xyz", (1.0, 1), &[]),
        task("pre", "preSGT", (300.0, 1), &[0]),
        task("cvm", "fd_grid_cvm", (2100.0, 288), &[0]),
        task("chk1", "pmvl_chk1", (86_400.0, 288), &[1, 2]),
        task("chk2", "pmvl_chk2", (86_400.0, 288), &[1, 2]),
    ];
    let mut random = springtide_runtime::random::SplitMix(5);
    for at in 0..4017 {
        let runtime = 519.0 * (0.5 + random.unit());
        tasks.push(task(&format!("s{at}"), "synthSGT", (runtime, 1), &[3, 4]));
    }
    for at in 0..4017 {
        tasks.push(task(&format!("p{at}"), "peakValCal", (0.5 + random.unit(), 1), &[5 + at]));
    }
    of(Workflow::new("cybershake", tasks, vec![]).unwrap())
}

fn request() -> PlanRequest {
    PlanRequest {
        alpha: 0.5,
        constraint: Constraint::default(),
        method: Method::Heft,
        search: Search::Pruned,
        budget: Budget { population: 2, iterations: 2 },
        seed: 1,
    }
}

/// Plans a workflow, and calls `look` with the plan and its inputs.
fn with<T>(
    read: &Read,
    offers: &Offers,
    request: &PlanRequest,
    look: impl FnOnce(&PlanReport<'_>) -> T,
) -> T {
    let speeds: Vec<f64> = offers.sites.iter().map(|site| site.speed).collect();
    let dag = read.dag(&speeds).unwrap();
    let summary = Summary::of(read).unwrap();
    let plan = planning::plan(&dag, offers, request).unwrap();
    let source = "o.json";
    look(&PlanReport { read, summary: &summary, dag: &dag, offers, source, request, plan: &plan })
}

const TWO_SITES: &str = r#"
    {"name":"vu","processors":8,"slots":[]},
    {"name":"uva","processors":16,"epoch":4,"slots":[
      {"processors":1,"start_s":0,"end_s":60,"divisible":false,"extensible":false},
      {"processors":4,"start_s":5,"end_s":100,"divisible":true,"extensible":true}]}"#;

#[test]
fn a_schedule_has_the_format_of_batsim() {
    let cheap = PlanRequest { alpha: 1.0, ..request() };
    let all = with(&diamond(), &offers(TWO_SITES), &cheap, |planned| planned.schedule_csv());
    // The first site's eight processors come before those of the second.
    let expected = "\
job_id,workload_name,submission_time,requested_number_of_resources,requested_time,success,\
starting_time,execution_time,finish_time,waiting_time,turnaround_time,stretch,allocated_resources,\
consumed_energy,metadata,site,site_resources
a,diamond,0,1,10,1,5,10,15,5,15,1.5,8,-1,split,uva,0
b,diamond,15,2,20,1,15,20,35,0,20,1,8-9,-1,work,uva,0-1
c,diamond,15,2,20,1,15,20,35,0,20,1,10-11,-1,work,uva,2-3
d,diamond,35,1,5,1,35,5,40,0,5,1,8,-1,\"join, all\",uva,0
";
    assert_eq!(all, expected);
}

#[test]
fn a_plan_is_printed_as_json_and_as_text() {
    let cheap = PlanRequest { alpha: 1.0, ..request() };
    with(&diamond(), &offers(TWO_SITES), &cheap, |planned| {
        let object = planned.object();
        assert_eq!((&object["schema"], &object["ok"]), (&1.into(), &true.into()));
        assert_eq!((&object["makespan_s"], &object["cost"]), (&40.0.into(), &95.0.into()));
        assert_eq!((&object["floor"], &object["waste"]), (&95.0.into(), &0.0.into()));
        let slot = &object["slots"][0];
        for (key, value) in [
            ("site", Value::from("uva")),
            ("epoch", 4.into()),
            ("slot", 1.into()),
            ("processors", 4.into()),
            ("start_s", 5.0.into()),
            ("end_s", 100.0.into()),
            ("cost", 95.0.into()),
            ("used_from_s", 5.0.into()),
            ("used_until_s", 40.0.into()),
        ] {
            assert_eq!(slot[key], value, "{key}");
        }
        let task = &object["tasks"][2];
        assert_eq!(
            (&task["task"], &task["site"], &task["start_s"]),
            (&"c".into(), &"uva".into(), &15.0.into())
        );
        assert_eq!(task["pieces"], json!([{ "slot": 0, "processors": 2 }]));
        let points = object["front"].as_array().unwrap();
        let taken: usize = points.iter().map(|p| p["trade_offs"].as_array().unwrap().len()).sum();
        assert_eq!(taken, planning::TRADE_OFFS);
        let text = words(planned);
        for part in [
            "workflow    w: diamond, 4 tasks, 4 edges, 3 levels\n",
            "makespan    40.00 s, until 2025-11-25T09:00:40Z; no plan on these sites takes less \
             than 35.00 s\n",
            "cost        95.00 processor-seconds\n",
            "waste       none: it costs what its tasks alone cost\n",
            "slots       uva slot 2 (epoch 4): 4 processors, 5.00 s to 40.00 s, 4 tasks, \
             used in part, cost 95.00",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains(" \n"), "{text}");
    });
}

#[test]
fn figures_show_boxes_of_few_tasks_and_shares_of_many() {
    let cheap = PlanRequest { alpha: 1.0, ..request() };
    with(&diamond(), &offers(TWO_SITES), &cheap, |planned| {
        let files = planned.files().unwrap();
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            ["plan.json", "schedule.csv", "front.csv", "front.svg", "gantt.svg", "tasks.svg"]
        );
        let (hosts, tasks) = (&files[4].1, &files[5].1);
        for text in
            ["uva", "4 of 16 procs", "split", "join, all", "slot, paid in part", "seconds after"]
        {
            assert!(hosts.contains(text), "{text}");
        }
        assert!(tasks.contains("waits for its place") && tasks.contains("2 p"));
        assert!(files[3].1.contains("cost, processor-seconds") && files[3].1.contains("the plan"));
    });
    let large = r#"
        {"name":"ctc","processors":430,"slots":[
          {"processors":300,"start_s":0,"end_s":300000,"divisible":true,"extensible":true},
          {"processors":100,"start_s":3600,"end_s":300000,"divisible":false,"extensible":false}]}"#;
    let read = cybershake();
    let began = std::time::Instant::now();
    with(&read, &offers(large), &request(), |planned| {
        let files = planned.files().unwrap();
        for (name, text) in &files {
            let most = if name.ends_with(".svg") { 300_000 } else { 2_000_000 };
            assert!(text.len() < most, "{name}: {}", text.len());
        }
        assert!(
            files[5].1.contains("level 4: synthSGT x 4&apos;017"),
            "a row for each kind and level"
        );
        assert_eq!(files[1].1.lines().count(), 8040);
    });
    // Six searches of a second each would do; the machine may be busy.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

/// With many slots, and the maximum number of single tasks, no figure exceeds 2 MB.
#[test]
fn figures_stay_small() {
    let slot = |at: u32| {
        let start = at % 7 * 50;
        format!(
            r#"{{"processors":3,"start_s":{start},"end_s":400000,
               "divisible":false,"extensible":false}}"#
        )
    };
    let slots: Vec<String> = (0..50).map(slot).collect();
    let site =
        |name| format!(r#"{{"name":"{name}","processors":200,"slots":[{}]}}"#, slots.join(","));
    let offers = offers(&[site("vu"), site("uva")].join(","));
    let mut random = springtide_runtime::random::SplitMix(9);
    let tasks: Vec<Task> = (0..2000)
        .map(|at| {
            let parents: Vec<usize> = if at >= 100 { vec![at - 100] } else { vec![] };
            let needs = (20.0 + random.below(300) as f64, 1 + random.below(80) as u32);
            task(&format!("t{at}"), &format!("kind{}", at % 50), needs, &parents)
        })
        .collect();
    let read = of(Workflow::new("wide", tasks, vec![]).unwrap());
    with(&read, &offers, &PlanRequest { alpha: 0.0, ..request() }, |planned| {
        for figure in [gantt::hosts(planned), gantt::tasks(planned), front::svg(planned)] {
            let figure = figure.unwrap();
            assert!(figure.len() < 2_000_000, "{}", figure.len());
            assert!(figure.trim_end().ends_with("</svg>"));
        }
    });
}

/// Names may have any characters, and slots may be much longer than their tasks.
#[test]
fn figures_hold_odd_names_and_long_slots() {
    let odd = ["<b>&\"'", "bell\u{7}escape\u{1b}", &"long".repeat(200), "caf\u{e9}"];
    let tasks = (0..odd.len()).map(|at| task(odd[at], odd[at], (5.0, 1), &[])).collect();
    let read = of(Workflow::new("a <workflow>", tasks, vec![]).unwrap());
    let long = offers(
        r#"{"name":"<vu>","processors":2,"slots":[
        {"processors":2,"start_s":0,"end_s":1000000,"divisible":false,"extensible":false}]}"#,
    );
    with(&read, &long, &request(), |planned| {
        for figure in [gantt::hosts(planned).unwrap(), gantt::tasks(planned).unwrap()] {
            assert!(figure.contains("a &lt;workflow&gt;") && figure.contains("caf\u{e9}"));
            assert!(!figure.contains(|c: char| c.is_control() && c != '\n'));
            assert!(!figure.contains("<b>") && !figure.contains("<vu>"));
        }
        assert!(gantt::hosts(planned).unwrap().contains("slots continue to the right"));
        assert!(words(planned).contains("2 processors, 0 s to 277 h 46 min, 4 tasks, <1 % used"));
    });
    with(&diamond(), &offers(TWO_SITES), &PlanRequest { alpha: 1.0, ..request() }, |planned| {
        assert!(!gantt::hosts(planned).unwrap().contains("slots continue"));
    });
}

#[test]
fn small_shares_are_not_none_and_large_ones_not_all() {
    let texts = [0.0, 1e-9, 0.009, 0.02, 0.5, 0.98, 0.996, 1.0, 5.19].map(percent);
    assert_eq!(texts, ["0 %", "<1 %", "<1 %", "2 %", "50 %", "98 %", ">99 %", "100 %", "519 %"]);
}

#[test]
fn kinds_are_names_without_numbers_where_all_are_numbered() {
    let numbered: Vec<Task> = (0..10)
        .map(|at| task(&format!("{at}"), &format!("mProject_ID00000{at}"), (1.0, 1), &[]))
        .collect();
    let read = of(Workflow::new("w", numbered, vec![]).unwrap());
    assert!(read.kinds.iter().all(|kind| kind == "mProject"), "{:?}", read.kinds);
    let few = cybershake();
    assert_eq!((few.kinds[3].as_str(), few.kinds[4].as_str()), ("pmvl_chk1", "pmvl_chk2"));
}

#[test]
fn deadlines_are_times_or_moments() {
    let line = |words: &[&str]| {
        let command = PlanArgs::augment_args(clap::Command::new("plan"));
        let line = [&["plan", "w.dax", "--slots", "o.json"], words].concat();
        let matches = command.try_get_matches_from(line).map_err(|error| error.to_string())?;
        Ok::<_, String>(<PlanArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap())
    };
    let offers = offers(TWO_SITES);
    let request = |words: &[&str], tasks| line(words).unwrap().choice.request(tasks, &offers);
    let usual = request(&[], 10).unwrap();
    assert_eq!((usual.alpha, usual.constraint), (0.5, Constraint::default()));
    assert_eq!(usual.budget.evaluations(), 2050);
    assert_eq!(request(&[], 8039).unwrap().budget.evaluations(), 110);
    let paper =
        ["--search", "paper", "--population", "7", "--method", "max-min", "--budget", "3.5"];
    let paper = request(&paper, 8039).unwrap();
    assert_eq!((paper.budget.evaluations(), paper.method), (77, Method::MaxMin));
    assert_eq!((paper.search, paper.constraint.budget), (Search::PAPER, Some(3.5)));
    for (text, seconds) in [("90m", 5400), ("2025-11-25T09:10Z", 600), ("2025-11-25T09:00:01Z", 1)]
    {
        let is = request(&["--deadline", text], 1).unwrap();
        assert_eq!(is.constraint.deadline, Some(seconds * SECOND), "{text}");
    }
    let past = request(&["--deadline", "2025-11-25T09:00Z"], 1).unwrap_err();
    assert_eq!(past.exit, Exit::Usage);
    assert!(past.message.contains("in the past: the offers are of 2025-11-25T09:00:00Z"), "{past}");
    for bad in [
        ["--deadline", "soon"],
        ["--deadline", "0s"],
        ["--deadline", "-5m"],
        ["--alpha", "1.1"],
        ["--alpha", "nan"],
        ["--budget", "-1"],
        ["--population", "0"],
        ["--method", "hft"],
    ] {
        assert!(line(&bad).is_err(), "{bad:?}");
    }
}
