//! `peername exec`: runs a server that sees its clients by itself.

use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::Duration;

use peername_exec::launch::become_program;
use peername_exec::notify::{self, Settings};
use peername_exec::program::{examine, search_path};
use peername_exec::table::{Rules, SharedTable};
use peername_identity::Network;

use crate::value;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(short, long, value_name = "WHO", default_value = "private")]
    trust: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    ports: Vec<u16>,
    #[arg(long, default_value = "require")]
    header: String,
    #[arg(long, default_value = "auto")]
    mode: String,
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = value::timeout)]
    header_timeout: Duration,
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let program = match examine(&args.command[0], &search_path()) {
        Ok(program) => program,
        Err(error) => {
            eprintln!("peername: {error}");
            return Ok(ExitCode::from(error.exit_code()));
        }
    };
    if args.verbose > 0 {
        eprintln!("peername: {}: {}", program.mechanism, program.reason);
    }
    let networks = args.trust.iter().flat_map(|word| match word.as_str() {
        "any" => vec![
            Network::new([0, 0, 0, 0].into(), 0),
            Network::new([0_u16; 8].into(), 0),
        ],
        word => {
            let net: ipnet::IpNet = word
                .parse()
                .unwrap_or_else(|_| word.parse::<std::net::IpAddr>().unwrap().into());
            vec![Network::new(net.addr(), net.prefix_len())]
        }
    });
    let rules = Rules {
        networks: networks.flatten().collect(),
        ports: args.ports.clone(),
        header_required: args.header == "require",
        show_destination: false,
        max_header: 4096,
    };
    let shared = SharedTable::create(1 << 16, &rules)?;
    shared.remove();
    let settings = Settings {
        table: shared.table(),
        header_timeout: args.header_timeout,
    };
    notify::start(settings, || {})?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    let error = become_program(command);
    eprintln!("peername: {error}");
    Ok(ExitCode::from(error.exit_code()))
}
