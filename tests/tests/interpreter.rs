//! The code interpreter in real sandboxes: state, rich results, charts, interrupts, deadlines, other languages, missing tools.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_model::Code;
use atoll_tests::agent_client::{account, agent};
use atoll_tests::criu;
use atoll_tests::{Client, Options, Value, World, json, run, run_with, until};
use atoll_toolbox::{
    Execute, ExecutionEvent as E, Interpreter, InterpreterContext, Language, NewContext, Rich, Toolbox,
    ToolboxError,
};

/// All that an execution told.
#[derive(Debug, Default)]
struct Ran {
    count: u64,
    stdout: String,
    stderr: String,
    results: Vec<Rich>,
    error: Option<(String, String)>,
    timed_out: bool,
    ended: bool,
}

impl Ran {
    fn text(&self) -> &str {
        let main = self.results.iter().find(|rich| rich.is_main);
        main.unwrap_or_else(|| panic!("a value: {self:?}")).text.as_deref().unwrap()
    }

    fn error(&self) -> &str {
        &self.error.as_ref().unwrap_or_else(|| panic!("an error: {self:?}")).0
    }
}

/// Runs code that never ends until its time is over. On a busy machine a short time can be over before the code starts, which
/// ends it without an error; then it is given more time.
async fn endless(
    interpreter: &Interpreter<'_>,
    context: &InterpreterContext,
    code: &str,
    millis: u64,
) -> Ran {
    for factor in [1, 2, 4, 8, 16] {
        let timeout = Some(Duration::from_millis(millis * factor));
        let ran =
            execute(interpreter, context, Execute { code: code.into(), timeout, ..Default::default() }).await;
        assert!(ran.timed_out, "{ran:?}");
        if ran.count > 0 {
            return ran;
        }
        assert!(
            ran.stdout.is_empty() && ran.error.is_none(),
            "code that never started did something: {ran:?}"
        );
    }
    panic!("{code:?} did not start within {} ms", millis * 16);
}

/// Code that prints without end gets a short time: what it wrote before the interrupt is still read afterwards, which takes long.
async fn flood(interpreter: &Interpreter<'_>, context: &InterpreterContext) -> Ran {
    endless(interpreter, context, "while True: print('x')", 300).await
}

async fn execute(interpreter: &Interpreter<'_>, context: &InterpreterContext, execute: Execute) -> Ran {
    let mut execution = interpreter.execute(context, execute).await.unwrap();
    let mut ran = Ran::default();
    let patience = Duration::from_secs(90);
    while let Some(event) = tokio::time::timeout(patience, execution.next()).await.expect("no event") {
        match event.unwrap() {
            E::Started { count } => ran.count = count,
            E::Stdout(text) => ran.stdout += &text,
            E::Stderr(text) => ran.stderr += &text,
            E::Result(rich) => ran.results.push(*rich),
            E::Error { name, value, .. } => ran.error = Some((name, value)),
            E::TimedOut => ran.timed_out = true,
            E::Dropped(bytes) => panic!("{bytes} bytes were lost"),
            E::End => ran.ended = true,
        }
    }
    assert!(ran.ended, "{ran:?}");
    ran
}

async fn code(interpreter: &Interpreter<'_>, context: &InterpreterContext, code: &str) -> Ran {
    execute(interpreter, context, Execute { code: code.into(), ..Default::default() }).await
}

fn in_language(language: Language) -> NewContext {
    NewContext { language, cwd: None }
}

/// With the template that has a kernel.
fn with_kernel(body: impl AsyncFnOnce(&World, Toolbox, String) + Send) {
    let options = Options { template: "code-interpreter-slim", ..Options::default() };
    run_with(options, async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "memory_mib": 2048 })).await;
        body(w, Toolbox::new(agent(w, &id), account()), id).await;
    });
}

