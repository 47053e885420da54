"""Mutations of files, seeded, and a child process that bears them: a crash, a hang and too much memory are all seen.

`MIXLAB_FAULTS=all` tries all of them, `MIXLAB_FAULT_SEED` changes them.
"""

import json
import multiprocessing
import os
import random
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

ALL = os.environ.get("MIXLAB_FAULTS") == "all"
SEED = int(os.environ.get("MIXLAB_FAULT_SEED", "0"))
HANG_S = 120  # of one attempt: a hundred times what it takes on a busy machine
Attempt = Callable[[random.Random], str]  # returns its outcome in a word


def fuzz(name: str, attempt: Attempt, *, few: int, many: int, memory_mb: int) -> Counter[str]:
    """Outcomes of `few` attempts, or of `many`; fails on the first that raises, hangs, or dies.

    `memory_mb` is what the process may grow by: more is refused by the system, and the attempt fails.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_bear, args=(sender, name, attempt, many if ALL else few, memory_mb)
    )
    start = time.monotonic()
    child.start()
    sender.close()
    number, outcomes, growth = -1, Counter[str](), 0.0
    try:
        while (said := receiver.recv())[0] != "done":
            number = said[1]
            if said[0] == "failed":
                pytest.fail(f"{name}, attempt {number} of seed {SEED}:\n{said[2]}")
        _, outcomes, growth = said
    except EOFError:
        child.join(10)
        how = "hung" if child.exitcode == -signal.SIGALRM else f"died with {child.exitcode}"
        pytest.fail(f"{name}, attempt {number} or one of the next {REPORT_EVERY} of seed {SEED}: {how}")
    child.join(10)
    assert growth < memory_mb, f"{name}: the process grew by {growth:.0f} MB"
    took = time.monotonic() - start
    print(f"\n{name}: {sum(outcomes.values())} attempts in {took:.0f} s, {dict(outcomes)}, grew by {growth:.0f} MB")
    return outcomes


REPORT_EVERY = 20


def _bear(sender: Connection, name: str, attempt: Attempt, count: int, memory_mb: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, also inside of C
    limit = _virtual_bytes() + memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    before, outcomes = _peak_mb(), Counter[str]()
    for number in range(count):
        if number % REPORT_EVERY == 0:
            sender.send(("at", number))
        signal.alarm(HANG_S)
        try:
            outcomes[attempt(random.Random(f"{SEED} {name} {number}"))] += 1
        except BaseException:
            sender.send(("failed", number, traceback.format_exc()))
            os._exit(1)
    signal.alarm(0)
    sender.send(("done", outcomes, _peak_mb() - before))
    os._exit(0)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut, repeated, moved or put in; now and then many."""
    content = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if not content:
            break
        place, length = chance.randrange(len(content)), chance.choice((1, 2, 4, 8, 64))
        match chance.randrange(7):
            case 0:
                content[place] ^= 1 << chance.randrange(8)
            case 1:
                content[place] = chance.choice((0, 1, 127, 128, 254, 255))
            case 2:
                del content[place:]
            case 3:
                del content[place : place + length]
            case 4:
                content[place:place] = content[place : place + length]
            case 5:
                content[place : place + length] = chance.randbytes(length)
            case 6:
                number = chance.choice((0, 1, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1))
                content[place : place + 4] = number.to_bytes(4, chance.choice(("big", "little")))
    return bytes(content)


STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 10**30, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "-1",
    "<b>", "\ud800", "a" * 3000, "/", [], [None], [[]], {}, {"": None}, [1, "x", {}], {"label": 7}, "vit", "auc",
)  # fmt: skip


def mutated_json(value: Any, chance: random.Random) -> Any:
    """The same value with some of its parts replaced, left out, repeated or swapped."""
    content = json.loads(json.dumps(value))
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        holder, key = _somewhere(content, chance)
        if holder is None:
            return deepcopy(chance.choice(STRANGE))
        match chance.randrange(6):
            case 0 | 1 | 2:
                holder[key] = deepcopy(chance.choice(STRANGE))
            case 3:
                del holder[key]
            case 4 if isinstance(holder, list):
                holder.insert(key, holder[key])
            case 4:
                holder[chance.choice(("label", "kind", "extra"))] = holder[key]
            case 5:
                other, place = _somewhere(content, chance)
                if other is not None:
                    holder[key] = json.loads(json.dumps(other[place]))
    return content


def _somewhere(content: Any, chance: random.Random) -> tuple[Any, Any]:
    """A container inside of `content`, and one of its keys; (None, None) where there is none."""
    holder, key = None, None
    part = content
    while isinstance(part, dict | list) and part:
        holder = part
        key = chance.randrange(len(part)) if isinstance(part, list) else chance.choice(list(part))
        part = part[key]
        if chance.random() < 0.25:
            break
    return holder, key


def json_text(value: Any, chance: random.Random) -> bytes:
    """JSON as a file has it, once in a while with damaged bytes."""
    data = json.dumps(value, ensure_ascii=chance.random() < 0.9).encode(errors="surrogatepass")
    return mutated(data, chance) if chance.random() < 0.15 else data
