# Starts nginx and upgrades its binary, once the file for it exists.
/usr/sbin/nginx -c $0 -e stderr
until [ -e DIR/upgrade ]; do sleep 0.05; done
kill -USR2 $(cat DIR/nginx.pid)
until [ -s DIR/nginx.pid.oldbin ] && [ -s DIR/nginx.pid ]; do sleep 0.05; done
kill -QUIT $(cat DIR/nginx.pid.oldbin)
while [ -e DIR/nginx.pid.oldbin ]; do sleep 0.05; done
touch DIR/upgraded
while :; do sleep 1; done
