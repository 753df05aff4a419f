-- Asks for one object again and again. Prints "RESULT requests microseconds p50 p99 errors".

function done(summary, latency)
    local errors = summary.errors
    print(string.format(
        "RESULT %d %d %f %f %d",
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.status + errors.connect + errors.read + errors.write + errors.timeout
    ))
end
