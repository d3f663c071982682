"""Functions of the tests, which runners import by name."""

import os
import signal
import threading
import time

from springtide import join, log, progress, spawn, task


@task
def fib(n, delay=0.0):
    if n < 2:
        time.sleep(delay)
        return n
    a, b = join(fib.call(n - 1, delay), fib.call(n - 2, delay))
    return a + b


@task
def total(start, end):
    """The sum of a range, by children that are spawned and joined in another order."""
    if end - start <= 4:
        return sum(range(start, end))
    middle = (start + end) // 2
    children = [spawn(total, start, middle), spawn(total, middle, end)]
    return sum(child.join() for child in reversed(children))


def square(x):
    return x * x


def slow(x, seconds):
    time.sleep(seconds)
    return x


def fail(text):
    raise ValueError(text)


@task
def fail_below(n):
    if n == 0:
        raise KeyError("below")
    return join(square_task.call(2), fail_below.call(n - 1))


@task
def square_task(x):
    return x * x


def loud(x):
    print("a line of a task", flush=True)
    os.write(1, b"\x00\x01\x02 bytes of a task\n")
    os.system("echo a line of a program")
    return x


def reports(done):
    log("a record", "warn")
    progress(done, 4, "files")
    print("no end of line", end="")
    return done


@task
def waits_forever(marker):
    """Writes the number of its process, and ends only when it is ended."""
    with open(marker + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(marker + ".new", marker)
    while True:
        time.sleep(1)


@task
def waits_below(markers):
    """Waits for children that do not end by themselves."""
    return join(*(waits_forever.call(marker) for marker in markers))


@task
def dies_once(marker, n):
    """Ends its process the first time, after it has created a child."""
    child = spawn(square_task, n)
    if not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return child.join()


def exits():
    raise SystemExit(4)


def spawns_in_a_thread():
    """The error of a thread that is not the task's."""
    errors = []

    def run():
        try:
            spawn(square_task, 1)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def processes(seconds):
    """The processes of the node and of the runner."""
    time.sleep(seconds)
    return os.getppid(), os.getpid()


def length(shared):
    return len(shared.value), id(shared.value)


@task
def first_of_shared(shared, depth):
    if depth == 0:
        return int(shared.value[0])
    return sum(join(first_of_shared.call(shared, depth - 1), first_of_shared.call(shared, depth - 1)))
