//! Commands of each preset, and what is read from the answers of batch systems.

use springtide_base::fuzz::{Target, run};
use springtide_config::{BatchPreset, GridConfig, Sources, load};

use super::super::capacity::{StubSize, capacity};
use super::*;

const AHEAD: Duration = Duration::from_secs(60);

fn owner() -> StubOwner {
    StubOwner::new("home", "ours", "vu")
}

fn name(node: &str) -> StubName {
    StubName { node: node.to_owned(), token: "t1".to_owned() }
}

/// The row's name of a node.
fn job(node: &str) -> String {
    owner().job_name(&name(node))
}

fn system(text: &str) -> Result<BatchSystem, String> {
    let text = format!("[[cluster]]\nname = \"vu\"\nprovider = \"batch\"\n{text}");
    let config = load::<GridConfig>(&Sources::of_text("test", &text));
    let config = config.map_err(|error| error.to_string())?.value;
    BatchSystem::new(&config.cluster[0].batch_system().unwrap(), AHEAD)
}

fn preset(name: &str) -> BatchSystem {
    system(&format!("[cluster.batch]\npreset = \"{name}\"\n")).unwrap()
}

fn submission(system: &BatchSystem, threads: u32, log: &str) -> Result<CommandLine, String> {
    let base = "/d/vu-1.toml".into();
    let files = StubFiles { base, token: "t1".to_owned() };
    system.submission(&StubSubmission {
        owner: &owner(),
        name: &name("vu-1"),
        comment: &StubComment::default(),
        files: &files,
        threads,
        log: Path::new(log),
        script: b"echo \"a\tb\"\n",
    })
}

#[test]
fn slurm_options_become_arguments() {
    let text = "[[cluster]]\nname = \"vu\"\nprovider = \"slurm\"\n[cluster.slurm]\n\
        gres = \"gpu:2\"\nconstraint = \"a&b\"\nreservation = \"r1\"\nmem_per_cpu = \"1GiB\"\n\
        extra = [\"--exclusive\", \"--nice=5\"]\nclusters = \"das\"\ntime = \"90s\"\n\
        partition = \"batch\"\nqos = \"low\"\naccount = \"p1\"\n";
    let config = load::<GridConfig>(&Sources::of_text("test", text)).unwrap().value;
    let system = BatchSystem::new(&config.cluster[0].batch_system().unwrap(), AHEAD).unwrap();
    let line = submission(&system, 4, "/d/log").unwrap();
    let expected = format!(
        "sbatch --parsable --no-requeue --export=ALL --nodes=1 --ntasks=1 --cpus-per-task=4 \
         --job-name={} --comment=springtide-1 --signal=B:USR1@15 --open-mode=append \
         --clusters=das --partition=batch --account=p1 --qos=low --time=2 --mem-per-cpu=1024M \
         --gres=gpu:2 '--constraint=a&b' --reservation=r1 --output=/d/log --error=/d/log \
         --exclusive --nice=5",
        job("vu-1")
    );
    assert_eq!(
        line.to_string().replace("'--comment=springtide-1'", "--comment=springtide-1"),
        expected
    );
    assert_eq!(line.input, b"echo \"a\tb\"\n");
    // Slurm would see a pattern in such a path.
    let line = submission(&system, 1, "/d/%j").unwrap().to_string();
    assert!(line.contains("--output=/dev/null"), "{line}");
    let ids = [BatchJobId::new("7").unwrap(), BatchJobId::new("8").unwrap()];
    let lines: Vec<String> = system.cancel(&ids).iter().map(CommandLine::to_string).collect();
    assert_eq!(lines, ["scancel --clusters=das 7 8"]);
    let lines = system.signal("USR1", &ids);
    assert_eq!(lines[0].to_string(), "scancel --clusters=das --batch --signal=USR1 7 8");
    assert!(system.list().unwrap().to_string().contains(" --clusters=das "));
}

#[test]
fn many_jobs_are_few_commands() {
    let ids: Vec<BatchJobId> =
        (1..=700).map(|id| BatchJobId::new(&id.to_string()).unwrap()).collect();
    assert_eq!(preset("slurm").cancel(&ids).len(), 2);
    assert!(preset("gridengine").signal("USR1", &ids).is_empty());
}

#[test]
fn several_processors_need_a_parallel_environment() {
    let lacking = submission(&preset("gridengine"), 2, "/d/log").unwrap_err();
    assert!(lacking.contains("give `values` a `parallel_environment`"), "{lacking}");
    let text = "[cluster.batch]\npreset = \"gridengine\"\nqueue = \"all.q\"\ntime = \"2m\"\n\
        values = { parallel_environment = \"smp\" }\n";
    let line = submission(&system(text).unwrap(), 2, "/d/log").unwrap().to_string();
    assert!(line.contains(" -o /d/log -pe smp 2 -q all.q -l h_rt=120"), "{line}");
}

