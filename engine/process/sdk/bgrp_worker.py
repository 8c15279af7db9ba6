"""Serve Python functions as tasks of Bgrp. One file, standard library only, CPython 3.8 or later.

    import bgrp_worker

    @bgrp_worker.task()
    def double(ctx, n):
        return 2 * n

    bgrp_worker.run()

A task gets a context and its arguments (any JSON value, or bytes) and returns its value (the same). An exception is the
task's error, also SystemExit and KeyboardInterrupt. What is printed goes to the log. The protocol is in
docs/reference/frames.md. Frames are JSON: each is read by one call into C, and values are JSON in MessagePack too.
"""

import binascii
import collections
import faulthandler
import json
import mmap
import os
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback

__all__ = ["task", "batch_task", "run", "RetryAfter", "NeverAgain"]

VERSION = 1
LONGEST = 16 << 20
LARGE = 1 << 20  # longer values go by file
LONGEST_TEXT = 256 << 10
LONGEST_WAIT = 1 << 53  # ms
HELLO, INIT, READY, TASKS, RESULTS, STARTED, LOG, PROGRESS, HEARTBEAT, CANCEL, RECALL, DRAIN, BYE = range(1, 14)
RUNNER_SAYS = (TASKS, CANCEL, RECALL, DRAIN)
HEADER = struct.Struct("<IBBH")
FLUSH_NS = 1_000_000
encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

_tasks = {}


class RetryAfter(Exception):
    """This attempt failed; the next one is not to come before so many seconds."""

    def __init__(self, seconds, message=""):
        super().__init__(message or "again after %s s" % seconds)
        self.seconds = seconds


class NeverAgain(Exception):
    """This attempt failed, and another one would fail too."""


class _Function:
    def __init__(self, call, batch, retry_on):
        self.call, self.batch = call, batch
        self.retry_on = None if retry_on is None else tuple(retry_on) if isinstance(retry_on, (list, tuple)) else (retry_on,)

    def hint(self, error):
        if isinstance(error, RetryAfter):
            try:
                return int(min(max(0.0, float(error.seconds) * 1000), LONGEST_WAIT))
            except Exception:  # no number: a subclass may have left it out
                return -1
        if isinstance(error, NeverAgain):
            return -2
        return -1 if self.retry_on is None or isinstance(error, self.retry_on) else -2


def _register(name, batch, retry_on):
    def register(call):
        _tasks[name or call.__name__] = _Function(call, batch, retry_on)
        return call

    return register


def task(name=None, retry_on=None):
    """Registers f(ctx, args). With `retry_on` (an exception or several) other exceptions are not tried again."""
    return _register(name, False, retry_on)


def batch_task(name=None, retry_on=None):
    """Registers f(ctx, [args, ...]) -> [value, ...]: called with the tasks of one key that came together, in order.

    An exception in the list is the error of that task. A list that ends with one may be short: the rest was not run.
    While it runs, all of the batch is blamed on its first task.
    """
    return _register(name, True, retry_on)


class Context:
    """What a task is told beside its arguments."""

    __slots__ = ("_worker", "_number", "_limit", "_began", "id", "key", "attempt")

    def __init__(self, worker, key, number, id, attempt, limit, began):
        self._worker, self._number, self._limit, self._began = worker, number, limit, began
        self.id, self.key, self.attempt = id, key, attempt

    @property
    def idempotency_key(self):
        """The same for all attempts of this task in this run, and for no other."""
        return "%s-%s" % (self._worker.run_id, self.id)

    @property
    def deadline_left(self):
        """Seconds that are left of this attempt; None where it has no limit."""
        if not self._limit:
            return None
        return max(0.0, self._limit / 1000 - (time.monotonic_ns() - self._began) / 1e9)

    @property
    def cancelled(self):
        """The runner asks the task to end soon."""
        return self._number in self._worker.cancelled

    def log(self, text, level="info"):
        """Says something in the log, with the task's name on it."""
        self._worker.say(LOG, encode([_clean(level), _clean(text), self._number]))

    def progress(self, done, total=0, note=""):
        """Says how far the task is; `total` 0: it is not known."""
        self._worker.say(PROGRESS, encode([self._number, int(done), int(total), _clean(note)]))