#[test]
fn python_keeps_its_state_and_tells_everything() {
    with_kernel(async |_, toolbox, _| {
        let interpreter = toolbox.interpreter();
        let context = interpreter.create_context(&in_language(Language::Python)).await.unwrap();
        let ran =
            code(&interpreter, &context, "x = 41\nprint('hällo')\nimport sys; print('oh', file=sys.stderr)")
                .await;
        assert_eq!((ran.count, ran.stdout.as_str(), ran.stderr.as_str()), (1, "hällo\n", "oh\n"));
        let ran = code(&interpreter, &context, "x + 1").await;
        assert_eq!((ran.count, ran.text()), (2, "42"));
        let ran = code(&interpreter, &context, "def f(): return 1/0\nf()").await;
        assert_eq!(ran.error.unwrap(), ("ZeroDivisionError".to_owned(), "division by zero".to_owned()));
        let ran = code(&interpreter, &context, "import os; os.system('echo child'); os.getcwd()").await;
        assert_eq!((ran.stdout.as_str(), ran.text()), ("child\n", "'/home/user'"));
        let env = [("ONLY_NOW".to_owned(), "yes".to_owned())].into();
        let ran = execute(
            &interpreter,
            &context,
            Execute { code: "os.environ['ONLY_NOW']".into(), env, timeout: None },
        );
        assert_eq!(ran.await.text(), "'yes'");
        assert_eq!(code(&interpreter, &context, "'ONLY_NOW' in os.environ").await.text(), "False");
        let ran = code(&interpreter, &context, "print('x' * 3_000_000)").await;
        assert_eq!(ran.stdout.len(), 3_000_001, "nothing of much output is lost");

        let other = NewContext { language: Language::Python, cwd: Some("/tmp".into()) };
        let other = interpreter.create_context(&other).await.unwrap();
        let ran = code(&interpreter, &other, "import os; os.getcwd(), 'x' in globals()").await;
        assert_eq!(ran.text(), "('/tmp', False)", "contexts do not see each other");
        let ids: Vec<String> = interpreter.contexts().await.unwrap().into_iter().map(|c| c.id).collect();
        assert_eq!(ids, [context.id.clone(), other.id.clone()]);
        interpreter.delete_context(&other.id).await.unwrap();
        assert!(matches!(interpreter.context(&other.id).await, Err(ToolboxError::NotFound(_))));
        let again = interpreter.restart(&context.id).await.unwrap();
        assert_eq!(
            (again.id.as_str(), code(&interpreter, &again, "x").await.error()),
            (context.id.as_str(), "NameError")
        );
    });
}

