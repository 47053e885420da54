"""The bounded cache."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mixlab.app.byte_cache import ByteCache
from tests.waiting import PATIENCE_S


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache: ByteCache[bytes] = ByteCache(10, size=len)
    for key in "abc":
        cache.put(key, b"xxx")
    assert cache.get("a") == b"xxx"
    cache.put("d", b"xxxx")
    assert [cache.get(key) for key in "abcd"] == [b"xxx", None, b"xxx", b"xxxx"]
    assert cache.num_bytes == 10


def test_a_value_larger_than_the_cache_is_handed_out_but_not_kept() -> None:
    cache: ByteCache[bytes] = ByteCache(4, size=len)
    cache.put("small", b"xx")
    assert cache.get_or_make("large", lambda: b"x" * 9) == b"x" * 9
    assert cache.get("large") is None
    assert cache.get("small") == b"xx"


def test_replacing_a_value_counts_its_bytes_once() -> None:
    cache: ByteCache[bytes] = ByteCache(10, size=len)
    cache.put("a", b"xxxxxx")
    cache.put("a", b"xx")
    assert cache.num_bytes == 2


def test_many_who_ask_at_once_make_the_value_once() -> None:
    cache: ByteCache[bytes] = ByteCache(100, size=len)
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        time.sleep(0.02)
        return b"value"

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: cache.get_or_make("key", make), range(64)))
    assert found == [b"value"] * 64
    assert len(made) == 1


def test_a_failed_attempt_is_left_to_the_next_who_waits() -> None:
    cache: ByteCache[bytes] = ByteCache(100, size=len)
    entered, release = threading.Event(), threading.Event()

    def fail() -> bytes:
        entered.set()
        release.wait(PATIENCE_S)
        raise RuntimeError("cancelled")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get_or_make, "key", fail)
        entered.wait(PATIENCE_S)
        second = pool.submit(cache.get_or_make, "key", lambda: b"value")
        release.set()
        assert second.result(PATIENCE_S) == b"value"
        with pytest.raises(RuntimeError):
            first.result(PATIENCE_S)