#[test]
fn a_manifest_has_the_script_as_a_scalar() {
    let text = "[cluster.batch]\npreset = \"kubernetes\"\n\
        values = { image = \"registry/springtide\", claim = \"files\" }\n";
    let line = submission(&system(text).unwrap(), 2, "/d/log").unwrap();
    let manifest = String::from_utf8(line.input).unwrap();
    assert!(manifest.contains("[\"/bin/sh\", \"-c\", \"echo \\\"a\\u0009b\\\"\\n\"]"));
    assert!(manifest.contains("mountPath: \"/d\" }") && manifest.contains("cpu: \"2\" } }"));
    assert!(manifest.contains(&format!("name: {}\n", slug(&job("vu-1")))), "{manifest}");
}

#[test]
fn stubs_are_told_apart_from_other_jobs() {
    let comment = StubComment {
        base: Some("/home/me/a b|c%/vu-1.toml".into()),
        log: Some("/l/vu-1.log".into()),
    };
    let other = StubOwner::new("home", "theirs", "vu").job_name(&name("vu-1"));
    let text = format!(
        "{}|12|R|1-02:03:04|4|n7|None|{}\n\
         {}|13|PD|UNLIMITED|4||Resources|(null)\n\
         {other}|20|R|5:00|4|n7|None|\n\
         springtide.home.vu.vu-1|21|R|5:00|4|n7|None|\n\
         two|19|R|5:00|4|n7|None|two\nlines\n\
         a name\nof two|22|R|5:00|4|n7|None|\n\
         spring|tide|17_[1-9]|R|5:00|4|n[1-3]|None|odd|name\n\
         wrap|18_4|S|INVALID|4|n7|None|hello\n\n",
        job("vu-1"),
        comment.text(),
        job("vu-2"),
    );
    let found = preset("slurm").jobs(&text, &owner()).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].id.as_str(), found[0].node.as_str()), ("12", "vu-1"));
    assert_eq!(found[0].left, Some(Duration::from_secs(86_400 + 2 * 3600 + 3 * 60 + 4)));
    assert_eq!((found[0].host.as_str(), found[0].processors), ("n7", Some(4)));
    assert_eq!((&found[0].state, &found[0].comment), (&StubState::Running, &comment));
    assert_eq!((&found[1].state, found[1].left), (&StubState::Pending, None));
    let reason = (found[1].reason.as_str(), &found[1].comment);
    assert_eq!(reason, ("Resources", &StubComment::default()));
}

#[test]
fn a_message_is_no_list() {
    let slurm = preset("slurm");
    let cut = format!("other|7|R|1|1|n|None|\n{}|8|R", job("vu-1"));
    let no_number = format!("{}|x|R|1|1|n|None|", job("vu-1"));
    for text in ["Please read the new rules", "a|b|c", &no_number, &cut] {
        assert!(slurm.jobs(text, &owner()).is_err(), "{text}");
    }
    for text in ["", "\n", "CLUSTER: das\n"] {
        assert_eq!(slurm.jobs(text, &owner()), Ok(Vec::new()), "{text}");
    }
    let grid_engine = preset("gridengine");
    for text in ["", "error: commlib error", "<job_info><job_list>"] {
        assert!(grid_engine.jobs(text, &owner()).is_err(), "{text}");
    }
}

