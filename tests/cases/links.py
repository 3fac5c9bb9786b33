#!/usr/bin/env python3
"""Links swapped in at the right moment: sync --delete, an unfinished file, uploads, watch. links.py DIR"""
import sys, os, shutil, subprocess, time, glob
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from s3raw import *; from mutproxy import Proxy
DIR = os.path.abspath(sys.argv[1]); shutil.rmtree(DIR, ignore_errors=True); os.makedirs(DIR); PORT = int(os.environ.get("PORT", "20700"))
s = Server(DIR + "/data", PORT, log=DIR + "/log"); assert s.start(); c = s.client(timeout=60); [c.request("PUT", "/" + b) for b in ("bkt", "one", "upp", "big")]; c.put("one", "z", b"z"); BIG = os.urandom(60 << 20); c.put("big", "big", BIG)
px = Proxy(PORT + 9, PORT, "oneslow", 1.0, 1); E = lambda p: dict(os.environ, AWS_ACCESS_KEY_ID=s.ID, AWS_SECRET_ACCESS_KEY=s.SECRET, AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL="http://127.0.0.1:%d" % p, HOME=DIR, XDG_CACHE_HOME=DIR + "/cache")
def box(): shutil.rmtree(DIR + "/box", ignore_errors=True); [os.makedirs(DIR + "/box/" + x) for x in ("back/d", "out")]; open(DIR + "/box/out/victim", "w").write("precious secret"); return DIR + "/box"
def swap(b): os.rename(b + "/back/d", b + "/moved"); os.symlink(b + "/out", b + "/back/d")
b = box(); open(b + "/back/d/victim", "w").write("mine"); p = subprocess.Popen([BIN, "sync", "--delete", "s3://one/", b + "/back/"], env=E(PORT + 9), stderr=subprocess.PIPE); time.sleep(1.5); swap(b); p.wait(60)
print("FAULT?" if not os.path.exists(b + "/out/victim") else "      ", "sync --delete through a swapped directory: rc", p.returncode, "outside file still there:", os.path.exists(b + "/out/victim"))
b = box()
for kind in ("symlink", "hardlink"):
    b = box(); p = subprocess.Popen([BIN, "cp", "s3://big/big", b + "/back/f", "--max-bandwidth", "20MiB"], env=E(PORT), stderr=subprocess.DEVNULL); time.sleep(1.2); p.kill(); p.wait(); part = [x for x in glob.glob(b + "/back/.*part*")]
    if part:
        n = os.path.getsize(part[0]); os.remove(part[0]); (os.symlink if kind == "symlink" else os.link)(b + "/out/victim", part[0])
        q_ = subprocess.run([BIN, "cp", "s3://big/big", b + "/back/f"], env=E(PORT), capture_output=True, timeout=60); v = open(b + "/out/victim", "rb").read(); fl = os.path.islink(b + "/back/f"); ok = v == b"precious secret" and not fl
        print("      " if ok else "FAULT?", "unfinished file replaced by a", kind, ": rc", q_.returncode, "victim now", len(v), "bytes", "final is a link" if fl else "", "final right:", os.path.exists(b + "/back/f") and open(b + "/back/f", "rb").read() == BIG, q_.stderr[-150:])
    else: print("       no unfinished file to attack")
for cmd in (["cp", "-r"], ["sync"]):
    b = box(); open(b + "/back/a", "w").write("a" * 1000); open(b + "/back/d/victim", "w").write("mine"); [c.delete("upp", k) for k in list_all(c, "upp")]
    p = subprocess.Popen([BIN, cmd[0], b + "/back/", "s3://upp/", *cmd[1:], "--concurrency", "1"], env=E(PORT + 9), stderr=subprocess.PIPE); time.sleep(1.0); swap(b); p.wait(90); got = c.get("upp", "d/victim")
    print("FAULT?" if b"secret" in got.body else "      ", "upload", cmd[0], "through a swapped directory: rc", p.returncode, got.status, got.body[:20], p.stderr.read()[-150:])
b = box(); [c.delete("upp", k) for k in list_all(c, "upp")]; p = subprocess.Popen([BIN, "sync", "--watch", "--debounce", "1s", b + "/back/", "s3://upp/"], env=E(PORT), stderr=subprocess.PIPE); time.sleep(1.5)
for i in range(150):
    open(b + "/back/d/victim", "w").write("mine %d" % i); time.sleep(.02); swap(b); time.sleep(.02); os.unlink(b + "/back/d"); os.rename(b + "/moved", b + "/back/d")
swap(b); time.sleep(4); p.send_signal(signal.SIGTERM); p.wait(20); got = c.get("upp", "d/victim"); print("FAULT?" if b"secret" in got.body else "      ", "watch with swaps: rc", p.returncode, got.status, got.body[:20]); s.kill(signal.SIGTERM)
