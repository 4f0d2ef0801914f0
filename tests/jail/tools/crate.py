# Writes a registry of crates with one crate, for cargo in a jail.
import hashlib, io, json, os, sys, tarfile
root = sys.argv[1]
os.makedirs(root + "/index/ti/ny")
os.makedirs(root + "/crates")
archive = io.BytesIO()
with tarfile.open(fileobj=archive, mode="w:gz") as tar:
    manifest = '[package]\nname = "tiny"\nversion = "1.0.0"\nedition = "2021"\n'
    for name, text in [("Cargo.toml", manifest), ("src/lib.rs", "//! From the mirror.\n")]:
        info = tarfile.TarInfo("tiny-1.0.0/" + name)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
archive = archive.getvalue()
open(root + "/crates/tiny-1.0.0.crate", "wb").write(archive)
json.dump({"dl": "https://a.test/crates/{crate}-{version}.crate"}, open(root + "/index/config.json", "w"))
entry = {"name": "tiny", "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(archive).hexdigest(), "features": {}, "yanked": False}
open(root + "/index/ti/ny/tiny", "w").write(json.dumps(entry) + "\n")