#[test]
fn results_are_rich_and_charts_are_told_as_data() {
    with_kernel(async |_, toolbox, _| {
        let interpreter = toolbox.interpreter();
        let context = interpreter.default_context(Language::Python).await.unwrap();
        let shown = "from IPython.display import *\ndisplay(HTML('<b>'), Markdown('*m*'), Latex('$x$'), JSON({'a': 1}), \
                     SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), Javascript('1'))";
        let ran = code(&interpreter, &context, shown).await;
        let find = |take: fn(&Rich) -> bool| ran.results.iter().any(take);
        assert!(find(|r| r.html.as_deref() == Some("<b>")) && find(|r| r.markdown.as_deref() == Some("*m*")));
        assert!(find(|r| r.latex.is_some()) && find(|r| r.json == Some(json!({"a": 1}))));
        assert!(find(|r| r.svg.is_some()) && find(|r| r.javascript.is_some()), "{ran:?}");

        let chart = async |body: &str| -> Value {
            let whole = format!("import matplotlib.pyplot as plt\n{body}\nplt.show()");
            let mut ran = code(&interpreter, &context, &whole).await;
            assert!(ran.error.is_none() && ran.results.len() == 1, "{ran:?}");
            let rich = ran.results.remove(0);
            assert!(rich.png.unwrap().starts_with("iVBOR"), "a picture too");
            rich.chart.unwrap_or_else(|| panic!("a chart of {body}"))
        };
        let line =
            chart("plt.plot([1, 2, 3], [4, 5, 6], label='a'); plt.title('T'); plt.xlabel('Time (s)')").await;
        assert_eq!(
            (&line["type"], &line["title"], &line["x_label"], &line["x_unit"]),
            (&json!("line"), &json!("T"), &json!("Time (s)"), &json!("s"))
        );
        assert_eq!(line["elements"], json!([{"label": "a", "points": [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]}]));
        assert_eq!((&line["x_scale"], line["x_ticks"].is_array()), (&json!("linear"), true));
        let scatter = chart("plt.scatter([1, 2], [3, 4]); plt.yscale('log')").await;
        assert_eq!((&scatter["type"], &scatter["y_scale"]), (&json!("scatter"), &json!("log")));
        let bar = chart("plt.bar(['a', 'b'], [1, 2])").await;
        let values: Vec<_> =
            bar["elements"].as_array().unwrap().iter().map(|e| (&e["label"], &e["value"])).collect();
        assert_eq!(values, [(&json!("a"), &json!(1.0)), (&json!("b"), &json!(2.0))]);
        let lying = chart("plt.barh(['a'], [2], xerr=[1]); plt.xlabel('Speed [m/s]')").await;
        assert_eq!((&lying["y_label"], &lying["y_unit"]), (&json!("Speed [m/s]"), &json!("m/s")));
        assert_eq!(lying["elements"], json!([{"label": "a", "group": "Group 0", "value": 2.0}]));
        let histogram = chart("plt.hist([1, 1, 2, 3, 3, 3], bins=2)").await;
        assert_eq!(histogram["elements"][0]["value"], json!(2.0));
        let center: f64 = histogram["elements"][0]["label"].as_str().unwrap().parse().unwrap();
        assert!((center - 1.5).abs() < 1e-9, "{histogram}");
        let pie = chart("plt.pie([1, 3], labels=['p', 'q'])").await;
        assert_eq!((&pie["type"], &pie["elements"][0]["label"]), (&json!("pie"), &json!("p")));
        assert!((pie["elements"][1]["angle"].as_f64().unwrap() - 270.0).abs() < 0.01);
        let boxes = chart("plt.boxplot([[1, 2, 3, 4, 50], [2, 3, 4]])").await;
        assert_eq!(
            boxes["elements"][0],
            json!({"label": "1", "min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 4.0, "outliers": [50.0]})
        );
        let both = chart(
            "f, (a, b) = plt.subplots(1, 2); a.plot(['x', 'y'], [1, 2]); b.bar([1], [2]); f.suptitle('S')",
        )
        .await;
        assert_eq!((&both["type"], &both["title"]), (&json!("superchart"), &json!("S")));
        assert_eq!(both["elements"][0]["x_scale"], json!("categorical"));
        let days =
            chart("import datetime as d; plt.plot([d.date(2024, 1, 1), d.date(2024, 1, 2)], [1, 2])").await;
        assert_eq!(
            (&days["x_scale"], &days["elements"][0]["points"][1][0]),
            (&json!("datetime"), &json!("2024-01-02"))
        );
        assert!(days["elements"][0]["points"][0][0].as_str().unwrap().starts_with("2024-01-01"));
    });
}

#[test]
fn python_can_be_interrupted_runs_out_of_time_and_comes_back_from_death() {
    with_kernel(async |_, toolbox, _| {
        let interpreter = toolbox.interpreter();
        let context = interpreter.create_context(&in_language(Language::Python)).await.unwrap();
        code(&interpreter, &context, "kept = 1").await;
        let ran = endless(&interpreter, &context, "import time\nwhile True: time.sleep(0.1)", 1_000).await;
        assert_eq!(ran.error(), "KeyboardInterrupt", "{ran:?}");
        let kept = code(&interpreter, &context, "kept").await;
        assert_eq!(kept.text(), "1", "an interrupt loses nothing");
        // A client that disconnects does not leave the kernel busy.
        let forever = Execute { code: "while True: pass".into(), ..Default::default() };
        let mut left = interpreter.execute(&context, forever).await.unwrap();
        assert_eq!(left.next().await.unwrap().unwrap(), E::Started { count: kept.count + 1 });
        drop(left);
        assert_eq!(code(&interpreter, &context, "kept + 1").await.text(), "2");
        let died = code(&interpreter, &context, "import os; os._exit(3)").await;
        assert_eq!(died.error(), "KernelDied");
        let fresh = code(&interpreter, &context, "'kept' in globals()").await;
        assert_eq!((fresh.text(), fresh.count), ("False", 1), "a fresh kernel took its place");
        assert_eq!(code(&interpreter, &context, "input()").await.error(), "StdinNotImplementedError");
        // Two at once wait for each other.
        let (a, b) = tokio::join!(
            code(&interpreter, &context, "import time; time.sleep(0.3); print('a'); 1"),
            code(&interpreter, &context, "print('b'); 2"),
        );
        assert_eq!((a.stdout.as_str(), a.text(), b.stdout.as_str(), b.text()), ("a\n", "1", "b\n", "2"));
        // One that waits behind another does not wait longer than its own time, and is not run later.
        let ahead = Execute { code: "time.sleep(8)".into(), ..Default::default() };
        let mut ahead = interpreter.execute(&context, ahead).await.unwrap();
        assert!(matches!(ahead.next().await, Some(Ok(E::Started { .. }))));
        let began = Instant::now();
        let timeout = Some(Duration::from_millis(300));
        let behind = Execute { code: "ghost = 1".into(), timeout, ..Default::default() };
        let behind = execute(&interpreter, &context, behind).await;
        assert!(
            behind.timed_out && behind.count == 0 && began.elapsed() < Duration::from_secs(7),
            "{behind:?}"
        );
        while let Some(event) = ahead.next().await {
            assert!(!matches!(event.unwrap(), E::Error { .. }), "the one that runs is left alone");
        }
        assert_eq!(code(&interpreter, &context, "'ghost' in globals()").await.text(), "False");
        let flooded = flood(&interpreter, &context).await;
        let about = format!("after {} bytes: {:?}", flooded.stdout.len(), flooded.error);
        assert_eq!(flooded.error(), "KeyboardInterrupt", "{about}");
    });
}

#[test]
fn code_that_loses_one_interrupt_gets_another() {
    with_kernel(async |_, toolbox, _| {
        let interpreter = toolbox.interpreter();
        let context = interpreter.default_context(Language::Python).await.unwrap();
        code(&interpreter, &context, "kept = 1").await;
        let lost = "try:\n  while True: pass\nexcept KeyboardInterrupt:\n  while True: pass";
        let ran = endless(&interpreter, &context, lost, 300).await;
        assert_eq!(ran.error(), "KeyboardInterrupt");
        assert_eq!(code(&interpreter, &context, "kept").await.text(), "1", "the context was not ended");
    });
}

#[test]
fn a_context_lives_through_a_crash_of_the_server_and_a_pause() {
    with_kernel(async |w, toolbox, id| {
        let interpreter = toolbox.interpreter();
        let context = interpreter.default_context(Language::Python).await.unwrap();
        code(&interpreter, &context, "kept = 'yes'").await;
        w.crash_server().await;
        let client = w.admin();
        let memories = if criu::at_hand().is_some() { &["live", "disk"][..] } else { &["live"] };
        for memory in memories {
            client.post(&format!("/v1/sandboxes/{id}/pause"), json!({ "memory": memory })).await.ok();
            client.act(&id, "resume").await.ok();
            let toolbox = Toolbox::new(agent(w, &id), account());
            let interpreter = toolbox.interpreter();
            let again = interpreter.default_context(Language::Python).await.unwrap();
            assert_eq!(
                (again.id.as_str(), again.created_at_ms),
                (context.id.as_str(), context.created_at_ms)
            );
            assert_eq!(code(&interpreter, &again, "kept").await.text(), "'yes'", "memory {memory}");
        }
    });
}

#[test]
fn javascript_and_bash_keep_their_state_too() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let toolbox = Toolbox::new(agent(w, &id), account());
        let interpreter = toolbox.interpreter();
        let js = interpreter.create_context(&in_language(Language::JavaScript)).await.unwrap();
        let ran = code(&interpreter, &js, "const a = 5; console.log('hi'); console.error('oh'); a * 2").await;
        assert_eq!(
            (ran.count, ran.stdout.as_str(), ran.stderr.as_str(), ran.text()),
            (1, "hi\n", "oh\n", "10")
        );
        assert_eq!(code(&interpreter, &js, "await Promise.resolve(a + 1)").await.text(), "6");
        let failed = code(&interpreter, &js, "throw new TypeError('no')").await;
        assert_eq!(failed.error.unwrap(), ("TypeError".to_owned(), "no".to_owned()));
        for code in ["while (true) {}", "await new Promise(() => {})"] {
            let ran = endless(&interpreter, &js, code, 1_000).await;
            assert!(ran.error.is_some(), "{code}: {ran:?}");
        }
        assert_eq!(code(&interpreter, &js, "a").await.text(), "5", "interrupts lose nothing");
        let dead = code(&interpreter, &js, "process.exit(3)").await;
        assert_eq!(dead.error(), "ContextDied");

        let sh = interpreter.create_context(&in_language(Language::Bash)).await.unwrap();
        let ran = code(&interpreter, &sh, "x=1; cd /tmp; echo \"it's $x\"; echo oh >&2").await;
        assert_eq!((ran.count, ran.stdout.as_str(), ran.stderr.as_str()), (1, "it's 1\n", "oh\n"));
        let env = [("E".to_owned(), "a 'b'".to_owned())].into();
        let ran =
            execute(&interpreter, &sh, Execute { code: "pwd; echo $x $E".into(), env, timeout: None }).await;
        assert_eq!((ran.count, ran.stdout.as_str()), (2, "/tmp\n1 a 'b'\n"));
        let ran = code(&interpreter, &sh, "cat; echo \"[$E]\"; false").await;
        assert_eq!((ran.stdout.as_str(), ran.error.clone().unwrap().1.as_str()), ("[]\n", "1"), "{ran:?}");
        assert_eq!(code(&interpreter, &sh, "if then").await.error(), "ExitCode", "a mistake is survived");
        let timeout = Some(Duration::from_millis(400));
        let ran =
            execute(&interpreter, &sh, Execute { code: "sleep 60".into(), timeout, ..Default::default() })
                .await;
        assert!(ran.timed_out, "{ran:?}");
        assert_eq!(code(&interpreter, &sh, "echo $x").await.stdout, "1\n");
        interpreter.delete_context(&sh.id).await.unwrap();
        until("nothing of it runs", async || interpreter.contexts().await.unwrap().is_empty().then_some(()))
            .await;
    });
}

