//! The bundle of a container (OCI runtime specification, bundle.md) that runs this program.

use std::env;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Map, Value, json};

/// The folder of a container. Dropping this removes it, unless it is kept.
pub(super) struct Bundle {
    pub(super) id: String,
    pub(super) folder: PathBuf,
    is_kept: bool,
}

impl Bundle {
    /// Creates the bundle of a container that runs this program with these arguments and this seccomp profile. The image has the
    /// program and the libraries of this host, read-only.
    pub(super) fn create<'a>(
        name: &str,
        arguments: impl Iterator<Item = &'a str>,
        profile: &Map<String, Value>,
    ) -> anyhow::Result<Self> {
        let id = format!("peername-doctor-{name}-{}", std::process::id());
        let folder = env::temp_dir().join(&id);
        let program = env::current_exe().context("finding this program")?;
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        let bundle = Self {
            id,
            folder,
            is_kept: false,
        };
        let arguments: Vec<&str> = [PROGRAM].into_iter().chain(arguments).collect();
        let config = bundle.config(&program, &arguments, profile);
        fs::create_dir(bundle.root())
            .and_then(|()| fs::write(bundle.folder.join("config.json"), config.to_string()))
            .with_context(|| format!("writing {}", bundle.folder.display()))?;
        Ok(bundle)
    }

    /// The folder in which the runtime keeps the container's state.
    pub(super) fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Whether the runtime has a state for the container.
    pub(super) fn has_state(&self) -> bool {
        self.state().join(&self.id).exists()
    }

    /// Keeps the folder, because the runtime finds the container by the state in it.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The configuration of the container (config.md). Without a network namespace of its own, the container has that of the
    /// thread that starts the runtime.
    fn config(&self, program: &Path, arguments: &[&str], profile: &Map<String, Value>) -> Value {
        // Not recursive (`rbind`): `ro` does not apply to file systems that are mounted below.
        let bind = |source: &Path, destination: &str| {
            json!({
                "destination": destination, "type": "bind", "source": source,
                "options": ["bind", "ro", "nosuid", "nodev"]
            })
        };
        let mut mounts = vec![
            json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
            json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"] }),
            bind(program, PROGRAM),
        ];
        let libraries = LIBRARIES.iter().filter(|folder| Path::new(folder).is_dir());
        mounts.extend(libraries.map(|folder| bind(Path::new(folder), folder)));
        let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "args": arguments,
                "cwd": "/",
                "env": ["PATH=/"],
                "user": { "uid": 0, "gid": 0 },
                "noNewPrivileges": true
            },
            "root": { "path": self.root(), "readonly": true },
            "mounts": mounts,
            "linux": {
                "cgroupsPath": format!("/{}", self.id),
                "namespaces": namespaces,
                "seccomp": profile
            }
        })
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// The path of this program in the container.
const PROGRAM: &str = "/peername";
/// The folders of the libraries that this program needs unless it is static.
const LIBRARIES: [&str; 4] = ["/lib", "/lib32", "/lib64", "/usr/lib"];