#[test]
fn lists_of_grid_engine_are_read() {
    // Output of Grid Engine 8.1.9, shortened.
    let row = |id: u32, node: &str, state: &str, queue: &str| {
        format!(
            "    <job_list state=\"running\">\n<JB_job_number>{id}</JB_job_number>\n\
             <JB_name>{}</JB_name>\n      <state>{state}</state>\n      \
             <queue_name>{queue}</queue_name>\n      <slots>2</slots>\n    </job_list>\n",
            job(node)
        )
    };
    let text = format!(
        "<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"x\">\n  <queue_info>\n{}\
         </queue_info>\n<job_info>\n{}{}  </job_info>\n</job_info>\n",
        row(1, "vu-1", "r", "all.q@n1"),
        row(2, "vu-2", "qw", ""),
        row(3, "vu-3", "Eqw", ""),
    );
    let grid_engine = preset("gridengine");
    let found = grid_engine.jobs(&text, &owner()).unwrap();
    let states: Vec<_> = found.iter().map(|job| (job.id.as_str(), &job.state)).collect();
    let failed = StubState::Ended("failed to start".to_owned());
    assert_eq!(states, [("1", &StubState::Running), ("2", &StubState::Pending), ("3", &failed)]);
    assert_eq!((found[0].host.as_str(), found[0].processors), ("all.q@n1", Some(2)));
    assert!(grid_engine.jobs(&text[..text.len() - 20], &owner()).is_err());
    let machines = "queuename    qtype resv/used/tot. load_avg arch          states\n\
        --------------------------------------\n\
        all.q@n1                  BIP   0/3/4          1.30     lx-amd64      \n\
        \x20     1 0.25000 springtide root         r     11/29/2026 12:06:03     1        \n\
        all.q@n2                  BIP   0/0/4          -NA-     lx-amd64      au\n";
    let machines = grid_engine.machines(machines).unwrap();
    let seen: Vec<_> = machines.iter().map(|m| (m.busy, m.free, m.usable)).collect();
    assert_eq!(seen, [(3, 1, true), (0, 4, false)]);
    assert!(grid_engine.machines("error: no answer").is_err());
}

/// One row of each preset that was not tested on a real system, after its documentation.
#[test]
fn lists_of_other_systems_are_read() {
    let rows = [
        ("pbs", format!("Job Id: 12.srv|Job_Name={}|job_state=Q|exec_host=n1/0\n", job("vu-1"))),
        ("lsf", format!("12|PEND|{}|-|-|-\n", job("vu-1"))),
        ("flux", format!("f12|S|0.0||1|{}\n", job("vu-1"))),
        ("htcondor", format!("12.0|1||{}\n", job("vu-1"))),
        ("kubernetes", format!("springtide-12|{}|Pending|\n", job("vu-1"))),
    ];
    for (name, row) in rows {
        let values = "values = { image = \"i\", claim = \"c\" }\n";
        let values = if name == "kubernetes" { values } else { "" };
        let text = format!("[cluster.batch]\npreset = \"{name}\"\n{values}");
        let found = system(&text).unwrap().jobs(&row, &owner()).unwrap();
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!((found[0].node.as_str(), &found[0].state), ("vu-1", &StubState::Pending));
        assert!(found[0].id.as_str().contains("12"), "{name}: {}", found[0].id);
    }
    assert!(preset("lsf").is_empty_list("No unfinished job found"));
}

#[test]
fn remaining_times() {
    let seconds = |text| time_left(text).map(|left| left.as_secs());
    assert_eq!(seconds("0:59"), Some(59));
    assert_eq!(seconds("1:59:00"), Some(7140));
    assert_eq!((seconds("12"), seconds("12.7")), (Some(12), Some(12)));
    assert_eq!(seconds("365-00:00:01"), Some(365 * 86_400 + 1));
    for word in ["UNLIMITED", "INVALID", "NOT_SET", "N/A", "", "-", "1:2:3:4", "-1:00"] {
        assert_eq!(seconds(word), None, "{word}");
    }
}

#[test]
fn identifiers_of_submitted_jobs() {
    let slurm = preset("slurm");
    let id = |text| slurm.submitted(text).map(|id| id.to_string()).ok();
    assert_eq!(id("12\n").as_deref(), Some("12"));
    assert_eq!(id("Welcome to us!\n\n12;vu\n").as_deref(), Some("12"));
    assert_eq!((id("\n"), id("Submitted batch job 12")), (None, None));
    for text in ["", "a b", "-f", "a\n"] {
        assert_eq!(BatchJobId::new(text), None, "{text}");
    }
}

#[test]
fn the_default_queue_is_read() {
    let slurm = preset("slurm");
    let rows = "n1|0/8/0/8|idle|up|long|1\nn1|0/8/0/8|idle|up|batch*|1\n";
    assert_eq!(slurm.default_queue(rows), Some("batch"));
    assert_eq!(slurm.default_queue("n1|0/8/0/8|idle|up|long|1\n"), None);
    assert_eq!(preset("gridengine").default_queue(rows), None);
}

#[test]
fn machines_that_take_jobs() {
    let slurm = preset("slurm");
    let takes = |state: &str| {
        let row = format!("n1|0/8/0/8|{state}|up|batch*|1");
        slurm.machines(&row).unwrap()[0].usable
    };
    for state in [
        "idle",
        "mixed",
        "allocated",
        "allocated+",
        "completing",
        "idle~",
        "mixed-",
        "idle#",
        "planned",
        "mix",
        "IDLE+POWERED_DOWN",
        "idle@",
    ] {
        assert!(takes(state), "{state}");
    }
    for state in [
        "down",
        "down*",
        "drained",
        "draining",
        "drng",
        "drain*",
        "idle*",
        "maint",
        "resv",
        "reserved",
        "idle$",
        "idle%",
        "IDLE+DRAIN",
        "",
        "fail",
        "newword",
    ] {
        assert!(!takes(state), "{state}");
    }
}

