# Writes a registry of npm with one package.
import base64, hashlib, io, json, os, sys, tarfile
directory = sys.argv[1] + "/npm"
os.makedirs(directory + "/-")
archive = io.BytesIO()
with tarfile.open(fileobj=archive, mode="w:gz") as tar:
    for name, text in [("package.json", '{"name": "tiny", "version": "1.0.0"}'), ("index.js", "module.exports = 'from the mirror'")]:
        info = tarfile.TarInfo("package/" + name)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
archive = archive.getvalue()
open(directory + "/-/tiny-1.0.0.tgz", "wb").write(archive)
integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
dist = {"tarball": "https://a.test/npm/-/tiny-1.0.0.tgz", "integrity": integrity}
version = {"name": "tiny", "version": "1.0.0", "dist": dist}
package = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
json.dump(package, open(directory + "/tiny", "w"))
