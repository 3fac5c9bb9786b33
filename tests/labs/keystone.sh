#!/usr/bin/env bash
# A Keystone on loopback for one test, and a Swift (swift.sh) that asks it who may do what. All is below one directory;
# the system's own Keystone is neither read nor written.
#
#     keystone.sh up DIR             starts both; prints OS_AUTH_URL, ACCOUNT_URL (an account's name follows it), and
#                                    CREDENTIAL_ID and CREDENTIAL_SECRET of an application credential of porter's
#     keystone.sh revoke DIR USER    no token that a user has got so far is accepted from now on
#     keystone.sh down DIR           ends what `up` started, by process id
#
# In the domain `yard` there is the project `cargo`. Of its users porter may do everything in its account, and reader has
# a role with which Swift lets nobody do anything; a stranger has no role. Everybody's password is `secret`.
#
# Exit status 77: one of the two is not installed here. EXPIRATION is the life of a token in seconds (default 3600),
# TOKEN_CACHE for how many Swift believes what Keystone said of one (default 300; -1: it asks each time).
# Debian: python3-keystone python3-keystonemiddleware, and what swift.sh needs.
set -euo pipefail

usage() { sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
command=${1:-}
case "$command $#" in 'up 2' | 'revoke 3' | 'down 2') ;; *) usage ;; esac
labs=$(cd "$(dirname "$0")" && pwd)
. "$labs/stop.sh"
mkdir -p "$2"
dir=$(cd "$2" && pwd)

down() {
    "$labs/swift.sh" down "$dir/swift"
    stop "$dir/run/keystone.pid"
}

case $command in
    down) down; exit 0 ;;
    revoke) exec "$(cat "$dir/run/python")" "$dir/run/admin.py" "$(cat "$dir/run/url")" revoke "$3" ;;
esac

for program in keystone-manage swift-proxy-server; do
    command -v "$program" > /dev/null || { echo "$program is not installed" >&2; exit 77; }
done
# The interpreters that the two were installed for: Swift's loads Keystone's middleware.
interpreter() { sed -n '1s/^#! *//p' "$(command -v "$1")"; }
python=$(interpreter keystone-manage)
has() { "$1" -c "import $2" 2> /dev/null || { echo "Python has no module $2" >&2; exit 77; }; }
has "$python" keystone
has "$(interpreter swift-proxy-server)" keystonemiddleware.auth_token

mkdir -p "$dir"/{etc,run,log}
echo "$python" > "$dir/run/python"
rm -f "$dir/run/url"
cat > "$dir/etc/keystone.conf" <<INI
[database]
connection = sqlite:///$dir/keystone.db
sqlite_synchronous = false
[token]
provider = fernet
expiration = ${EXPIRATION:-3600}
[fernet_tokens]
key_repository = $dir/etc/keys
[fernet_receipts]
key_repository = $dir/etc/keys
[identity]
password_hash_rounds = 4
INI

# Every start of keystone-manage takes seconds, most of them for its modules: here they are loaded once. The address is
# said before anything is made; who connects waits.
cat > "$dir/run/serve.py" <<'PY'
import getpass, grp, os, sqlite3, sys
from wsgiref.simple_server import WSGIServer, make_server

# One request at a time: threads would wait for each other's locks of the database, and give up.
class Server(WSGIServer):
    request_queue_size = 100

# Keystone reads what is left of the arguments.
directory = sys.argv.pop()
configuration = directory + "/etc/keystone.conf"
server = make_server("127.0.0.1", 0, None, Server)
url = "http://127.0.0.1:%s" % server.server_port
with open(directory + "/run/url.new", "w") as file:
    file.write(url)
os.rename(directory + "/run/url.new", directory + "/run/url")

from keystone.cmd import cli
from keystone.server.flask import core

def manage(*words):
    child = os.fork()
    if child == 0:
        cli.main(["keystone-manage", "--config-file", configuration, *words])
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("keystone-manage %s failed" % words[0])

user, group = getpass.getuser(), grp.getgrgid(os.getgid()).gr_name
manage("db_sync")
# A request's reads last until its end, and would keep it from writing.
sqlite3.connect(directory + "/keystone.db").execute("PRAGMA journal_mode = WAL").close()
manage("fernet_setup", "--keystone-user", user, "--keystone-group", group)
manage("bootstrap", "--bootstrap-password", "secret", "--bootstrap-region-id", "harbour",
       "--bootstrap-public-url", url + "/v3", "--bootstrap-internal-url", url + "/v3")