#[test]
fn typescript_is_javascript_whose_types_are_taken_away() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let toolbox = Toolbox::new(agent(w, &id), account());
        let interpreter = toolbox.interpreter();
        let ts = interpreter.default_context(Language::TypeScript).await.unwrap();
        let ran =
            code(&interpreter, &ts, "interface P { x: number }\nconst p: P = { x: 20 };\np.x * 2 + 2").await;
        assert_eq!(ran.text(), "42");
        let ran =
            code(&interpreter, &ts, "function f<T>(v: T): T { return v }\nf<string>('kept ' + p.x)").await;
        assert_eq!(ran.text(), "kept 20");
        assert_eq!(code(&interpreter, &ts, "const = 1").await.error(), "SyntaxError");
        assert_eq!(code(&interpreter, &ts, "throw new RangeError('x')").await.error(), "RangeError");
    });
}

/// A server that keeps one instance with a kernel.
fn one_kernel() -> Options {
    let options = Options { template: "code-interpreter-slim", pool: 1, ..Options::default() };
    options.env("ATOLL_WARM_KERNELS", "1")
}

/// A sandbox that was claimed with a kernel in it. The pool is filled behind everything else, so it may take a few.
async fn claimed_with_a_kernel(w: &World, client: &Client, body: Value) -> (String, u32) {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(500);
    loop {
        let id = client.create(body.clone()).await;
        let running = agent(w, &id).list().await.unwrap();
        if let Some(warm) = running.iter().find(|process| process.tag == "atoll-context/warm/python") {
            return (id, warm.pid);
        }
        client.delete(&format!("/v1/sandboxes/{id}")).await.ok();
        assert!(begun.elapsed() < Duration::from_secs(180), "no kernel was ever ready");
        // Each create takes the one that is being made ready, so a slow machine gets longer pauses.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(20));
    }
}

