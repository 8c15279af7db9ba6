// A Boost.Asio strand for each key over one io_context with a thread for each worker.
//
// Arguments: tasks keys producers workers rounds shape parameter. Prints one JSON object.
// A strand is made when its key is first used. Strands have no bound; a window of 65,536 tasks under way stands in for it.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>

namespace asio = boost::asio;
using Strand = asio::strand<asio::io_context::executor_type>;

constexpr std::uint64_t window = 1 << 16;
constexpr std::size_t stride = 256;
constexpr auto nap = std::chrono::microseconds(50);

// splitmix64, as in workload.rs.
struct Random {
    std::uint64_t state;
    std::uint64_t bits() {
        state += 0x9E3779B97F4A7C15;
        std::uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        return z ^ (z >> 31);
    }
    std::uint64_t below(std::uint64_t n) {
        return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits()) * n) >> 64);
    }
    double unit() { return static_cast<double>(bits() >> 11) / 9007199254740992.0; }
};

struct Item {
    std::uint32_t key;
    std::uint32_t number;
};

struct Key {
    std::optional<Strand> strand;
    std::uint64_t accumulator = 0;
    std::uint64_t violations = 0;
    std::uint32_t due = 0;

    void run(std::uint32_t number, std::uint64_t rounds) {
        if (number != due) ++violations;
        due = number + 1;
        accumulator = (((accumulator << 5) | (accumulator >> 59)) ^ number) * 0x9E3779B97F4A7C15;
        std::uint64_t x = 1;
        for (std::uint64_t i = 0; i < rounds; ++i) {
            x = x * 6364136223846793005 + 1;
            // Keeps the compiler from seeing through the loop.
            asm volatile("" : "+r"(x));
        }
    }
};

// One count for each worker on a line of its own: counting is not what is measured.
struct alignas(128) Count {
    std::atomic<std::uint64_t> n{0};
};
std::vector<Count>* counts = nullptr;
thread_local std::size_t worker = 0;

std::uint64_t done() {
    std::uint64_t sum = 0;
    for (const auto& count : *counts) sum += count.n.load(std::memory_order_acquire);
    return sum;
}

std::vector<std::vector<Item>> make_streams(std::size_t tasks, std::size_t keys, std::size_t producers,
                                            const char* shape, double parameter) {
    Random random{42};
    const bool zipf = std::strcmp(shape, "zipf") == 0;
    const bool hot = std::strcmp(shape, "hot") == 0;
    std::vector<double> cumulative;
    if (zipf) {
        double sum = 0;
        for (std::size_t rank = 1; rank <= keys; ++rank) {
            sum += std::pow(static_cast<double>(rank), -parameter);
            cumulative.push_back(sum);
        }
    }
    std::size_t step = keys * 5 / 8 + 1;
    while (std::gcd(step, keys) != 1) ++step;
    std::vector<std::uint32_t> numbers(keys);
    std::vector<std::vector<Item>> streams(producers);
    for (std::size_t i = 0; i < tasks; ++i) {
        std::size_t key;
        if (zipf) {
            const double at = random.unit() * cumulative.back();
            const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), at);
            const std::size_t rank = static_cast<std::size_t>(found - cumulative.begin());
            key = std::min(rank, keys - 1) * step % keys;
        } else if (hot && random.unit() < parameter) {
            key = 0;
        } else {
            key = random.below(keys);
        }
        streams[key % producers].push_back({static_cast<std::uint32_t>(key), numbers[key]++});
    }
    return streams;
}

int main(int argc, char** argv) {
    if (argc != 8) {
        std::fprintf(stderr, "usage: program tasks keys producers workers rounds shape parameter\n");
        return 2;
    }
    const auto number_of = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
    const std::size_t tasks = number_of(1), n_keys = number_of(2);
    const std::size_t n_producers = number_of(3), n_workers = number_of(4);
    const std::uint64_t rounds = number_of(5);
    const auto streams = make_streams(tasks, n_keys, n_producers, argv[6], std::strtod(argv[7], nullptr));

    std::vector<Key> keys(n_keys);
    std::vector<Count> own_counts(n_workers);
    counts = &own_counts;
    std::atomic<std::uint64_t> sent{0};
    asio::io_context context(static_cast<int>(n_workers));
    auto guard = asio::make_work_guard(context);
    std::vector<std::thread> workers;
    for (std::size_t i = 0; i < n_workers; ++i) {
        workers.emplace_back([&context, i] {
            worker = i;
            context.run();
        });
    }
    // Each key has one producer, so nobody else looks at its strand before the end.
    const auto produce = [&](const std::vector<Item>& stream) {
        for (std::size_t from = 0; from < stream.size(); from += stride) {
            const std::size_t to = std::min(from + stride, stream.size());
            if (sent.fetch_add(to - from) + (to - from) > window + done()) {
                while (sent.load() > window / 4 * 3 + done()) std::this_thread::sleep_for(nap);
            }
            for (std::size_t i = from; i < to; ++i) {
                const Item item = stream[i];
                Key* key = &keys[item.key];
                if (!key->strand) key->strand.emplace(context.get_executor());
                asio::post(*key->strand, [key, number = item.number, rounds] {
                    key->run(number, rounds);
                    (*counts)[worker].n.fetch_add(1, std::memory_order_release);
                });
            }
        }
    };
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < n_producers; ++i) others.emplace_back(produce, std::cref(streams[i]));
    produce(streams[0]);
    for (auto& other : others) other.join();
    while (done() < tasks) std::this_thread::sleep_for(nap);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;

    guard.reset();
    for (auto& thread : workers) thread.join();
    std::uint64_t ran = 0, violations = 0, sum = 0;
    for (const auto& key : keys) {
        ran += key.due;
        violations += key.violations;
        sum += key.accumulator;
    }
    std::printf("{\"tasks\": %llu, \"seconds\": %.9f, \"violations\": %llu, \"sum\": %llu}\n",
                static_cast<unsigned long long>(ran), elapsed.count(),
                static_cast<unsigned long long>(violations), static_cast<unsigned long long>(sum));
}
