-- wrk: asks for one kind of work again and again. Arguments: the work, rows, milliseconds that a connection
-- rests between two requests, resources of a request.
local make, rows, count

local function headers(token)
    return {["Content-Type"] = "application/json", ["Fencing-Token"] = token or "1"}
end

local function update(path, key)
    return function(id, token)
        local sent = headers(token)
        sent["Authorization"] = key and "Bearer " .. key
        return wrk.format("PATCH", path .. id, sent, '{"balance": ' .. count .. '}')
    end
end

local function take_over(path)
    local change, first = update(path), os.time() * 100000
    return function(id) return change(id, ("%.0f"):format(first + count)) end
end

local function read(path)
    return function(id) return wrk.format("GET", path .. id) end
end

local function insert(path)
    local first = os.time() * 1000000
    return function()
        local body = '{"id": %.0f, "balance": %d}'
        return wrk.format("POST", path, headers(), body:format(first + count, count))
    end
end

local function entry(id, amount)
    return '{"account_id": ' .. id .. ', "amount": ' .. amount .. ', "note": "an entry"}'
end

local works = {
    update = function() return update("/v1/tables/accounts?id=eq.") end,
    ["update-granted"] = function() return update("/v1/tables/accounts?id=eq.", "key-of-granted") end,
    ["update-acting"] = function() return update("/v1/tables/accounts?id=eq.", "key-of-acting") end,
    ["update-shared"] = function() return update("/v1/tables/shared?id=eq.", "key-of-granted") end,
    -- A new holder each time, and newer than those of a run before; within the largest jump from nothing, 2^48.
    ["take-over"] = function() return take_over("/v1/tables/handed?id=eq.") end,
    -- A zombie: it hammers the row 0, which a newer holder has, and none that other writers want.
    ["update-overtaken"] = function()
        local hammer = update("/v1/tables/accounts?id=eq.", "key-of-granted")
        return function() return hammer(0) end
    end,
    select = function() return read("/v1/tables/accounts?id=eq.") end,
    -- Rows of many resources in one request, which has the token of all of them.
    ["insert-spread"] = function(resources)
        return function(id)
            local entries = {}
            for step = 1, resources do
                entries[step] = entry((id + step) % rows, count)
            end
            return wrk.format("POST", "/v1/tables/entries", headers(), '[' .. table.concat(entries, ",") .. ']')
        end
    end,
    -- Rows that carry their own key: each is a new resource.
    ["insert-keyed"] = function() return insert("/v1/tables/fresh") end,
    -- The same of services without a gateway. Those in /fenced have their token in a column of the row.
    ["service-update"] = function() return update("/accounts/") end,
    ["service-update-fenced"] = function() return update("/fenced/") end,
    ["service-take-over"] = function() return take_over("/handed/") end,
    ["service-select"] = function() return read("/accounts/") end,
    ["service-insert-keyed"] = function() return insert("/fresh") end,
}

function init(args)
    math.randomseed(1)
    rows, count = tonumber(args[2]), 0
    make = works[args[1]](tonumber(args[4]))
    local rest = tonumber(args[3])
    if rest > 0 then
        delay = function() return rest end
    end
end

function request()
    count = count + 1
    return make(math.random(rows))
end

function done(summary, latency)
    local errors = summary.errors
    print(string.format(
        "RESULT %d %d %f %f %d",
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.status + errors.connect + errors.read + errors.write + errors.timeout
    ))
end