#[test]
fn the_first_code_of_a_sandbox_finds_a_kernel_that_waited_for_it() {
    run_with(one_kernel(), async |w| {
        let client = w.tenant("acme").await;
        let body = json!({ "memory_mib": 1024, "env": { "GIVEN": "at create", "TZ": "Asia/Tokyo" } });
        let (id, warm) = claimed_with_a_kernel(w, &client, body.clone()).await;
        let toolbox = Toolbox::new(agent(w, &id), account()).as_user(Some("root".into()));
        let interpreter = toolbox.interpreter();
        let begun = Instant::now();
        let context = interpreter.default_context(Language::Python).await.unwrap();
        let seen = "import os, time, uuid, random, socket, ssl\nmine = uuid.uuid4().hex\n\
                    [os.environ['GIVEN'], os.environ.get('ONCE'), os.getcwd(), os.getuid(), os.environ['HOME'], time.tzname[0]]";
        let ran = code(&interpreter, &context, seen).await;
        let took = begun.elapsed();
        assert_eq!(ran.text(), "['at create', None, '/home/user', 0, '/root', 'JST']");
        assert_eq!(ran.count, 1, "nothing ran in it before");
        let first = agent(w, &id).list().await.unwrap();
        assert_eq!(
            first.iter().map(|process| process.pid).collect::<Vec<_>>(),
            [warm],
            "no other was started"
        );
        // What one run is given ends with it, and what code changes stays.
        let env = [("ONCE".to_owned(), "now".to_owned()), ("GIVEN".to_owned(), "over".to_owned())].into();
        let execute_with =
            Execute { code: "os.environ['ONCE'], os.environ['GIVEN']".into(), env, timeout: None };
        assert_eq!(execute(&interpreter, &context, execute_with).await.text(), "('now', 'over')");
        let ran = code(&interpreter, &context, "os.environ.get('ONCE'), os.environ['GIVEN']").await;
        assert_eq!(ran.text(), "(None, 'at create')");
        code(&interpreter, &context, "os.environ['GIVEN'] = 'mine'").await;
        assert_eq!(code(&interpreter, &context, "os.environ['GIVEN']").await.text(), "'mine'");

        // Another sandbox has another kernel: no state, no random numbers in common.
        let numbers =
            "import random, uuid, os; print(random.random(), uuid.uuid4(), os.urandom(4).hex(), hash('a'))";
        let here = code(&interpreter, &context, numbers).await.stdout;
        let (other, _) = claimed_with_a_kernel(w, &client, body).await;
        let toolbox = Toolbox::new(agent(w, &other), account()).as_user(Some("root".into()));
        let interpreter = toolbox.interpreter();
        let begun = Instant::now();
        let context = interpreter.default_context(Language::Python).await.unwrap();
        assert_eq!(code(&interpreter, &context, "mine").await.error(), "NameError");
        let took = took.min(begun.elapsed());
        let there = code(&interpreter, &context, numbers).await.stdout;
        for (one, two) in here.split_whitespace().zip(there.split_whitespace()) {
            assert_ne!(one, two, "{here} {there}");
        }
        let begun = Instant::now();
        let again = interpreter.restart(&context.id).await.unwrap();
        assert_eq!(again.id, "default-python");
        assert_eq!(code(&interpreter, &again, "import os; os.environ['GIVEN']").await.text(), "'at create'");
        let cold = begun.elapsed();
        assert!(took < cold, "{took:?} with a kernel that waited, {cold:?} with one that had to start");
    });
}

