-- wrk: PATCH random rows by key. Arguments: rows, and "held" (one token for all) or "raise" (each write a higher one).
local rows, mode, count

function init(args)
    rows, mode, count = tonumber(args[1]), args[2], 0
    math.randomseed(1)
end

function request()
    count = count + 1
    local id = math.random(rows)
    local token = mode == "held" and 1 or count + 1
    return wrk.format("PATCH", "/v1/tables/accounts?id=eq." .. id, {
        ["Content-Type"] = "application/json",
        ["Fencing-Token"] = tostring(token),
    }, '{"balance": ' .. count .. '}')
end

function done(summary, latency)
    local errors = summary.errors
    print(string.format(
        "RESULT %d %d %f %f %d",
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.status + errors.connect + errors.read + errors.write + errors.timeout
    ))
end
