//! One cell: one contestant and one work, in a network and file systems of their own.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::compare::sandbox::{CellArgs, serve_commands};
use crate::host::namespace;
use crate::intercept::cell::ORIGIN;
use crate::intercept::certificates;
use crate::jail::cases::Work;
use crate::jail::contestants::{JailContestant, JailSetup, Kind};
use crate::jail::requests::Requests;
use crate::jail::stage;
use crate::jail::starts;

/// What to measure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JailCell {
    pub(super) contestant: JailContestant,
    pub(super) work: Work,
    /// Whether the user that started the benchmark is root.
    pub(super) is_root: bool,
    /// An empty directory; the logs in it explain a failure.
    pub(super) directory: PathBuf,
}

/// The origin's root CA, and the intermediate CA that signs the hosts' certificates.
struct OriginCa {
    root: PathBuf,
    issuer: PathBuf,
    key: PathBuf,
}

/// Sets the cell up in this process's namespaces, and measures on command.
pub(crate) fn run(args: &CellArgs) -> Result<()> {
    let cell: JailCell = args.parse()?;
    namespace::configure()?;
    namespace::run_ip_batch(&format!("addr add {}/32 dev lo", ORIGIN.ip()))?;
    stage::mount()?;
    let program = if cell.contestant.is_jail() {
        stage::install(&cell.contestant.program)?
    } else {
        PathBuf::new()
    };
    let root = stage::path("root.pem");
    let mut setup = JailSetup {
        program: &program,
        origin: ORIGIN,
        root_ca: &root,
        is_root: cell.is_root,
    };
    let ca = cell.write_origin_ca(&setup)?;
    setup.root_ca = &ca.root;
    cell.serve(&setup, &ca)
}

impl JailCell {
    fn serve(&self, setup: &JailSetup, ca: &OriginCa) -> Result<()> {
        let (shape, with_memory) = match self.work {
            Work::Starts(count) => {
                // The first start reads files that later ones find in the page cache.
                starts::start_once(&self.contestant, setup)?;
                return serve_commands(|_| starts::measure(&self.contestant, setup, count));
            }
            Work::Requests(shape) => (shape, false),
            Work::Memory(shape) => (shape, true),
        };
        let mut requests = Requests::start(
            &self.contestant,
            setup,
            (&ca.issuer, &ca.key),
            &self.directory,
        )?;
        serve_commands(|_| requests.measure(shape, with_memory))
    }

    /// Makes the CAs of the origin. httpjail trusts no root besides those that it is built with and its own, so its own CA is
    /// the origin's root.
    fn write_origin_ca(&self, setup: &JailSetup) -> Result<OriginCa> {
        let [issuer, key] = ["origin.pem", "origin.key"].map(|name| self.directory.join(name));
        if self.contestant.kind == Kind::Httpjail {
            starts::start_once(&self.contestant, setup)?;
            let [root, root_key] = HTTPJAIL_CA.map(Path::new);
            certificates::write_intermediate_signed_by((root, root_key), &issuer, &key)?;
            let root = root.to_owned();
            return Ok(OriginCa { root, issuer, key });
        }
        let root = setup.root_ca.to_owned();
        certificates::write_origin_ca(&root, &issuer, &key)?;
        Ok(OriginCa { root, issuer, key })
    }
}

/// Certificate and key of the CA that httpjail makes at its first start.
const HTTPJAIL_CA: [&str; 2] = [
    "/var/lib/httpjail/ca/ca-cert.pem",
    "/var/lib/httpjail/ca/ca-key.pem",
];
