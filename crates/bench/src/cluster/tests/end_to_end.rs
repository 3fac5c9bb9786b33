use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tradewind_core::deadline::Deadline;
use tradewind_core::listing::ListRequest;
use tradewind_core::{Clock, Context, SystemClock};

use crate::cluster::Key;
use crate::cluster::agent::{AgentJob, LogFn, OpenedStore, StoreOpener, serve};
use crate::cluster::assignment::{self, AssignedStage};
use crate::cluster::coordinator::{AgentError, Cluster, RunSettings};
use crate::drive::tests::env;
use crate::drive::{BenchEnv, EndReason, StopSignal};
use crate::load::StopCondition;
use crate::load_spec::LoadSpec;
use crate::operation::Operation;
use crate::result::{ClientMachine, Measurement};
use crate::runner::{RunEvent, Stage};
use crate::test_plan::{Step, TestPlan};

struct Memory(BenchEnv);

impl StoreOpener for Memory {
    fn open<'a>(&'a self, job: &'a AgentJob) -> BoxFuture<'a, Result<OpenedStore, String>> {
        let opened = match &*job.location {
            "nowhere" => Err("there is no such place".to_owned()),
            _ => Ok(OpenedStore {
                env: self.0.clone(),
                base_prefix: "there/".to_owned(),
                store: "memory".to_owned(),
                client: ClientMachine { cores: 2, ..ClientMachine::default() },
            }),
        };
        async { opened }.boxed()
    }
}

struct Agent {
    address: String,
    stop: StopSignal,
    serving: JoinHandle<std::io::Result<()>>,
    messages: Arc<Mutex<Vec<String>>>,
}

impl Agent {
    async fn start(env: &BenchEnv) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, messages): (StopSignal, Arc<Mutex<Vec<String>>>) = Default::default();
        let (halt, log, opens) =
            (stop.clone(), messages.clone(), Arc::new(Memory(env.clone())) as Arc<dyn StoreOpener>);
        let log_fn: LogFn = Arc::new(move |line| log.lock().push(line.to_owned()));
        let serving = tokio::spawn(async move { serve(listener, &key(), &opens, &halt, &log_fn).await });
        Self { address, stop, serving, messages }
    }

    /// Waits until the agent has printed a message that contains `text`.
    async fn wait_for_message(&self, text: &str) {
        let found = async {
            while !self.messages.lock().iter().any(|line| line.contains(text)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), found).await;
        assert!(waited.is_ok(), "{text:?} is not in {:?}", self.messages.lock());
    }

    async fn end(self) {
        self.stop.trigger();
        self.serving.await.unwrap().unwrap();
    }
}

fn key() -> Key {
    Key::new(b"a key of sixteen and more").unwrap()
}

async fn open(agents: &[&Agent], location: &str) -> Result<Cluster, AgentError> {
    let addresses: Vec<String> = agents.iter().map(|agent| agent.address.clone()).collect();
    let settings = RunSettings {
        location: location.to_owned(),
        run: 7,
        max_concurrent_loads: 2,
        max_concurrency: 4,
        new_connections: false,
        keep_objects: false,
    };
    let clock: Arc<dyn Clock> = SystemClock::shared();
    Cluster::connect(&addresses, &key(), &settings, clock, &StopSignal::default()).await
}

fn steps(loads: &[&str], max_requests: Option<u64>, duration: Duration) -> Vec<Step> {
    let loads: Vec<LoadSpec> = loads.iter().map(|loads| loads.parse().unwrap()).collect();
    let stop_condition = StopCondition { max_requests, duration, max_ci_fraction: None };
    TestPlan { loads, stop_condition, warm_up: Duration::ZERO, objects: Some(20), seed: 1 }.steps(1)
}

async fn measure(
    cluster: &mut Cluster,
    steps: Vec<Step>,
    stop: &StopSignal,
) -> (Vec<Measurement>, Result<bool, AgentError>) {
    let stages: Vec<Stage> = steps.into_iter().map(|step| vec![step]).collect();
    let agents = u32::try_from(cluster.agents().len()).unwrap();
    run(cluster, assignment::assign_to_all(&stages, agents), stop).await
}

