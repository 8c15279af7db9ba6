"""Tasks that do what tasks ought not to."""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "sdk"))
import bgrp_worker

kept = []


@bgrp_worker.task()
def exits(ctx, args):
    sys.exit(3)


@bgrp_worker.task()
def interrupts(ctx, args):
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass


@bgrp_worker.task()
def large_error(ctx, args):
    raise ValueError("y" * args)


@bgrp_worker.task()
def no_json(ctx, args):
    return object()


@bgrp_worker.task()
def grows(ctx, args):
    kept.append(args)
    return kept


@bgrp_worker.task()
def forks(ctx, args):
    child = os.fork()
    if child == 0:
        ctx.log("said by a child")
        return "twice"
    os.waitpid(child, 0)
    return "once"


@bgrp_worker.batch_task()
def add_one(ctx, numbers):
    return [n + 1 for n in numbers]


bgrp_worker.run()
