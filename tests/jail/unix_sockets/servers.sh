# Runs PostgreSQL with peer authentication, and Redis, at Unix sockets.
set -e
export PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin | tail -1)
dir=$(mktemp -d) && chown postgres $dir && chmod 755 $dir
as() { setpriv --reuid=$1 --regid=$1 --clear-groups -- "${@:2}"; }
as postgres initdb -D $dir/data --auth=peer >/dev/null
as postgres pg_ctl -D $dir/data -w -o "-k $dir -c listen_addresses=" -l $dir/log start >/dev/null
as postgres psql -h $dir -Atc 'select current_user'
as daemon psql -h $dir -U postgres -Atc 'select 1' 2>&1 | grep -o 'Peer authentication failed' || true
as postgres pg_ctl -D $dir/data -m immediate stop >/dev/null
redis-server --port 0 --unixsocket $dir/redis --daemonize yes >/dev/null
until redis-cli -s $dir/redis ping 2>/dev/null; do sleep 0.1; done
redis-cli -s $dir/redis shutdown nosave
rm -r $dir
