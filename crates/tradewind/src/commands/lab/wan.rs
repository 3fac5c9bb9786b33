//! `tradewind lab wan`: a command behind an emulated wide area link, and links that stay.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{self, Stdio};

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use serde_json::json;
use tokio::runtime::Builder;
use tradewind_lab::wan::standing::{self, Name, State};
use tradewind_lab::wan::{FAR_ADDRESS, Unsteady, Wan, told};

use super::line::{LineFlags, carried, line, made, uncounted};
use super::run::{carry, ended as exit, note};
use crate::commands::Ended;
use crate::commands::signals::Signals;

/// Run a command behind an emulated wide area link
///
/// The command runs in a network namespace of its own, whose only road leads through the link. What runs here and listens
/// on 0.0.0.0 is at the other end, at the address in $TRADEWIND_LAB_FAR; 127.0.0.1 is not the same there as here. All that is
/// told of the line is each direction's own, so that a round trip takes twice the delay. Packets have up to 1500 bytes. Needs
/// root, or CAP_NET_ADMIN and CAP_SYS_ADMIN. `up`, `exec` and `down` make one that stays while commands come and go.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "tradewind lab wan [OPTIONS] -- <COMMAND>...\n       tradewind lab wan <up|exec|status|down> ...",
    after_help = "Examples:\n  \
    tradewind lab wan --delay 25ms -- sh -c 'ping -c 3 $TRADEWIND_LAB_FAR'\n  \
    tradewind lab wan --delay 25ms --jitter 5ms --loss 0.1% --rate 100mbit --counts -- ./client\n  \
    tradewind lab wan --delay 10ms --rate 100mbit --back rate=20mbit -- sh -c 'tradewind ls s3://data \\\n      \
    --endpoint-url http://$TRADEWIND_LAB_FAR:9000'\n\n\
    Exit status: that of the command; 128 and the signal's number where one ended it."
)]
pub(in crate::commands) struct Arguments {
    #[command(subcommand)]
    standing: Option<Standing>,
    #[command(flatten)]
    line: LineFlags,
    /// Say what the link carried when the command has ended
    #[arg(long)]
    counts: bool,
    /// Say so as JSON, in the last line of standard error
    #[arg(long)]
    json: bool,
    /// What is run
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Links that stay.
#[derive(Debug, Subcommand)]
enum Standing {
    Up(Up),
    Exec(Exec),
    Status(Status),
    Down(Down),
}

/// Make a link that stays until it is taken down
///
/// Its near end is a network namespace of its name (`ip netns exec NAME` works too); what runs here is at the far end.
/// A process in the background carries the packets.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab wan up sydney --delay 88ms --rate 100mbit\n  \
    tradewind lab wan exec sydney -- sh -c 'ping -c 3 $TRADEWIND_LAB_FAR'\n  \
    tradewind lab wan down sydney")]
struct Up {
    /// Letters, digits, '-', '_' and '.'
    #[arg(value_parser = Name::parse)]
    name: Name,
    #[command(flatten)]
    line: LineFlags,
    /// Carry the packets in this process, until it is told to end
    #[arg(long)]
    foreground: bool,
}

/// Run a command behind a link that is up
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab wan exec sydney -- sh -c 'curl http://$TRADEWIND_LAB_FAR:9000'\n\n\
    Exit status: that of the command.")]
struct Exec {
    #[arg(value_parser = Name::parse)]
    name: Name,
    /// What is run
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Say how links are and what they carried so far
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab wan status\n  \
    tradewind lab wan status sydney --json\n\n\
    Exit status: 1 where one that was named is not there, or one was killed.")]
struct Status {
    /// [default: all]
    #[arg(value_parser = Name::parse)]
    name: Option<Name>,
    /// A line of JSON for each
    #[arg(long)]
    json: bool,
}

/// Take a link down, or remove what is left of one that was killed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tradewind lab wan down sydney")]
struct Down {
    #[arg(value_parser = Name::parse)]
    name: Name,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    match arguments.standing {
        None => behind(&arguments),
        Some(Standing::Up(up)) if up.foreground => stand(&up),
        Some(Standing::Up(up)) => detach(&up),
        Some(Standing::Exec(exec)) => enter(&exec),
        Some(Standing::Status(status)) => show(&status),
        Some(Standing::Down(down)) => take_down(&down),
    }
}

fn behind(arguments: &Arguments) -> anyhow::Result<Ended> {
    let options = arguments.line.options()?;
    let (command, mut road) = (arguments.command.clone(), None);
    let ended = carry(|| {
        let wan = Wan::start(options, &command)?;
        note(&made(options, wan.via()))?;
        road = Some((wan.far(), wan.via()));
        let refused = |e: &Unsteady| {
            // Whoever emulates should know what the figures are worth.
            let _ = note(&e.to_string());
        };
        Ok((wan.process()?, move || wan.run(refused)))
    })??;
    let (far, via) = road.context("the link was never made")?;
    let told = told(options, via, far, &ended.carried);
    if arguments.json {
        writeln!(io::stderr(), "{told}")?;
    } else if arguments.counts {
        note(
            &uncounted(&told)
                .unwrap_or_else(|| format!("out {}; back {}", carried(&told["out"]), carried(&told["back"]))),
        )?;
    }
    Ok(exit(ended.status))
}

/// Makes a link that stays, and carries its packets.
fn stand(up: &Up) -> anyhow::Result<Ended> {
    let options = up.line.options()?;
    let link = standing::Standing::make(&up.name, options)?;
    let made = made(options, link.via());
    let mut about = format!("{} is up; what runs here is at {} for it; {made}", up.name, link.far());
    let ending = link.ending();
    let carry = move || {
        link.run(|priority| {
            if let Err(e) = priority {
                about = format!("{about}; {e}");
            }
            // Whoever started it may not want to know.
            let _ = writeln!(io::stdout(), "{about}");
        })
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("cannot wait for signals")?.block_on(async move {
        let mut signals = Signals::new()?;
        let mut running = tokio::task::spawn_blocking(carry);
        loop {
            tokio::select! {
                ended = &mut running => break ended.context("the link's thread failed")?.map_err(anyhow::Error::from),
                _ = signals.next() => ending.end(),
            }
        }
    })?;
    Ok(Ended::Done)
}

/// Has another process do as this one was told, and waits until its link is up.
fn detach(up: &Up) -> anyhow::Result<Ended> {
    let program = env::current_exe().context("cannot find this program")?;
    // Behind `lab wan up` all is as it was.
    let mut relay = process::Command::new(program);
    relay.args(["lab", "wan", "up", "--foreground"]).args(env::args_os().skip(4));
    relay.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // What ends the commands of a terminal does not end it, and no directory is kept in use by it.
    relay.process_group(0).current_dir("/");
    let mut relay = relay.spawn().context("cannot start the process that carries packets")?;
    let mut told = String::new();
    if let Some(stdout) = relay.stdout.take() {
        BufReader::new(stdout).read_line(&mut told).context("cannot hear whether the link is up")?;
    }
    if told.ends_with('\n') {
        write!(io::stdout(), "{told}")?;
        return Ok(Ended::Done);
    }
    let mut why = String::new();
    if let Some(mut stderr) = relay.stderr.take() {
        stderr.read_to_string(&mut why).context("cannot hear why the link is not up")?;
    }
    let status = relay.wait().context("cannot wait for the process that carries packets")?;
    let why = why.trim().trim_start_matches("tradewind: ");
    let why = if why.is_empty() {
        format!("the link {} did not come up: {status}", up.name)
    } else {
        why.to_owned()
    };
    if status.code() == Some(2) { Err(crate::commands::Misused(why).into()) } else { Err(anyhow!(why)) }
}

fn enter(exec: &Exec) -> anyhow::Result<Ended> {
    let far = standing::enter(&exec.name)?;
    let (program, arguments) = exec.command.split_first().context("no command")?;
    let error = process::Command::new(program).args(arguments).env(FAR_ADDRESS, far.to_string()).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

fn show(status: &Status) -> anyhow::Result<Ended> {
    let names = match &status.name {
        Some(name) => vec![name.clone()],
        None => standing::names().context("cannot list links")?,
    };
    let mut out = io::stdout().lock();
    let mut ended = Ended::Done;
    for name in names {
        let (state, about) = match standing::state(&name)? {
            State::Up(mut told) => {
                told["state"] = json!("up");
                if status.json {
                    writeln!(out, "{told}")?;
                } else {
                    let seconds = told["seconds"].as_f64().unwrap_or_default();
                    let far = told["far"].as_str().unwrap_or_default();
                    let via = told["via"].as_str().unwrap_or_default();
                    writeln!(out, "{name}: up for {seconds:.0} s via {via}, what runs here is at {far}")?;
                    let uncounted = uncounted(&told);
                    for direction in ["out", "back"] {
                        let of = &told[direction];
                        let carried = uncounted.clone().unwrap_or_else(|| carried(of));
                        writeln!(out, "  {direction:4} {}: {carried}", line(of))?;
                    }
                }
                continue;
            }
            State::Stale => (
                "stale",
                format!("what carried its packets was killed; `tradewind lab wan down {name}` removes it"),
            ),
            State::Silent => ("silent", "what carries its packets does not answer".to_owned()),
            State::Absent if status.name.is_none() => continue,
            State::Absent => ("absent", "there is no link of that name".to_owned()),
        };
        ended = Ended::FoundFaults;
        if status.json {
            writeln!(out, "{}", json!({ "name": name.to_string(), "state": state }))?;
        } else {
            writeln!(out, "{name}: {about}")?;
        }
    }
    Ok(ended)
}

fn take_down(down: &Down) -> anyhow::Result<Ended> {
    let was_up = standing::down(&down.name)?;
    let done = if was_up { "is down" } else { "was killed before; what it left is removed" };
    writeln!(io::stdout(), "{} {done}", down.name)?;
    Ok(Ended::Done)
}
