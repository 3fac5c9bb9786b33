#!/usr/bin/env bash
# A whole Ceph cluster on loopback for one test, with radosgw in front of it: a monitor, a manager and one OSD, all
# below one directory. It neither reads nor writes the system's own Ceph, and needs neither root nor systemd.
#
#     ceph.sh up DIR      starts it; prints ENDPOINT, ACCESS_KEY and SECRET_KEY of an S3 user
#     ceph.sh down DIR    ends what `up` started, by process id; what it kept stays for whoever wants to read it
#
# Exit status 77: Ceph is not installed here. PORT is radosgw's (default: a free one), DOMAIN a name below which
# buckets answer as hosts (default: none), DEVICE_MIB how large the OSD is (default 2048; it takes what it writes).
# Debian: ceph-mon ceph-mgr ceph-osd radosgw ceph-common.
set -euo pipefail

usage() { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -eq 2 ] || usage
command=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd -P)

. "$(dirname "$0")/stop.sh"

# What depends on others ends before them: it would wait for those it lost.
down() {
    local name
    for name in rgw osd mgr mon; do
        stop "$dir/run/$name.pid"
    done
}

case $command in
    down) down; exit 0 ;;
    up) ;;
    *) usage ;;
esac

for program in ceph ceph-mon ceph-mgr ceph-osd radosgw radosgw-admin monmaptool; do
    command -v "$program" > /dev/null || { echo "$program is not installed" >&2; exit 77; }
done
# A socket's path holds 107 bytes.
[ ${#dir} -le 80 ] || { echo "$dir is too long a path for Ceph's sockets" >&2; exit 1; }
[ ! -e "$dir/ceph.conf" ] || { echo "$dir has a cluster's data already; name another directory" >&2; exit 1; }
mkdir -p "$dir"/{run,log,mon,mgr,osd,rgw}
: > "$dir/keyring"

is_free() { ! (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
free_port() {
    local port
    for _ in $(seq 200); do
        port=$((20000 + RANDOM % 12000))
        if is_free "$port"; then echo "$port"; return; fi
    done
    echo "no port is free" >&2
    exit 1
}
port=${PORT:-$(free_port)}
monitor=127.0.0.1:$(free_port)
fsid=$(cat /proc/sys/kernel/random/uuid)

# Nobody but this machine can reach it: no keys between the daemons. Only the bytes that tests write are on the disk.
cat > "$dir/ceph.conf" << INI
[global]
fsid = $fsid
mon_host = v2:$monitor
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
keyring = $dir/keyring
run_dir = $dir/run
admin_socket = $dir/run/\$name.\$pid.asok
crash_dir = $dir/log
log_file = $dir/log/\$name
mon_data = $dir/mon
mgr_data = $dir/mgr
osd_data = $dir/osd
rgw_data = $dir/rgw
mon_allow_pool_size_one = true
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
[mon]
mon_data_avail_crit = 0
# Changes of the cluster are agreed upon at once, rather than gathered for a second.
paxos_propose_interval = 0.05
[mgr]
mgr_initial_modules = iostat
mgr/devicehealth/enable_monitoring = false
[osd]
osd_objectstore = bluestore
bluestore_block_create = true
bluestore_block_size = $((${DEVICE_MIB:-2048} << 20))
bluestore_block_wal_create = false
bluestore_block_db_create = false
bluestore_cache_autotune = false
bluestore_cache_size = 33554432
osd_heartbeat_grace = 60
osd_scrub_load_threshold = 0.01
[client.rgw]
# The monitor speaks in the clear here, which radosgw alone would not take.
ms_mon_client_mode = crc
rgw_frontends = beast endpoint=127.0.0.1:$port
rgw_rados_pool_pg_num_min = 4
rgw_thread_pool_size = 32
rgw_override_bucket_index_max_shards = 2
${DOMAIN:+rgw_dns_name = $DOMAIN}
INI
export CEPH_CONF=$dir/ceph.conf

failed() {
    echo "$1" >&2
    tail -n 20 "$dir"/log/* >&2 2> /dev/null || true
    down
    exit 1
}
# Runs in the foreground of a process of its own, whose id is the daemon's.
launch() { # name program arguments...
    local name=$1
    shift
    setsid "$@" -f > "$dir/log/$name.out" 2>&1 < /dev/null &
    echo $! > "$dir/run/$name.pid"
}
wait_for() { # what, command...
    local what=$1 last=$((SECONDS + 60))
    shift
    while [ $SECONDS -lt $last ]; do
        if "$@" > /dev/null 2>&1; then return; fi
        sleep 0.2
    done
    failed "$what within a minute"
}

monmaptool --create --clobber --fsid "$fsid" --set-min-mon-release pacific --addv a "[v2:$monitor]" "$dir/monmap" \
    > /dev/null
ceph-mon -i a --mkfs --monmap "$dir/monmap" > "$dir/log/mkfs" 2>&1 || failed "the monitor's store cannot be made"
launch mon ceph-mon -i a
wait_for "the monitor does not answer" timeout 20 ceph mon stat
osd=$(cat /proc/sys/kernel/random/uuid)
timeout 20 ceph osd new "$osd" 0 > /dev/null 2>&1 || failed "the monitor takes no OSD"
launch mgr ceph-mgr -i x
ceph-osd -i 0 --mkfs --osd-uuid "$osd" --no-mon-config >> "$dir/log/mkfs" 2>&1 || failed "the OSD cannot be made"
launch osd ceph-osd -i 0
is_up() { [[ $(timeout 20 ceph osd stat -f json) == *'"num_up_osds":1'* ]]; }
wait_for "the OSD is not up" is_up
# The first that is asked for makes the zone that the others change.
timeout 60 radosgw-admin -n client.rgw user create --uid laboratory --display-name laboratory --access-key laboratory \
    --secret-key secret > "$dir/log/user" 2>&1 || failed "radosgw makes no user"
# A second storage class, so that objects can be told apart by theirs.
class() { # zonegroup|zone arguments...
    timeout 60 radosgw-admin -n client.rgw "$1" placement add --placement-id default-placement \
        --storage-class STANDARD_IA "${@:2}" >> "$dir/log/class" 2>&1 || failed "radosgw takes no storage class"
}
class zonegroup --rgw-zonegroup default
class zone --rgw-zone default --data-pool default.rgw.infrequent
launch rgw radosgw -n client.rgw
answers() { ! is_free "$port"; }
wait_for "radosgw does not answer" answers
echo "ENDPOINT=http://127.0.0.1:$port"
echo "ACCESS_KEY=laboratory"
echo "SECRET_KEY=secret"
