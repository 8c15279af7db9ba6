"""Tasks whose faults are to cost them alone, and tasks that say how they want to be tried again."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "sdk"))
import bgrp_worker


class Throttled(bgrp_worker.RetryAfter):
    def __init__(self):
        pass


@bgrp_worker.task()
def echo(ctx, args):
    return args


@bgrp_worker.task()
def exits_hard(ctx, args):
    os._exit(args)


@bgrp_worker.task()
def closes_all(ctx, args):
    os.closerange(3, 64)


@bgrp_worker.task()
def sleeps(ctx, args):
    time.sleep(args)


@bgrp_worker.task()
def prints(ctx, args):
    os.write(1, b"\xff\xfe raw\n")
    print("printed by", ctx.id)
    ctx.log("logged", "warn")
    os.write(1, b"\x05\x00\x00\x00 no end of line")
    return args


@bgrp_worker.task()
def raises(ctx, args):
    {}["missing"]


@bgrp_worker.task()
def never(ctx, args):
    raise bgrp_worker.NeverAgain("gone for good")


@bgrp_worker.task()
def later(ctx, args):
    if ctx.attempt == 1:
        raise bgrp_worker.RetryAfter(args)
    return ctx.attempt


@bgrp_worker.task()
def throttled(ctx, args):
    raise Throttled()


@bgrp_worker.task()
def for_ever(ctx, args):
    raise bgrp_worker.RetryAfter(float("inf"))


@bgrp_worker.batch_task()
def some_fail(ctx, numbers):
    return [ValueError("odd") if n % 2 else n for n in numbers]


bgrp_worker.run()