#[test]
fn each_machine_is_counted_once_and_in_the_right_partition() {
    let text = "n1|2/6/0/8|mixed|up|batch*|4096\n\
                n1|2/6/0/8|mixed|up|long|4096\n\
                n2|0/0/8/8|drained|up|batch*|4096\n\
                n3|0/8/0/8|idle|up|long|4096\n\
                n4|0/8/0/8|idle|down|batch*|N/A\n";
    let names = |system: &BatchSystem| -> Vec<String> {
        system.machines(text).unwrap().into_iter().map(|machine| machine.name).collect()
    };
    let queue = "[cluster.batch]\npreset = \"slurm\"\nqueue = \"batch,long\"\n";
    assert_eq!(names(&system(queue).unwrap()), ["n1", "n2", "n3", "n4"]);
    assert_eq!(names(&preset("slurm")), ["n1", "n2", "n4"]);
    assert!(preset("slurm").machines("n1|2/6/8|idle|up|batch*|1").is_err());
    assert!(preset("slurm").machines("no nodes").is_err());
}

/// Each reader of output gets every text, by each preset.
fn read(systems: &[BatchSystem], bytes: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(bytes);
    let mut read = Err(String::new());
    let _ = time_left(&text);
    for system in systems {
        let _ = (system.submitted(&text), system.is_empty_list(&text));
        let jobs = system.jobs(&text, &owner());
        let held = jobs.as_deref().unwrap_or_default();
        for job in held {
            let StubName { node, token } =
                StubName { node: job.node.clone(), token: job.token.clone() };
            assert!(!node.is_empty() && !token.is_empty());
        }
        let Ok(machines) = system.machines(&text) else { continue };
        for (processors, memory) in [(0, Some(0)), (2, Some(7)), (1, None)] {
            let found = capacity(&machines, held, StubSize { processors, memory });
            assert!(found.size >= found.others);
        }
        if !held.is_empty() {
            read = Ok(());
        }
    }
    read
}

#[test]
fn fuzz() {
    thread_local! {
        static SYSTEMS: Vec<BatchSystem> = BatchPreset::ALL
            .iter()
            .map(|preset| {
                let values = "values = { image = \"i\", claim = \"c\" }\n";
                let values = if *preset == BatchPreset::Kubernetes { values } else { "" };
                system(&format!("[cluster.batch]\npreset = \"{preset}\"\n{values}")).unwrap()
            })
            .collect();
    }
    let comment = StubComment { base: Some("/t/a".into()), log: None }.text();
    let (one, two) = (job("vu-1"), job("vu-2"));
    let slurm = format!("{one}|17|R|1-02:03:04|2|n1|None|{comment}\nother|3|PD|UNLIMITED|1|||x\n");
    let grid_engine = format!(
        "<job_info><job_list><JB_job_number>1</JB_job_number><JB_name>{two}</JB_name>\
         <state>r</state><queue_name>q@n</queue_name><slots>1</slots></job_list></job_info>\n"
    );
    let machines = "n1|1/3/0/4|mixed|up|short*|2000\nn2|0/0/4/4|down*|up|long|0\n";
    let queues = "all.q@n1    BIP   0/3/4   1.30   lx-amd64   \n";
    let pbs = format!("Job Id: 1.s|Job_Name={one}|job_state=R|exec_host=n1/0\n");
    let seeds = [&*slurm, &*grid_engine, machines, queues, &*pbs, "17;cluster\n"];
    let target = Target {
        name: "output of batch systems",
        test: "-p springtide-providers --lib batch::system::tests::fuzz",
        words: &[
            "|",
            ":",
            "/",
            "-",
            "\n",
            "%",
            "%FF",
            ".",
            "*",
            "<job_list>",
            "</job_list>",
            "</job_info>",
            "springtide-1 ",
            "base=",
            "springtide.",
            "PD",
            "CG",
            "idle",
            "up",
            "~",
            "+",
            ";",
            " ",
            "@",
            "Job Id: ",
        ],
        max_len: 8 << 10,
        found: &[],
        read: |bytes| SYSTEMS.with(|systems| read(systems, bytes)),
        allocated: None,
    };
    run(target, seeds.map(|text| text.as_bytes().to_vec()).to_vec());
}