#[test]
fn a_kernel_that_waited_for_another_user_or_folder_is_not_used() {
    run_with(one_kernel(), async |w| {
        let client = w.tenant("acme").await;
        let body = json!({ "memory_mib": 1024, "env": { "PYTHONPATH": "/opt/mine" } });
        let (id, warm) = claimed_with_a_kernel(w, &client, body).await;
        let toolbox = Toolbox::new(agent(w, &id), account()).as_user(Some("root".into()));
        let interpreter = toolbox.interpreter();
        assert!(interpreter.contexts().await.unwrap().is_empty());
        let context = interpreter.default_context(Language::Python).await.unwrap();
        assert_eq!(code(&interpreter, &context, "import sys; '/opt/mine' in sys.path").await.text(), "True");
        until("it costs nothing any more", async || {
            let left = agent(w, &id).list().await.unwrap();
            left.iter().all(|process| process.pid != warm).then_some(())
        })
        .await;

        let (id, _) = claimed_with_a_kernel(w, &client, json!({ "memory_mib": 1024 })).await;
        let toolbox = Toolbox::new(agent(w, &id), account()).as_user(Some("daytona".into()));
        let interpreter = toolbox.interpreter();
        let context = interpreter.default_context(Language::Python).await.unwrap();
        let ran = code(&interpreter, &context, "import os; os.getuid()").await;
        assert_eq!(ran.text(), "1001");
    });
}