server.set_app(core.initialize_application("public", config_files=[configuration]))
server.serve_forever()
PY

cat > "$dir/run/admin.py" <<'PY'
import json, sys, time, urllib.error, urllib.request

base, command, *words = sys.argv[1:]
base += "/v3/"
headers = {"Content-Type": "application/json"}

who = None

def send(method, path, document):
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(base + path, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        token = answer.headers.get("X-Subject-Token")
        body = answer.read()
    return token, json.loads(body) if body else None

# Where tokens live for seconds, one may end before all is made: what is refused for that has done nothing.
def ask(method, path, document=None):
    try:
        return send(method, path, document)
    except urllib.error.HTTPError as refused:
        if refused.code != 401 or who is None:
            raise
    login(*who)
    return send(method, path, document)

def make(kind, **fields):
    return ask("POST", kind + "s", {kind: fields})[1][kind]["id"]

def login(name, project, domain):
    global who
    who, again = None, (name, project, domain)
    domain = {"name": domain}
    user = {"name": name, "domain": domain, "password": "secret"}
    headers.pop("X-Auth-Token", None)
    headers["X-Auth-Token"] = ask("POST", "auth/tokens", {"auth": {
        "identity": {"methods": ["password"], "password": {"user": user}},
        "scope": {"project": {"name": project, "domain": domain}},
    }})[0]
    who = again

login("admin", "admin", "Default")

if command == "revoke":
    [found] = ask("GET", "users?name=" + words[0])[1]["users"]
    for enabled in False, True:
        ask("PATCH", "users/" + found["id"], {"user": {"enabled": enabled}})
    # It knows the second in which it gave out a token: one of this second would be revoked too.
    time.sleep(1.1)
else:
    [account_url] = words
    roles = {role["name"]: role["id"] for role in ask("GET", "roles")[1]["roles"]}
    if "service" not in roles:
        roles["service"] = make("role", name="service")
    yard = make("domain", name="yard")
    cargo = make("project", name="cargo", domain_id=yard)
    services = make("project", name="service", domain_id="default")
    people = {}
    for name, domain, project, role in [
        ("swift", "default", services, "service"), ("porter", yard, cargo, "member"), ("reader", yard, cargo, "reader"),
        ("stranger", yard, None, None),
    ]:
        people[name] = person = make("user", name=name, domain_id=domain, password="secret")
        if project:
            ask("PUT", "projects/%s/users/%s/roles/%s" % (project, person, roles[role]))
    make("region", id="elsewhere")
    store = make("service", type="object-store", name="swift")
    for region, url in ("elsewhere", "http://127.0.0.1:1/v1"), ("harbour", account_url):
        make("endpoint", service_id=store, interface="public", region_id=region, url=url + "/AUTH_%(project_id)s")
    login("porter", "cargo", "yard")
    credential = {"application_credential": {"name": "crane", "secret": "hook"}}
    made = ask("POST", "users/%s/application_credentials" % people["porter"], credential)[1]
    print("CREDENTIAL_ID=%s" % made["application_credential"]["id"])
    print("CREDENTIAL_SECRET=hook")
PY

setsid "$python" "$dir/run/serve.py" "$dir" > "$dir/log/keystone" 2>&1 < /dev/null &
echo $! > "$dir/run/keystone.pid"
for _ in $(seq 300); do
    [ ! -s "$dir/run/url" ] || break
    sleep 0.1
done
url=$(cat "$dir/run/url")
cat > "$dir/etc/filters.conf" <<INI
[filter:authtoken]
paste.filter_factory = keystonemiddleware.auth_token:filter_factory
www_authenticate_uri = $url/v3
auth_url = $url/v3
auth_type = password
username = swift
password = secret
user_domain_id = default
project_name = service
project_domain_id = default
delay_auth_decision = true
cache = swift.cache
token_cache_time = ${TOKEN_CACHE:-300}
[filter:keystoneauth]
use = egg:swift#keystoneauth
operator_roles = member
INI
fail() { # status
    [ "$1" = 77 ] || tail -n 30 "$dir/log/keystone" >&2
    down
    exit "$1"
}
said=$(KEYSTONE="$dir/etc/filters.conf" "$labs/swift.sh" up "$dir/swift") || fail $?
account_url=$(sed -n 's/^ACCOUNT_URL=//p' <<< "$said")
"$python" "$dir/run/admin.py" "$url" furnish "$account_url" || fail 1
echo "OS_AUTH_URL=$url/v3"
echo "ACCOUNT_URL=$account_url"
