"""A worker in Python. The names of its tasks are those that the conformance check asks for."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "sdk"))
import bgrp_worker


@bgrp_worker.task()
def echo(ctx, args):
    return args


@bgrp_worker.task()
def fail(ctx, args):
    raise ValueError(args)


@bgrp_worker.task()
def noise(ctx, args):
    os.write(1, b"\x00\xff{[ no frame, and no end of line")
    return args


@bgrp_worker.task()
def wait(ctx, args):
    while not ctx.cancelled:
        time.sleep(0.01)
    return "cancelled"


@bgrp_worker.task()
def stop(ctx, args):
    sys.exit(args)


@bgrp_worker.batch_task()
def add_one(ctx, numbers):
    return [number + 1 for number in numbers]


bgrp_worker.run()
