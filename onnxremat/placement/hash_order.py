"""The order in which the released programs walk their hash tables, and their random numbers.

Their ties are broken by both, so that their figures are met only in that order. It is that of GNU's
C++ library: a key hashes to itself; a new key comes first in its bucket, a bucket that was empty
comes first of all; where there are as many keys as buckets, all are put, as they are walked, into
about twice as many (``hashtable_policy.h`` of libstdc++). Random numbers are those of glibc's
``rand``, never seeded (``random_r.c``: an additive feedback generator of degree 31).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count

# Primes that libstdc++ takes one after the other when keys come one by one.
BUCKETS = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061, 712697,
    1447153, 2938679,
)  # fmt: skip
LARGEST, DEGREE = 2**31 - 1, 31  # of the random numbers


def hash_order(keys: Iterable[int]) -> list[int]:
    """Keys as an ``unordered_map<int, ...>`` is walked that got them one by one, repeats once."""
    primes = iter(BUCKETS)
    room = next(primes)
    table: dict[int, list[int]] = {}
    for number, key in enumerate(dict.fromkeys(keys)):
        if number == room:
            walked, room = _walk(table), next(primes)
            table = {}
            for old in walked:
                table.setdefault(_bucket(old, room), []).append(old)
        table.setdefault(_bucket(key, room), []).append(key)
    return _walk(table)


def _bucket(key: int, room: int) -> int:
    return (key % 2**64) % room  # a hash is unsigned


def _walk(table: dict[int, list[int]]) -> list[int]:
    return [key for bucket in reversed(table.values()) for key in reversed(bucket)]


def random_numbers() -> Iterator[int]:
    """What ``rand()`` gives in a process that never called ``srand``."""
    row = [1]
    while len(row) < DEGREE:
        row.append(16807 * row[-1] % LARGEST)
    last = deque(row[3:] + row[:3], DEGREE)
    for turn in count():
        last.append((last[0] + last[-3]) % 2**32)
        if turn >= 10 * DEGREE:
            yield last[-1] >> 1
