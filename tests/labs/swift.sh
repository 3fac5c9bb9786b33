#!/usr/bin/env bash
# A whole OpenStack Swift on loopback for one test: memcached, and one account, container, object and proxy server,
# all below one directory. It neither reads nor writes the system's own Swift.
#
#     swift.sh up DIR      starts it; prints AUTH_URL, ACCOUNT_URL (an account's name follows it), USER and KEY
#     swift.sh down DIR    ends what `up` started, by process id
#
# Exit status 77: Swift is not installed here. PORT is the proxy's (default: a free one; the four behind it are the
# other servers'), REPLICAS how often everything is kept (default 1), KEYSTONE a file with the filters `authtoken` and
# `keystoneauth`, which take the place of Swift's own authentication (see keystone.sh). LISTEN is the proxy's address
# (default 127.0.0.1); S3=1 has it speak S3 too, where USER and KEY are the access key and the secret one.
# Debian: swift-proxy swift-account swift-container swift-object memcached.
set -euo pipefail

usage() { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -eq 2 ] || usage
command=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
replicas=${REPLICAS:-1}
listen=${LISTEN:-127.0.0.1}
auth=tempauth
[ -z "${KEYSTONE:-}" ] || auth="authtoken keystoneauth"
s3=
[ -z "${S3:-}" ] || s3=s3api

. "$(dirname "$0")/stop.sh"

down() {
    local file
    for file in "$dir"/run/*.pid; do
        stop "$file"
    done
}

case $command in
    down) down; exit 0 ;;
    up) ;;
    *) usage ;;
esac

for program in swift-proxy-server swift-account-server swift-container-server swift-object-server memcached; do
    command -v "$program" > /dev/null || { echo "$program is not installed" >&2; exit 77; }
done
# The interpreter that the servers were installed for.
python=$(sed -n '1s/^#! *//p' "$(command -v swift-proxy-server)")
"$python" -c 'import swift' 2> /dev/null || { echo "Python has no module swift" >&2; exit 77; }

free_port() {
    "$python" - <<'PY'
import random, socket
for _ in range(200):
    first = random.randrange(20000, 32000, 8)
    held = []
    try:
        for port in range(first, first + 5):
            held.append(socket.socket())
            held[-1].bind(("127.0.0.1", port))
        print(first)
        break
    except OSError:
        pass
    finally:
        for each in held:
            each.close()
PY
}
port=${PORT:-$(free_port)}
user=$(id -un)
mkdir -p "$dir"/{etc,run,log}
for device in $(seq "$replicas"); do mkdir -p "$dir/srv/disk$device"; done

cat > "$dir/etc/swift.conf" <<INI
[swift-hash]
swift_hash_path_prefix = laboratory
swift_hash_path_suffix = laboratory
[storage-policy:0]
name = only
default = yes
INI

# Listings lag where an update of the container takes longer than the object server waits for it: here it waits
# longer than any test.
backend() { # name port
    cat > "$dir/etc/$1.conf" <<INI
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $2
user = $user
swift_dir = $dir/etc
devices = $dir/srv
mount_check = false
workers = 0
fallocate_reserve = 0
container_update_timeout = 60
node_timeout = 60
conn_timeout = 10
[pipeline:main]
pipeline = healthcheck $1-server
[app:$1-server]
use = egg:swift#$1
node_timeout = 60
conn_timeout = 10
[filter:healthcheck]
use = egg:swift#healthcheck
INI
}
backend object $((port + 2))
backend container $((port + 3))
backend account $((port + 4))
cat > "$dir/etc/proxy.conf" <<INI
[DEFAULT]
bind_ip = $listen
bind_port = $port
user = $user
swift_dir = $dir/etc
workers = 0
client_timeout = 60
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck cache listing_formats bulk $s3 $auth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
node_timeout = 60
conn_timeout = 10
recoverable_node_timeout = 60
post_quorum_timeout = 5
[filter:tempauth]
use = egg:swift#tempauth
user_laboratory_tester = secret .admin .reseller_admin
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:$((port + 1))
INI
[ -z "${KEYSTONE:-}" ] || cat "$KEYSTONE" >> "$dir/etc/proxy.conf"
for name in catch_errors gatekeeper healthcheck listing_formats bulk copy slo dlo $s3; do
    printf '[filter:%s]\nuse = egg:swift#%s\n' "$name" "$name" >> "$dir/etc/proxy.conf"
done

"$python" - "$dir/etc" "$port" "$replicas" <<'PY'
import sys
from swift.common.ring import RingBuilder
etc, port, replicas = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for ring, offset in ("object", 2), ("container", 3), ("account", 4):
    builder = RingBuilder(4, replicas, 0)
    for zone in range(1, replicas + 1):
        builder.add_dev(dict(region=1, zone=zone, weight=1, meta="", device="disk%d" % zone,
                             ip="127.0.0.1", port=port + offset,
                             replication_ip="127.0.0.1", replication_port=port + offset))
    builder.rebalance(seed=1)
    builder.get_ring().save("%s/%s.ring.gz" % (etc, ring))
PY

# The servers look for swift.conf in one fixed place unless they are told before their modules are loaded.
cat > "$dir/run/start.py" <<'PY'
import runpy, sys
from swift.common import utils
utils.set_swift_dir(sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
PY
launch() { # name command...
    local name=$1
    shift
    setsid "$@" > "$dir/log/$name" 2>&1 < /dev/null &
    echo $! > "$dir/run/$name.pid"
}
launch memcached memcached -u "$user" -l 127.0.0.1 -p $((port + 1)) -m 16 -t 1 -U 0
for name in account container object proxy; do
    launch "$name" "$python" "$dir/run/start.py" "$dir/etc" "$(command -v "swift-$name-server")" "$dir/etc/$name.conf" -v
done

"$python" - "$port" $((port + 2)) $((port + 3)) $((port + 4)) <<'PY' || { tail -n 20 "$dir"/log/* >&2; down; exit 1; }
import sys, time, urllib.request
for port in sys.argv[1:]:
    for _ in range(300):
        try:
            urllib.request.urlopen("http://127.0.0.1:%s/healthcheck" % port, timeout=5).read()
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("the server on port %s does not answer" % port)
PY
echo "AUTH_URL=http://127.0.0.1:$port/auth/v1.0"
echo "ACCOUNT_URL=http://127.0.0.1:$port/v1"
echo "USER=laboratory:tester"
echo "KEY=secret"