def _clean(text, most=LONGEST_TEXT):
    text = str(text)
    if len(text) > most:
        text = "%s [%d characters were cut]" % (text[:most], len(text) - most)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _by_file(data):
    fd, path = tempfile.mkstemp(prefix="bgrp-value-")
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    return path


def _arguments(value):
    kind, what = value
    if kind == 0:
        return what
    if kind == 1:
        return binascii.a2b_base64(what)
    if kind not in (2, 3):
        raise ValueError("%r is no kind of a value" % kind)
    with open(what, "rb") as file:
        data = file.read()
    os.unlink(what)
    return json.loads(data) if kind == 2 else data


def _ok(number, value):
    """A result as text, at once: the value may change later."""
    if type(value) is int:
        return "[%d,0,[0,%d]]" % (number, value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        if len(value) > LARGE:
            return "[%d,0,[3,%s]]" % (number, encode(_by_file(value)))
        return '[%d,0,[1,"%s"]]' % (number, binascii.b2a_base64(value, newline=False).decode())
    text = encode(value)
    if len(text) > LARGE:
        return "[%d,0,[2,%s]]" % (number, encode(_by_file(text.encode())))
    return "[%d,0,[0,%s]]" % (number, text)


def _failed(number, error, hint=-1, name=None):
    try:
        message = _clean(error)
    except BaseException as inner:  # an exception whose text fails
        message = "its text cannot be had: %s" % type(inner).__name__
    try:
        trace = _clean("".join(traceback.format_exception(type(error), error, error.__traceback__, chain=True)))
    except BaseException as inner:
        trace = "its traceback cannot be had: %s" % type(inner).__name__
    return "[%d,1,%s]" % (number, encode([_clean(name or type(error).__name__), message, trace, hint]))


class _Worker:
    def __init__(self, sock, cell):
        self.sock, self.cell = sock, cell
        self.buffer, self.inbox, self.cancelled = bytearray(), collections.deque(), set()
        self.out, self.out_bytes, self.last_flush = [], 0, 0
        self.reading, self.sending = threading.Lock(), threading.RLock()
        self.busy, self.began, self.recalled, self.unsent = threading.Event(), 0, False, []
        self.forked = self.ended = False
        self.run_id = ""

    # --- frames out

    def say(self, kind, text):
        """A frame, behind the results that wait."""
        if self.forked:
            return
        body = text.encode()
        if len(body) > LONGEST:
            raise ValueError("a frame of %d bytes; the longest is %d" % (len(body), LONGEST))
        with self.sending:
            if kind > READY:
                self.flush()
            self.sock.sendall(HEADER.pack(len(body), kind, 0, 0) + body)

    def flush(self):
        if self.forked or not self.out:
            return
        with self.sending:
            # The other thread may append meanwhile: only what is seen here is taken.
            texts = self.out[:]
            del self.out[: len(texts)]
            self.out_bytes = 0
            if not texts:
                return
            body = ("[" + ",".join(texts) + "]").encode()
            if len(body) > LONGEST and len(texts) > 1:  # they were small, and there are many
                half = len(texts) // 2
                bodies = [("[" + ",".join(part) + "]").encode() for part in (texts[:half], texts[half:])]
            else:
                bodies = [body]
            try:
                for body in bodies:
                    self.sock.sendall(HEADER.pack(len(body), RESULTS, 0, 0) + body)
            except OSError:
                self.unsent += texts
                raise
        self.last_flush = time.monotonic_ns()

    def answer(self, text):
        self.out.append(text)
        self.out_bytes += len(text)
        if self.out_bytes > LARGE or len(self.out) >= 1024:
            self.flush()

    # --- frames in

    def read(self, block):
        """Reads once. False at the end of the stream."""
        with self.reading:
            if block and self.inbox:
                return True  # the other thread read it meanwhile: there may be nothing more to wait for
            try:
                data = self.sock.recv(1 << 18, 0 if block else socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return True
            except ConnectionError:
                data = b""
            if not data:
                self.ended = True
                return False
            self.buffer += data
            self.cut()
            return True

    def cut(self):
        at, buffer, size = 0, self.buffer, len(self.buffer)
        while size - at >= 8:
            length, kind, flags, zero = HEADER.unpack_from(buffer, at)
            if length > LONGEST or flags or zero or not HELLO <= kind <= BYE:
                raise ValueError("not a frame: length %d, type %d, flags %d" % (length, kind, flags))
            if size - at < 8 + length:
                break
            body = bytes(buffer[at + 8 : at + 8 + length])
            at += 8 + length
            if kind == CANCEL:
                self.cancelled.add(json.loads(body)[0])
            elif kind == RECALL:
                self.recalled = True
                # One by one: the main thread may take frames out meanwhile.
                kept = []
                while True:
                    try:
                        frame = self.inbox.popleft()
                    except IndexError:
                        break
                    if frame[0] == TASKS:
                        self.not_run(json.loads(frame[1]))
                    else:
                        kept.append(frame)
                self.inbox.extend(kept)
            else:
                self.inbox.append((kind, body))
        del buffer[:at]

    def not_run(self, groups):
        for _, _, tasks in groups:
            for each in tasks:
                self.answer("[%d,2,null]" % each[0])

    def watch(self, flush, heartbeat):
        """Beside a long task: sends what waits, says that the worker lives, hears CANCEL."""
        said = time.monotonic()
        while True:
            self.busy.wait()
            time.sleep(flush)
            try:
                self.flush()
                if self.began and time.monotonic_ns() - self.began > 20_000_000:
                    self.read(False)
                if time.monotonic() - said >= heartbeat and self.busy.is_set():
                    said = time.monotonic()
                    self.say(HEARTBEAT, "[]")
            except Exception:
                return  # the socket is gone: the loop finds that out

    # --- tasks

    def run_frame(self, groups):
        self.recalled = False
        for key, stops, tasks in groups:
            at = 0
            while at < len(tasks):
                if self.recalled:
                    self.not_run([(key, stops, tasks[at:])])
                    break
                done, failed = self.run_some(key, stops, tasks, at)
                at += done
                if failed and stops:
                    self.not_run([(key, stops, tasks[at:])])
                    break

    def run_some(self, key, stops, tasks, at):
        """Runs a task, or a batch. How many, and whether one failed."""
        number, id, name, attempt, limit, args = tasks[at]
        function = _tasks.get(name)
        if function is None and name is None and len(_tasks) == 1:
            function = next(iter(_tasks.values()))
        if function is None:
            known = ", ".join(sorted(_tasks))
            error = LookupError("%s: this worker knows %s" % (name or "a task without a name", known))
            self.answer(_failed(number, error, -2, "unknown_task"))
            return 1, True
        cell, clock = self.cell, time.monotonic_ns
        began = self.began = clock()
        if cell is not None:
            cell[1] = began
            cell[0] = number
        count, text = 1, None
        try:
            context = Context(self, key, number, id, attempt, limit, began)
            if function.batch:
                while at + count < len(tasks) and tasks[at + count][2] == name:
                    count += 1
                return self.run_batch(function, context, stops, tasks[at : at + count])
            value = function.call(context, args[1] if args[0] == 0 else _arguments(args))
            text = _ok(number, value)
            return 1, False
        except BaseException as error:
            text = _failed(number, error, function.hint(error))
            return 1, True
        finally:
            if self.forked:
                # A child of the task that came back from it: what it says would be said twice.
                os._exit(0)
            if cell is not None:
                cell[0] = 0
            self.began = 0
            if self.cancelled:
                self.cancelled.discard(number)
            if text is not None:
                self.answer(text)
            if clock() - self.last_flush > FLUSH_NS:
                self.flush()

    def run_batch(self, function, context, stops, tasks):
        try:
            values = list(function.call(context, [_arguments(each[5]) for each in tasks]))
            short = values and isinstance(values[-1], BaseException)
            if len(values) > len(tasks) or (len(values) < len(tasks) and not short):
                raise ValueError("%d values for %d tasks" % (len(values), len(tasks)))
        except BaseException as error:
            # Which of them failed is not known. With the stop flag the first one is tried again before the others.
            for each in tasks[: 1 if stops else None]:
                self.answer(_failed(each[0], error, function.hint(error)))
            if stops:
                self.not_run([(None, stops, tasks[1:])])
            return len(tasks), True
        failed = False
        for each, value in zip(tasks, values):
            if not isinstance(value, BaseException):
                try:
                    self.answer(_ok(each[0], value))
                    continue
                except Exception as error:
                    value = error
            failed = True
            self.answer(_failed(each[0], value, function.hint(value)))
        self.not_run([(None, stops, tasks[len(values) :])])
        return len(tasks), failed

    def serve(self):
        encodings, pid = ["json"], os.getpid()
        sdk = "python %d.%d" % sys.version_info[:2]
        self.say(HELLO, encode({"versions": [VERSION], "encodings": encodings, "sdk": sdk, "pid": pid}))
        while not self.inbox:
            if not self.read(True):
                return 0
        kind, body = self.inbox.popleft()
        if kind == DRAIN:  # not wanted any more before it was ready
            self.say(BYE, '["drained"]')
            return 0
        if kind != INIT:
            raise ValueError("type %d where INIT is wanted" % kind)
        init = json.loads(body)
        self.run_id = init["run"]
        self.say(READY, encode({"tasks": sorted(_tasks), "cell": self.cell is not None, "batch": True, "recall": True}))
        flush = max(1, init.get("flush_ms", 5)) / 1000
        heartbeat = (init.get("heartbeat_ms") or 1e12) / 1000
        threading.Thread(target=self.watch, args=(flush, heartbeat), name="bgrp-watch", daemon=True).start()
        while True:
            while self.inbox:
                try:
                    kind, body = self.inbox.popleft()
                except IndexError:  # recalled meanwhile
                    break
                if kind == TASKS:
                    self.busy.set()
                    self.run_frame(json.loads(body))
                elif kind == DRAIN:
                    self.busy.clear()
                    self.say(BYE, '["drained"]')
                    return 0
                elif kind not in RUNNER_SAYS:
                    raise ValueError("type %d is not for a worker" % kind)
            self.flush()
            self.busy.clear()
            if self.ended or not self.read(True):
                return 0

    def blame(self):
        """The channel is broken, not closed by the runner. If one result only could not be sent, its task has broken it, by closing all
        descriptors, say. Of several it cannot be told; the first result of the next worker is sent at once, so it comes out in the end."""
        unsent = self.unsent + self.out
        if self.cell is not None and len(unsent) == 1 and not self.forked:
            self.cell[1] = time.monotonic_ns()
            self.cell[0] = int(unsent[0][1 : unsent[0].index(",")])

    def after_fork(self):
        self.forked = True
        self.sock.close()


def run():
    """Serves the registered tasks until the runner says that it is enough, or is gone; then ends the process."""
    faulthandler.enable()
    number = os.environ.pop("BGRP_FD", None)
    if number is None:
        sys.exit("bgrp_worker: BGRP_FD is not set: a runner starts workers")
    # What is printed belongs to the task that runs.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    os.set_inheritable(int(number), False)
    sock, cell = socket.socket(fileno=int(number)), None
    fd = os.environ.pop("BGRP_CELL", None)
    if fd is not None and sys.byteorder == "little":
        # Whole words are stored at once, which `struct` does not promise.
        cell = memoryview(mmap.mmap(int(fd), 4096)).cast("Q")
        os.close(int(fd))
    worker = _Worker(sock, cell)
    os.register_at_fork(after_in_child=worker.after_fork)
    code = 1
    try:
        code = worker.serve()
    except BrokenPipeError:
        code = 0  # the runner is gone
    except BaseException:
        worker.blame()
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(code)
