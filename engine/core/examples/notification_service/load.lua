-- What wrk sends: notifications of 200 merchants, a fifth of them for one. One in a hundred is for a merchant whose calls all fail, one in
-- five hundred is forbidden downstream, one in two hundred has no title. Prints how many answers of each status came back.

local next_thread = 1
local threads = {}

function setup(thread)
    thread:set("number", next_thread)
    next_thread = next_thread + 1
    table.insert(threads, thread)
end

function init()
    sent, accepted, invalid, full, draining, other = 0, 0, 0, 0, 0, 0
    math.randomseed(number)
    headers = { ["Content-Type"] = "application/json" }
end

function request()
    sent = sent + 1
    local merchant
    if sent % 100 == 0 then
        merchant = "broken"
    elseif sent % 5 == 0 then
        merchant = "hot"
    else
        merchant = "merchant_" .. math.random(1, 198)
    end
    local title = string.format('"title":"12 EUR from Ada, number %d"', sent)
    if sent % 200 == 99 then
        title = '"note":"there is no title"'
    elseif sent % 500 == 77 then
        title = '"title":"this is forbidden"'
    end
    local body = string.format('{"id":"%d-%d","merchant":"%s","kind":"paid",%s}', number, sent, merchant, title)
    return wrk.format("POST", "/notifications", headers, body)
end

function response(status)
    if status == 202 then
        accepted = accepted + 1
    elseif status == 400 then
        invalid = invalid + 1
    elseif status == 429 then
        full = full + 1
    elseif status == 503 then
        draining = draining + 1
    else
        other = other + 1
    end
end

function done(summary, latency)
    local sum = { accepted = 0, invalid = 0, full = 0, draining = 0, other = 0 }
    for _, thread in ipairs(threads) do
        for name, count in pairs(sum) do
            sum[name] = count + thread:get(name)
        end
    end
    io.write(string.format(
        '{"accepted":%d,"invalid":%d,"full":%d,"draining":%d,"other":%d,"p50_ms":%.2f,"p99_ms":%.2f,"seconds":%.2f}\n',
        sum.accepted, sum.invalid, sum.full, sum.draining, sum.other,
        latency:percentile(50) / 1000, latency:percentile(99) / 1000, summary.duration / 1e6))
end
