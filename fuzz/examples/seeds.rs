//! Makes the seeds: each message of the conformance corpus, as a file of raw bytes for each target
//! that it suits.

use std::error::Error;
use std::fs;
use std::path::Path;

use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = fs::read_to_string(here.join("../crates/proto/tests/proxy-protocol.jsonl"))?;
    let mut written = 0;
    for line in rows.lines() {
        let row: Value = serde_json::from_str(line)?;
        let text = |key| {
            row.get(key)
                .and_then(Value::as_str)
                .ok_or(format!("no {key} in {line}"))
        };
        let name = text("id")?.replace('/', "-");
        let message = unhex(text("hex")?)?;
        for target in if text("mode")? == "spp" { SPP } else { PROXY } {
            let folder = here.join("corpus").join(target);
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(&name), &message)?;
            written += 1;
        }
    }
    println!("{written} seeds in {}", here.join("corpus").display());
    Ok(())
}

fn unhex(text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?))
        .collect()
}

const PROXY: &[&str] = &["parse_raw", "parse_split"];
const SPP: &[&str] = &["spp", "parse_raw"];
