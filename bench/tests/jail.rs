//! A quick run of the comparison of jails, with the contestants that are built.
//!
//! It needs root or user namespaces, as the benchmark does. On a machine that has neither it fails: it must not pass without
//! a measurement.

mod quick;

use std::fs;
use std::path::Path;

use quick::QuickRun;

#[test]
fn every_workload_is_measured() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("jail");
    let _ = fs::remove_dir_all(&out);
    let run = QuickRun::new(&["jail", "--quick"], &out);
    let mut rows = vec![
        "direct,start,ms",
        "direct,start,CPU ms",
        "direct,new-connections,requests/s",
        "direct,keep-alive,requests/s",
    ];
    if !run.stdout.contains("skipped peername") {
        rows.extend([
            "peername,start,CPU ms",
            "peername,new-connections,CPU s/1000",
            "peername,keep-alive,CPU s/1000",
            "peername,memory,PSS KiB at start",
            "peername,memory,anonymous KiB after",
        ]);
    }
    for row in rows {
        run.figure(row);
    }
}
