-- Each request uses a random line of a file of presigned URL paths, one per object. The file name is the first argument
-- after `--`. Prints the results as one line of JSON.

local count_of_threads = 0
local threads = {}

function setup(thread)
  count_of_threads = count_of_threads + 1
  thread:set("number", count_of_threads)
  threads[count_of_threads] = thread
end

local requests = {}
local count = 0
local random = math.random

function init(arguments)
  local start = os.clock()
  local head = " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\n\r\n"
  for path in io.lines(arguments[1]) do
    count = count + 1
    requests[count] = "GET " .. path .. head
  end
  math.randomseed(number * 7919 + tonumber(arguments[2]))
  load_seconds = os.clock() - start
end

function request()
  return requests[random(count)]
end

function done(summary, latency, _)
  -- wrk starts threads sequentially, each after its paths are loaded, and its clock after the last one. Adds the mean time
  -- by which the other threads started earlier.
  local early = 0
  for position = 2, count_of_threads do
    early = early + threads[position]:get("load_seconds") * (position - 1) / count_of_threads
  end
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"bytes":%d,"seconds":%.6f,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d,' ..
    '"p50":%d,"p90":%d,"p99":%d,"p99.9":%d,"max":%d,"mean":%.1f}\n',
    summary.requests, summary.bytes, summary.duration / 1e6 + early,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), latency:percentile(99.9),
    latency.max, latency.mean))
end
