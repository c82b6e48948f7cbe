"""A closed-loop load of writers by `wrk`, where that is on the PATH.

The writers of `load.py` run on Python and take a good part of two cores themselves. These do not,
so what they see is the server. The same script writes to the coordinator and to etcd.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CONNECTIONS = (1, 16, 64, 256)
THREADS = 1
SECONDS = 8
WARM_UP_S = 2
KEYS = 2_000

COMMON = """
local count = 0
function init(args)
  math.randomseed(os.time())
end
local function uuid7()
  local ms = os.time() * 1000 + math.random(0, 999)
  local hex = string.format("%012x", ms)
  return string.format("%s-%s-7%03x-%x%03x-%06x%06x", hex:sub(1, 8), hex:sub(9, 12),
    math.random(0, 4095), math.random(8, 11), math.random(0, 4095),
    math.random(0, 16777215), math.random(0, 16777215))
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\n{"requests":%d,"us":%d,"bad":%d,"failed":%d,"p50":%d,"p99":%d}\\n',
    summary.requests, summary.duration, e.status, e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""

PUT_SETTING = """
function request()
  count = count + 1
  local headers = {["Content-Type"] = "application/json"}
  if %(ids)s then headers["Idempotency-Key"] = uuid7() end
  return wrk.format("PUT", "/v1/config/w" .. math.random(1, %(keys)d), headers, tostring(count))
end
"""

PUT_KEY = """
local alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function letters(n)
  local text = ""
  for _ = 1, n do
    local at = math.random(1, #alphabet)
    text = text .. alphabet:sub(at, at)
  end
  return text
end
local keys = {}
for n = 1, %(keys)d do keys[n] = letters(8) end
function request()
  local key = keys[math.random(1, %(keys)d)]
  local body = '{"key":"' .. key .. '","value":"' .. letters(8) .. '"}'
  return wrk.format("POST", "/v3/kv/put", {["Content-Type"] = "application/json"}, body)
end
"""


def is_here() -> bool:
    """Tell whether `wrk` is on the PATH."""
    return shutil.which("wrk") is not None


def coordinator(url: str, *, ids: bool) -> list[dict[str, Any]]:
    """Write settings at the master, each with a request id of its own, or with none."""
    return _each(url, COMMON + PUT_SETTING % {"ids": str(ids).lower(), "keys": KEYS})


def fill(url: str, seconds: int) -> None:
    """Write settings with request ids for some seconds, by many connections."""
    _run(url, COMMON + PUT_SETTING % {"ids": "true", "keys": KEYS}, CONNECTIONS[-1], seconds)


def etcd(url: str) -> list[dict[str, Any]]:
    """Write keys at etcd, through its HTTP gateway."""
    return _each(url, COMMON + PUT_KEY % {"keys": KEYS})


def _each(url: str, script: str) -> list[dict[str, Any]]:
    _run(url, script, CONNECTIONS[-1], WARM_UP_S)
    return [_run(url, script, connections, SECONDS) for connections in CONNECTIONS]


def _run(url: str, script: str, connections: int, seconds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-wrk-") as folder:
        path = Path(folder) / "load.lua"
        path.write_text(script)
        done = subprocess.run(
            [
                *("wrk", "-t", str(THREADS), "-c", str(connections), "-d", f"{seconds}s"),
                *("--timeout", "10s", "-s", str(path), url),
            ],
            capture_output=True,
            text=True,
            timeout=seconds + 60,
            check=True,
        )
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    good = seen["requests"] - seen["bad"]
    return {
        "connections": connections,
        "per_second": round(good / (seen["us"] / 1e6)),
        "p50_ms": round(seen["p50"] / 1000, 1),
        "p99_ms": round(seen["p99"] / 1000, 1),
        "refused": seen["bad"],
        "failed": seen["failed"],
    }
