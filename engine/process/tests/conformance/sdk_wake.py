"""The thread beside a long task has read a frame while the main loop was about to wait for one: it must not wait."""

import os
import socket
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "sdk"))
import bgrp_worker

ours, theirs = socket.socketpair()
worker = bgrp_worker._Worker(theirs, None)
read = threading.Event()


def main_loop():
    worker.read(True)
    read.set()


with worker.reading:
    threading.Thread(target=main_loop, daemon=True).start()
    ours.sendall(bgrp_worker.HEADER.pack(2, bgrp_worker.TASKS, 0, 0) + b"[]")
    worker.buffer += theirs.recv(64)
    worker.cut()
assert read.wait(10), "it waits for a frame that is there"