async fn run(
    cluster: &mut Cluster,
    assigned_stages: Vec<AssignedStage>,
    stop: &StopSignal,
) -> (Vec<Measurement>, Result<bool, AgentError>) {
    let mut measurements = Vec::new();
    let ended = cluster.run(assigned_stages, stop, |event| {
        if let RunEvent::Measured(measurement) = event {
            measurements.push(measurement.clone());
        }
    });
    let ended = ended.await;
    (measurements, ended)
}

async fn names(env: &BenchEnv) -> Vec<String> {
    names_below(env, "").await
}

async fn names_below(env: &BenchEnv, prefix: &str) -> Vec<String> {
    let deadline = Deadline::none(env.clock.clone());
    let window = env.budget.admit(0, &deadline).await.unwrap();
    let request = ListRequest { prefix: prefix.to_owned(), delimiter: None, after: None, limit: 1000 };
    let page = env.store.list(&Context::new(deadline, window), &env.bucket, &request).await.unwrap();
    page.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

/// Waits until an agent has created an object.
async fn wait_for_objects(env: &BenchEnv, agent: u32) {
    let prefix = format!("there/tradewind-bench-00000007/agent{agent}/");
    let created = async {
        while names_below(env, &prefix).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), created).await.unwrap();
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_measure_as_one() {
    let env = env().await;
    let agents = [Agent::start(&env).await, Agent::start(&env).await];
    let mut cluster = open(&[&agents[0], &agents[1]], "here").await.unwrap();
    assert_eq!((cluster.store(), cluster.agents().len()), ("memory", 2));
    let mut all = steps(&["put 1KiB x 2", "get=3,delete=1,put=1 1KiB-4KiB x 2"], Some(40), LONG);
    all.extend(steps(&["get 1KiB x 4 at 400/s"], None, Duration::from_millis(500)));
    let (measurements, ended) = measure(&mut cluster, all, &StopSignal::default()).await;
    assert!(ended.unwrap());
    let counted: Vec<u64> = measurements
        .iter()
        .map(|measurement| measurement.operations.values().map(|f| f.operations).sum())
        .collect();
    assert_eq!(counted[..2], [80, 80], "forty by each agent");
    assert!((100..300).contains(&counted[2]), "the rate is the total of all agents: {counted:?}");
    assert_eq!(
        (measurements[2].requests_per_second, measurements[2].concurrency, measurements[0].concurrency),
        (Some(400.0), 8, 4)
    );
    for measurement in &measurements {
        assert_eq!(measurement.failure_count(), 0, "{measurement:?}");
        assert_eq!(
            measurement.agents.iter().map(|one| &*one.address).collect::<Vec<_>>(),
            [&*agents[0].address, &*agents[1].address]
        );
        assert!(
            measurement.start_skew_seconds.is_some_and(|apart| (0.0..0.2).contains(&apart)),
            "{:?}",
            measurement.start_skew_seconds
        );
    }
    let latencies =
        |measurement: &Measurement| measurement.operations.values().map(|f| f.latency_us.count).sum::<u64>();
    assert_eq!(latencies(&measurements[0]), 80);
    let left = names(&env).await;
    let count = |agent: u32| {
        left.iter()
            .filter(|name| name.starts_with(&format!("there/tradewind-bench-00000007/agent{agent}/")))
            .count()
    };
    assert!(count(1) > 0 && count(2) > 0 && count(1) + count(2) == left.len(), "{left:?}");
    assert_eq!(cluster.clean().await.unwrap(), left.len() as u64);
    assert_eq!(names(&env).await, [""; 0]);
    drop(cluster);
    for agent in agents {
        agent.wait_for_message("done with").await;
        agent.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_agent_rejects_a_second_coordinator() {
    let env = env().await;
    let agent = Agent::start(&env).await;
    let first = open(&[&agent], "here").await.unwrap();
    let why = open(&[&agent], "here").await.unwrap_err();
    assert!(why.to_string().ends_with("it is busy with another coordinator"), "{why}");
    drop(first);
    agent.wait_for_message("is lost: it closed the connection").await;
    agent.wait_for_message("done with").await;
    let why = open(&[&agent], "nowhere").await.unwrap_err();
    assert_eq!(why.to_string(), format!("agent {}: there is no such place", agent.address));
    agent.wait_for_message("cannot be opened").await;
    open(&[&agent], "here").await.unwrap();
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_agent_stops_the_run_and_others_remove_its_objects() {
    let env = env().await;
    let agents = [Agent::start(&env).await, Agent::start(&env).await];
    let mut cluster = open(&[&agents[0], &agents[1]], "here").await.unwrap();
    let stop = StopSignal::default();
    let dies = async {
        wait_for_objects(&env, 2).await;
        agents[1].serving.abort();
    };
    let started = std::time::Instant::now();
    let measured = measure(&mut cluster, steps(&["put 1KiB x 2", "get 1KiB x 2"], None, LONG), &stop);
    let ((measurements, ended), ()) = tokio::join!(measured, dies);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    let why = ended.unwrap_err();
    assert_eq!(why.agent, agents[1].address);
    assert_eq!(measurements.len(), 1, "nothing more is measured");
    assert!(
        measurements[0].end_reason == EndReason::Stopped && measurements[0].agents.len() == 1,
        "{:?}",
        measurements[0]
    );
    assert!(measurements[0].operations[&Operation::Put].operations > 0);
    assert!(measurements[0].notes.iter().any(|note| note.contains("results of 1 of 2 agents are missing")));
    assert!(cluster.clean().await.unwrap() > 0);
    assert_eq!(names(&env).await, [""; 0], "including those of the lost agent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_cleans_up_after_a_lost_coordinator() {
    let env = env().await;
    let agent = Agent::start(&env).await;
    let mut cluster = open(&[&agent], "here").await.unwrap();
    let running = tokio::spawn(async move {
        measure(&mut cluster, steps(&["put 1KiB x 2"], None, LONG), &StopSignal::default()).await.0.len()
    });
    wait_for_objects(&env, 1).await;
    running.abort();
    agent.wait_for_message("done with").await;
    assert_eq!(names(&env).await, [""; 0]);
    let mut next = open(&[&agent], "here").await.unwrap();
    let (measurements, ended) =
        measure(&mut next, steps(&["put 1KiB x 2"], Some(9), LONG), &StopSignal::default()).await;
    assert!(ended.unwrap() && measurements[0].operations[&Operation::Put].operations == 9);
    next.clean().await.unwrap();
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_run_keeps_partial_measurements() {
    let env = env().await;
    let agents = [Agent::start(&env).await, Agent::start(&env).await];
    let mut cluster = open(&[&agents[0], &agents[1]], "here").await.unwrap();
    let stop = StopSignal::default();
    let stops = async {
        wait_for_objects(&env, 1).await;
        stop.trigger();
    };
    let measured = measure(&mut cluster, steps(&["put 1KiB x 2"], None, LONG), &stop);
    let ((measurements, ended), ()) = tokio::join!(measured, stops);
    assert!(!ended.unwrap());
    assert!(measurements[0].is_partial() && measurements[0].agents.len() == 2, "{measurements:?}");
    assert!(cluster.clean().await.unwrap() > 0);
    assert_eq!(names(&env).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_shutdown_cleans_up_and_ends_the_run() {
    let env = env().await;
    let agents = [Agent::start(&env).await, Agent::start(&env).await];
    let mut cluster = open(&[&agents[0], &agents[1]], "here").await.unwrap();
    let halts = async {
        wait_for_objects(&env, 1).await;
        agents[0].stop.trigger();
    };
    let (steps, stop) = (steps(&["put 1KiB x 2"], None, LONG), StopSignal::default());
    let measured = measure(&mut cluster, steps, &stop);
    let ((measurements, ended), ()) = tokio::join!(measured, halts);
    let why = ended.unwrap_err();
    assert!(why.agent == agents[0].address && why.reason == "it is shutting down", "{why}");
    assert!(measurements[0].is_partial() && measurements[0].agents.len() == 1, "{measurements:?}");
    assert!(cluster.clean().await.unwrap() > 0);
    assert_eq!(names(&env).await, [""; 0]);
}

/// Shuts down the first agent and loses the last. Returns the result of cleaning, and the number of objects left.
async fn clean_after_shutdown_and_loss(agents: usize) -> (Result<u64, AgentError>, usize) {
    let env = env().await;
    let mut working = Vec::new();
    for _ in 0..agents {
        working.push(Agent::start(&env).await);
    }
    let mut cluster = open(&working.iter().collect::<Vec<_>>(), "here").await.unwrap();
    let (stop, last) = (StopSignal::default(), u32::try_from(agents).unwrap());
    let trouble = async {
        wait_for_objects(&env, 1).await;
        wait_for_objects(&env, last).await;
        working[0].stop.trigger();
        working[agents - 1].serving.abort();
    };
    let measured = measure(&mut cluster, steps(&["put 1KiB x 2"], None, LONG), &stop);
    let ((_, ended), ()) = tokio::join!(measured, trouble);
    assert!(ended.is_err());
    let cleaned = cluster.clean().await;
    (cleaned, names(&env).await.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_shutting_down_does_not_clean_for_lost_ones() {
    let (cleaned, left) = clean_after_shutdown_and_loss(3).await;
    assert!(cleaned.is_ok_and(|removed| removed > 0) && left == 0, "the second removes the rest: {left}");
    let (cleaned, left) = clean_after_shutdown_and_loss(2).await;
    let why = cleaned.unwrap_err().reason;
    assert!(why == "it was lost, and no other agent has removed its objects" && left > 0, "{why}, {left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_connections_do_not_disturb_a_session() {
    let env = env().await;
    let agent = Agent::start(&env).await;
    let mut cluster = open(&[&agent], "here").await.unwrap();
    let mut held = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(&agent.address).await.unwrap();
        // Surplus connections may have been closed already.
        let _ = stream.write_all(b"\0\0\0").await;
        held.push(stream);
    }
    let mut stream = TcpStream::connect(&agent.address).await.unwrap();
    let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
    let (measurements, ended) =
        measure(&mut cluster, steps(&["put 1KiB x 2"], Some(9), LONG), &StopSignal::default()).await;
    assert!(ended.unwrap() && measurements[0].failure_count() == 0);
    cluster.clean().await.unwrap();
    drop(held);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_rejects_excessive_concurrency() {
    let env = env().await;
    let agents = [Agent::start(&env).await, Agent::start(&env).await];
    let mut cluster = open(&[&agents[0], &agents[1]], "here").await.unwrap();
    let mut steps = steps(&["put 1KiB x 2"], Some(9), LONG);
    steps[0].load.concurrency = 5000;
    let (measurements, ended) = measure(&mut cluster, steps, &StopSignal::default()).await;
    assert!(ended.unwrap_err().reason.contains("5000 concurrent requests"), "{measurements:?}");
    assert!(measurements.is_empty());
    cluster.clean().await.unwrap();
}

/// The names of the measurements, in order.
fn measurement_names(measurements: &[Measurement]) -> Vec<String> {
    measurements.iter().map(Measurement::name).collect()
}

fn mixed() -> Vec<Stage> {
    let one = |loads: &str| steps(&[loads], None, Duration::from_millis(400));
    let both = steps(&["put 1KiB x 2", "get 2KiB x 1 at 90/s"], None, Duration::from_millis(400));
    vec![one("put 1KiB x 2"), one("get 2KiB x 1 at 90/s"), both]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_loads_run_on_every_agent() {
    let env = env().await;
    let agents = [Agent::start(&env).await, Agent::start(&env).await, Agent::start(&env).await];
    let mut cluster = open(&[&agents[0], &agents[1], &agents[2]], "here").await.unwrap();
    let (measurements, ended) =
        run(&mut cluster, assignment::assign_to_all(&mixed(), 3), &StopSignal::default()).await;
    assert!(ended.unwrap());
    let (put, get) = ("put 1KiB x 6", "get 2KiB x 3 at 90/s");
    let pairs = [format!("{put} with {get}"), format!("{get} with {put}")];
    assert_eq!(measurement_names(&measurements), [put, get, &pairs[0], &pairs[1]]);
    for measurement in &measurements {
        assert_eq!(
            (measurement.failure_count(), measurement.agents.len(), measurement.is_partial()),
            (0, 3, false),
            "{measurement:?}"
        );
    }
    let reads = measurements[3].operations[&Operation::Get].latency_us.count;
    assert!((12..60).contains(&reads), "the rate is the total of all agents: {reads}");
    let losses = crate::interference::slowdowns(&measurements);
    assert_eq!(losses.len(), 2, "each load is compared with itself running alone");
    assert!(
        names(&env).await.iter().any(|name| name.contains("/agent3/1/")),
        "each load has its own objects"
    );
    cluster.clean().await.unwrap();
    assert_eq!(names(&env).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_loads_run_on_separate_agents() {
    let env = env().await;
    let agents = [Agent::start(&env).await, Agent::start(&env).await];
    let mut cluster = open(&[&agents[0], &agents[1]], "here").await.unwrap();
    let (measurements, ended) =
        run(&mut cluster, assignment::assign_isolated(&mixed(), 2).unwrap(), &StopSignal::default()).await;
    assert!(ended.unwrap());
    let who = |measurement: &Measurement| {
        measurement.agents.iter().map(|one| one.address.clone()).collect::<Vec<_>>()
    };
    let (put, get) = ("put 1KiB x 2", "get 2KiB x 1 at 90/s");
    let pairs = [format!("{put} with {get}"), format!("{get} with {put}")];
    assert_eq!(measurement_names(&measurements), [put, get, &pairs[0], &pairs[1]]);
    let [first, second] = [&agents[0], &agents[1]].map(|agent| vec![agent.address.clone()]);
    let loads: Vec<_> = measurements.iter().map(who).collect();
    assert_eq!(loads, [&first, &second, &first, &second].map(Clone::clone));
    assert!(measurements[3].operations[&Operation::Get].operations > 0);
    cluster.clean().await.unwrap();
    assert_eq!(names(&env).await, [""; 0]);
}

/// The loss of an idle agent is noticed at once, and not only when it is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_of_an_idle_agent_is_noticed_immediately() {
    let env = env().await;
    let agents = [Agent::start(&env).await, Agent::start(&env).await];
    let mut cluster = open(&[&agents[0], &agents[1]], "here").await.unwrap();
    let both = steps(&["put 1KiB x 2", "put 4KiB x 2"], None, LONG);
    let stages = vec![both[..1].to_vec(), both];
    let assigned_stages = assignment::assign_isolated(&stages, 2).unwrap();
    assert_eq!(assigned_stages[0][0].agents, [1], "the other agent is idle");
    let dies = async {
        wait_for_objects(&env, 1).await;
        agents[1].serving.abort();
    };
    let stop = StopSignal::default();
    let started = std::time::Instant::now();
    let ((measurements, ended), ()) = tokio::join!(run(&mut cluster, assigned_stages, &stop), dies);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(ended.unwrap_err().agent, agents[1].address);
    assert!(
        measurements.len() == 1 && measurements[0].is_partial() && measurements[0].agents.len() == 1,
        "{measurements:?}"
    );
    cluster.clean().await.unwrap();
    assert_eq!(names(&env).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_rejects_more_loads_than_agreed() {
    let env = env().await;
    let agent = Agent::start(&env).await;
    let mut cluster = open(&[&agent], "here").await.unwrap();
    let stage = steps(&["put 1KiB x 1", "put 2KiB x 1", "put 3KiB x 1"], Some(9), LONG);
    let (_, ended) = run(&mut cluster, assignment::assign_to_all(&[stage], 1), &StopSignal::default()).await;
    assert!(ended.unwrap_err().reason.contains("3 concurrent loads are not allowed: use 1 to 2"));
    cluster.clean().await.unwrap();
}
