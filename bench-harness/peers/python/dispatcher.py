"""The plain dispatcher: a deque for each key, one condition, a ThreadPoolExecutor. Standard library only.

Arguments: tasks keys producers workers rounds shape parameter. Prints one JSON object.
A key is in the pool at most once. Tasks under way are bounded at CAPACITY; the submitter waits on the condition.
"""

import json
import sys
import threading
import time
from bisect import bisect_right
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from math import gcd

MASK = (1 << 64) - 1
CAPACITY = 1 << 16


class Random:
    """splitmix64, as in workload.rs."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return (self.bits() * n) >> 64

    def unit(self):
        return (self.bits() >> 11) / (1 << 53)


def make_streams(tasks, keys, producers, shape, parameter):
    random = Random(42)
    cumulative = []
    if shape == "zipf":
        total = 0.0
        for rank in range(1, keys + 1):
            total += float(rank) ** -parameter
            cumulative.append(total)
    step = keys * 5 // 8 + 1
    while gcd(step, keys) != 1:
        step += 1
    numbers = [0] * keys
    streams = [[] for _ in range(producers)]
    for _ in range(tasks):
        if shape == "zipf":
            rank = bisect_right(cumulative, random.unit() * cumulative[-1])
            key = min(rank, keys - 1) * step % keys
        elif shape == "hot" and random.unit() < parameter:
            key = 0
        else:
            key = random.below(keys)
        streams[key % producers].append((key, numbers[key]))
        numbers[key] += 1
    return streams


class Key:
    __slots__ = ("accumulator", "due", "scheduled", "violations", "waiting")

    def __init__(self):
        self.waiting = deque()
        self.scheduled = False
        self.due = 0
        self.accumulator = 0
        self.violations = 0

    def run(self, number, microsecond):
        if number != self.due:
            self.violations += 1
        self.due = number + 1
        a = self.accumulator
        a = ((a << 5) | (a >> 59)) & MASK
        self.accumulator = ((a ^ number) * 0x9E3779B97F4A7C15) & MASK
        if microsecond:
            end = time.perf_counter_ns() + 1000
            while time.perf_counter_ns() < end:
                pass


class Dispatcher:
    def __init__(self, workers, microsecond):
        self.changed = threading.Condition()
        self.keys = {}
        self.under_way = 0
        self.microsecond = microsecond
        self.pool = ThreadPoolExecutor(workers)

    def submit(self, key, number):
        with self.changed:
            while self.under_way >= CAPACITY:
                self.changed.wait()
            self.under_way += 1
            entry = self.keys.get(key)
            if entry is None:
                entry = self.keys[key] = Key()
            entry.waiting.append(number)
            if entry.scheduled:
                return
            entry.scheduled = True
        self.pool.submit(self.run, entry)

    def run(self, entry):
        """Runs one task of the key, and comes back for the next after the others."""
        with self.changed:
            number = entry.waiting.popleft()
        entry.run(number, self.microsecond)
        with self.changed:
            self.under_way -= 1
            if self.under_way == 0 or self.under_way == CAPACITY - 1:
                self.changed.notify_all()
            entry.scheduled = bool(entry.waiting)
            if not entry.scheduled:
                return
        self.pool.submit(self.run, entry)

    def drain(self):
        with self.changed:
            while self.under_way > 0:
                self.changed.wait()


def main():
    tasks, keys, producers, workers, rounds = map(int, sys.argv[1:6])
    streams = make_streams(tasks, keys, producers, sys.argv[6], float(sys.argv[7]))
    dispatcher = Dispatcher(workers, rounds > 0)

    def produce(stream):
        for key, number in stream:
            dispatcher.submit(key, number)

    start = time.perf_counter()
    others = [threading.Thread(target=produce, args=(stream,)) for stream in streams[1:]]
    for other in others:
        other.start()
    produce(streams[0])
    for other in others:
        other.join()
    dispatcher.drain()
    seconds = time.perf_counter() - start
    dispatcher.pool.shutdown()
    ran = dispatcher.keys.values()
    print(
        json.dumps(
            {
                "tasks": sum(key.due for key in ran),
                "seconds": seconds,
                "violations": sum(key.violations for key in ran),
                "sum": sum(key.accumulator for key in ran) & MASK,
            }
        )
    )


main()
