//! `tradewind lab wan`: runs a command behind an emulated wide-area link, and manages persistent links.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{self, Stdio};

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use serde_json::json;
use tokio::runtime::Builder;
use tradewind_lab::wan::named_link::{self, LinkName, LinkState};
use tradewind_lab::wan::{FAR_ADDRESS_ENV, TimingWarning, Wan, link_report};

use super::link::{LinkFlags, describe_link, describe_setup, describe_traffic, unknown_traffic_reason};
use super::run::{outcome_from_status as exit, print_note, run_with_signals};
use crate::commands::CommandOutcome;
use crate::commands::signals::Signals;

/// Run a command behind an emulated wide-area link
///
/// The command runs in a separate network namespace that is connected only through the link. Servers on this machine
/// that listen on 0.0.0.0 are reachable from there at the address in $TRADEWIND_LAB_FAR; 127.0.0.1 there is the
/// namespace itself. All options apply to each direction, so the RTT is twice the delay. The MTU is 1500 bytes. Needs
/// root, or CAP_NET_ADMIN and CAP_SYS_ADMIN. `up`, `exec` and `down` manage a persistent link for several commands.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "tradewind lab wan [OPTIONS] -- <COMMAND>...\n       tradewind lab wan <up|exec|status|down> ...",
    after_help = "Examples:\n  \
    tradewind lab wan --delay 25ms -- sh -c 'ping -c 3 $TRADEWIND_LAB_FAR'\n  \
    tradewind lab wan --delay 25ms --jitter 5ms --loss 0.1% --rate 100mbit --stats -- ./client\n  \
    tradewind lab wan --delay 10ms --rate 100mbit --reverse rate=20mbit -- sh -c 'tradewind ls s3://data \\\n      \
    --endpoint-url http://$TRADEWIND_LAB_FAR:9000'\n\n\
    Exit status: that of the command; 128 plus the signal's number if a signal ended it."
)]
pub(in crate::commands) struct Arguments {
    #[command(subcommand)]
    standing: Option<Standing>,
    #[command(flatten)]
    link: LinkFlags,
    /// Print the traffic of the link when the command has ended
    #[arg(long)]
    stats: bool,
    /// Print the traffic as JSON, in the last line of standard error
    #[arg(long)]
    json: bool,
    /// Command to run
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Commands on persistent links.
#[derive(Debug, Subcommand)]
enum Standing {
    Up(Up),
    Exec(Exec),
    Status(Status),
    Down(Down),
}

/// Create a persistent link
///
/// The near end is a network namespace of that name (`ip netns exec NAME` works too); this machine is the far end. A
/// background process forwards the packets.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab wan up sydney --delay 88ms --rate 100mbit\n  \
    tradewind lab wan exec sydney -- sh -c 'ping -c 3 $TRADEWIND_LAB_FAR'\n  \
    tradewind lab wan down sydney")]
struct Up {
    /// Name of the link: letters, digits, '-', '_' and '.'
    #[arg(value_parser = LinkName::parse)]
    name: LinkName,
    #[command(flatten)]
    link: LinkFlags,
    /// Forward the packets in this process, until a signal
    #[arg(long)]
    foreground: bool,
}

/// Run a command behind a persistent link
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab wan exec sydney -- sh -c 'curl http://$TRADEWIND_LAB_FAR:9000'\n\n\
    Exit status: that of the command.")]
struct Exec {
    #[arg(value_parser = LinkName::parse)]
    name: LinkName,
    /// Command to run
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Print the properties and the traffic of persistent links
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab wan status\n  \
    tradewind lab wan status sydney --json\n\n\
    Exit status: 1 if the named link does not exist, or a link was killed.")]
struct Status {
    /// [default: all]
    #[arg(value_parser = LinkName::parse)]
    name: Option<LinkName>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Remove a persistent link, or the remains of one that was killed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tradewind lab wan down sydney")]
struct Down {
    #[arg(value_parser = LinkName::parse)]
    name: LinkName,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    match arguments.standing {
        None => run_command(&arguments),
        Some(Standing::Up(up)) if up.foreground => run_link(&up),
        Some(Standing::Up(up)) => detach(&up),
        Some(Standing::Exec(exec)) => enter(&exec),
        Some(Standing::Status(status)) => show(&status),
        Some(Standing::Down(down)) => take_down(&down),
    }
}

fn run_command(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let options = arguments.link.options()?;
    let (command, mut link) = (arguments.command.clone(), None);
    let ended = run_with_signals(|| {
        let wan = Wan::start(options, &command)?;
        print_note(&describe_setup(options, wan.via()))?;
        link = Some((wan.far(), wan.via()));
        let refused = |e: &TimingWarning| {
            // The user must know that timing may be inaccurate.
            let _ = print_note(&e.to_string());
        };
        Ok((wan.pidfd()?, move || wan.run(refused)))
    })??;
    let (far, via) = link.context("the link was never created")?;
    let report = link_report(options, via, far, &ended.counts);
    if arguments.json {
        writeln!(io::stderr(), "{report}")?;
    } else if arguments.stats {
        print_note(&unknown_traffic_reason(&report).unwrap_or_else(|| {
            format!("out {}; back {}", describe_traffic(&report["out"]), describe_traffic(&report["back"]))
        }))?;
    }
    Ok(exit(ended.status))
}

/// Creates a persistent link and forwards its packets until a signal.
fn run_link(up: &Up) -> anyhow::Result<CommandOutcome> {
    let options = up.link.options()?;
    let link = named_link::NamedLink::create(&up.name, options)?;
    let made = describe_setup(options, link.via());
    let mut status =
        format!("{} is up; this machine is reachable from it at {}; {made}", up.name, link.far());
    let ending = link.stop_handle();
    let carry = move || {
        link.run(|priority| {
            if let Err(e) = priority {
                status = format!("{status}; {e}");
            }
            // The parent process may have closed the pipe.
            let _ = writeln!(io::stdout(), "{status}");
        })
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("cannot wait for signals")?.block_on(async move {
        let mut signals = Signals::new()?;
        let mut running = tokio::task::spawn_blocking(carry);
        loop {
            tokio::select! {
                ended = &mut running => break ended.context("the link's thread failed")?.map_err(anyhow::Error::from),
                _ = signals.next() => ending.stop(),
            }
        }
    })?;
    Ok(CommandOutcome::Done)
}

/// Creates a persistent link in a background process, and waits until it is up.
fn detach(up: &Up) -> anyhow::Result<CommandOutcome> {
    let program = env::current_exe().context("cannot find this program")?;
    // The arguments after `lab wan up` are passed on.
    let mut relay = process::Command::new(program);
    relay.args(["lab", "wan", "up", "--foreground"]).args(env::args_os().skip(4));
    relay.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A separate process group and directory: signals of the terminal do not reach it, and it keeps no directory busy.
    relay.process_group(0).current_dir("/");
    let mut relay = relay.spawn().context("cannot start the process that forwards packets")?;
    let mut line = String::new();
    if let Some(stdout) = relay.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot read the status of the link")?;
    }
    if line.ends_with('\n') {
        write!(io::stdout(), "{line}")?;
        return Ok(CommandOutcome::Done);
    }
    let mut why = String::new();
    if let Some(mut stderr) = relay.stderr.take() {
        stderr.read_to_string(&mut why).context("cannot read why the link is not up")?;
    }
    let status = relay.wait().context("cannot wait for the process that forwards packets")?;
    let why = why.trim().trim_start_matches("tradewind: ");
    let why = if why.is_empty() {
        format!("the link {} did not come up: {status}", up.name)
    } else {
        why.to_owned()
    };
    if status.code() == Some(2) { Err(crate::commands::UsageError(why).into()) } else { Err(anyhow!(why)) }
}

fn enter(exec: &Exec) -> anyhow::Result<CommandOutcome> {
    let far = named_link::enter(&exec.name)?;
    let (program, arguments) = exec.command.split_first().context("no command")?;
    let error = process::Command::new(program).args(arguments).env(FAR_ADDRESS_ENV, far.to_string()).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

fn show(status: &Status) -> anyhow::Result<CommandOutcome> {
    let names = match &status.name {
        Some(name) => vec![name.clone()],
        None => named_link::link_names().context("cannot list links")?,
    };
    let mut out = io::stdout().lock();
    let mut ended = CommandOutcome::Done;
    for name in names {
        let (state, about) = match named_link::link_state(&name)? {
            LinkState::Up(mut link) => {
                link["state"] = json!("up");
                if status.json {
                    writeln!(out, "{link}")?;
                } else {
                    let seconds = link["seconds"].as_f64().unwrap_or_default();
                    let far = link["far"].as_str().unwrap_or_default();
                    let via = link["via"].as_str().unwrap_or_default();
                    writeln!(out, "{name}: up for {seconds:.0} s via {via}, this machine is at {far}")?;
                    let uncounted = unknown_traffic_reason(&link);
                    for direction in ["out", "back"] {
                        let status = &link[direction];
                        let traffic = uncounted.clone().unwrap_or_else(|| describe_traffic(status));
                        writeln!(out, "  {direction:4} {}: {traffic}", describe_link(status))?;
                    }
                }
                continue;
            }
            LinkState::Stale => (
                "stale",
                format!("its forwarding process was killed; `tradewind lab wan down {name}` removes it"),
            ),
            LinkState::Unresponsive => ("silent", "its forwarding process does not respond".to_owned()),
            LinkState::Absent if status.name.is_none() => continue,
            LinkState::Absent => ("absent", "there is no link with that name".to_owned()),
        };
        ended = CommandOutcome::FoundProblems;
        if status.json {
            writeln!(out, "{}", json!({ "name": name.to_string(), "state": state }))?;
        } else {
            writeln!(out, "{name}: {about}")?;
        }
    }
    Ok(ended)
}

fn take_down(down: &Down) -> anyhow::Result<CommandOutcome> {
    let was_up = named_link::down(&down.name)?;
    let done = if was_up { "is down" } else { "was killed before; its remains are removed" };
    writeln!(io::stdout(), "{} {done}", down.name)?;
    Ok(CommandOutcome::Done)
}
