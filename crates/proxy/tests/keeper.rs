//! The route keeper as a process: started by the real `Keeper::start`, which executes this binary again.
//!
//! Needs root and the `ip` binary. It has a `main` of its own because it is three programs: the tests, the keeper, and a
//! proxy that can be killed.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use peername_proxy::routes::{self, Keeper, Scope};
use peername_sys::process::caps::{self, CapabilitySet};
use peername_sys::process::namespace::NetworkNamespace;

const LOOPBACK: [&str; 2] = ["127.0.0.1:443", "[::1]:443"];

fn main() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["routes", "keep", targets @ ..] => {
            let targets = targets.iter().filter_map(|t| t.strip_prefix("--target="));
            let backends: Vec<_> = addresses(targets).into_iter().map(Into::into).collect();
            Ok(routes::run_keeper(&backends, &[])?)
        }
        ["proxy"] => proxy(),
        _ => tests(),
    }
}

/// A simulated proxy: holds routes, has another child, and waits to be killed.
fn proxy() -> Result<ExitCode> {
    let _keeper = Keeper::start(&addresses(LOOPBACK), &[])?;
    let _other = Command::new("sleep")
        .arg("5")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    println!("started");
    thread::sleep(Duration::from_secs(60));
    Ok(ExitCode::FAILURE)
}

type Test = fn() -> Result<()>;

