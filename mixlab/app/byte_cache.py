"""A least-recently-used cache with a limit in bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from mixlab.errors import InputError

Value = TypeVar("Value")


class ByteCache(Generic[Value]):
    """A bounded cache for several threads; a missing value is made once, however many ask for it at the same time."""

    def __init__(self, max_bytes: int, size: Callable[[Value], int]) -> None:
        if max_bytes < 1:
            raise InputError(f"a cache of {max_bytes} bytes holds nothing; give it at least 1")
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._size = size
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()  # the last used at the end
        self._lock = threading.Lock()
        self._making: WeakValueDictionary[Hashable, _KeyLock] = WeakValueDictionary()

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Hashable, value: Value) -> None:
        """Keep a value and drop the least recently used ones. A value larger than the cache is not kept."""
        num_bytes = self._size(value)
        with self._lock:
            if key in self._kept:
                self.num_bytes -= self._kept.pop(key)[1]
            if num_bytes > self.max_bytes:
                return
            self._kept[key] = (value, num_bytes)
            self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes:
                _, (_, dropped) = self._kept.popitem(last=False)
                self.num_bytes -= dropped

    def get_or_make(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The cached value, or a new one. If computing it fails, the next waiting thread tries again."""
        with self._lock:
            key_lock = self._making.setdefault(key, _KeyLock())
        with key_lock.lock:
            value = self.get(key)
            if value is None:
                value = make()
                self.put(key, value)
            return value


class _KeyLock:
    def __init__(self) -> None:
        self.lock = threading.Lock()
