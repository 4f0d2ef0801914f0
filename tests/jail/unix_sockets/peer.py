# Follows prelude.py: prints the user and group that a server sees of its client (SO_PEERCRED).
def become(user, group):
    def now():
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
    return now
print(*peer(lambda: None))
print(*peer(become(1, 1)))
print(*peer(become(7, 9)))
print(*peer(become(7, 9), "\0abstract"))