#[test]
fn python_without_a_kernel_is_run_by_a_plain_worker_where_that_is_asked_for() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let toolbox = Toolbox::new(agent(w, &id), account());
        let interpreter = toolbox.interpreter().or_plain_python();
        let context = interpreter.default_context(Language::Python).await.unwrap();
        let ran = code(&interpreter, &context, "    x = 41\n    print('hällo')\n    x + 1").await;
        assert_eq!((ran.count, ran.stdout.as_str(), ran.text()), (1, "hällo\n", "42"));
        let ran = code(&interpreter, &context, "def f(): return 1/0\nf()").await;
        assert_eq!(ran.error.unwrap(), ("ZeroDivisionError".to_owned(), "division by zero".to_owned()));
        let ran = code(&interpreter, &context, "print('x' * 3_000_000)").await;
        assert_eq!(ran.stdout.len(), 3_000_001, "nothing of much output is lost");
        for code in ["while True: pass", "import time; time.sleep(600)"] {
            let ran = endless(&interpreter, &context, code, 1_000).await;
            assert_eq!(ran.error(), "KeyboardInterrupt", "{code}: {ran:?}");
        }
        assert_eq!(flood(&interpreter, &context).await.error(), "KeyboardInterrupt");
        assert_eq!(code(&interpreter, &context, "x").await.text(), "41", "an interrupt loses nothing");
        // One that waits behind another does not wait longer than its own time, and is not run later.
        let ahead = Execute { code: "time.sleep(6)".into(), ..Default::default() };
        let mut ahead = interpreter.execute(&context, ahead).await.unwrap();
        assert!(matches!(ahead.next().await, Some(Ok(E::Started { .. }))));
        let timeout = Some(Duration::from_millis(400));
        let behind = Execute { code: "ghost = 1".into(), timeout, ..Default::default() };
        assert!(execute(&interpreter, &context, behind).await.timed_out);
        while let Some(event) = ahead.next().await {
            assert!(!matches!(event.unwrap(), E::Error { .. }), "the one that runs is left alone");
        }
        assert_eq!(code(&interpreter, &context, "'ghost' in globals()").await.text(), "False");
        assert_eq!(code(&interpreter, &context, "import os; os._exit(3)").await.error(), "KernelDied");
        assert_eq!(code(&interpreter, &context, "'x' in globals()").await.text(), "False");
        let again = interpreter.restart(&context.id).await.unwrap();
        assert_eq!(code(&interpreter, &again, "1 + 1").await.text(), "2");
    });
}

