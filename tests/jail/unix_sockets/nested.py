# Follows prelude.py: a user namespace below grants no access to directories of another user.
private = tempfile.mkdtemp()
listen(private + "/root-only")
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    libc.prctl(4, 1, 0, 0, 0)
    assert libc.unshare(0x10000000) == 0
    for name, text in ("setgroups", "deny"), ("uid_map", "0 65534 1"), ("gid_map", "0 65534 1"):
        open("/proc/self/" + name, "w").write(text)
    print(error(lambda: connect(private + "/root-only")), error(lambda: listen(private + "/new")))
    sys.stdout.flush()
    os._exit(0)
os.wait()