fn tests() -> Result<ExitCode> {
    let tests: [(&str, Test); 9] = [
        (
            "routes exist while the keeper is held",
            routes_exist_while_it_is_held,
        ),
        (
            "a killed proxy's routes are removed",
            a_killed_proxys_routes_are_removed,
        ),
        ("signals to the group do not end it", signals_do_not_end_it),
        ("it keeps one capability", it_keeps_one_capability),
        ("two keepers do not interfere", two_keepers_do_not_interfere),
        (
            "the administrator's routes are not removed",
            the_administrators_routes_are_not_removed,
        ),
        (
            "a killed keeper's leftovers are recognized",
            a_killed_keepers_leftovers_are_recognized,
        ),
        (
            "the next keeper cleans its slot",
            the_next_keeper_cleans_its_slot,
        ),
        ("failure is reported", failure_is_reported),
    ];
    let mut code = ExitCode::SUCCESS;
    for (name, test) in tests {
        // A network namespace belongs to the thread that made it.
        let run = move || {
            let _network = NetworkNamespace::unshare().context("these tests need root")?;
            ip("link set lo up")?;
            test()
        };
        match thread::spawn(run).join() {
            Ok(Ok(())) => println!("test {name} ... ok"),
            outcome => {
                println!("test {name} ... FAILED: {outcome:?}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn routes_exist_while_it_is_held() -> Result<()> {
    let before = rules_and_routes()?;
    let keeper = Keeper::start(&addresses(LOOPBACK), &[])?;
    let rules = ip("-4 rule")?;
    ensure!(
        rules.contains(
            "2111:\tfrom 127.0.0.0/8 iif lo ipproto tcp sport 443 lookup 21101 proto 211"
        ),
        "{rules}"
    );
    ensure!(ip("-4 route show table 21101")?.starts_with("local default dev lo proto 211"));
    ensure!(ip("-6 route show table 21101")?.starts_with("local default dev lo proto 211"));
    drop(keeper);
    // `drop` has waited for it: there is no zombie.
    ensure!(count_children()? == 0);
    ensure!(rules_and_routes()? == before);
    Ok(())
}

fn a_killed_proxys_routes_are_removed() -> Result<()> {
    let before = rules_and_routes()?;
    let mut proxy = start_self(&["proxy"])?;
    ensure!(first_line(&mut proxy)? == "started\n");
    ensure!(rules_and_routes()? != before);
    proxy.kill()?;
    proxy.wait()?;
    wait_until(|| Ok(rules_and_routes()? == before))
}

fn signals_do_not_end_it() -> Result<()> {
    let mut keeper = start_keeper()?;
    let with_keeper = rules_and_routes()?;
    for signal in ["INT", "TERM", "HUP"] {
        send_signal(&keeper, signal)?;
    }
    thread::sleep(Duration::from_millis(100));
    ensure!(keeper.try_wait()?.is_none(), "a signal ended the keeper");
    ensure!(rules_and_routes()? == with_keeper);
    ensure!(keeper.wait()?.success());
    ensure!(rules_and_routes()? != with_keeper);
    Ok(())
}

fn it_keeps_one_capability() -> Result<()> {
    let mut keeper = start_keeper()?;
    let status = fs::read_to_string(format!("/proc/{}/status", keeper.id()))?;
    let net_admin = "0000000000001000";
    for (set, bits) in [
        ("CapEff", net_admin),
        ("CapPrm", net_admin),
        // For nft(8).
        ("CapInh", net_admin),
        ("CapBnd", "0000000000000000"),
        ("CapAmb", net_admin),
        ("NoNewPrivs", "1"),
    ] {
        ensure!(
            status.contains(&format!("{set}:\t{bits}\n")),
            "{set} in {status}"
        );
    }
    ensure!(keeper.wait()?.success());
    Ok(())
}

fn two_keepers_do_not_interfere() -> Result<()> {
    let before = rules_and_routes()?;
    let first = Keeper::start(&addresses(LOOPBACK), &[])?;
    let with_first = rules_and_routes()?;
    let second = Keeper::start(&addresses(["[::1]:80"]), &[])?;
    ensure!(ip("-6 rule")?.contains("2112:\tfrom ::1 iif lo ipproto tcp sport 80 lookup 21102"));
    drop(second);
    ensure!(rules_and_routes()? == with_first);
    let second = Keeper::start(&addresses(LOOPBACK), &[])?;
    drop(first);
    let rules = ip("-4 rule")?;
    ensure!(
        !rules.contains("lookup 21101") && rules.contains("lookup 21102"),
        "{rules}"
    );
    drop(second);
    ensure!(rules_and_routes()? == before);
    Ok(())
}

fn the_administrators_routes_are_not_removed() -> Result<()> {
    block_on(routes::add(&addresses(LOOPBACK)))?;
    let with_keeper = rules_and_routes()?;
    let keeper = Keeper::start(&addresses(LOOPBACK), &[])?;
    let both = rules_and_routes()?;
    ensure!(both != with_keeper);
    block_on(routes::remove(Scope::Idle))?;
    ensure!(
        ip("-4 rule")?.contains("lookup 21101"),
        "a running proxy's rule was removed"
    );
    block_on(routes::add(&addresses(LOOPBACK)))?;
    ensure!(rules_and_routes()? == both);
    drop(keeper);
    ensure!(rules_and_routes()? == with_keeper);
    Ok(())
}

fn a_killed_keepers_leftovers_are_recognized() -> Result<()> {
    let before = rules_and_routes()?;
    let mut dead = start_keeper()?;
    let alive = Keeper::start(&addresses(LOOPBACK), &[])?;
    ensure!(owners()? == ["of a running proxy"]);
    dead.kill()?;
    dead.wait()?;
    ensure!(owners()? == ["left behind", "of a running proxy"]);
    block_on(routes::remove(Scope::Idle))?;
    ensure!(owners()? == ["of a running proxy"]);
    block_on(routes::remove(Scope::All))?;
    // The running keeper may have restored its own. If not, it finds nothing to remove, which is not an error.
    drop(alive);
    ensure!(rules_and_routes()? == before);
    Ok(())
}

fn the_next_keeper_cleans_its_slot() -> Result<()> {
    let before = rules_and_routes()?;
    let mut dead = start_keeper()?;
    dead.kill()?;
    dead.wait()?;
    let next = Keeper::start(&addresses(["127.0.0.1:80"]), &[])?;
    ensure!(
        !ip("-6 rule")?.contains("lookup 21101"),
        "the dead keeper's rule is still there"
    );
    ensure!(ip("-4 rule")?.contains("lookup 21101"));
    drop(next);
    ensure!(rules_and_routes()? == before);
    Ok(())
}

fn failure_is_reported() -> Result<()> {
    let before = rules_and_routes()?;
    let error = Keeper::start(&addresses(["10.9.0.1:80"]), &[])
        .unwrap_err()
        .to_string();
    ensure!(
        error.contains("the backend 10.9.0.1:80 is not on this host"),
        "{error}"
    );
    caps::keep_only(CapabilitySet::empty())?;
    let error = Keeper::start(&addresses(["127.0.0.1:80"]), &[])
        .unwrap_err()
        .to_string();
    ensure!(
        error.contains("RTM_NEWROUTE: Operation not permitted"),
        "{error}"
    );
    ensure!(error.contains("CAP_NET_ADMIN"), "{error}");
    ensure!(rules_and_routes()? == before);
    Ok(())
}

/// Starts a keeper as a direct child, to send signals to.
fn start_keeper() -> Result<Child> {
    let mut keeper = start_self(&[
        "routes",
        "keep",
        "--target=127.0.0.1:443",
        "--target=[::1]:443",
    ])?;
    ensure!(first_line(&mut keeper)? == "ready\n");
    Ok(keeper)
}

fn start_self(words: &[&str]) -> Result<Child> {
    Ok(Command::new("/proc/self/exe")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?)
}

fn first_line(child: &mut Child) -> Result<String> {
    let mut line = String::new();
    let stdout = child.stdout.take().context("no pipe")?;
    BufReader::new(stdout.take(100)).read_line(&mut line)?;
    Ok(line)
}

fn send_signal(child: &Child, signal: &str) -> Result<()> {
    let kill = format!("kill -{signal} {}", child.id());
    ensure!(Command::new("sh").args(["-c", &kill]).status()?.success());
    Ok(())
}

/// Counts the children of this process, zombies included.
fn count_children() -> Result<usize> {
    let parent = format!("PPid:\t{}\n", std::process::id());
    let processes = fs::read_dir("/proc")?.flatten();
    Ok(processes
        .filter_map(|process| fs::read_to_string(process.path().join("status")).ok())
        .filter(|status| status.contains(&parent))
        .count())
}

fn owners() -> Result<Vec<String>> {
    let mut owners: Vec<_> = block_on(routes::list())?
        .iter()
        .map(|ours| ours.owner.to_string())
        .collect();
    owners.sort();
    owners.dedup();
    Ok(owners)
}

fn rules_and_routes() -> Result<String> {
    let v4 = ip("-4 rule")? + &ip("-4 route show table all")?;
    Ok(v4 + &ip("-6 rule")? + &ip("-6 route show table all")?)
}

fn ip(words: &str) -> Result<String> {
    let output = Command::new("ip").args(words.split(' ')).output()?;
    ensure!(output.status.success(), "ip {words}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

fn wait_until(condition: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(2);
    while !condition()? {
        ensure!(
            Instant::now() < deadline,
            "the condition was not met within 2 s"
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<SocketAddr> {
    texts
        .into_iter()
        .map(|text| text.parse().expect("an address"))
        .collect()
}