#[test]
fn a_sandbox_without_a_kernel_says_what_is_missing() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let toolbox = Toolbox::new(agent(w, &id), account());
        let missing = toolbox.interpreter().create_context(&in_language(Language::Python)).await.unwrap_err();
        assert_eq!(missing.code(), Code::ToolMissing, "{missing}");
        assert!(missing.hint().unwrap().contains("code-interpreter"));
        for (language, package) in [(Language::R, "r-base-core"), (Language::Java, "default-jdk-headless")] {
            let missing = toolbox.interpreter().create_context(&in_language(language)).await.unwrap_err();
            assert_eq!(missing.code(), Code::ToolMissing, "{missing}");
            let hint = missing.hint().unwrap();
            assert!(
                hint.contains(package) && hint.contains("atoll template make code-interpreter-full"),
                "{hint}"
            );
        }
        assert!(toolbox.interpreter().contexts().await.unwrap().is_empty());
        // What the package of a JDK does when it is installed, which fails where the folders of manual pages are missing.
        let install = "update-alternatives --install /usr/bin/of-test of-test /bin/true 1 \
                       --slave /usr/share/man/man1/of-test.1.gz of-test.1.gz /etc/hostname && readlink /usr/share/man/man1/of-test.1.gz";
        let root = Toolbox::new(agent(w, &id), account()).as_user(Some("root".into()));
        let sh = root.interpreter().create_context(&in_language(Language::Bash)).await.unwrap();
        let ran = code(&root.interpreter(), &sh, install).await;
        assert!(ran.error.is_none() && ran.stdout.contains("/etc/alternatives/of-test.1.gz"), "{ran:?}");
    });
}

#[test]
fn a_sandbox_without_anything_still_has_a_shell() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let toolbox = Toolbox::new(agent(w, &id), account());
        let interpreter = toolbox.interpreter();
        let missing = interpreter.create_context(&in_language(Language::JavaScript)).await.unwrap_err();
        assert_eq!(missing.code(), Code::ToolMissing);
        let sh = interpreter.default_context(Language::Bash).await.unwrap();
        assert_eq!(code(&interpreter, &sh, "y=2; if then").await.error(), "ExitCode");
        assert_eq!(code(&interpreter, &sh, "echo $((40+2))").await.stdout, "42\n");
    });
}

#[test]
fn a_process_that_was_never_told_what_to_do_is_no_context() {
    // What a server leaves that is killed between the start of a process and the first input.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let silent = atoll_agentapi::StartProcess {
            cmd: "/bin/sh".to_owned(),
            tag: "atoll-context/bash/default-bash".to_owned(),
            stdin: true,
            ..Default::default()
        };
        let (left, _) = agent(w, &id).start(silent).await.unwrap();
        let toolbox = Toolbox::new(agent(w, &id), account());
        let interpreter = toolbox.interpreter();
        let context = interpreter.default_context(Language::Bash).await.unwrap();
        assert_eq!(code(&interpreter, &context, "echo here").await.stdout, "here\n");
        let running = agent(w, &id).list().await.unwrap();
        assert!(running.iter().all(|process| process.pid != left.pid), "{running:?}");
    });
}
