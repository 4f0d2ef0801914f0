//! `tests/kernels/features.toml`: the tests of each feature, which `tests/kernels/run.py` runs by name on other kernels.

use std::collections::HashSet;
use std::env;
use std::process::Command;

use crate::harness::lab::stdout_text;

#[test]
fn every_feature_of_the_kernel_table_names_existing_tests() {
    let own = env::current_exe().expect("this program");
    let listed = Command::new(own).arg("--list").output().expect("the tests");
    let listed = stdout_text(&listed);
    let tests: HashSet<&str> = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .collect();
    let features: toml::Table = include_str!("../kernels/features.toml")
        .parse()
        .expect("a table");
    let named: Vec<&str> = features["feature"]
        .as_array()
        .expect("the features")
        .iter()
        .flat_map(|feature| feature["tests"].as_array().expect("the tests of a feature"))
        .map(|name| name.as_str().expect("the name of a test"))
        .collect();
    assert!(named.len() > 20, "{named:?}");
    for name in named {
        assert!(tests.contains(name), "there is no test {name}");
    }
}
